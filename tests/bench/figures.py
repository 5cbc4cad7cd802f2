"""One measurement, and what repeated measurements of two subjects say about each other. Pure."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KIB = 1024
QUANTILES = (0, 10, 50, *range(100, 1000, 50), 975, 990, 995, 999, 1000)
"""Thousandths of the calls whose latency is kept."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One way to load a subject."""

    name: str
    window: int
    """Calls in flight."""
    size: int = 80
    """Bytes of arguments."""
    nested: bool = True
    """Whether they are a list of objects, or one long string."""
    delay: float = 0.0
    """Seconds that the webhook takes."""
    share: float = 0.0
    """Of an open loop, which starts calls at the rate at which `best` uses this share of its core; 0: a closed loop."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one repetition of one workload said of one subject."""

    calls: int
    rate: float
    """Calls per second."""
    p50: float
    p99: float
    """Seconds from the call's leaving the runtime to its result's arrival."""
    quantiles: Sequence[float]
    """The same at `QUANTILES`."""
    cpu: float
    """Seconds that the subject's threads were on a core, per call, until each result was marked delivered."""
    written: float
    """Bytes that went to the disk, per call, until then."""
    writes: float
    """Pages of the store that were written, per call, until then."""
    busy: float
    """Share of one core that the subject used."""
    peers_busy: float
    """Share of one core that the peers used: while it is well below 1 they are not the bottleneck."""
    rss: int
    made: int
    lost: int
    doubled: int
    different: int
    posts: int
    signed: int

    @property
    def faults(self) -> int:
        """How many calls did not get exactly one right result after exactly one request."""
        return self.lost + self.doubled + self.different + abs(self.posts - self.made)


Metric = Callable[[Measurement], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the most of all repetitions."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Sum values up."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{digits(self.median)} ({digits(self.low)}-{digits(self.high)})"


@dataclass(slots=True)
class Series:
    """All turns of one workload, by subject; equal places belong together."""

    workload: Workload
    taken: dict[str, list[Measurement]] = field(default_factory=dict[str, list[Measurement]])

    def add(self, subject: str, measurement: Measurement) -> None:
        """Take note of one repetition."""
        self.taken.setdefault(subject, []).append(measurement)

    def of(self, subject: str, metric: Metric) -> Spread:
        """Sum one subject up."""
        return Spread.of([metric(one) for one in self.taken[subject]])

    @property
    def faults(self) -> int:
        """How many calls went wrong in all repetitions of all subjects."""
        return sum(one.faults for taken in self.taken.values() for one in taken)

    def summary(self, subject: str) -> dict[str, Any]:
        """List one subject's medians, in units that read well."""
        taken = self.taken[subject]
        return {
            "workload": asdict(self.workload),
            "subject": subject,
            "repetitions": len(taken),
            "calls": sum(one.calls for one in taken),
            "calls_per_s": round(self.of(subject, rate).median, 1),
            "p50_ms": round(self.of(subject, p50).median * 1000, 4),
            "p99_ms": round(self.of(subject, p99).median * 1000, 4),
            "cpu_us_per_call": round(self.of(subject, cpu).median * 1e6, 2),
            "bytes_written_per_call": round(self.of(subject, written).median),
            "writes_per_call": round(self.of(subject, writes).median, 2),
            "latency_ms": {
                str(at / 10): round(statistics.median(one.quantiles[place] for one in taken) * 1000, 3)
                for place, at in enumerate(QUANTILES)
            },
            "busy": round(self.of(subject, busy).median, 3),
            "peers_busy": round(self.of(subject, peers_busy).median, 3),
            "rss_mib": round(max(one.rss for one in taken) / KIB**2, 1),
            "lost": sum(one.lost for one in taken),
            "doubled": sum(one.doubled for one in taken),
            "different": sum(one.different for one in taken),
            "repeated_requests": sum(one.posts - one.made for one in taken),
        }


def rate(one: Measurement) -> float:
    """Calls per second."""
    return one.rate


def p50(one: Measurement) -> float:
    """Median latency."""
    return one.p50


def p99(one: Measurement) -> float:
    """Latency of the slowest hundredth."""
    return one.p99


def p999(one: Measurement) -> float:
    """Latency of the slowest thousandth."""
    return one.quantiles[QUANTILES.index(999)]


def tail(one: Measurement) -> float:
    """Latency of the slowest hundredth over the median."""
    return one.p99 / one.p50


def cpu(one: Measurement) -> float:
    """Processor time per call."""
    return one.cpu


def written(one: Measurement) -> float:
    """Bytes to the disk per call."""
    return one.written


def writes(one: Measurement) -> float:
    """Pages written per call."""
    return one.writes


def busy(one: Measurement) -> float:
    """Share of a core."""
    return one.busy


def peers_busy(one: Measurement) -> float:
    """Share of a core that the peers used."""
    return one.peers_busy


def digits(value: float) -> str:
    """Write a number with three digits that matter."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
