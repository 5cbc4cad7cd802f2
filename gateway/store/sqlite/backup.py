"""What an operator does with a SQLite database as a file: migrate it, back it up, restore it.

These run in a process of their own, beside the gateway (backup) or instead of it (all others). Paths of
databases are as `locate` gives them.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EngineUnusable, OperatorError
from gateway.store.copy import Tell
from gateway.store.roster import RESTORED
from gateway.store.sqlite.lock import (
    SIDES,
    FileLock,
    beside,
    check_place,
    locate,
    lock_path,
)
from gateway.store.sqlite.migrate_0_2 import keep_copy
from gateway.store.sqlite.replacing import aside_for, growing, partial_of, put, put_over, replacing, set_aside, sync
from gateway.store.sqlite.schema import APPLICATION, open_writer, refuse_newer

_STEPS_BETWEEN_SIGNALS = 100_000
_PAGES_AT_ONCE = 1_000
_RENEW = "UPDATE sessions SET fence = fence + ?, owner = NULL"
_COUNTS = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM events)"
_IN_WRITING = frozenset({
    sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_DIR_FSYNC, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
})  # fmt: skip
"""What the file that is written has, where two are open."""
_RIGHTS = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY})


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
        SchemaTooNew: a newer release has migrated it.
    """
    if not path.exists() or not path.stat().st_size:
        return 0
    with _reading(path) as connection:
        return _check(connection, path)


def migrate(path: Path) -> tuple[int, int]:
    """Migrate a database, or create it; returns its schema before and after. A copy of an old one is kept beside it.

    Raises:
        EngineLocked: a gateway uses it.
        EngineUnusable: it cannot be used.
        SchemaTooNew: a newer release has migrated it.
    """
    with alone(path):
        before = schema_of(path)
        keep_copy(path)
        open_writer(path).close()
        return before, schema_of(path)


def back_up(path: Path, target: Path, *, force: bool, tell: Tell = _tell_nobody) -> Contents:
    """Copy a database, also while a gateway uses it; the copy appears under its name once it is whole and checked.

    `tell` hears of bytes.

    Raises:
        EngineLocked: the target is the database of another gateway that runs.
        EngineUnusable: there is no database of ours to copy, or the copy is not sound or cannot be written.
        OperatorError: the target exists, or another backup to it is under way, or it is this database.
    """
    if not path.exists():
        raise EngineUnusable(f"there is no database at {str(path)!r}, so there is nothing to back up")
    _check_target(target, path)
    with replacing(target, force=force):
        pass  # told now, and not only at the end of a long copy
    with growing(target) as partial:
        with _reading(path) as connection:
            _check(connection, path)
            total = _used(connection)
            connection.set_progress_handler(
                lambda: tell("copying", partial.stat().st_size, total), _STEPS_BETWEEN_SIGNALS
            )
            with _writing(target):
                # The copy is of one moment, and holds no page that was freed.
                connection.execute("VACUUM INTO ?", (str(partial),))
        tell("checking", 0, 0)
        partial.chmod(path.stat().st_mode & 0o777)
        contents = examine(partial, name=target)
        sync(partial, name=target)
        with replacing(target, force=force):
            put_over(partial, target)
    return contents


