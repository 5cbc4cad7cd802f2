"""Holds the writer of a SQLite database up, as a disk does that answers nobody: by a lock of another connection."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.store.sqlite import schema as sqlite_schema


@contextmanager
def held(path: Path) -> Generator[None]:
    """Hold the lock."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines that are opened from now on wait for the lock as long as somebody holds it."""
    monkeypatch.setattr(sqlite_schema, "PATIENCE", 600_000)
