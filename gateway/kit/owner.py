"""A sign that a process lives, which the machine takes away with it however it ends. POSIX only."""

import fcntl
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class Owner:
    """Holds a file of its own locked, beside what it owns things in."""

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
    """Whether the owner of a name lives; the file of one that does not is removed."""
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
