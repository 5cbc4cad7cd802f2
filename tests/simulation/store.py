"""The real SQLite store, whose writer runs in the loop: each job is done at once and answered later."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from gateway.clock import Clock
from gateway.errors import EngineUnavailable
from gateway.store.port import Settled
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.jobs import Job, JobThread, Verdict
from gateway.store.sqlite.tuning import SqliteTuning
from gateway.store.sqlite.writer import Writer
from gateway.store.step import Step
from tests.simulation.loop import SimLoop, acts

_TUNING = SqliteTuning(synchronous="OFF", young=20)
_FULL = 0.03
"""How often the store has no capacity for all steps."""


class Disk:
    """The condition of the disk."""

    def __init__(self) -> None:
        self.heal()

    def heal(self) -> None:
        """Work as a disk should."""
        self.slow = 0.01
        """The longest time until a write begins."""
        self.refuses = 0.0
        """The share of writes that fail."""


class _Runner(JobThread):
    """Runs a writer in the loop, at a time that the world chooses."""

    loop: SimLoop
    disk: Disk

    def __init__(
        self, begin: Callable[[], bool], write: Callable[[deque[Job]], None], end: Callable[[deque[Job]], None]
    ) -> None:
        super().__init__(begin, write, end)
        self._jobs: list[Sequence[Job] | None] = []
        self._waiting: deque[Job] = deque()
        self._ringing = False
        self._is_open = False

    def start(self) -> None:
        self._later(self._open)

    def put(self, jobs: Sequence[Job] | None) -> None:
        if acts():
            self._jobs.append(jobs)
            self._ring()

    def rest(self) -> Sequence[Job]:
        return [job for jobs in self._jobs for job in jobs or ()]

    def join(self) -> None:
        """It has ended."""

    def finish(self) -> None:
        """Write what waits, although nobody will hear of it."""
        if self._is_open:
            self._write_all()

    def _open(self) -> None:
        self._is_open = self._begin()
        if not self._is_open:
            self._end(self._waiting)
        self._ring()

    def _ring(self) -> None:
        if self._is_open and not self._ringing and self._jobs:
            self._ringing = True
            self._later(self._write_all)

    def _write_all(self) -> None:
        self._ringing = False
        is_last = None in self._jobs
        for jobs in self._jobs:
            self._waiting.extend(jobs or ())
        self._jobs.clear()
        while self._waiting:
            self._write(self._waiting)
        if is_last:
            self._is_open = False
            self._end(self._waiting)

    def _later(self, call: Callable[[], None]) -> None:
        self.loop.call_later(self.disk.slow * self.loop.random.random() ** 4, call)


class SimWriter(Writer):
    """A writer whose disk may refuse a batch."""

    def __init__(self, path: Path, clock: Clock, guard: FileGuard, *, loop: SimLoop, disk: Disk) -> None:
        self._disk = disk
        self._random: Random = loop.random
        runners = self._runners = list[_Runner]()

        class Runner(_Runner):
            """The runner of this writer."""

            def __init__(self, *work: Any) -> None:
                super().__init__(*work)
                self.loop, self.disk = loop, disk
                runners.append(self)

        super().__init__(path, clock, guard, _TUNING, thread=Runner)

    def _process(self, batch: Sequence[Job]) -> list[Verdict]:
        if self._random.random() < self._disk.refuses:
            return [(job, None, EngineUnavailable("the disk is full (simulated)")) for job in batch]
        return super()._process(batch)

    def die(self, *, writes: bool) -> None:
        """End as the process does: with or without what was queued."""
        if writes:
            for runner in self._runners:
                runner.finish()
        self._close()


class SimEngine(SqliteEngine):
    """The engine of one simulated process."""

    def __init__(self, path: Path, clock: Clock, *, loop: SimLoop, disk: Disk) -> None:
        super().__init__(path, clock, tuning=_TUNING)
        self._loop, self._disk = loop, disk
        self._writers: list[SimWriter] = []

    def _make_writer(self, guard: FileGuard) -> Writer:
        writer = SimWriter(self._path, self._clock, guard, loop=self._loop, disk=self._disk)
        self._writers.append(writer)
        return writer

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        """Accept all steps, or sometimes only the first of them."""
        random = self._loop.random
        few = random.randrange(len(steps) + 1) if random.random() < _FULL else len(steps)
        return super().submit(steps[:few], settled)

    def die(self, *, writes: bool) -> None:
        """Let go of the file, as the end of a process does."""
        for writer in self._writers:
            writer.die(writes=writes)
        self._lock.release()
