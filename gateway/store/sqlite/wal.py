"""Makes SQLite's write-ahead log as long as it becomes anyhow, before a commit needs that.

A commit that makes the file longer waits until the file system has written down where its new blocks are, which takes
about as long as the sync of what it says. Once the log is as long as checkpoints let it become, SQLite writes it over
from its beginning, and no commit pays for that any more.
"""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path

import structlog

PIECE = 512 * 1024
"""Bytes that are added at once; who commits meanwhile waits for their sync."""
_BLOCK = bytes(4096)
"""Zeros, which SQLite takes for the end. One page of the cache: what is written at once, Linux may keep as one piece,
and then counts all of it as written where a byte of it is."""

log = structlog.get_logger(__name__)


class Wal:
    """The log of an open database; for the thread that writes."""

    def __init__(self, path: Path, *, is_ours: Callable[[os.stat_result], bool]) -> None:
        """Begin with a log of any length; `is_ours` says whether a file is the one that SQLite has open."""
        self.may_be_short = True
        """Whether it may have to be made longer."""
        self._path = path.with_name(f"{path.name}-wal")
        self._is_ours = is_ours

    def lengthen(self, connection: sqlite3.Connection, upto: int) -> None:
        """Add a piece, where the log has fewer bytes than that and the disk has room; later where somebody else writes.

        Raises:
            sqlite3.Error: the connection is in no good state.
        """
        try:
            with at_once(connection):
                # Until this is over, nobody else puts anything behind the end.
                connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return
        self.may_be_short = False
        try:
            self.may_be_short = self._add_piece(upto)
        except FileNotFoundError:
            # That it was taken away is told by who looks after it.
            pass
        except OSError as exc:
            # Whether commits still find room is for them to tell.
            log.info("commits may take longer: their log grows with them", path=str(self._path), reason=exc.strerror)
        finally:
            connection.execute("ROLLBACK")

    def _add_piece(self, upto: int) -> bool:
        """Answer whether it has to be made longer still."""
        # SQLite has no locks on this file, which it would lose where another descriptor of it is closed.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_size >= upto or not self._is_ours(found):
                return False
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < upto:
                # What is left is for what must be written.
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            end = found.st_size
            try:
                while end < found.st_size + PIECE:
                    end += os.pwrite(descriptor, _BLOCK[end % len(_BLOCK) :], end)
                os.fdatasync(descriptor)
            except OSError:
                os.ftruncate(descriptor, found.st_size)
                raise
            return end < upto
        finally:
            os.close(descriptor)


@contextmanager
def at_once(connection: sqlite3.Connection) -> Generator[None]:
    """Let statements fail at once where another connection is in their way."""
    ((patience,),) = connection.execute("PRAGMA busy_timeout").fetchall()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")
