"""`python -m tests.bench.stages`: where the CPU of a call goes, by stage, in microseconds.

py-spy looks at the gateway's threads from outside, 200 times a second. Each look belongs to the innermost function of
Dragoman's that is at work, with the libraries that it has called; the shares are laid on the CPU that the kernel counts
for a call. `--functions 5` names the costliest functions of each stage.

    python -m tests.bench.stages
    python -m tests.bench.stages --only T5,T5m --seconds 20 --functions 5
"""

import argparse
import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import bench as benches, machine, usage
from tests.bench.bench import THOROUGH, Absent, Bench, tell
from tests.bench.chunks import Follower, herm_settings
from tests.bench.figures import Workload
from tests.bench.processes import ROOT, BenchProblem
from tests.bench.subjects import Subject
from tests.bench.targets import C1, C64, HALF, MANY, ONE, POSTGRES, SOME, TEN_KB

_LOOKS = 200
"""A second."""
_GRACE = 10.0
_CHUNKS = 1_000
"""A second, of T14."""

LOADS: Mapping[str, tuple[Workload, str]] = {
    "T4": (C1, ONE),
    "T5": (C64, ONE),
    "T5m": (C64, MANY),
    "T7": (TEN_KB, ONE),
    "T16": (C1, POSTGRES),
    "T18": (HALF, SOME),
}
"""Workload and variant of the gateway, by the name of the target that they belong to."""
CHUNKS = "T14"

STAGES: Mapping[str, Sequence[str]] = {
    "link: frames in and out": (
        "gateway/links/",
        "adapters/herm/link",
        "gateway/runtime/session/link",
    ),
    "translation": ("adapters/", "gateway/adapter/"),
    "decisions": ("gateway/core/", "gateway/events/"),
    "way out": tuple(f"gateway/runtime/session/{name}" for name in ("outbox", "row", "sender")),
    "inbox, steps, effects": ("gateway/runtime/session/", "gateway/runtime/signals"),
    "attempts: slots, breaker": ("gateway/runtime/calls/", "gateway/runtime/clients/"),
    "webhook exchange": ("gateway/executors/",),
    "store, on the loop": ("gateway/store/",),
    "feeds and copies": ("gateway/runtime/feeds/", "gateway/runtime/delivery/", "gateway/http/"),
    "log, metrics, the rest": ("gateway/",),
}
"""Which stage a file belongs to: the first of whose beginnings its path has."""
THREADS, LOOP = "threads of the store", "event loop, sockets"
_MAIN = "MainThread"
IDLE = (
    "wait (threading.py",
    "_worker (concurrent/futures/thread.py",
    "_gather (gateway/store/sqlite/jobs.py",
)
"""Where threads wait for work; to look at them from outside does not tell it from work."""
_THROUGH = ("gateway/guard.py", "gateway/strict_json", "gateway/clock.py", "gateway/runtime/system_clock.py")
"""Files whose work belongs to whoever calls them."""
_RUNS_THE_LOOP = ("gateway/cli/", "gateway/serve.py", "gateway/__main__.py")


@dataclass(slots=True)
class Budget:
    """What the stages take of a call, and the functions of each."""

    loop: float
    """Microseconds of CPU for a call, of the event loop's thread."""
    others: float
    """The same of all other threads."""
    looks: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """How often each function was seen at work, by stage."""

    @property
    def micros(self) -> float:
        """Of CPU for a call, of all threads."""
        return self.loop + self.others

    def add(self, stack: str, looks: int) -> None:
        """Take note of a stack: its thread, then its functions, outermost first."""
        thread, *frames = stack.split(";")
        if not frames or any(word in frames[-1] for word in IDLE):
            return
        stage, function = _stage_of(frames)
        if _MAIN not in thread:
            stage = THREADS
        self.looks.setdefault(stage, Counter())[function] += looks

    def of(self, stage: str) -> float:
        """Say what a stage takes of a call, in microseconds."""
        return self._share(stage) * self.looks.get(stage, Counter()).total()

    def costliest(self, stage: str, most: int) -> list[tuple[str, float]]:
        """List the costliest functions of a stage."""
        share = self._share(stage)
        return [(name, looks * share) for name, looks in self.looks.get(stage, Counter()).most_common(most)]

    def _share(self, stage: str) -> float:
        """Say how many microseconds a look stands for."""
        if stage == THREADS:
            return self.others / (self.looks.get(stage, Counter()).total() or 1)
        return self.loop / (sum(found.total() for name, found in self.looks.items() if name != THREADS) or 1)


def _stage_of(frames: Sequence[str]) -> tuple[str, str]:
    for frame in reversed(frames):
        # As `name (path:line)`.
        name, _, place = frame.rpartition(" (")
        path = place.rpartition(":")[0]
        if not path.startswith(("gateway/", "adapters/")) or path.startswith(_THROUGH):
            continue
        if path.startswith(_RUNS_THE_LOOP):
            break
        stage = next(stage for stage, heads in STAGES.items() if path.startswith(tuple(heads)))
        return stage, f"{name}, {path}"
    return LOOP, frames[-1]


