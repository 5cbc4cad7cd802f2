"""Runs workloads against the gateway and its floors in turn, and keeps what they said."""

import sys
import tempfile
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import node_floor
from tests.bench.figures import Measurement, Series, Workload
from tests.bench.load import GRACE
from tests.bench.machine import Cores
from tests.bench.processes import ROOT, BenchProblem, Peers, peers
from tests.bench.slow_disk import slowed
from tests.bench.subjects import Subject, floor, gateway, settle, settle_wholly
from tests.bench.usage import Usage

FLOORS = ("httpx", "best", "node", "raw")
_RAMP = 0.2
"""Seconds of a turn before its latencies count."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often is measured."""

    repetitions: int
    seconds: float
    warmup: float
    many: int = 256
    sessions: int = 2_000
    """How many sessions are many, and very many."""
    followers: int = 1_000
    burst: int = 200
    soak_minutes: float = 1.0
    alone: bool = True
    """Whether a subject waits for the rest of the one before, which matters to throughput and latency."""


THOROUGH = Effort(repetitions=5, seconds=2.0, warmup=1.0, burst=500)
QUICK = Effort(repetitions=2, seconds=1.0, warmup=0.5, soak_minutes=0.25)
TINY = Effort(repetitions=1, seconds=0.2, warmup=0.1, many=3, sessions=5, followers=10, burst=10, soak_minutes=0.05)
"""Says nothing about speed: whether the benchmark itself works."""


def tell(text: str) -> None:
    """Show progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Bench:
    """Peers that live as long as the benchmark, and floors that start when they are first needed."""

    def __init__(self, peers: Peers, *, folder: Path, cores: Cores, effort: Effort, stack: AsyncExitStack) -> None:
        self.peers, self.folder, self.cores, self.effort = peers, folder, cores, effort
        self.series: dict[Workload, Series] = {}
        self.absent: dict[str, str] = {}
        """Floors that cannot run here, and why."""
        self._floors: dict[str, Subject] = {}
        self._stack = stack
        self._gateways = 0

    async def compare(self, workload: Workload, floors: Collection[str] = ()) -> Series:
        """Measure the gateway and the floors under one workload, in turn; done once however often it is asked."""
        known = self.series.get(workload)
        if known is not None and not set(floors) - known.taken.keys() - self.absent.keys():
            return known
        # Only what was taken in turn may be compared, so a floor that comes later begins everything anew.
        wanted = {*floors, *(known.taken if known is not None else ())}
        others = [subject for name in FLOORS if name in wanted and (subject := await self.floor(name)) is not None]
        known = self.series[workload] = Series(workload)
        async with self.gateway(sessions=workload.sessions, sync_delay=workload.sync_delay) as subject:
            await self._take_turns(known, (subject, *others))
        return known

    async def take_turns(self, workload: Workload, subjects: Collection[Subject]) -> Series:
        """Measure subjects that run already, in turn."""
        series = self.series[workload] = Series(workload)
        await self._take_turns(series, subjects)
        return series

    async def floor(self, name: str) -> Subject | None:
        """Start a floor, or say that it cannot run here."""
        if name in self.absent:
            return None
        if name not in self._floors:
            command: tuple[str, ...] = ()
            if name == "node":
                found = await node_floor.prepare(ROOT / ".cache" / "bench-node")
                if isinstance(found, str):
                    self.absent[name] = found
                    tell(f"node is left out: {found}")
                    return None
                command = found
            running = floor(name, self.peers, cores=self.cores.subject, folder=self.folder, command=command)
            self._floors[name] = await self._stack.enter_async_context(running)
        return self._floors[name]

    async def _take_turns(self, series: Series, subjects: Collection[Subject]) -> None:
        workload, effort = series.workload, self.effort
        for subject in subjects:
            await self._play(subject, workload, seconds=effort.warmup)
        taken = dict[str, tuple[Usage, dict[str, Any]]]()
        for number in range(effort.repetitions):
            for subject in subjects:
                if number:
                    self._close(series, subject, *taken[subject.name], number=number)
                taken[subject.name] = subject.look(), await self._play(subject, workload, seconds=effort.seconds)
        await settle_wholly(subjects)
        for subject in subjects:
            self._close(series, subject, *taken[subject.name], number=effort.repetitions)

    def _close(self, series: Series, subject: Subject, before: Usage, said: dict[str, Any], *, number: int) -> None:
        """Add a turn to its series; what a subject uses between two turns belongs to the first of them."""
        used, calls = subject.look(), said["made"]
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

    async def _play(self, subject: Subject, workload: Workload, *, seconds: float) -> dict[str, Any]:
        # A slow executor needs time until answers come as fast as calls leave.
        seconds, ramp = (max(least, 3 * workload.delay) for least in (seconds, _RAMP))
        said: dict[str, Any] = await self.peers.ask(
            "run",
            within=seconds + ramp + GRACE * 2,
            agents=subject.agents[: workload.sessions],
            window=workload.window,
            size=workload.size,
            nested=workload.nested,
            delays=[workload.delay],
            seconds=seconds,
            warmup=ramp,
            pid=subject.pid,
        )
        if not said["calls"]:
            raise BenchProblem(f"{subject.name} answered no call within {seconds:g} s ({workload.name}): {said}")
        if self.effort.alone:
            await settle(subject)
        return said

    @asynccontextmanager
    async def gateway(
        self,
        *,
        sessions: int = 1,
        sync_delay: float = 0.0,
        settings: dict[str, Any] | None = None,
        folder: Path | None = None,
        name: str = "gateway",
        checkout: Path = ROOT,
    ) -> AsyncGenerator[Subject]:
        """Run a fresh gateway, of this checkout or another, on a fresh database."""
        folder = folder or self.new_folder()
        async with (
            slowed(folder.parent, sync_delay) as env,
            gateway(
                folder,
                self.peers,
                cores=self.cores.subject,
                sessions=sessions,
                env=env,
                settings=settings,
                name=name,
                checkout=checkout,
            ) as subject,
        ):
            await settle(subject)
            yield subject

    def new_folder(self) -> Path:
        """Name a folder that does not exist yet."""
        self._gateways += 1
        return self.folder / f"gateway-{self._gateways}"


@asynccontextmanager
async def opened(parent: Path, *, cores: Cores, effort: Effort) -> AsyncGenerator[Bench]:
    """Start the peers; the benchmark's files lie in a folder of their own, which goes in the end."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            fakes = await stack.enter_async_context(peers(cores.peers, folder))
            yield Bench(fakes, folder=folder, cores=cores, effort=effort, stack=stack)
