"""The commands about a SQLite database as a file: migrate, back up, restore.

They run in a process of their own, beside the gateway (backup) or instead of it (all others). Paths of databases are
resolved by `locate`.
"""

import os
import sqlite3
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EngineUnusable, OperatorError
from gateway.store.numbers import check_number
from gateway.store.roster import RESTORED
from gateway.store.sqlite.lock import SIDES, FileLock, before_restore, check_place, lock_path, sibling
from gateway.store.sqlite.schema import APPLICATION, FIRST, NEWEST, RENAME, RENEW, open_writer

_STEPS_BETWEEN_SIGNALS = 100_000
_RELEASE = f"UPDATE sessions SET fence = fence + {RESTORED}, owner = NULL"  # noqa: S608 - a number
_COUNTS = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM events)"
_RIGHTS = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY})
_DAMAGE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a database; `size` is in bytes."""

    schema: int
    sessions: int
    events: int
    size: int


def schema_of(path: Path) -> int:
    """Read the schema number of a database; 0 if it does not exist yet.

    Raises:
        EngineUnusable: the file is not a database of ours, or cannot be read.
        SchemaTooNew: a newer release has migrated it.
    """
    if not path.exists() or not path.stat().st_size:
        return 0
    with _read(path) as connection:
        return _check(connection, path)


def migrate(path: Path) -> tuple[int, int]:
    """Migrate a database or create it; return its schema numbers before and after.

    Raises:
        EngineLocked: a gateway uses it.
        EngineUnusable: it cannot be used.
        SchemaTooNew: a newer release has migrated it.
    """
    with hold_alone(path):
        before = schema_of(path)
        open_writer(path).close()
        return before, schema_of(path)


def back_up(path: Path, target: Path) -> Contents:
    """Copy a database to a new file, also while a gateway writes it.

    The copy is one transaction, so it ends however much is written. Its name appears when it is complete and checked.

    Raises:
        EngineUnusable: there is no database of ours to copy, or the copy is damaged or cannot be written.
        OperatorError: the target exists, or is a file of the database.
    """
    if not path.exists():
        raise EngineUnusable(f"there is no database at {str(path)!r}, so there is nothing to back up")
    target = Path(os.path.realpath(target.parent)) / target.name
    _check_target(target, path)
    with _create_partial(target) as partial:
        _copy(path, partial, target)
        with _open(partial, "rw", name=target) as connection:
            # Also if the copy is put in the place of a database without `restore`.
            if _check(connection, target) == NEWEST:
                _execute(connection, RENEW)
        contents = _examine(partial, name=target)
        _sync(partial, name=target)
        _give_name(partial, target)
        _sync(target.parent)
    return contents


def restore(path: Path, backup: Path) -> tuple[Contents, Path | None]:
    """Replace a database by a backup with new fences; return its contents and the name of the replaced database.

    The path names a complete database at every moment: the old one until the new one is on disk.

    Raises:
        EngineLocked: a gateway uses the database.
        EngineUnusable: the backup is missing, damaged or not one of ours, or the disk cannot take it.
        OperatorError: the backup is the database itself, or the database of an earlier restore is still there.
        SchemaTooNew: a newer release has migrated the backup.
    """
    if not backup.is_file():
        raise EngineUnusable(f"there is no backup at {str(backup)!r}: check the path")
    with hold_alone(path):
        if path.exists() and path.samefile(backup):
            raise OperatorError(f"{str(backup)!r} is the database itself: name a backup, or use --bump-fences")
        before = before_restore(path)
        for kept in (before, *(sibling(before, side) for side in SIDES)):
            if kept.exists():
                raise OperatorError(f"{str(kept)!r} is from an earlier restore: move it away first")
        with _create_partial(path) as partial:
            _examine(backup, name=backup)
            _copy(backup, partial, path)
            _release(partial, RENAME)
            _give_to_gateway(partial, path)
            contents = _examine(partial, name=path)
            _sync(partial, name=path)
            replaced = _keep_old(path, before)
            # The old name goes to the new file in one step.
            partial.replace(path)
            _sync(path.parent)
    return contents, before if replaced else None


def bump_fences(path: Path) -> int:
    """Give every session of a database a new fence; return the number of sessions.

    Raises:
        EngineLocked: a gateway uses the database.
        EngineUnusable: there is none, or it cannot be used.
    """
    with hold_alone(path):
        if not schema_of(path):
            raise EngineUnusable(f"there is no database at {str(path)!r}")
        return _release(path, *RENEW)


@contextmanager
def hold_alone(path: Path) -> Generator[None]:
    """Hold the lock of a database; no gateway uses it meanwhile.

    Raises:
        EngineLocked, EngineUnusable: as when a gateway starts.
    """
    check_place(path)
    lock = FileLock(path)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_target(target: Path, path: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise EngineUnusable(f"the folder {str(folder)!r} does not exist: create it")
    if target.is_dir():
        raise OperatorError(f"{str(target)!r} is a folder: name a file in it, such as {str(target / 'dragoman.db')!r}")
    if target in {path, lock_path(path), *(sibling(path, side) for side in SIDES)}:
        raise OperatorError(f"{str(target)!r} is a file of the database: name another one")
    for taken in (target, *(sibling(target, side) for side in SIDES)):
        if os.path.lexists(taken):
            raise OperatorError(f"{str(taken)!r} exists, and a backup never replaces a file: name another one")


@contextmanager
def _create_partial(target: Path) -> Generator[Path]:
    """Create the private file in which a copy grows; it is removed at the end unless it was renamed."""
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".partial")
    except OSError as exc:
        raise EngineUnusable(f"cannot write in {str(target.parent)!r} ({exc.strerror})") from exc
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
    finally:
        for side in ("", *SIDES):
            sibling(partial, side).unlink(missing_ok=True)


def _copy(source: Path, partial: Path, target: Path) -> None:
    with _read(source) as connection:
        _check(connection, source)
        try:
            # One read transaction: no write of a gateway makes it begin again, and no freed page is copied.
            connection.execute("VACUUM INTO ?", (str(partial),))
        except sqlite3.Error as exc:
            if _code(exc) & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}:
                raise _unusable(target, exc) from exc
            raise


def _give_name(partial: Path, target: Path) -> None:
    """Rename a file and replace none."""
    try:
        target.hardlink_to(partial)
    except FileExistsError as exc:
        raise OperatorError(f"{str(target)!r} exists by now: name another file") from exc
    except OSError:
        # A file system without hard links, such as that of a memory stick.
        if os.path.lexists(target):
            raise OperatorError(f"{str(target)!r} exists by now: name another file") from None
        partial.rename(target)


def _keep_old(path: Path, before: Path) -> bool:
    """Give the old database its second name, with all that its -wal holds; False if there is no database."""
    exists = path.exists()
    if exists:
        try:
            with _open(path, "rw") as connection:
                # Only the last connection can do this, and it leaves no -wal that would be read as the new file's.
                connection.execute("PRAGMA journal_mode = DELETE")
        except EngineUnusable as exc:
            if not (isinstance(exc.__cause__, sqlite3.Error) and _code(exc.__cause__) & 0xFF in _DAMAGE):
                raise
        try:
            before.hardlink_to(path)
        except OSError as exc:
            raise EngineUnusable(
                f"cannot keep {str(path)!r} as {str(before)!r} ({exc.strerror}): move the database away and try again"
            ) from exc
    for side in SIDES:
        # Of a damaged database, or of one that was removed.
        if sibling(path, side).exists():
            sibling(path, side).rename(sibling(before, side))
    _sync(path.parent)
    return exists


def _give_to_gateway(partial: Path, path: Path) -> None:
    if path.exists():
        partial.chmod(path.stat().st_mode & 0o777)
    if os.geteuid() == 0:
        # Root restores a file that the gateway's own user must be able to write.
        owner = (path if path.exists() else path.parent).stat()
        os.chown(partial, owner.st_uid, owner.st_gid)


def _execute(connection: sqlite3.Connection, statements: Sequence[str]) -> int:
    """Run statements in one transaction; return the number of rows that the last one changed."""
    connection.execute("BEGIN IMMEDIATE")
    count = 0
    for statement in statements:
        count = connection.execute(statement).rowcount
    connection.execute("COMMIT")
    return count


def _release(path: Path, *statements: str) -> int:
    """Begin a new generation and release all sessions under new fences; the database is one file afterwards."""
    connection = open_writer(path)
    try:
        count = _execute(connection, (*statements, _RELEASE))
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as exc:
        raise EngineUnusable(f"cannot write {str(path)!r} ({exc}): has the disk space?") from exc
    finally:
        connection.close()
    return count


def _examine(path: Path, *, name: Path) -> Contents:
    """Check every page of a database and count its rows; `name` is its name in messages."""
    with _read(path, name=name) as connection:
        schema = _check(connection, name)
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if found != ["ok"]:
            raise EngineUnusable(f"{str(name)!r} is damaged ({found[0]}): use another backup")
        sessions, events = connection.execute(_COUNTS).fetchone()
    return Contents(schema, sessions, events, path.stat().st_size)


def _check(connection: sqlite3.Connection, path: Path) -> int:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION or not version:
        raise EngineUnusable(f"{str(path)!r} is not a database of Dragoman: check the path")
    check_number(str(path), version, first=FIRST, newest=NEWEST)
    return version


def _sync(place: Path, *, name: Path | None = None) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        raise EngineUnusable(f"cannot write {str(name or place)!r} ({exc.strerror}): has its disk space?") from exc
    finally:
        os.close(descriptor)


@contextmanager
def _read(path: Path, *, name: Path | None = None) -> Generator[sqlite3.Connection]:
    # Only a connection that may write recovers the -wal of a killed gateway.
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    with _open(path, "rw" if writable else "ro", name=name) as connection:
        yield connection


@contextmanager
def _open(path: Path, mode: str, *, name: Path | None = None) -> Generator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=5.0, isolation_level=None
        )
        try:
            # Python looks for Ctrl-C between the steps of a long statement.
            connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_SIGNALS)
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as exc:
        if _code(exc) == sqlite3.SQLITE_INTERRUPT:
            # SQLite reports Ctrl-C so.
            raise KeyboardInterrupt from exc
        raise _unusable(name or path, exc) from exc


def _code(exc: sqlite3.Error) -> int:
    # Errors of Python's module itself have none.
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