async def measure(bench: Bench, name: str, *, seconds: float) -> Budget:
    """Load a fresh gateway, look at it meanwhile, and count what it has used for each call.

    Raises:
        BenchProblem: py-spy is missing or may not look, or there is no PostgreSQL.
    """
    if name == CHUNKS:
        settings = herm_settings(bench.peers)
        async with bench.gateway(sessions=0, runtimes=settings) as subject:
            await bench.peers.ask("listens", session="gateway", patience=_GRACE)
            follower = await Follower.open(subject)
            try:
                return await _measure(bench, subject, _Chunks(bench, follower), seconds=seconds)
            finally:
                follower.leave()
    workload, variant = LOADS[name]
    try:
        async with bench.variant(variant) as subject:
            return await _measure(bench, subject, _Calls(bench, subject, workload), seconds=seconds)
    except Absent as exc:
        raise BenchProblem(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class _Calls:
    bench: Bench
    subject: Subject
    workload: Workload

    async def play(self, seconds: float) -> int:
        said = await self.bench.play(self.subject, self.workload, seconds=seconds)
        if said["lost"] or said["doubled"] or said["different"]:
            raise BenchProblem(f"calls went wrong: {said}")
        return int(said["made"])


@dataclass(frozen=True, slots=True)
class _Chunks:
    bench: Bench
    follower: Follower

    async def play(self, seconds: float) -> int:
        chunks, told = max(50, int(_CHUNKS * seconds)), self.follower.told
        await self.bench.peers.ask("chunks", session="gateway", chunks=chunks, within=seconds * 20 + _GRACE)
        await self.follower.hears(told + chunks)
        return chunks


async def _measure(bench: Bench, subject: Subject, load: "_Calls | _Chunks", *, seconds: float) -> Budget:
    await load.play(min(2.0, seconds))
    before = usage.cpu_by_thread(subject.pid)
    made = await load.play(seconds)
    used = usage.cpu_by_thread(subject.pid)
    micros = {thread: (cpu - before.get(thread, 0.0)) / made * 1e6 for thread, cpu in used.items()}
    loop = micros.pop(subject.pid)
    budget = Budget(loop, sum(micros.values()))
    looks = bench.new_folder()
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look(subject.pid, looks, seconds=seconds, cores=bench.cores.peers))
        await load.play(seconds)
    for line in looking.result().splitlines():
        stack, _, count = line.rpartition(" ")
        budget.add(stack, int(count))
    return budget


async def _look(pid: int, file: Path, *, seconds: float, cores: frozenset[int]) -> str:
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise BenchProblem("py-spy is missing: pip install py-spy")
    command = ("record", "--pid", str(pid), "--rate", str(_LOOKS), "--duration", str(max(1, round(seconds))))
    process = await asyncio.create_subprocess_exec(
        program, *command, "--format", "raw", "--threads", "--output", str(file),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds + _GRACE * 3):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        said = b"it came to no end"
    if process.returncode:
        raise BenchProblem(f"py-spy could not look at process {pid}: {said.decode(errors='replace')[-500:]}")
    return await asyncio.to_thread(file.read_text)


def show(budgets: Mapping[str, Budget], *, functions: int) -> None:
    """Print the stages of each workload side by side."""
    table = Table("stage", *(f"{name}, µs" for name in budgets), title="CPU of a call (T14: of a chunk), by stage")
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in (*STAGES, LOOP, THREADS):
        table.add_row(stage, *(f"{budget.of(stage):.0f}" for budget in budgets.values()))
        for number in range(functions):
            found = [budget.costliest(stage, functions)[number : number + 1] for budget in budgets.values()]
            if any(found):
                table.add_row("", *(f"[dim]{one[0][0]} {one[0][1]:.1f}[/]" if one else "" for one in found))
    table.add_row("all", *(f"{budget.micros:.0f}" for budget in budgets.values()), end_section=True)
    Console(width=None if not functions else 60 + 70 * len(budgets)).print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for; 1 where it could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (*LOADS, CHUNKS)
    parser.add_argument("--only", metavar="T5,T14", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each is looked at")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="name the costliest of each stage")
    parser.add_argument("--folder", type=Path, metavar="DIR", default=ROOT / ".cache", help="where databases lie")
    asked = parser.parse_args(arguments)
    wanted = asked.only.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        budgets = asyncio.run(_run(wanted, asked.folder, seconds=asked.seconds))
    except BenchProblem as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    show(budgets, functions=asked.functions)
    return 0


async def _run(names: Sequence[str], folder: Path, *, seconds: float) -> dict[str, Budget]:
    machine.raise_file_limit()
    cores = machine.share_cores()
    if cores.pinned:
        os.sched_setaffinity(0, cores.peers)
    budgets: dict[str, Budget] = {}
    async with benches.opened(folder, cores=cores, effort=THOROUGH) as running:
        for name in names:
            tell(f"{name}: loading, and looking at it")
            budgets[name] = await measure(running, name, seconds=seconds)
    return budgets


if __name__ == "__main__":
    sys.exit(main())
