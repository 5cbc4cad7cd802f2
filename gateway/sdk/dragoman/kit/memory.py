"""Claims in memory, for an application of one worker."""

import fcntl
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from dragoman.kit.store import KEPT, Callback, Claimed, KeyReused, Owed

MOST = 100_000
"""The maximum number of keys; beyond it the oldest completed ones are removed."""

log = logging.getLogger("dragoman.kit")


class MemoryCallStore:
    """Keeps claims for the life of its process; a call that is repeated after a restart runs again."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[str, float, bytes | None]] = {}
        self._callbacks: dict[str, Callback] = {}
        self._stack = ExitStack()

    async def __aenter__(self) -> "MemoryCallStore":
        file = self._stack.enter_context(_worker_lock_path().open("wb"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning(
                "this application has several workers, and each would run a repeated call: pass Tools a"
                " shared store, SqliteCallStore or PostgresCallStore"
            )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stack.close()
        self._claims.clear()
        self._callbacks.clear()

    async def claim(self, key: str, digest: str) -> Claimed:
        known = self._claims.get(key)
        if known is None:
            self._evict()
            self._claims[key] = (digest, time.monotonic(), None)
            return Claimed("new")
        if known[0] != digest:
            raise KeyReused(key)
        return Claimed("abandoned") if known[2] is None else Claimed("done", known[2])

    async def accept(self, key: str, callback: Callback) -> None:
        self._callbacks[key] = callback

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        digest, at, _ = self._claims[key]
        self._claims[key] = (digest, at, answer)
        return self._callbacks.get(key)

    async def settle(self, key: str) -> None:
        self._callbacks.pop(key, None)

    async def take_owed(self, idempotent: Collection[str], limit: int) -> Sequence[Owed]:
        """Return nothing: no other worker writes to this store."""
        del idempotent, limit
        return ()

    async def forget(self, key: str) -> None:
        if self._claims[key][2] is None:
            del self._claims[key]

    def _evict(self) -> None:
        over, gone = time.monotonic() - KEPT.total_seconds(), list[str]()
        for key, (_, at, answer) in self._claims.items():
            if at > over and len(self._claims) - len(gone) < MOST:
                break
            if answer is not None:
                gone.append(key)
        for key in gone:
            del self._claims[key]
            self._callbacks.pop(key, None)


def _worker_lock_path() -> Path:
    """Return a file name that only the workers of this server share."""
    same = repr((os.getppid(), Path.cwd(), sys.argv)).encode()
    return Path(tempfile.gettempdir()) / f"dragoman-kit-{os.getuid()}-{hashlib.sha256(same).hexdigest()[:16]}.lock"