def restore(path: Path, backup: Path, *, tell: Tell = _tell_nobody) -> tuple[Contents, Path | None]:
    """Put a backup in a database's place, with fences that nobody has; answers where the old one was put.

    `tell` hears of bytes.

    Raises:
        EngineLocked: a gateway uses the database.
        EngineUnusable: the backup is missing, not one of ours, or not sound.
        SchemaTooNew: a newer release has migrated it.
    """
    if not backup.is_file():
        raise EngineUnusable(f"there is no backup at {str(backup)!r}: check the path")
    with alone(path, restoring=True):
        if path.exists() and path.samefile(backup):
            raise OperatorError(f"{str(backup)!r} is the database itself: name a backup, or use --bump-fences")
        if locate(backup) == partial_of(path):
            raise OperatorError(f"{str(backup)!r} is what a copy that was interrupted has left: name a backup")
        with growing(path) as partial:
            tell("checking the backup", 0, 0)
            examine(backup, name=backup)
            with _reading(backup) as source, _opened(partial, "rwc", name=path) as copy:
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
            # Whole on the disk before the old one loses its name.
            sync(partial, name=path)
            had = path.exists()
            aside = aside_for(path)
            with set_aside(path, aside):
                put(partial, path)
    return contents, aside if had else None


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
        SchemaTooNew: a newer release has migrated it.
    """
    with _reading(path, name=name) as connection:
        schema = _check(connection, name)
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if found != ["ok"]:
            raise EngineUnusable(f"{str(name)!r} is damaged ({found[0]}): use another backup")
        sessions, events = connection.execute(_COUNTS).fetchone()
    return Contents(schema, sessions, events, path.stat().st_size)


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
    refuse_newer(connection, path)
    return version


@contextmanager
def _reading(path: Path, *, name: Path | None = None) -> Generator[sqlite3.Connection]:
    # A log that nobody has worked off yet is worked off when it is opened, which a read-only connection cannot do.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    with _opened(path, "rw" if writable else "ro", name=name) as connection:
        yield connection


@contextmanager
def _opened(path: Path, mode: str, *, name: Path | None = None) -> Generator[sqlite3.Connection]:
    """Open a database; `name` is what texts call it."""
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
        if _code(exc) == sqlite3.SQLITE_INTERRUPT:
            # SQLite says so where Ctrl-C was pressed between two steps of a statement.
            raise KeyboardInterrupt from exc
        raise _unusable(name or path, exc) from exc


@contextmanager
def _writing(target: Path) -> Generator[None]:
    """Name the target where it is what a statement over two files fails on."""
    try:
        yield
    except sqlite3.Error as exc:
        code = _code(exc)
        if code & 0xFF == sqlite3.SQLITE_FULL or _IN_WRITING & {code, code & 0xFF}:
            raise _unusable(target, exc) from exc
        raise


def _code(exc: sqlite3.Error) -> int:
    # What Python's module has found out itself has none.
    return getattr(exc, "sqlite_errorcode", 0)


def _unusable(name: Path, exc: sqlite3.Error) -> EngineUnusable:
    kind = _code(exc) & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        return EngineUnusable(f"cannot write {str(name)!r} ({exc}): make room on its disk")
    if kind in _RIGHTS:
        return EngineUnusable(
            f"cannot open {str(name)!r} ({exc}): may this user read and write it and its folder? Run this as the "
            "gateway's user"
        )
    return EngineUnusable(
        f"cannot copy or read {str(name)!r} ({exc}): is it a database of Dragoman, and has the disk space?"
    )


@contextmanager
def alone(path: Path, *, restoring: bool = False) -> Generator[None]:
    check_place(path, restoring=restoring)
    lock = FileLock(path)
    lock.take()
    try:
        yield
    finally:
        lock.free()


def _check_target(target: Path, path: Path) -> None:
    """Refuse what no backup can be put at, or must not."""
    if not target.parent.is_dir():
        raise EngineUnusable(f"the folder {str(target.parent)!r} does not exist: create it")
    if target.is_dir():
        raise OperatorError(f"{str(target)!r} is a folder: name a file in it, such as {str(target / 'dragoman.db')!r}")
    if target.exists() and not target.is_file():
        raise OperatorError(f"{str(target)!r} is no file that can be replaced: name another one")
    if target.exists() and target.samefile(path):
        raise OperatorError(f"{str(target)!r} is the database itself: name another file")
    if path == partial_of(locate(target)) or locate(target) in {
        *(beside(path, side) for side in SIDES),
        lock_path(path),
    }:
        raise OperatorError(f"{str(target)!r} is a file of the database: name another one")
