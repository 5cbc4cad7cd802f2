"""The one thread that writes to SQLite, in batches that share a disk sync.

A batch is whatever queued while the one before it was committing. What steps write is appended to a log, which is
spread over the tables from time to time; a task finds the tables up to date. Futures resolve after COMMIT has
returned, with one wake-up of the event loop per batch. If SQL fails, the batch is rolled back and each of
its jobs is tried in a transaction of its own, so that only the one at fault fails.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal

import structlog

from gateway.clock import Clock
from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest, OperatorError
from gateway.events.frozen import frozen
from gateway.guard import FAULTS, guard_call
from gateway.store.apply import Writes, decide
from gateway.store.byte_room import ByteRoom
from gateway.store.records import EventRecord, micros
from gateway.store.sqlite.log import Behind
from gateway.store.sqlite.place import FilePlace
from gateway.store.sqlite.schema import MIGRATIONS, open_writer
from gateway.store.sqlite.store import Store
from gateway.store.step import Committed, Step

log = structlog.get_logger(__name__)

BATCH = 256
WAITING = 1_024
"""Jobs that may wait for the writer; who comes later waits for room."""
WAITING_BYTES = 64 * 1024 * 1024
"""What the events of waiting steps may take; who comes later waits for room."""
_PAUSE = 1.0
"""Seconds until the tables are tried again that could not be written."""
_LEAST = WAITING_BYTES // WAITING
"""What a job takes of that room however small it is, so that it is full by count as well."""

# The surroundings are at fault (disk, memory, permissions), not what was to be written.
_SURROUNDINGS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a task may use while its transaction is open."""

    store: Store
    writes: Writes
    now: int


How = Literal["shared", "alone", "outside"]
"""In the batch's transaction; in one of its own, since it changes rows that steps have an eye on; in none."""


@frozen
class StepJob:
    """A step to decide and write."""

    step: Step
    events: Sequence[EventRecord]
    future: asyncio.Future[Any]
    weight: int


@frozen
class Task:
    """Something else to write. It raises before it writes anything, or not at all."""

    run: Callable[[Turn], Any]
    how: How
    future: asyncio.Future[Any]
    weight: int = _LEAST


Job = StepJob | Task
Verdict = tuple[Job, Any, Exception | None]


