"""Runs workloads against gateways and floors in turn, and keeps what they said."""

import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench.figures import Measurement, Series, Workload
from tests.bench.load import GRACE
from tests.bench.machine import Cores
from tests.bench.processes import ROOT, BenchProblem, Peers, peers
from tests.bench.subjects import Subject, configure, floor, gateway, settle, settle_wholly
from tests.bench.targets import BASE, BEST_16, FLOORS, ONE, VARIANTS
from tests.bench.usage import Usage
from tests.engines.postgres_server import drop_schema, find_dsn, new_schema
from tests.scenarios.releases import build

_RAMP = 0.2
"""Seconds of a turn before its latencies count."""
_PAGE = 4096
_STORED = "stored"
"""Begins the names of the agents whose calls the stored database holds."""
_STORING = Workload("storing", 256)
_FINDING = Workload("finding the rate", 0)
_FIRST_RATE = 300.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often is measured."""

    repetitions: int
    seconds: float
    warmup: float
    open_seconds: float
    """Of a turn of an open loop."""
    many: int = 256
    sessions: int = 2_000
    restarted: int = 5_000
    """How many sessions are many, very many, and too many to be opened again in no time."""
    followers: int = 1_000
    burst: int = 200
    soak_minutes: float = 1.0
    stored: int = 300_000
    """Calls that the database holds which is not fresh."""
    alone: bool = True
    """Whether a subject waits for the rest of the one before, which matters to throughput and latency."""


THOROUGH = Effort(repetitions=5, seconds=1.5, warmup=1.0, open_seconds=10.0)
QUICK = Effort(
    repetitions=2, seconds=1.0, warmup=0.5, open_seconds=5.0, restarted=1_000, soak_minutes=0.25, stored=20_000
)
TINY = Effort(
    repetitions=1,
    seconds=0.4,
    warmup=0.1,
    open_seconds=0.4,
    many=3,
    sessions=5,
    restarted=5,
    followers=10,
    burst=10,
    soak_minutes=0.05,
    stored=50,
)
"""Says nothing about speed: whether the benchmark itself works."""


def tell(text: str) -> None:
    """Show progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Bench:
    """Peers that live as long as the benchmark, and floors that start when they are first needed."""

    def __init__(
        self,
        peers: Peers,
        *,
        folder: Path,
        cores: Cores,
        effort: Effort,
        old: Mapping[str, Path],
        stack: AsyncExitStack,
    ) -> None:
        self.peers, self.folder, self.cores, self.effort, self.old = peers, folder, cores, effort, old
        self.series: dict[Workload, Series] = {}
        self.absent: dict[str, str] = {}
        """Subjects that cannot run here, and why."""
        self._rates: dict[float, float] = {}
        self._floors: dict[tuple[str, int], Subject] = {}
        self._stored: Path | None = None
        self._stack = stack
        self._gateways = 0

    async def compare(self, workload: Workload, names: Collection[str]) -> Series:
        """Measure fresh gateways and floors under one workload, in turn."""
        async with AsyncExitStack() as stack:
            found = [await self._subject(name, stack) for name in names]
            return await self.take_turns(workload, [subject for subject in found if subject is not None])

    async def _subject(self, name: str, stack: AsyncExitStack) -> Subject | None:
        if name in FLOORS:
            return await self.floor(name)
        try:
            return await stack.enter_async_context(self.variant(name))
        except Absent as exc:
            self._leave_out(name, str(exc))
            return None

    def _leave_out(self, name: str, why: str) -> None:
        self.absent[name] = why
        tell(f"{name} is left out: {why}")

    @asynccontextmanager
    async def variant(self, name: str) -> AsyncGenerator[Subject]:
        """Run a fresh gateway in one of the ways of `VARIANTS`, of this checkout or an earlier commit.

        Raises:
            Absent: it cannot run here.
        """
        commit, comma, rest = name.partition(", ")
        variant = VARIANTS[f"{ONE}{comma}{rest}" if commit in self.old else name]
        sessions = min(variant.sessions, self.effort.many)
        checkout = build(BASE) if variant.base else self.old.get(commit, ROOT)
        if checkout is None:
            raise Absent("its commit is not in the history here: git fetch --unshallow")
        async with AsyncExitStack() as stack:
            more: dict[str, Any] = {}
            if variant.engine == "postgres":
                more["engine"] = await stack.enter_async_context(_schema())
            stored = await self.stored_database() if variant.stored else None
            subject = await stack.enter_async_context(
                self.gateway(name=name, sessions=sessions, checkout=checkout, stored=stored, **more)
            )
            yield subject

    async def take_turns(self, workload: Workload, subjects: Collection[Subject]) -> Series:
        """Measure subjects that run already, in turn."""
        series = Series(workload)
        for subject in subjects:
            await self.play(subject, workload, seconds=self.effort.warmup)
        seconds = self.effort.open_seconds if workload.share else self.effort.seconds
        taken = dict[str, tuple[Usage, dict[str, Any]]]()
        for number in range(self.effort.repetitions):
            for subject in subjects:
                if number:
                    self._close(series, subject, *taken[subject.name], number=number)
                before = subject.look()
                said = await self.play(subject, workload, seconds=seconds)
                taken[subject.name] = before, said
        await settle_wholly(subjects)
        for subject in subjects:
            self._close(series, subject, *taken[subject.name], number=self.effort.repetitions)
        self.series[workload] = series
        return series

    def _close(self, series: Series, subject: Subject, before: Usage, said: dict[str, Any], *, number: int) -> None:
        """Add a turn to its series; what a subject uses between two turns belongs to the first of them."""
        used, calls = subject.look(), said["made"]
        if not said["calls"]:
            raise BenchProblem(f"{subject.name} answered no call in time ({series.workload.name}): {said}")
        one = Measurement(
            **said,
            cpu=(used.cpu - before.cpu) / calls,
            written=(used.written - before.written) / calls,
            writes=(used.writes - before.writes) / calls,
        )
        series.add(subject.name, one)
        tell(
            f"{series.workload.name}, {number} of {self.effort.repetitions}, {subject.name}:"
            f" {one.cpu * 1e6:.0f} µs CPU per call, {one.rate:,.0f} calls/s, p50 {one.p50 * 1000:.2f} ms"
            + (f", {one.faults} WRONG" if one.faults else "")
        )

    async def play(self, subject: Subject, workload: Workload, *, seconds: float) -> dict[str, Any]:
        """Load a subject for a while; answers what the peers have seen."""
        rate = await self._find_rate(workload.share) if workload.share else 0.0
        return await self._play(subject, workload, seconds=seconds, rate=rate)

    async def _find_rate(self, share: float) -> float:
        """Find the calls per second at which `best` over 16 sessions uses this share of its core."""
        if share not in self._rates:
            best, rate = await self.floor(BEST_16), _FIRST_RATE
            # A call costs less the more of them there are.
            for _ in range(3):
                said = await self._play(best, _FINDING, seconds=2 * self.effort.seconds, rate=rate)
                rate = round(rate * share / said["busy"])
            tell(f"best uses {share:.0%} of its core at {rate} calls/s")
            self._rates[share] = rate
        return self._rates[share]

    async def _play(self, subject: Subject, workload: Workload, *, seconds: float, rate: float) -> dict[str, Any]:
        # A slow executor needs time until answers come as fast as calls leave.
        seconds, ramp = (max(least, 3 * workload.delay) for least in (seconds, _RAMP))
        said: dict[str, Any] = await self.peers.ask(
            "run",
            within=seconds + ramp + GRACE * 2,
            agents=subject.agents,
            window=workload.window,
            size=workload.size,
            nested=workload.nested,
            delays=[workload.delay],
            seconds=seconds,
            warmup=ramp,
            pid=subject.pid,
            rate=rate,
        )
        if self.effort.alone:
            await settle(subject)
        return said

    async def floor(self, name: str) -> Subject:
        """Start a floor: its kind, and for how many sessions (`httpx, 16 sessions`)."""
        kind, _, many = name.partition(", ")
        count = min(int(many.partition(" ")[0] or 1), self.effort.many)
        if (kind, count) not in self._floors:
            running = floor(kind, self.peers, cores=self.cores.subject, folder=self.folder, count=count)
            self._floors[kind, count] = await self._stack.enter_async_context(running)
        return replace(self._floors[kind, count], name=name)

    async def stored_database(self) -> Path:
        """Fill a database with `Effort.stored` calls, once, and return its file."""
        if self._stored is None:
            made, folder = 0, self.new_folder()
            async with self.gateway(sessions=self.effort.many, folder=folder, agents=_STORED) as subject:
                while made < self.effort.stored:
                    made += (await self.play(subject, _STORING, seconds=min(10.0, 4 * self.effort.seconds)))["made"]
                    tell(f"{made:,} of {self.effort.stored:,} calls are stored")
                await settle_wholly([subject])
            self._stored = folder / "dragoman.db"
        return self._stored

    @asynccontextmanager
    async def gateway(
        self,
        *,
        name: str = "gateway",
        sessions: int = 1,
        checkout: Path = ROOT,
        env: dict[str, str] | None = None,
        folder: Path | None = None,
        options: Mapping[str, Any] | None = None,
        stored: Path | None = None,
        agents: str | None = None,
        **more: Any,
    ) -> AsyncGenerator[Subject]:
        """Run a gateway, of this checkout or another, on a fresh database or on a copy of a `stored` one.

        `more` are settings, `options` those of its runtime, and `agents` begins the names of its agents.
        """
        folder = folder or self.new_folder()
        prefix = _STORED if stored is not None else agents or folder.name
        names = [f"{prefix}-{number}" for number in range(sessions)]
        settings = configure(folder, self.peers, agent=f"{prefix}-0", **(options or {})) | more
        if stored is not None:
            folder.mkdir(parents=True)
            copy_in_pages(stored, folder / stored.name)
        run = gateway(
            name, settings, folder, self.peers, cores=self.cores.subject, agents=names, env=env, checkout=checkout
        )
        async with run as subject:
            await settle(subject)
            yield subject

    def new_folder(self) -> Path:
        """Name a folder that does not exist yet."""
        self._gateways += 1
        return self.folder / f"gateway-{self._gateways}"


def copy_in_pages(source: Path, target: Path) -> None:
    """Copy a file by writes of 4 KiB, as a database grows.

    Larger writes leave larger folios in the page cache, and the kernel counts a whole folio for each later write to it.
    """
    with source.open("rb") as old, target.open("wb", buffering=0) as new:
        shutil.copyfileobj(old, new, _PAGE)


class Absent(Exception):
    """A subject cannot run here, and why."""


@asynccontextmanager
async def _schema() -> AsyncGenerator[dict[str, str]]:
    dsn = find_dsn()
    if dsn is None:
        raise Absent("there is no PostgreSQL server and none can be started")
    schema = new_schema()
    try:
        yield {"type": "postgres", "dsn": dsn, "schema": schema}
    finally:
        await drop_schema(schema, server=dsn)


@asynccontextmanager
async def opened(
    parent: Path, *, cores: Cores, effort: Effort, old: Mapping[str, Path] | None = None
) -> AsyncGenerator[Bench]:
    """Start the peers; the benchmark's files lie in a folder of their own, which goes in the end."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            fakes = await stack.enter_async_context(peers(cores.peers, folder))
            yield Bench(fakes, folder=folder, cores=cores, effort=effort, old=old or {}, stack=stack)
