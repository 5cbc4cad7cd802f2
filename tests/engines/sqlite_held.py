"""Holds the writer of a SQLite database up, as a disk does that answers nobody: by a lock of another connection."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

FOR_EVER = 600.0
"""How long an engine waits for the lock that is to do so as long as somebody holds it."""


@contextmanager
def held(path: Path) -> Generator[None]:
    """Hold the lock."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
