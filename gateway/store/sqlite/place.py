"""Sees whether the files that SQLite has open are still what their paths name.

A file that was removed or replaced can be written on, and is gone with the process; so nothing is written while
it is. All of this looks at paths, by `stat`. Nothing here or anywhere in this process may open, copy or lock the
database by a descriptor of its own: closing it would drop the locks that SQLite holds, and a second process that
looks at the database would then take it for one that nobody uses.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import structlog

from gateway.errors import EngineUnavailable
from gateway.guard import FAULTS
from gateway.store.sqlite.lock import is_unsteady, lock_path

log = structlog.get_logger(__name__)

LOOK = 0.25
"""Seconds between two looks."""
SETTLED = 1.0
"""Seconds that a difference must last to count."""

_Number = tuple[int, int]


class FilePlace:
    """Remembers device and inode of the database, its log and its lock; `start` begins to look at them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._lock = lock_path(path)
        self._unsteady = is_unsteady(path.parent)
        self._known: dict[Path, _Number] = {}
        self._since: dict[Path, float] = {}
        self._counted: dict[Path, str] = {}
        self._warned: set[str] = set()
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dragoman-sqlite-place", daemon=True)

    # What others ask

    @property
    def is_in_doubt(self) -> bool:
        """Whether something was not where it was when it was looked at last."""
        return bool(self._since)

    @property
    def trouble(self) -> str | None:
        """What is not where it was, with what to do; for an operator."""
        return "; ".join(self._counted.values()) or None

    def is_log(self, found: os.stat_result) -> bool:
        """Whether this is the log that SQLite has open."""
        return self._known.get(self._log) == (found.st_dev, found.st_ino)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def remember(self) -> None:
        """The database has just been opened: its files are those that the paths name now.

        Raises:
            EngineUnavailable: the path has come to name another database than before.
        """
        self.refuse_another()
        with self._looking:
            for file in (self._path, self._log, self._lock):
                with suppress(FileNotFoundError):
                    self._known.setdefault(file, _number(file))

    def forget_log(self) -> None:
        """The writer has closed the database, and perhaps removed its log with that."""
        with self._looking:
            for told in (self._known, self._since, self._counted):
                told.pop(self._log, None)

    def refuse_another(self) -> None:
        """Refuse to open by its path what is no longer the database, or has lost its log.

        Raises:
            EngineUnavailable: something else is there, or nothing.
        """
        self._look()
        if self._since.keys() & {self._path, self._log}:
            raise EngineUnavailable(f"the files of the database {str(self._path)!r} are not where they were opened")

    def check(self) -> None:
        """Return at once where the database is in its place; where it seems not to be, look again first.

        It waits for the second look, in the writer's thread.

        Raises:
            EngineUnavailable: what was written now would be gone with the process.
        """
        while self._since.keys() & {self._path, self._log}:
            self._look()
            counted = [text for file, text in self._counted.items() if file != self._lock]
            if counted:
                raise EngineUnavailable("; ".join(counted))
            self._ended.wait(LOOK)

    # Looking

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            try:
                self._look()
            # A fault of ours in here must not leave the database unwatched.
            except Exception as exc:  # noqa: BLE001
                text = "the place of the database cannot be looked at"
                FAULTS.note("sqlite place", exc, text=text, path=str(self._path))
                self._ended.wait(SETTLED)

    def _look(self) -> None:
        with self._looking:
            now = monotonic()
            for file, known in self._known.items():
                problem = self._differs(file, known)
                if problem is None:
                    self._since.pop(file, None)
                    if self._counted.pop(file, None) is not None:
                        log.warning("it is back where it was, and all goes on", path=str(file))
                elif now - self._since.setdefault(file, now) >= SETTLED and file not in self._counted:
                    self._counted[file] = problem
                    log.error("the database was taken away", reason=problem)

    def _differs(self, file: Path, known: _Number) -> str | None:
        what = {self._path: "the database", self._log: "the log of the database"}.get(file, "the lock of the database")
        mend = (
            "put it back; the gateway has to be restarted to use another file"
            if file == self._path
            else "put it back, or restart the gateway; what it held is in the database"
            if file == self._log
            else "restart the gateway, which makes it again"
        )
        try:
            found = os.stat(file)  # noqa: PTH116 - one call of the system, and plainly no descriptor
        except (FileNotFoundError, NotADirectoryError):
            return f"{what} is gone from {str(file)!r}: {mend}"
        except OSError as exc:
            return f"{what} cannot be looked at in {str(file)!r} ({exc.strerror}): {mend}"
        if file == self._path:
            self._judge(found)
        if (found.st_dev, found.st_ino) == known:
            return None
        if self._unsteady:
            self._warn(f"{str(file)!r} seems to be another file; on this file system that may mean nothing")
            return None
        return f"{what} was replaced by another file in {str(file)!r}: {mend}"

    def _judge(self, found: os.stat_result) -> None:
        if found.st_nlink > 1:
            self._warn(
                f"{str(self._path)!r} has another name by now (a hard link), and will be refused at the next start: "
                "remove the other one"
            )
        for path in (self._path, self._path.parent):
            if _may_only_be_read(path):
                self._warn(f"{str(path)!r} may only be read by now: the gateway's user must be able to write there")

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("the database needs attention", reason=reason)


def _may_only_be_read(path: Path) -> bool:
    """Whether it is there and has no mode for writing, which stops no root, or is kept as it is by the file system."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - as above
    except OSError:
        return False
    return not mode & 0o222 or (not os.access(path, os.W_OK) and os.access(path, os.F_OK))


def _number(file: Path) -> _Number:
    found = os.stat(file)  # noqa: PTH116 - as above
    return found.st_dev, found.st_ino
