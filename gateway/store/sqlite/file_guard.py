"""The check that the files that SQLite has open are still those that their paths name.

A removed or replaced file can still be written, and is lost with the process. The check uses `stat` only: a descriptor
of the database that is closed in this process would drop the locks that SQLite holds.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.errors import EngineUnavailable
from gateway.store.sqlite.lock import lock_path, renumbers_files, sibling

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SETTLED = 3_000_000_000
"""Nanoseconds after which another change of a folder has another time; some file systems count up to two seconds."""


class FileGuard:
    """Remembers device and inode of the database, its -wal and its lock file, and compares them before each use.

    While no entry of their folder changes, each use looks at the folder alone.
    """

    def __init__(self, path: Path, *, confirm: float) -> None:
        """Guard a database; a difference must last `confirm` seconds to count."""
        self._path, self._wal = path, sibling(path, "-wal")
        self._files = {path: "the database", self._wal: "the -wal file", lock_path(path): "the lock file"}
        self._confirm = confirm
        self._renumbered = renumbers_files(path)
        self._known: dict[Path, tuple[int, int]] = {}
        self._folder = path.parent
        self._checked: tuple[int, int, int] | None = None
        """The folder at the last look at the files."""
        self._confirmed: str | None = None
        self._warned = False

    def remember(self) -> None:
        """Remember the files that SQLite has just opened."""
        for file in self._files:
            with suppress(FileNotFoundError):
                self._known.setdefault(file, _identify(file))

    def forget_wal(self) -> None:
        """Expect another -wal file: SQLite removes it with its last connection."""
        self._known.pop(self._wal, None)

    def check(self) -> None:
        """Return if every file is in its place; wait for a second look at a difference.

        Raises:
            EngineUnavailable: a file was removed or replaced.
        """
        folder = self._look_at_folder()
        if folder is not None and folder == self._checked:
            return
        self._checked = None
        problem = self._find_problem()
        if problem is not None and problem != self._confirmed:
            time.sleep(self._confirm)
            problem = self._find_problem()
        if problem == self._confirmed is None:
            self._checked = folder
            return
        if problem != self._confirmed:
            self._report(problem)
        if problem is not None:
            raise EngineUnavailable(problem)

    def _look_at_folder(self) -> tuple[int, int, int] | None:
        """Return device, inode and time of change; None if the time may not show the next change."""
        try:
            found = os.stat(self._folder)  # noqa: PTH116 - for each batch
        except OSError:
            return None
        is_settled = time.time_ns() - found.st_mtime_ns > _SETTLED
        return (found.st_dev, found.st_ino, found.st_mtime_ns) if is_settled and not self._renumbered else None

    def _report(self, problem: str | None) -> None:
        self._confirmed = problem
        if problem is None:
            log.warning("the database file is in its place again", path=str(self._path))
        else:
            log.error("the database file was removed or replaced", reason=problem)

    def _find_problem(self) -> str | None:
        for file, known in tuple(self._known.items()):
            try:
                found = _identify(file)
            except OSError as exc:
                return f"{self._files[file]} {str(file)!r} cannot be found ({exc.strerror}): {self._advise(file)}"
            if found != known and not self._renumbered:
                return f"{self._files[file]} {str(file)!r} was replaced by another file: {self._advise(file)}"
            if found != known and not self._warned:
                self._warned = True
                log.warning("the database file seems to be another one", path=str(file), reason="its inode has changed")
        return None

    def _advise(self, file: Path) -> str:
        return "put it back" if file == self._path else "put it back, or restart the gateway"


def _identify(file: Path) -> tuple[int, int]:
    found = os.stat(file)  # noqa: PTH116 - one system call
    return found.st_dev, found.st_ino
