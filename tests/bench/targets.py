"""What is to be reached, T1 to T22: which workloads and subjects each row needs, and how it is judged. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from tests.bench import figures
from tests.bench.figures import Metric, Series, Spread, Workload

C1 = Workload("1 in flight", 1)
C64 = Workload("64 in flight", 64)
OPEN = Workload("open loop, 1,200/s", 0, rate=1200)
OPEN_SLOW = Workload("open loop, 300/s", 0, rate=300)
TEN_KB = Workload("10 KB, 64 in flight", 64, size=10_000)
SIXTY_KB = Workload("60 KB, 16 in flight", 16, size=60_000)
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
    stored: bool = False
    """Whether its database holds `Effort.stored` calls already."""
    which: Literal["this", "old", "base"] = "this"
    """This checkout, the one that was given, or the one that T16 is measured against."""


BASE = "6fc94d9"
"""The commit that T16 is measured against, where no other checkout is given."""
ONE, SOME, MANY = "gateway", "gateway, 16 sessions", "gateway, 256 sessions"
STORED = "gateway, 256 sessions, stored"
WATCHED, MANY_WATCHED = "gateway, watched", "gateway, 256 sessions, watched"
POSTGRES, BASE_POSTGRES = "gateway on PostgreSQL", "base on PostgreSQL"
VARIANTS: Mapping[str, Variant] = {
    ONE: Variant(),
    SOME: Variant(16),
    MANY: Variant(256),
    STORED: Variant(256, stored=True),
    WATCHED: Variant(watched=True),
    MANY_WATCHED: Variant(256, watched=True),
    POSTGRES: Variant(16, engine="postgres"),
    BASE_POSTGRES: Variant(16, engine="postgres", which="base"),
    "old": Variant(which="old"),
    "old, 256 sessions": Variant(256, which="old"),
}
OLD = {ONE: "old", MANY: "old, 256 sessions"}
"""Which of them is run of the other checkout, too, where there is one."""
HTTPX_16, HTTPX_256 = "httpx, 16 sessions", "httpx, 256 sessions"
BEST_16, BEST_256 = "best, 16 sessions", "best, 256 sessions"
FLOORS = ("httpx", "best", "raw", HTTPX_16, HTTPX_256, BEST_16, BEST_256)
BESIDE: Mapping[Workload, tuple[str, ...]] = {
    C1: ("best", "raw"),
    C64: (SOME, "raw"),
    OPEN: (BEST_16,),
    STORES_C1: (SOME,),
    STORES_C64: (SOME,),
}
"""Who is run as well when all rows of a workload are: for the pictures, and to see how fast the peers and cores are."""


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
    """T1 … T22."""
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


def _p50(name: str, key: str, what: str, workload: Workload, sides: Sides, goal: Goal | None = None) -> Row:
    return Row(name, key, what, workload, figures.p50, *sides, goal)


def _rate(name: str, key: str, what: str, workload: Workload, sides: Sides, goal: Goal) -> Row:
    return Row(name, key, what, workload, figures.rate, *sides, goal, judges=False)


_ALONE: Sides = ((ONE,), ())
_ALONE_MANY: Sides = ((MANY,), ())
_ALONE_STORED: Sides = ((STORED,), ())
_ALONE_SOME: Sides = ((SOME,), ())
_HTTPX: Sides = ((ONE,), ("httpx",))
_BEST: Sides = ((ONE,), ("best",))
_MANY_BEST: Sides = ((MANY,), (BEST_256,))
_MANY_HTTPX: Sides = ((MANY,), (HTTPX_256,))
_MANY_WATCHED: Sides = ((MANY_WATCHED,), (MANY,))
_ON_BASE: Sides = ((POSTGRES,), (BASE_POSTGRES,))
_AND = "with a `copy_to`, a follower and a reader / without"
ROWS = (
    _cpu("T5", "c64", "CPU per call at 64, one session / httpx", C64, _HTTPX, _less(0.21, 0.14)),
    _cpu("T5m", "c64", "CPU at 64 over 256 sessions / best over 256", C64, _MANY_BEST, _less(3, 1.5)),
    _cpu("T5m", "watched", f"CPU at 64 over 256 sessions, {_AND}", C64, _MANY_WATCHED),
    _rate("T1", "c64", "calls/s at 64, one session / httpx", C64, _HTTPX, _more(4.5, 8)),
    _rate("T1", "c64_256", "calls/s at 64 over 256 sessions / httpx over 256", C64, _MANY_HTTPX, _more(6, 10)),
    _p50("T4", "c1", "p50 at 1 / httpx", C1, _HTTPX, _less(1.25, 0.8)),
    Row("T18", "p99", "16 sessions, 1,200 calls/s: p99, ms", OPEN, figures.p99_ms, *_ALONE_SOME, _less(15, 6)),
    Row("T18", "p999", "16 sessions, 1,200 calls/s: p99.9, ms", OPEN, figures.p999_ms, *_ALONE_SOME, _less(30, 12)),
    Row("T18", "httpx", "httpx, 16 sessions, 300 calls/s: p99, ms", OPEN_SLOW, figures.p99_ms, (HTTPX_16,)),
    Row("T19", "fresh", "p99 / p50 at 64, one session", C64, figures.tail, *_ALONE, _less(3, 2)),
    Row(
        "T19",
        "stored",
        "the same over 256 sessions, 300,000 stored",
        C64,
        figures.tail,
        *_ALONE_STORED,
        _less(3, 2),
    ),
    _cpu("T7", "10KB_c64", "10 KB nested at 64: CPU / httpx", TEN_KB, _HTTPX, _less(0.3, 0.2)),
    _cpu("T7", "60KB_c16", "60 KB nested at 16: CPU / httpx", SIXTY_KB, _HTTPX, _less(0.7, 0.45)),
    _p50("T8", "p50", "20 ms of executor, 64 in flight: p50 / best", DELAYED, _BEST, _less(1.25, 1.1)),
    Row("T13", "c64_256", "KB written per call at 64 over 256 sessions", C64, _kilobytes, *_ALONE_MANY, _less(25, 12)),
    Row("T13", "stored", "the same with 300,000 calls stored", C64, _kilobytes, *_ALONE_STORED, _less(60, 30)),
    Row("T13", "c1", "KB written per call at 1", C1, _kilobytes, *_ALONE, _less(50, 25)),
    _cpu("T16", "c64", "PostgreSQL, 16 sessions: CPU at 64 / the base's", STORES_C64, _ON_BASE, _less(0.6, 0.45)),
    _p50("T16", "c1", "PostgreSQL, 16 sessions: p50 at 1 / the base's", STORES_C1, _ON_BASE),
)
OTHER_GOALS: Mapping[tuple[str, str], tuple[str, Goal | None]] = {
    ("T9", "kib_per_session"): ("KiB per idle session", _less(35, 20)),
    ("T9", "rss_mib"): ("MiB of memory with 2,000 idle sessions", _less(165, 130)),
    ("T10", "burst"): ("burst to 1,000 followers: deliveries/s / one queue each", _more(8, 12)),
    ("T11", "slowest"): ("decode and encode / the JSON alone, slowest adapter", _less(8, 5)),
    ("T12", "lost"): ("outcomes lost in a soak", _less(0, 0)),
    ("T12", "different"): ("different outcomes", _less(0, 0)),
    ("T12", "doubled"): ("results repeated over one link", _less(0, 0)),
    ("T14", "chunk"): ("CPU per Herm chunk / httpx-sse alone", _less(1.4, 1.1)),
    ("T15", "ready"): ("restart with 5,000 sessions: seconds until ready", _less(5, 2)),
    ("T15", "links"): ("restart with 5,000 sessions: seconds until all links are up", _less(20, 10)),
    ("T16", "commits"): ("PostgreSQL, 16 sessions: p50 at 1 / two bare commits by asyncpg", _less(1.6, 1.3)),
    ("T17", "call"): ("CPU of a call over MCP / the library's empty handler", _less(4, 2)),
    ("T20", "lists"): ("ms for a list with a filter that matches nothing, 300,000 calls stored", _less(15, 5)),
    ("T22", "ready"): ("start until ready / import of fastapi, uvicorn, pydantic and aiohttp", _less(2, 1.6)),
    ("T23", "session"): ("KiB per idle session of openhands-v1", None),
    ("T23", "socket"): ("KiB per idle WebSocket of aiohttp, nothing else", None),
    ("T24", "call"): ("CPU of a call of an OpenHands V1 agent over MCP / a client by websockets and httpx", None),
}  # fmt: skip
"""What is measured otherwise, by name and key."""
