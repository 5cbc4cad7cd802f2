"""What is to be reached, T1 to T17: which workloads and subjects each row needs, and how it is judged. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from tests.bench import figures
from tests.bench.figures import Metric, Series, Spread, Workload

C1 = Workload("1 in flight", 1)
C16 = Workload("16 in flight", 16)
C64 = Workload("64 in flight", 64)
C64_LONG = Workload("64 in flight, turns of 15 s", 64, lasts=10)
"""Longer than the delivery window: what waits for its end is seen."""
C256 = Workload("256 in flight", 256)
TEN_KB = Workload("10 KB, 64 in flight", 64, size=10_000)
SIXTY_KB = Workload("60 KB, 16 in flight", 16, size=60_000)
TEN_KB_PADDED = Workload("10 KB in one string, 64 in flight", 64, size=10_000, nested=False)
SIXTY_KB_PADDED = Workload("60 KB in one string, 16 in flight", 16, size=60_000, nested=False)
DELAYED = Workload("executor takes 20 ms, 64 in flight", 64, delay=0.02)
STORES_C1 = Workload("1 in flight, by store", 1)
STORES_C64 = Workload("64 in flight, by store", 64)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a gateway."""

    sessions: int = 1
    watched: bool = False
    """Whether it copies each outcome to a destination, and has a follower and a reader of its API."""
    engine: Literal["sqlite", "postgres"] = "sqlite"
    delivery_window: float | None = None
    """Seconds of silence that count as delivered; the default where none are said."""
    which: Literal["this", "old", "base"] = "this"
    """This checkout, the one that was given, or the one that T16 is measured against."""


