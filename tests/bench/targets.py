"""What is to be reached, T1 to T24: which workloads and subjects each row needs, and how it is judged. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.bench import figures
from tests.bench.figures import Metric, Series, Spread, Workload

C1 = Workload("1 in flight", 1)
C64 = Workload("64 in flight", 64)
QUARTER = Workload("open loop, best at a quarter of its core", 0, share=0.25)
HALF = Workload("open loop, best at half of its core", 0, share=0.5)
TEN_KB = Workload("10 KB, 64 in flight", 64, size=10_000)
SIXTY_KB = Workload("60 KB, 16 in flight", 16, size=60_000)
DELAYED = Workload("executor takes 20 ms, 64 in flight", 64, delay=0.02)
POSTGRES_C1 = Workload("1 in flight, PostgreSQL", 1)
POSTGRES_C64 = Workload("64 in flight, PostgreSQL", 64)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a gateway."""

    sessions: int = 1
    engine: Literal["sqlite", "postgres"] = "sqlite"
    stored: bool = False
    """Whether its database holds `Effort.stored` calls already."""
    base: bool = False
    """Whether it is the commit `BASE` instead of this checkout."""


BASE = "6fc94d9"
"""The commit that T16 is measured against."""
ONE, SOME, MANY = "gateway", "gateway, 16 sessions", "gateway, 256 sessions"
STORED = "gateway, 256 sessions, stored"
POSTGRES, BASE_POSTGRES = "gateway on PostgreSQL", "base on PostgreSQL"
VARIANTS: Mapping[str, Variant] = {
    ONE: Variant(),
    SOME: Variant(16),
    MANY: Variant(256),
    STORED: Variant(256, stored=True),
    POSTGRES: Variant(16, engine="postgres"),
    BASE_POSTGRES: Variant(16, engine="postgres", base=True),
}
HTTPX_256 = "httpx, 256 sessions"
BEST_16, BEST_256 = "best, 16 sessions", "best, 256 sessions"
FLOORS = ("httpx", "best", HTTPX_256, BEST_16, BEST_256)
COMPARED = frozenset({"T4", "T5", "T5m", "T8", "T18", "T21", "T22"})
"""Which rows are measured of earlier commits as well, where they are given."""


def of_commit(subject: str, commit: str) -> str:
    """Name what an earlier commit runs in place of a subject; floors have none."""
    return commit + subject.removeprefix(ONE) if subject in VARIANTS else subject


def place(name: str) -> tuple[int, str]:
    """Say where a row stands: T5m behind T5, T10 behind T9."""
    return len(name.removesuffix("m")), name


