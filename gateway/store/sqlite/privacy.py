"""Restricts a new database file to its owner, because it contains every conversation."""

import os
from contextlib import suppress
from pathlib import Path

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MODE = 0o600
_OTHERS = 0o077


def make_private(path: Path) -> None:
    """Create a database file that only its owner can read, or warn if others can read an existing one.

    SQLite's own files get the same mode. Call this before SQLite opens the file: closing a descriptor of it later
    would drop SQLite's locks.
    """
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        # Opening the file reports a problem with the folder.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))
        return
    if mode & _OTHERS:
        log.warning(
            "the database is readable by other users", path=str(path), mode=f"{mode:04o}", fix=f"chmod 600 {path}*"
        )
