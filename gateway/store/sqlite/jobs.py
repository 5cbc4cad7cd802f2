"""The jobs of the SQLite writer: limits of the queue, the thread that takes them, batches, and errors."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal

from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest
from gateway.events.frozen import frozen
from gateway.store.apply import Writes
from gateway.store.port import Settled
from gateway.store.records import EventRecord
from gateway.store.sqlite.store import Store
from gateway.store.step import Step

BATCH = 256
WAITING = 1_024
"""Jobs in the queue of the writer; later callers wait for room."""
WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of events in the queue; later callers wait for room."""
LEAST = WAITING_BYTES // WAITING
"""Bytes that each job counts at least, so that the number of jobs is bounded too."""

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
    """The tables and the collected rows of an open transaction."""

    store: Store
    writes: Writes


How = Literal["shared", "alone", "outside"]
"""In the transaction of the batch; in one of its own, because it changes rows that steps remember; in none."""


@frozen
class StepJob:
    """A step to decide and write."""

    step: Step
    events: Sequence[EventRecord]
    settled: Settled
    weight: int

    @classmethod
    def of(cls, step: Step, events: Sequence[EventRecord], settled: Settled) -> "StepJob":
        """Weigh a step by its events."""
        size = LEAST
        for event in events:
            size += len(event.body or b"") + len(event.about or b"")
        return cls(step, events, settled, size)


@frozen
class Task:
    """Other work of the writer. It raises before its first write, or not at all."""

    run: Callable[[Turn], Any]
    how: How
    future: asyncio.Future[Any]
    weight: int = LEAST


Job = StepJob | Task
Verdict = tuple[Job, Any, Exception | None]


class JobThread:
    """Runs a writer: `begin` once, `write` while jobs wait, `end` always."""

    def __init__(
        self, begin: Callable[[], bool], write: Callable[[deque[Job]], None], end: Callable[[deque[Job]], None]
    ) -> None:
        """Prepare without starting; `begin` returns whether there is anything to write to."""
        self._begin, self._write, self._end = begin, write, end
        self._queue: SimpleQueue[Sequence[Job] | None] = SimpleQueue()
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="dragoman-sqlite-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, jobs: Sequence[Job] | None) -> None:
        """Queue jobs; None ends the thread after them."""
        self._queue.put(jobs)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def rest(self) -> Sequence[Job]:
        """Take the jobs that were queued after the end."""
        jobs: list[Job] = []
        while not self._queue.empty():
            jobs += self._queue.get_nowait() or ()
        return jobs

    def _run(self) -> None:
        waiting: deque[Job] = deque()
        try:
            is_open = self._begin()
            while is_open or waiting:
                if is_open:
                    is_open = self._gather(waiting)
                self._write(waiting)
        finally:
            self._end(waiting)

    def _gather(self, waiting: deque[Job]) -> bool:
        """Move queued jobs over; wait only if there are none. False ends the thread."""
        try:
            while True:
                jobs = self._queue.get_nowait() if waiting else self._queue.get()
                if jobs is None:
                    return False
                waiting.extend(jobs)
        except Empty:
            return True


def take(waiting: deque[Job]) -> list[Job]:
    """Take the jobs of the next transaction."""
    batch: list[Job] = []
    while waiting and len(batch) < BATCH:
        job = waiting.popleft()
        if isinstance(job, Task) and job.how != "shared":
            if batch:
                waiting.appendleft(job)
            else:
                batch.append(job)
            break
        batch.append(job)
    return batch


def translate(exc: Exception, path: Path, *, connection_lost: bool) -> DragomanError:
    """Translate a failure for the caller of a job."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF if isinstance(exc, sqlite3.Error) else 0
    if connection_lost or code in _SURROUNDINGS or isinstance(exc, MemoryError):
        return caused(EngineUnavailable(f"the database {str(path)!r} cannot be written: {exc}"), exc)
    return caused(InvalidRequest(f"the step cannot be kept: {exc}"), exc)


def caused(error: DragomanError, cause: BaseException) -> DragomanError:
    """Set the cause of an error that another thread raises."""
    error.__cause__ = cause
    return error