BASE = "6fc94d9"
"""The commit that T16 is measured against, where no other checkout is given."""
ONE, SOME, MANY = "gateway", "gateway, 16 sessions", "gateway, 256 sessions"
BRISK = "gateway, 256 sessions, brisk"
WATCHED, MANY_WATCHED = "gateway, watched", "gateway, 256 sessions, watched"
POSTGRES, BASE_POSTGRES = "gateway on PostgreSQL", "base on PostgreSQL"
VARIANTS: Mapping[str, Variant] = {
    ONE: Variant(),
    SOME: Variant(16),
    MANY: Variant(256),
    BRISK: Variant(256, delivery_window=0.5),
    WATCHED: Variant(watched=True),
    MANY_WATCHED: Variant(256, watched=True),
    POSTGRES: Variant(16, engine="postgres"),
    BASE_POSTGRES: Variant(16, engine="postgres", which="base"),
    "old": Variant(which="old"),
    "old, 256 sessions": Variant(256, which="old"),
}
OLD = {ONE: "old", MANY: "old, 256 sessions"}
"""Which of them is run of the other checkout, too, where there is one."""
FLOORS = ("httpx", "best", "node", "raw")
BESIDE: Mapping[Workload, tuple[str, ...]] = {
    C1: ("best", "raw"),
    C64: (SOME, "raw"),
    C256: ("best",),
    STORES_C1: (SOME,),
    STORES_C64: (SOME,),
}
"""Who is run as well when all rows of a workload are: for the pictures, and to see how fast the peers can be."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One number to reach."""

    must: float
    stretch: float
    better: Literal["more", "less"]

    def judge(self, value: float) -> Literal["yes", "stretch", "no"]:
        """Say whether a value reaches it."""
        sign = 1 if self.better == "more" else -1
        if sign * value >= sign * self.stretch:
            return "stretch"
        return "yes" if sign * value >= sign * self.must else "no"

    def __str__(self) -> str:
        return f"{self.say(self.must)} ({self.say(self.stretch)})"

    def say(self, value: float) -> str:
        """Write one of the two."""
        return f"{'≥' if self.better == 'more' else '≤'} {figures.digits(value)}"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of subjects under one workload: what stands above, multiplied, over what stands below."""

    name: str
    """T1 … T17."""
    key: str
    """Its name in the JSON."""
    what: str
    workload: Workload
    metric: Metric
    above: tuple[str, ...]
    below: tuple[str, ...] = ()
    goal: Goal | None = None
    judges: bool = True
    """Whether it decides; throughput is reported beside processor time."""

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.above + self.below

    def value(self, series: Series, rename: Mapping[str, str] | None = None) -> Spread | None:
        """Sum up all turns; None where one of the subjects was not run."""
        above, below = ([(rename or {}).get(name, name) for name in names] for names in (self.above, self.below))
        if not {*above, *below} <= series.taken.keys():
            return None
        turns = range(min(len(series.taken[name]) for name in (*above, *below)))

        def multiply(names: list[str], turn: int) -> float:
            return prod(self.metric(series.taken[name][turn]) for name in names)

        return Spread.of([multiply(above, turn) / multiply(below, turn) for turn in turns])


def _kilobytes(one: figures.Measurement) -> float:
    return one.written / 1000


def _less(must: float, stretch: float) -> Goal:
    return Goal(must, stretch, "less")


def _more(must: float, stretch: float) -> Goal:
    return Goal(must, stretch, "more")


Sides = tuple[tuple[str, ...], tuple[str, ...]]
"""What stands above the line, and below."""


def _cpu(name: str, key: str, what: str, workload: Workload, sides: Sides, goal: Goal | None = None) -> Row:
    return Row(name, key, what, workload, figures.cpu, *sides, goal)


def _p50(name: str, key: str, what: str, workload: Workload, sides: Sides, goal: Goal) -> Row:
    return Row(name, key, what, workload, figures.p50, *sides, goal)


def _rate(name: str, key: str, what: str, workload: Workload, sides: Sides, goal: Goal) -> Row:
    return Row(name, key, what, workload, figures.rate, *sides, goal, judges=False)


_ALONE: Sides = ((ONE,), ())
_HTTPX: Sides = ((ONE,), ("httpx",))
_BEST: Sides = ((ONE,), ("best",))
_NODE: Sides = ((ONE,), ("node",))
_MANY_ONE: Sides = ((MANY,), (ONE,))
_MANY_BEST: Sides = ((MANY,), ("best",))
_MANY_WATCHED: Sides = ((MANY_WATCHED, ONE), (WATCHED, MANY))
_ON_BASE: Sides = ((POSTGRES,), (BASE_POSTGRES,))
_AND = "with a `copy_to`, a follower and a reader / without"
ROWS = (
    _cpu("T5", "c64", "CPU per call at 64, one session / httpx", C64, _HTTPX, _less(0.17, 0.11)),
    _cpu("T5m", "c64", "CPU at 64 over 256 sessions / over one", C64, _MANY_ONE, _less(1.5, 1.3)),
    _cpu("T5m", "watched", f"the same {_AND}", C64, _MANY_WATCHED, _less(1.3, 1.3)),
    _cpu("T5m", "watched_c64", f"CPU at 64, one session, {_AND}", C64, ((WATCHED,), (ONE,))),
    _cpu("T5m", "watched_c64_256", f"CPU at 64 over 256 sessions, {_AND}", C64, ((MANY_WATCHED,), (MANY,))),
    _cpu("T5m", "brisk", "CPU at 64 over 256 sessions, delivered after 0.5 s / after 5 s", C64, ((BRISK,), (MANY,))),
    _cpu("T5b", "c64", "CPU at 64 over 256 sessions / best over one", C64, _MANY_BEST, _less(1.6, 0.9)),
    _rate("T1", "c64", "calls/s at 64 / httpx", C64, _HTTPX, _more(6, 9)),
    _rate("T1", "c256", "calls/s at 256 / httpx", C256, _HTTPX, _more(6, 9)),
    _rate("T1", "c64_long", "calls/s at 64 for 15 s without a pause / httpx", C64_LONG, _HTTPX, _more(6, 9)),
    _rate("T2", "c64", "calls/s at 64 / best", C64, _BEST, _more(0.9, 1.2)),
    _rate("T3", "c16_httpx", "calls/s at 16 / httpx", C16, _HTTPX, _more(3.5, 5)),
    _rate("T3", "c16_best", "calls/s at 16 / best", C16, _BEST, _more(0.6, 0.8)),
    _p50("T4", "c1", "p50 at 1 / httpx", C1, _HTTPX, _less(1.25, 0.95)),
    _rate("T6", "c64", "calls/s at 64 / Node + undici", C64, _NODE, _more(0.3, 0.5)),
    _cpu("T7", "10KB_c64", "10 KB nested at 64: CPU / httpx", TEN_KB, _HTTPX, _less(0.35, 0.25)),
    _cpu("T7", "60KB_c16", "60 KB nested at 16: CPU / httpx", SIXTY_KB, _HTTPX, _less(0.7, 0.4)),
    _cpu("T7", "10KB_c64_padded", "10 KB in one string at 64: CPU / httpx", TEN_KB_PADDED, _HTTPX),
    _cpu("T7", "60KB_c16_padded", "60 KB in one string at 16: CPU / httpx", SIXTY_KB_PADDED, _HTTPX),
    _p50("T8", "p50", "20 ms of executor, 64 in flight: p50 / best", DELAYED, _BEST, _less(1.25, 1.1)),
    Row("T13", "c64", "KB written per call at 64", C64, _kilobytes, *_ALONE, _less(6, 3)),
    Row("T13", "c1", "KB written per call at 1", C1, _kilobytes, *_ALONE, _less(20, 8)),
    Row("T13", "watched", f"KB written at 64 {_AND}", C64, _kilobytes, (WATCHED,), (ONE,), _less(1.3, 1.3)),
    Row("T13", "c64_pages", "pages written per call at 64", C64, figures.writes, *_ALONE),
    Row("T13", "c1_pages", "pages written per call at 1", C1, figures.writes, *_ALONE),
    _cpu("T16", "c64", "PostgreSQL, 16 sessions: CPU at 64 / the base's", STORES_C64, _ON_BASE, _less(0.6, 0.45)),
    _p50("T16", "c1", "PostgreSQL, 16 sessions: p50 at 1 / the base's", STORES_C1, _ON_BASE, _less(0.5, 0.4)),
)
OTHER_GOALS: Mapping[tuple[str, str], tuple[str, Goal]] = {
    ("T9", "kib_per_session"): ("KiB per idle session", _less(35, 20)),
    ("T9", "rss_mib"): ("MiB of memory with 2,000 idle sessions", _less(150, 110)),
    ("T10", "burst"): ("burst to 1,000 followers: deliveries/s / one queue each", _more(8, 12)),
    ("T11", "slowest"): ("decode and encode / the JSON alone, slowest adapter", _less(8, 5)),
    ("T12", "lost"): ("outcomes lost in a soak", _less(0, 0)),
    ("T12", "different"): ("outcomes told differently", _less(0, 0)),
    ("T12", "doubled"): ("outcomes told twice over one link", _less(0, 0)),
    ("T14", "chunk"): ("µs of CPU for a chunk of Herm's, one by one", _less(100, 60)),
    ("T15", "ready"): ("restart with 5,000 sessions: seconds until ready", _less(5, 2)),
    ("T17", "added"): ("ms of CPU that a call over MCP adds to what the library takes", _less(1.5, 1)),
    ("T15", "links"): ("restart with 5,000 sessions: seconds until all links are up", _less(20, 10)),
}  # fmt: skip
"""What is measured otherwise, by name and key."""
