"""What an operator does with a SQLite database as a file: migrate it, back it up, restore it.

These run in a process of their own, beside the gateway (backup) or instead of it (all others). Paths of
databases are as `locate` gives them.
"""

import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EngineUnusable, OperatorError
from gateway.store.copy import Tell
from gateway.store.roster import RESTORED
from gateway.store.sqlite.lock import FileLock, check_place
from gateway.store.sqlite.log import replay
from gateway.store.sqlite.schema import APPLICATION, open_writer, refuse_newer

_SIDES = ("", "-wal", "-shm")
_STEPS_BETWEEN_SIGNALS = 100_000
_PAGES_AT_ONCE = 1_000
_RENEW = "UPDATE sessions SET fence = fence + ?, owner = NULL"
_COUNTS = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM events)"


def _tell_nobody(what: str, done: int, total: int) -> None:
    del what, done, total


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database holds."""

    schema: int
    sessions: int
    events: int
    size: int


def schema_of(path: Path) -> int:
    """Say which schema a database has; 0 where there is none yet.

    Raises:
        EngineUnusable: the file is not a database of ours, or cannot be read.
        SchemaTooNew: a newer release has written it.
    """
    if not path.exists() or not path.stat().st_size:
        return 0
    with _reading(path) as connection:
        return _check(connection, path)


def migrate(path: Path) -> tuple[int, int]:
    """Bring a database up to date, or make it; answers its schema before and after.

    Raises:
        EngineLocked: a gateway uses it.
        EngineUnusable: it cannot be used.
        SchemaTooNew: a newer release has written it.
    """
    with alone(path):
        before = schema_of(path)
        open_writer(path).close()
        return before, schema_of(path)


def back_up(path: Path, target: Path, *, force: bool, tell: Tell = _tell_nobody) -> Contents:
    """Copy a database, also while a gateway uses it; the copy appears under its name once it is whole and checked.

    `tell` hears of bytes.

    Raises:
        EngineUnusable: there is no database of ours to copy, or the copy is not sound.
        OperatorError: the target exists, or another backup to it is under way.
    """
    if not path.exists():
        raise EngineUnusable(f"there is no database at {str(path)!r}, so there is nothing to back up")
    with _partial(target) as partial:
        _refuse_existing(target, force=force)
        with _reading(path) as connection:
            _check(connection, path)
            total = _used(connection)
            connection.set_progress_handler(
                lambda: tell("copying", partial.stat().st_size, total), _STEPS_BETWEEN_SIGNALS
            )
            # The copy is of one moment, and holds no page that was freed.
            connection.execute("VACUUM INTO ?", (str(partial),))
        tell("checking", 0, 0)
        with _opened(partial, "rw") as copy:
            settle(copy)
        partial.chmod(path.stat().st_mode & 0o777)
        contents = examine(partial, name=target)
        _refuse_existing(target, force=force)
        _put(partial, target)
    return contents


def restore(path: Path, backup: Path, *, tell: Tell = _tell_nobody) -> tuple[Contents, Path | None]:
    """Put a backup in a database's place, with fences that nobody has; answers where the old one was put.

    `tell` hears of bytes.

    Raises:
        EngineLocked: a gateway uses the database.
        EngineUnusable: the backup is missing, not one of ours, or not sound.
        SchemaTooNew: a newer release has written it.
    """
    if not backup.is_file():
        raise EngineUnusable(f"there is no backup at {str(backup)!r}: check the path")
    with alone(path):
        if path.exists() and path.samefile(backup):
            raise OperatorError(f"{str(backup)!r} is the database itself: name a backup, or use --bump-fences")
        with _partial(path) as partial:
            tell("checking the backup", 0, 0)
            examine(backup, name=backup)
            with _reading(backup) as source, _opened(partial, "rwc") as copy:
                size = source.execute("PRAGMA page_size").fetchone()[0]
                source.backup(
                    copy,
                    pages=_PAGES_AT_ONCE,
                    progress=lambda _, left, total: tell("restoring", (total - left) * size, total * size),
                )
            tell("checking", 0, 0)
            renew(partial)
            partial.chmod((path if path.exists() else backup).stat().st_mode & 0o777)
            if os.geteuid() == 0:
                # Root restores what the gateway's own user must be able to write.
                owner = (path if path.exists() else path.parent).stat()
                os.chown(partial, owner.st_uid, owner.st_gid)
            contents = examine(partial, name=path)
            aside = _set_aside(path)
            _put(partial, path)
    return contents, aside


def bump_fences(path: Path) -> int:
    """Make every fence of a database a new one where it lies; answers how many sessions there are.

    Raises:
        EngineLocked: a gateway uses the database.
        EngineUnusable: there is none, or it cannot be used.
    """
    with alone(path):
        if not schema_of(path):
            raise EngineUnusable(f"there is no database at {str(path)!r}")
        return renew(path)


def renew(path: Path) -> int:
    """Bring a database up to date, and let nobody own its sessions; it is one file afterwards."""
    connection = open_writer(path)
    try:
        count = connection.execute(_RENEW, (RESTORED,)).rowcount
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as exc:
        raise EngineUnusable(f"cannot write {str(path)!r} ({exc}): has the disk space?") from exc
    finally:
        connection.close()
    return count


def examine(path: Path, *, name: Path) -> Contents:
    """Check every page of a database, and count what it holds.

    Raises:
        EngineUnusable: it is not one of ours, or not sound; `name` is what the text calls it.
        SchemaTooNew: a newer release has written it.
    """
    with _reading(path) as connection:
        schema = _check(connection, name)
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if found != ["ok"]:
            raise EngineUnusable(f"{str(name)!r} is damaged ({found[0]}): use another backup")
        sessions, events = connection.execute(_COUNTS).fetchone()
    return Contents(schema, sessions, events, path.stat().st_size)


def settle(connection: sqlite3.Connection) -> None:
    """Put what waits in the log of a database that nobody else uses into its tables, whatever release made it."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone():
        connection.execute("PRAGMA secure_delete = ON")
        replay(connection)


