"""Puts a file that is whole on the disk in the place of another, so that a failure leaves what was there. For commands.

A copy grows under a name of its own, and takes that of the other by a rename; a database that is replaced is set aside
with its log, which would be read as the new one's.
"""

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import EngineUnusable, OperatorError
from gateway.store.sqlite.lock import SIDES, FileLock, beside, locate, newest_aside, next_aside, write_moves


def partial_of(target: Path) -> Path:
    """Name the file that a copy for a place grows in."""
    return beside(target, ".partial")


@contextmanager
def growing(target: Path) -> Generator[Path]:
    """Make the file that a copy grows in, for one process at a time; it goes if the copy fails."""
    partial = partial_of(target)
    with partial.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise OperatorError(f"another process writes {str(partial)!r}: wait for it") from exc
        try:
            file.truncate(0)
            yield partial
        except BaseException as exc:
            if isinstance(exc, KeyboardInterrupt) and partial.exists() and not hasattr(exc, "__notes__"):
                exc.add_note(f"{str(target)!r} is as it was")
            _remove(partial)
            raise


def _remove(path: Path) -> None:
    for side in ("", *SIDES):
        beside(path, side).unlink(missing_ok=True)


@contextmanager
def replacing(target: Path, *, force: bool) -> Generator[None]:
    """Hold what is at a place where a file is put, so that no gateway uses it meanwhile; refused unless forced."""
    if target.exists() and not force:
        raise OperatorError(f"{str(target)!r} exists: name another file, or add --force to replace it")
    lock = FileLock(locate(target), mend="name another file")
    lock.take_to_replace()
    try:
        yield
    finally:
        lock.free()


def put_over(partial: Path, target: Path) -> None:
    """Give a whole file a name that another database may have; the log of that one would be read as the new one's."""
    if not any(beside(target, side).exists() for side in SIDES):
        put(partial, target)
        return
    aside = next_aside(target)
    with set_aside(target, aside):
        put(partial, target)
    _remove(aside)


def aside_for(path: Path) -> Path:
    """Name what a restore sets aside; the log that an interrupted one has left goes to the database that it was of."""
    newest = None if path.exists() else newest_aside(path)
    if newest is None or any(beside(newest, side).exists() for side in SIDES):
        return next_aside(path)
    return newest


@contextmanager
def set_aside(path: Path, aside: Path) -> Generator[None]:
    """Rename a database and its log while another one takes its name; if that fails, all is as it was.

    The database itself loses its name first and gets it back last: where a kill comes between, none is there, and a
    gateway that finds none beside one that was set aside does not start.
    """
    moves = [(beside(path, side), beside(aside, side)) for side in ("", *SIDES) if beside(path, side).exists()]
    had = path.exists()
    try:
        for old, new in moves:
            old.rename(new)
        yield
    except BaseException as exc:
        try:
            _move_back(moves, path, had=had)
        except OSError as again:
            raise EngineUnusable(
                f"the database is not in its place, and cannot be put back ({again}): `{write_moves(aside, path)}`"
            ) from exc
        exc.add_note(f"{str(path)!r} is as it was")
        raise


def _move_back(moves: Sequence[tuple[Path, Path]], path: Path, *, had: bool) -> None:
    # By what is there: an interrupted call may have done its work.
    if not had or moves[0][1].exists():
        path.unlink(missing_ok=True)
    for old, new in reversed(moves):
        if new.exists():
            new.rename(old)
    sync(path.parent)


def put(partial: Path, target: Path) -> None:
    """Give a file that is whole on the disk its name, so that neither is lost with the power."""
    partial.replace(target)
    sync(target.parent)


def sync(place: Path, *, name: Path | None = None) -> None:
    """Put a file or folder on the disk; `name` is what texts call it."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        raise EngineUnusable(f"cannot write {str(name or place)!r} ({exc.strerror}): has its disk space?") from exc
    finally:
        os.close(descriptor)
