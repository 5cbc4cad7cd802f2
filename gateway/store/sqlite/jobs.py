"""What the SQLite writer is given to do: how much may wait, what shares a transaction, and what a failure means."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gateway.errors import DragomanError, EngineUnavailable, InvalidRequest
from gateway.events.frozen import frozen
from gateway.store.apply import Writes
from gateway.store.records import EventRecord
from gateway.store.sqlite.store import Store
from gateway.store.step import Step

BATCH = 256
WAITING = 1_024
"""Jobs that may wait for the writer; who comes later waits for room."""
WAITING_BYTES = 64 * 1024 * 1024
"""What the events of waiting steps may take; who comes later waits for room."""
LEAST = WAITING_BYTES // WAITING
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
    weight: int = LEAST


Job = StepJob | Task
Verdict = tuple[Job, Any, Exception | None]


def take(waiting: deque[Job]) -> list[Job]:
    """Take out what is written together."""
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
    """Say what a failure means to whoever waits for a job."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF if isinstance(exc, sqlite3.Error) else 0
    if connection_lost or code in _SURROUNDINGS or isinstance(exc, MemoryError):
        return caused(EngineUnavailable(f"the database {str(path)!r} cannot be written: {exc}"), exc)
    return caused(InvalidRequest(f"the step cannot be kept: {exc}"), exc)


def caused(error: DragomanError, cause: BaseException) -> DragomanError:
    """Do as `raise ... from` does, for an error that is raised on another thread."""
    error.__cause__ = cause
    return error
