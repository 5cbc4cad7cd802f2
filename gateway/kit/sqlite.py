"""Claims in a SQLite file, for the workers of one machine."""

import asyncio
import sqlite3
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import time
from typing import TypeVar

from gateway.kit.owner import Owner, lives
from gateway.kit.store import KEPT, Claimed, KeyReused, StoreUnavailable

_BUSY = 5.0
"""Seconds that one worker may have the file to itself while another one wants to write."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, owner TEXT NOT NULL, claimed_at REAL NOT NULL, answer BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_by_age ON claims (claimed_at);
"""

T = TypeVar("T")


class SqliteCallStore:
    """Keeps claims in a file on a local disk; its owner's lock says whether the worker that has one still lives."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stack = ExitStack()

    async def __aenter__(self) -> "SqliteCallStore":
        self._owner = uuid.uuid4().hex
        self._thread = ThreadPoolExecutor(1, "kit-store")
        await self._do(self._open)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._do(self._stack.close)
        self._thread.shutdown()

    async def claim(self, key: str, digest: str) -> Claimed:
        return await self._do(lambda: self._claim(key, digest))

    async def finish(self, key: str, answer: bytes) -> None:
        await self._do(
            lambda: self._file.execute(
                "UPDATE claims SET answer = ? WHERE key = ? AND owner = ? AND answer IS NULL",
                (answer, key, self._owner),
            )
        )

    async def forget(self, key: str) -> None:
        await self._do(
            lambda: self._file.execute(
                "DELETE FROM claims WHERE key = ? AND owner = ? AND answer IS NULL", (key, self._owner)
            )
        )

    # In the thread ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(Owner(self._path, self._owner))
            file = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            stack.callback(file.close)
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = FULL")
            file.executescript(_SCHEMA)
            self._file = file
            self._stack = stack.pop_all()

    def _claim(self, key: str, digest: str) -> Claimed:
        now = time()
        self._file.execute("BEGIN IMMEDIATE")
        try:
            found = self._file.execute("SELECT digest, owner, answer FROM claims WHERE key = ?", (key,)).fetchone()
            claim = self._judge(key, digest, found)
            if claim.state == "new":
                self._file.execute("INSERT INTO claims VALUES (?, ?, ?, ?, NULL)", (key, digest, self._owner, now))
                self._file.execute(
                    "DELETE FROM claims WHERE key IN (SELECT key FROM claims WHERE claimed_at < ? LIMIT 100)",
                    (now - KEPT.total_seconds(),),
                )
            elif claim.state == "abandoned":
                self._file.execute("UPDATE claims SET owner = ?, claimed_at = ? WHERE key = ?", (self._owner, now, key))
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")
        return claim

    def _judge(self, key: str, digest: str, found: tuple[str, str, bytes | None] | None) -> Claimed:
        if found is None:
            return Claimed("new")
        if found[0] != digest:
            raise KeyReused(key)
        if found[2] is not None:
            return Claimed("done", found[2])
        return Claimed("running" if found[1] != self._owner and lives(self._path, found[1]) else "abandoned")

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as exc:
            raise StoreUnavailable(f"{self._path}: {exc}") from exc