def _used(connection: sqlite3.Connection) -> int:
    """Say how large a copy of a database becomes, about."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _check(connection: sqlite3.Connection, path: Path) -> int:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION or not version:
        raise EngineUnusable(f"{str(path)!r} is not a database of Dragoman: check the path")
    refuse_newer(connection, path, "use the newer release")
    return version


@contextmanager
def _reading(path: Path) -> Generator[sqlite3.Connection]:
    # A log that nobody has worked off yet is worked off when it is opened, which a read-only connection cannot do.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    with _opened(path, "rw" if writable else "ro") as connection:
        yield connection


@contextmanager
def _opened(path: Path, mode: str) -> Generator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=5.0, isolation_level=None
        )
        try:
            # Between the steps of a long statement Python looks for Ctrl-C.
            connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_SIGNALS)
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            # SQLite says so where Ctrl-C was pressed between two steps of a statement.
            raise KeyboardInterrupt from exc
        raise EngineUnusable(
            f"cannot copy or read {str(path)!r} ({exc}): is it a database of Dragoman, and has the disk space?"
        ) from exc


@contextmanager
def alone(path: Path) -> Generator[None]:
    check_place(path)
    lock = FileLock(path)
    lock.take()
    try:
        yield
    finally:
        lock.free()


@contextmanager
def _partial(target: Path) -> Generator[Path]:
    """Make the file that a copy grows in, for one process at a time; it goes if the copy fails."""
    partial = target.with_name(target.name + ".partial")
    if not target.parent.is_dir():
        raise EngineUnusable(f"the folder {str(target.parent)!r} does not exist: create it")
    with partial.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise OperatorError(f"another process writes {str(partial)!r}: wait for it") from exc
        try:
            file.truncate(0)
            yield partial
        except BaseException:
            for side in (*_SIDES, "-journal"):
                partial.with_name(partial.name + side).unlink(missing_ok=True)
            raise


def _refuse_existing(target: Path, *, force: bool) -> None:
    if target.exists() and not force:
        raise OperatorError(f"{str(target)!r} exists: name another file, or add --force to replace it")


def _set_aside(path: Path) -> Path | None:
    """Rename a database and its log; SQLite finds a log by the name of its database."""
    if not path.exists():
        return None
    first = path.with_name(path.name + ".before-restore")
    aside, number = first, 1
    while aside.exists():
        number += 1
        aside = first.with_name(f"{first.name}-{number}")
    for side in _SIDES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + side).rename(aside.with_name(aside.name + side))
    return aside


def _put(partial: Path, target: Path) -> None:
    """Give a whole file its name, so that neither is lost with the power."""
    _sync(partial)
    partial.replace(target)
    _sync(target.parent)


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
