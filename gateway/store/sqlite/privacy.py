"""Keeps a new database file to its owner: whoever may read it reads every conversation."""

import os
from contextlib import suppress
from pathlib import Path

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MODE = 0o600
_OTHERS = 0o077


def make_private(path: Path) -> None:
    """Make a database file that only its owner may read, or warn of one that others may; SQLite's own take after it.

    Called before SQLite opens the file: closing a descriptor of it later would drop SQLite's locks.
    """
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        # Whatever is wrong with the folder is said where the file is opened.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))
        return
    if mode & _OTHERS:
        log.warning("others may read the database", path=str(path), mode=f"{mode:04o}", fix=f"chmod 600 {path}*")