class Writer:
    """Runs the thread: `start`, then `commit` and `run` from the event loop, then `stop`."""

    def __init__(self, path: Path, clock: Clock, place: FilePlace) -> None:
        self._path = path
        self._clock = clock
        self._place = place
        self.behind = Behind()
        self._spread_again_at = 0.0
        self._told = False
        """Whether it was said that the tables cannot be brought up to date."""
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._tick: list[Job] = []
        self._room = ByteRoom(WAITING_BYTES)
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="dragoman-sqlite-writer", daemon=True)
        self._store: Store | None = None

    # On the event loop

    async def start(self) -> None:
        """Open the database in the thread.

        Raises:
            OperatorError: the file cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Write what is queued, close the database, end the thread."""
        self._closing = True
        self._flush()
        self._queue.put(None)
        try:
            await asyncio.shield(self._stopped)
        finally:
            self._thread.join()

    async def commit(self, step: Step, events: Sequence[EventRecord]) -> Committed:
        size = sum([event.size for event in events])
        return await self._do(StepJob(step, events, self._loop.create_future(), max(size, _LEAST)))

    async def run(self, run: Callable[[Turn], Any], *, how: How = "shared") -> Any:
        return await self._do(Task(run, how, self._loop.create_future()))

    async def _do(self, job: Job) -> Any:
        if not self._closing:
            await self._room.enter(job.weight)
            if self._closing:
                self._room.leave(job.weight)
        if self._closing:
            raise EngineUnavailable(f"the database {str(self._path)!r} is closed")
        # One wake-up of the thread per turn of the loop, so that what comes together is written together.
        if not self._tick:
            self._loop.call_soon(guard_call("sqlite writer", self._flush))
        self._tick.append(job)
        return await job.future

    def _flush(self) -> None:
        if self._tick:
            self._queue.put(self._tick)
            self._tick = []

    def _resolve(self, verdicts: Sequence[Verdict]) -> None:
        for job, value, error in verdicts:
            self._room.leave(job.weight)
            # Who was canceled while waiting no longer wants to know; the write stands.
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)

    # In the thread

    def _work(self) -> None:
        waiting: deque[Job] = deque()
        try:
            try:
                self._open()
            except (OperatorError, EngineUnavailable) as exc:
                self._tell(self._fail_start, exc)
                return
            self._tell(self._started.set_result, None)
            open_ended = True
            while open_ended or waiting:
                if open_ended:
                    open_ended = self._gather(waiting)
                batch = _take(waiting)
                try:
                    verdicts = self._process(batch)
                except BaseException:
                    waiting.extendleft(reversed(batch))
                    raise
                self._tell(self._resolve, verdicts)
                if self._spread_in() == 0.0:
                    self._spread()
            self._finish()
        finally:
            # Also when this thread fails: nobody may wait for ever.
            self._closing = True
            self._close()
            self._tell(self._abandon, list(waiting))

    def _spread_in(self) -> float | None:
        due = self.behind.due_in
        return None if due is None else max(due, self._spread_again_at - monotonic(), 0.0)

    def _finish(self) -> None:
        """Leave a database behind that every release can read that could before."""
        try:
            self._ready().log.spread_and_close()
        except (OperatorError, EngineUnavailable, sqlite3.Error, MemoryError) as exc:
            self._put_off(exc)

    def _gather(self, waiting: deque[Job]) -> bool:
        """Move queued jobs over; wait only where there are none, until what is held is due. False ends the thread."""
        try:
            while True:
                jobs = self._queue.get_nowait() if waiting else self._queue.get(timeout=self._spread_in())
                if jobs is None:
                    return False
                waiting.extend(jobs)
        except Empty:
            return True

    def _process(self, batch: Sequence[Job]) -> list[Verdict]:
        try:
            return self._attempt(batch) if batch else []
        except (OperatorError, EngineUnavailable) as exc:
            self._recover()
            return [(job, None, _caused(EngineUnavailable(str(exc)), exc)) for job in batch]
        except (sqlite3.Error, ValueError, TypeError, OverflowError, MemoryError) as exc:
            self._recover()
            if len(batch) == 1:
                lost = self._store is None
                return [(batch[0], None, _translate(exc, self._path, connection_lost=lost))]
        # Whatever it is, it is one job's alone, which is found below; the thread goes on.
        except Exception as exc:  # noqa: BLE001
            self._recover()
            if len(batch) == 1:
                FAULTS.note("sqlite writer", exc)
                return [(batch[0], None, exc)]
        return [verdict for job in batch for verdict in self._process([job])]

    def _attempt(self, batch: Sequence[Job]) -> list[Verdict]:
        store = self._ready()
        now = micros(self._clock.now())
        writes = Writes()
        turn = Turn(store, writes, now)
        verdicts: list[Verdict] = []
        first = batch[0]
        if isinstance(first, Task) and first.how == "outside":
            return [(first, first.run(turn), None)]
        steps = [job.step for job in batch if isinstance(job, StepJob)]
        # Tasks look at the tables and change them; where those are too far behind, steps wait until they are not.
        lazily = len(steps) == len(batch) and not self.behind.is_full
        store.begin()
        if not lazily:
            self._spread_in_transaction(store)
        store.fetch(steps)
        for job in batch:
            try:
                if isinstance(job, StepJob):
                    value = decide(job.step, job.events, now=now, known=store, writes=writes)
                else:
                    value = job.run(turn)
                verdicts.append((job, value, None))
            except DragomanError as exc:
                verdicts.append((job, None, exc))
        store.keep(writes, now, steps=len(steps), lazily=lazily)
        return verdicts

    def _spread_in_transaction(self, store: Store) -> None:
        try:
            store.spread()
        except (sqlite3.Error, MemoryError) as exc:
            # Whatever it is: what is asked for now is not at fault.
            text = f"the tables of {str(self._path)!r} cannot take what was committed before: {exc}"
            raise EngineUnavailable(text) from exc

    def _ready(self) -> Store:
        """Give out the store where it may be written.

        Raises:
            EngineUnavailable: what was written now would be gone with the process.
        """
        try:
            self._place.check()
        except EngineUnavailable:
            self._save()
            raise
        return self._store or self._open()

    def _spread(self) -> None:
        """Bring the tables up to date."""
        try:
            store = self._ready()
            store.begin()
            store.spread()
            store.keep(Writes(), 0, steps=0, lazily=False)
            self._told = False
        except (OperatorError, EngineUnavailable, sqlite3.Error, MemoryError) as exc:
            self._put_off(exc)
        # The thread goes on, whatever it is: steps are still taken until the tables are too far behind.
        except Exception as exc:  # noqa: BLE001
            FAULTS.note("sqlite writer", exc)
            self._put_off(exc)

    def _put_off(self, exc: Exception) -> None:
        self._recover()
        self._spread_again_at = monotonic() + _PAUSE
        if not self._told:
            self._told = True
            text = "what was committed is in the database, and not in its tables yet"
            log.warning(text, path=str(self._path), reason=str(exc), entries=self.behind.entries)

    def _recover(self) -> None:
        """Roll back after a failure; where even that fails, open the file anew at the next try."""
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
        self._place.refuse_another()
        connection = open_writer(self._path, replayed=self._tell_replayed)
        try:
            self._place.remember()
        except EngineUnavailable:
            connection.close()
            raise
        self.behind.clear()
        self._store = Store(connection, self.behind, len(MIGRATIONS))
        return self._store

    def _tell_replayed(self, steps: int) -> None:
        log.info("steps that were committed are put into the tables now", path=str(self._path), steps=steps)

    def _save(self) -> None:
        """Move what the log holds into the database, wherever that is by now: one of them may come back alone."""
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self._place.forget_log()
            with contextlib.suppress(sqlite3.Error):
                store.connection.close()

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        # A loop that was closed without leaving the engine has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(guard_call("sqlite writer", callback), *args)

    def _fail_start(self, exc: DragomanError) -> None:
        self._started.set_exception(exc)

    def _abandon(self, jobs: list[Job]) -> None:
        text = f"the writer of {str(self._path)!r} has stopped"
        self._flush()
        with contextlib.suppress(Empty):
            while True:
                jobs += self._queue.get_nowait() or []
        self._resolve([(job, None, EngineUnavailable(text)) for job in jobs])
        if not self._started.done():
            self._started.set_exception(EngineUnavailable(text))
        if not self._stopped.done():
            self._stopped.set_result(None)


def _take(waiting: deque[Job]) -> list[Job]:
    batch: list[Job] = []
    while waiting and len(batch) < BATCH:
        job = waiting[0]
        alone = isinstance(job, Task) and job.how != "shared"
        if alone and batch:
            break
        batch.append(waiting.popleft())
        if alone:
            break
    return batch


def _translate(exc: Exception, path: Path, *, connection_lost: bool) -> DragomanError:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF if isinstance(exc, sqlite3.Error) else 0
    if connection_lost or code in _SURROUNDINGS or isinstance(exc, MemoryError):
        return _caused(EngineUnavailable(f"the database {str(path)!r} cannot be written: {exc}"), exc)
    return _caused(InvalidRequest(f"the step cannot be kept: {exc}"), exc)


def _caused(error: DragomanError, cause: BaseException) -> DragomanError:
    # The same as `raise ... from`, for an error that is raised on another thread.
    error.__cause__ = cause
    return error
