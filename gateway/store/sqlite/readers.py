"""Threads that read from SQLite, so that a question waits neither for the writer nor on the event loop."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Concatenate, ParamSpec, TypeVar

from gateway.errors import EngineUnavailable, InvalidRequest
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.schema import open_reader

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 2
_WAITING = 256
"""Questions that wait for a thread; later callers wait for room."""


class Readers:
    """Run functions over read-only connections; each sees only what has been committed."""

    def __init__(self, path: Path, guard: FileGuard) -> None:
        self._path = path
        self._guard = guard
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dragoman-sqlite-reader")
        self._mine = local()
        self._connections: list[sqlite3.Connection] = []
        self._room = asyncio.Semaphore(_WAITING)
        self._closing = False

    async def ask(
        self, question: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a question in a thread.

        Raises:
            EngineUnavailable: the database cannot be read, or is closed.
        """
        async with self._room:
            if self._closing:
                raise EngineUnavailable(f"the database {str(self._path)!r} is closed")
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: self._answer(question, *args, **kwargs))

    def _answer(
        self, question: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return question(self._connection(), *args, **kwargs)
        except sqlite3.Error as exc:
            raise EngineUnavailable(f"the database {str(self._path)!r} cannot be read: {exc}") from exc
        except (UnicodeEncodeError, OverflowError) as exc:
            raise InvalidRequest(f"the store cannot search for this value: {exc}") from exc

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            # Opening another database, and closing it, could remove its log.
            self._guard.check()
            connection = open_reader(self._path)
            self._mine.connection = connection
            self._connections.append(connection)
        return connection

    async def close(self) -> None:
        """Wait for the questions that are being answered, and close the connections."""
        self._closing = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
