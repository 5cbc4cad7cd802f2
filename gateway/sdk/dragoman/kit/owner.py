"""A file lock that shows that a process is alive; the system releases it however the process ends. POSIX only."""

import fcntl
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class Owner:
    """Locks its own file, next to the database in which it owns claims."""

    def __init__(self, beside: Path, name: str) -> None:
        self.name = name
        self._path = _path_of(beside, name)
        self._file: BinaryIO | None = None

    def __enter__(self) -> "Owner":
        self._file = self._path.open("wb")
        self._path.chmod(0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()


def lives(beside: Path, name: str) -> bool:
    """Check whether the owner with a name is alive; removes the file of a dead one."""
    path = _path_of(beside, name)
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    with suppress(OSError):
        path.unlink()
    return False


def _path_of(beside: Path, name: str) -> Path:
    return beside.with_name(f"{beside.name}.{name}.lock")