@dataclass(frozen=True, slots=True)
class Goal:
    """One number to reach, and a better one."""

    must: float
    stretch: float | None
    better: Literal["more", "less"]

    def judge(self, value: float) -> Literal["yes", "stretch", "no"]:
        """Say whether a value reaches it."""
        sign = 1 if self.better == "more" else -1
        if self.stretch is not None and sign * value >= sign * self.stretch:
            return "stretch"
        return "yes" if sign * value >= sign * self.must else "no"

    @property
    def bounds(self) -> tuple[str, str]:
        """Write both."""
        sign = "≥" if self.better == "more" else "≤"
        must, stretch = (
            f"{sign} {figures.digits(value)}" if value is not None else "" for value in (self.must, self.stretch)
        )
        return must, stretch


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of a subject under one workload, over the same figure of another subject where one stands below."""

    name: str
    """T1 … T22."""
    key: str
    """Its name in the JSON."""
    what: str
    workload: Workload
    metric: Metric
    above: str
    below: str | None = None
    goal: Goal | None = None
    """None where it is shown and decides nothing."""

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.above,) if self.below is None else (self.above, self.below)

    def value(self, series: Series, commit: str | None = None) -> Spread | None:
        """Compare turn by turn, this checkout or an earlier commit; None where a subject was not run."""
        names = [name if commit is None else of_commit(name, commit) for name in self.subjects]
        if not {*names} <= series.taken.keys():
            return None
        above, *below = ([self.metric(one) for one in series.taken[name]] for name in names)
        return Spread.of([one / floor for one, floor in zip(above, *below, strict=True)] if below else above)


def _kilobytes(one: figures.Measurement) -> float:
    return one.written / 1000


def _less(must: float, stretch: float | None = None) -> Goal:
    return Goal(must, stretch, "less")


def _more(must: float, stretch: float) -> Goal:
    return Goal(must, stretch, "more")


def _open(key: str, share: str, workload: Workload, goal: Goal) -> Iterator[Row]:
    for name, metric, its in (("p99", figures.p99, goal), ("p50", figures.p50, None), ("p99.9", figures.p999, None)):
        what = f"16 sessions, open loop, best at {share} of its core: {name} / best"
        yield Row("T18", f"{name}_{key}", what, workload, metric, SOME, BEST_16, its)


_FLIGHT = "CPU per call at 64"
ROWS = (
    Row("T1", "c64", "calls/s at 64, one session / httpx", C64, figures.rate, ONE, "httpx"),
    Row("T1", "c64_256", "calls/s at 64 over 256 sessions / httpx over 256", C64, figures.rate, MANY, HTTPX_256),
    Row("T4", "c1", "p50 at 1 / httpx", C1, figures.p50, ONE, "httpx", _less(1.25, 1)),
    Row("T5", "c64", f"{_FLIGHT}, one session / httpx", C64, figures.cpu, ONE, "httpx", _less(0.22, 0.17)),
    Row("T5m", "c64_16", f"{_FLIGHT} over 16 sessions / best", C64, figures.cpu, SOME, BEST_16, _less(2, 1.7)),
    Row("T5m", "c64_256", f"{_FLIGHT} over 256 sessions / best", C64, figures.cpu, MANY, BEST_256, _less(2, 1.7)),
    Row("T7", "10KB_c64", "10 KB nested at 64: CPU / httpx", TEN_KB, figures.cpu, ONE, "httpx", _less(0.3, 0.2)),
    Row("T7", "60KB_c16", "60 KB nested at 16: CPU / httpx", SIXTY_KB, figures.cpu, ONE, "httpx", _less(0.7, 0.45)),
    Row("T8", "p50", "20 ms of executor, 64 in flight: p50 / best", DELAYED, figures.p50, ONE, "best", _less(1.3, 1.1)),
    Row("T13", "c64_256", "KB written per call at 64 over 256 sessions", C64, _kilobytes, MANY, goal=_less(15, 12)),
    Row("T13", "stored", "the same with 300,000 calls stored", C64, _kilobytes, STORED, goal=_less(35, 30)),
    Row("T13", "c1", "KB written per call at 1", C1, _kilobytes, ONE, goal=_less(30, 20)),
    Row(
        "T16", "c64", "PostgreSQL, 16 sessions: CPU at 64 / the base's", POSTGRES_C64,
        figures.cpu, POSTGRES, BASE_POSTGRES, _less(0.6),
    ),
    *_open("quarter", "a quarter", QUARTER, _less(4, 2.5)),
    *_open("half", "half", HALF, _less(6, 4)),
    Row("T19", "fresh", "p99 / p50 at 64, one session", C64, figures.tail, ONE, goal=_less(2.5, 2)),
    Row("T19", "stored", "the same over 256 sessions, 300,000 stored", C64, figures.tail, STORED, goal=_less(2.5, 2)),
    Row("T21", "c1", "CPU of a call at 1 / best", C1, figures.cpu, ONE, "best", _less(3, 2.4)),
)  # fmt: skip
OTHER_GOALS: Mapping[tuple[str, str], tuple[str, Goal | None]] = {
    ("T9", "kib_per_session"): ("KiB per idle session", _less(30, 20)),
    ("T9", "rss_mib"): ("MiB of memory with 2,000 idle sessions", _less(155, 130)),
    ("T10", "burst"): ("burst to 1,000 followers: deliveries/s / one queue each", _more(8, 12)),
    ("T11", "slowest"): ("decode and encode / the JSON alone, slowest adapter", _less(8, 5)),
    ("T12", "lost"): ("outcomes lost in a soak", _less(0)),
    ("T12", "different"): ("different outcomes", _less(0)),
    ("T12", "doubled"): ("results repeated over one link", _less(0)),
    ("T14", "chunk"): ("CPU per Herm chunk / httpx-sse alone", _less(1.4, 1.1)),
    ("T15", "ready"): ("restart with 5,000 sessions: seconds until ready", _less(5, 2)),
    ("T15", "links"): ("restart with 5,000 sessions: seconds until all links are up", _less(20, 10)),
    ("T16", "commits"): ("PostgreSQL, 16 sessions: p50 at 1 / two bare commits by asyncpg", _less(3)),
    ("T17", "call"): ("CPU of a call over MCP / the library's empty handler", _less(4, 2)),
    ("T20", "lists"): ("ms for a list with a filter that matches nothing, 300,000 calls stored", _less(15, 5)),
    ("T22", "ready"): ("start until ready / import of fastapi, uvicorn, pydantic and aiohttp", _less(2, 1.6)),
    ("T23", "session"): ("KiB per idle session of openhands-v1", None),
    ("T23", "socket"): ("KiB per idle WebSocket of aiohttp, nothing else", None),
    ("T24", "call"): ("CPU of a call of an OpenHands V1 agent over MCP / a client by websockets and httpx", None),
}  # fmt: skip
"""What is measured otherwise, by name and key."""
