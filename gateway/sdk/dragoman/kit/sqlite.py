"""Claims in a SQLite file, for the workers of one machine."""

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time
from typing import TypeVar

from dragoman.kit.owner import Owner, lives
from dragoman.kit.store import KEPT, Callback, Claimed, KeyReused, Owed, StoreUnavailable

_BUSY = 5.0
"""Seconds for which a worker waits for another one's write."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, owner TEXT NOT NULL, claimed_at REAL NOT NULL, answer BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_by_age ON claims (claimed_at);
CREATE TABLE IF NOT EXISTS callbacks (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, url TEXT NOT NULL, tool TEXT NOT NULL, deadline REAL NOT NULL
) WITHOUT ROWID;
"""

T = TypeVar("T")


class SqliteCallStore:
    """Keeps claims in a file on a local disk; a worker's file lock shows that the worker is alive."""

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

    async def accept(self, key: str, callback: Callback) -> None:
        await self._do(
            lambda: self._file.execute(
                "INSERT OR REPLACE INTO callbacks (key, owner, url, tool, deadline) VALUES (?, ?, ?, ?, ?)",
                (key, self._owner, callback.url, callback.tool, callback.deadline),
            )
        )

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        return await self._do(lambda: self._finish(key, answer))

    async def settle(self, key: str) -> None:
        await self._do(lambda: self._file.execute("DELETE FROM callbacks WHERE key = ?", (key,)))

    async def take_owed(self, idempotent: Collection[str], limit: int) -> Sequence[Owed]:
        return await self._do(lambda: self._take_owed(tuple(idempotent), limit))

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
        with self._transaction():
            found = self._file.execute("SELECT digest, owner, answer FROM claims WHERE key = ?", (key,)).fetchone()
            claim = self._judge(key, digest, found)
            if claim.state == "new":
                self._file.execute(
                    "INSERT INTO claims (key, digest, owner, claimed_at) VALUES (?, ?, ?, ?)",
                    (key, digest, self._owner, now),
                )
                self._file.execute(
                    "DELETE FROM claims WHERE key IN (SELECT key FROM claims WHERE claimed_at < ? LIMIT 100)",
                    (now - KEPT.total_seconds(),),
                )
            elif claim.state == "abandoned":
                self._file.execute("UPDATE claims SET owner = ?, claimed_at = ? WHERE key = ?", (self._owner, now, key))
        return claim

    def _finish(self, key: str, answer: bytes) -> Callback | None:
        self._file.execute(
            "UPDATE claims SET answer = ? WHERE key = ? AND owner = ? AND answer IS NULL", (answer, key, self._owner)
        )
        found = self._file.execute("SELECT url, tool, deadline FROM callbacks WHERE key = ?", (key,)).fetchone()
        return None if found is None else Callback(*found)

    def _take_owed(self, idempotent: Sequence[str], limit: int) -> list[Owed]:
        if self._file.execute("SELECT 1 FROM callbacks WHERE owner != ? LIMIT 1", (self._owner,)).fetchone() is None:
            return []
        with self._transaction():
            self._file.execute("DELETE FROM callbacks WHERE key NOT IN (SELECT key FROM claims)")
            owners = self._file.execute(
                "SELECT owner FROM callbacks UNION SELECT owner FROM claims WHERE key IN (SELECT key FROM callbacks)"
            ).fetchall()
            dead = [one for (one,) in owners if one != self._owner and not lives(self._path, one)]
            rows = self._file.execute(
                "SELECT key, url, tool, deadline, answer FROM callbacks JOIN claims USING (key)"
                " WHERE callbacks.owner IN (SELECT value FROM json_each(:dead)) AND (answer IS NOT NULL"
                " OR claims.owner IN (SELECT value FROM json_each(:dead))"
                " AND tool NOT IN (SELECT value FROM json_each(:idempotent))) LIMIT :limit",
                {"dead": json.dumps(dead), "idempotent": json.dumps(idempotent), "limit": limit},
            ).fetchall()
            for key, *_ in rows:
                self._file.execute("UPDATE callbacks SET owner = ? WHERE key = ?", (self._owner, key))
                self._file.execute("UPDATE claims SET owner = ? WHERE key = ?", (self._owner, key))
        return [Owed(key, Callback(url, tool, deadline), answer) for key, url, tool, deadline, answer in rows]

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

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
