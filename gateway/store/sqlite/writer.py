"""The thread that writes to SQLite, in batches that share a disk sync.

A batch is everything that queued while the previous one was committing; it is one transaction with one sync. A stale
step fails before any of its rows is written. If SQL fails, the batch is rolled back and each of its jobs gets a
transaction of its own, so that only the job at fault fails. Futures resolve after COMMIT has returned, with one wake-up
of the event loop per batch.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.clock import Clock
from gateway.errors import DragomanError, EngineUnavailable, OperatorError
from gateway.guard import FAULTS, guard_call
from gateway.store.apply import Writes, decide
from gateway.store.byte_budget import ByteBudget
from gateway.store.port import Report, Settled, report_nothing
from gateway.store.records import EventRecord, micros
from gateway.store.settling import Result, encode, into, offer, report, report_soon
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.jobs import (
    WAITING_BYTES,
    How,
    Job,
    JobThread,
    StepJob,
    Task,
    Turn,
    Verdict,
    caused,
    take,
    translate,
)
from gateway.store.sqlite.schema import open_writer
from gateway.store.sqlite.store import Store
from gateway.store.sqlite.tuning import PRODUCTION, SqliteTuning
from gateway.store.step import Committed, Step

T = TypeVar("T")


class Writer:
    """Run the thread: `start`, then `commit`, `submit` and `run` from the event loop, then `stop`."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        guard: FileGuard,
        tuning: SqliteTuning = PRODUCTION,
        *,
        report: Report = report_nothing,
        thread: type[JobThread] = JobThread,
    ) -> None:
        self._path = path
        self._report = report
        self._tuning = tuning
        self._clock = clock
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._tick: list[Job] = []
        self._room = ByteBudget(WAITING_BYTES)
        self._closing = False
        self._thread = thread(self._begin, self._write, self._end)
        self._store: Store | None = None

    # On the event loop

    async def start(self) -> None:
        """Open the database in the thread.

        Raises:
            OperatorError: the file cannot be used.
        """
        self._thread.start()
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Write the queued jobs, close the database, end the thread."""
        self._closing = True
        self._flush()
        self._thread.put(None)
        try:
            await asyncio.shield(self._stopped)
        finally:
            self._thread.join()

    def commit(self, step: Step) -> Awaitable[Committed]:
        future = self._loop.create_future()
        return self._do(StepJob.of(step, encode(step.events), into(future)), future)

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        if self._closing:
            report_soon([(settled, (step, self._closed())) for step in steps])
            return len(steps)
        accepted = offer(steps, settled, partial(self._submit, settled))
        self._flush()
        return accepted

    def _submit(self, settled: Settled, step: Step, events: Sequence[EventRecord]) -> bool:
        job = StepJob.of(step, events, settled)
        if not self._room.takes(job.weight):
            return False
        self._tick.append(job)
        return True

    def run(self, run: Callable[[Turn], Any], *, how: How = "shared") -> Awaitable[Any]:
        future = self._loop.create_future()
        return self._do(Task(run, how, future), future)

    def _do(self, job: Job, future: asyncio.Future[T]) -> Awaitable[T]:
        # There is usually room, and then the caller awaits the future directly.
        if self._closing or not self._room.takes(job.weight):
            return self._wait_for_capacity(job, future)
        self._put(job)
        return future

    async def _wait_for_capacity(self, job: Job, future: asyncio.Future[T]) -> T:
        if not self._closing:
            await self._room.enter(job.weight)
            if self._closing:
                self._room.leave(job.weight)
        if self._closing:
            raise self._closed()
        self._put(job)
        return await future

    def _closed(self) -> EngineUnavailable:
        return EngineUnavailable(f"the database {str(self._path)!r} is closed")

    def _put(self, job: Job) -> None:
        # One wake-up of the thread per turn of the loop, so that concurrent jobs are written together.
        if not self._tick:
            self._loop.call_soon(guard_call("sqlite writer", self._flush))
        self._tick.append(job)

    def _flush(self) -> None:
        if self._tick:
            self._thread.put(self._tick)
            self._tick = []

    def _resolve(self, verdicts: Sequence[Verdict]) -> None:
        steps: list[tuple[Settled, Result]] = []
        for job, value, error in verdicts:
            self._room.leave(job.weight)
            if isinstance(job, StepJob):
                steps.append((job.settled, (job.step, error or value)))
            # The caller was canceled while waiting; the write stands.
            elif job.future.done():
                continue
            elif error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)
        report(steps)

    # In the thread

    def _begin(self) -> bool:
        """Open the database; False if it cannot be used."""
        try:
            self._open()
        except (OperatorError, EngineUnavailable) as exc:
            self._tell(self._fail_start, exc)
            return False
        self._tell(self._started.set_result, None)
        return True

    def _write(self, waiting: deque[Job]) -> None:
        """Write the next batch of the waiting jobs, and tell their callers."""
        batch = take(waiting)
        try:
            verdicts = self._process(batch)
        except BaseException:
            waiting.extendleft(reversed(batch))
            raise
        self._tell(self._resolve, verdicts)

    def _end(self, waiting: deque[Job]) -> None:
        """Close the database, also if the thread fails; no caller waits forever."""
        self._closing = True
        self._close()
        self._tell(self._abandon, list(waiting))

    def _process(self, batch: Sequence[Job]) -> list[Verdict]:
        try:
            return self._attempt(batch) if batch else []
        except (OperatorError, EngineUnavailable) as exc:
            self._recover()
            return [(job, None, caused(EngineUnavailable(str(exc)), exc)) for job in batch]
        except (sqlite3.Error, ValueError, TypeError, OverflowError, MemoryError) as exc:
            self._recover()
            if len(batch) == 1:
                lost = self._store is None
                return [(batch[0], None, translate(exc, self._path, connection_lost=lost))]
        # Running the jobs one by one finds the one at fault; the thread continues.
        except Exception as exc:  # noqa: BLE001
            self._recover()
            if len(batch) == 1:
                FAULTS.get().note("sqlite writer", exc)
                return [(batch[0], None, exc)]
        return [verdict for job in batch for verdict in self._process([job])]

    def _attempt(self, batch: Sequence[Job]) -> list[Verdict]:
        store = self._ready()
        writes = Writes(micros(self._clock.now()))
        turn = Turn(store, writes)
        verdicts: list[Verdict] = []
        first = batch[0]
        if isinstance(first, Task) and first.how == "outside":
            return [(first, first.run(turn), None)]
        store.begin()
        store.fetch(job.step for job in batch if isinstance(job, StepJob))
        for job in batch:
            try:
                if isinstance(job, StepJob):
                    value = decide(job.step, job.events, known=store, writes=writes)
                else:
                    value = job.run(turn)
                verdicts.append((job, value, None))
            except DragomanError as exc:
                verdicts.append((job, None, exc))
        store.commit(writes)
        return verdicts

    def _ready(self) -> Store:
        """Return the store if its file is in place.

        Raises:
            EngineUnavailable: a file was removed or replaced.
        """
        try:
            self._guard.check()
        except EngineUnavailable:
            self._save()
            raise
        return self._store or self._open()

    def _recover(self) -> None:
        """Roll back after a failure; if that fails too, reopen the file with the next batch."""
        store = self._store
        if store is None:
            return
        store.forget()
        try:
            if store.connection.in_transaction:
                store.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._close()

    def _open(self) -> Store:
        connection = open_writer(self._path, tuning=self._tuning, report=self._report)
        self._store = Store(connection, young=self._tuning.young)
        self._guard.remember()
        return self._store

    def _save(self) -> None:
        """Checkpoint the log into the database: only one of the two files may come back."""
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self._guard.forget_wal()
            with contextlib.suppress(sqlite3.Error):
                store.connection.close()

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        # The loop may have been closed without closing the engine.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(guard_call("sqlite writer", callback), *args)

    def _fail_start(self, exc: DragomanError) -> None:
        self._started.set_exception(exc)

    def _abandon(self, jobs: list[Job]) -> None:
        text = f"the writer of {str(self._path)!r} has stopped"
        self._flush()
        self._resolve([(job, None, EngineUnavailable(text)) for job in [*jobs, *self._thread.rest()]])
        if not self._started.done():
            self._started.set_exception(EngineUnavailable(text))
        if not self._stopped.done():
            self._stopped.set_result(None)
