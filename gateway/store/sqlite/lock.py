"""The lock of a database file, and the places where SQLite can keep one."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from gateway.errors import EngineLocked, EngineUnusable

# SQLite's shared memory and locks do not work across machines.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs"})
_MOUNTS = Path("/proc/mounts")

SIDES = ("-wal", "-shm", "-journal")
"""The files that SQLite keeps beside a database and finds by name."""


class FileLock:
    """Hold `PATH.lock` until released; the kernel releases it when the process dies.

    The database itself is never opened for the lock: closing a descriptor of a file drops the locks that SQLite holds
    on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = lock_path(path)
        self._database = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Acquire the lock at once or not at all.

        Raises:
            EngineLocked: another process holds it.
            EngineUnusable: the lock file cannot be written, or the database has several hard links.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise EngineUnusable(
                f"cannot write {str(self.path)!r} ({exc.strerror}): the gateway's user must be able to write there"
            ) from exc
        try:
            self._lock(descriptor)
            _refuse_hard_links(self._database)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise EngineLocked(
                f"{who} uses the database {str(self._database)!r} (it holds {str(self.path)!r}): stop that gateway, "
                "or give this one an engine.path of its own"
            ) from exc
        except OSError as exc:
            raise EngineUnusable(f"cannot lock {str(self.path)!r} ({exc.strerror}): use a local disk") from exc
        # The process number is only for the message above.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Release the lock; its file stays, because removing it would let two gateways in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _refuse_hard_links(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    before = before_restore(path)
    if found.st_nlink > 1 and before.exists() and before.samefile(path):
        # A restore was killed before it replaced the database: this is the second name that it made.
        before.unlink()
        found = path.stat()
    if found.st_nlink > 1:
        raise EngineUnusable(
            f"{str(path)!r} has {found.st_nlink} hard links, and SQLite loses data under a second name: find them with "
            f"`find / -xdev -inum {found.st_ino}`, and remove all but this one"
        )


def lock_path(path: Path) -> Path:
    """Name the lock file of a database."""
    return sibling(path, ".lock")


def before_restore(path: Path) -> Path:
    """Name the database that a restore replaced."""
    return sibling(path, ".before-restore")


def sibling(path: Path, suffix: str) -> Path:
    """Name a file that belongs to a database by its name."""
    return path.with_name(path.name + suffix)


def locate(path: Path) -> Path:
    """Resolve all symbolic links, so that a database has one name and one lock."""
    return Path(os.path.realpath(path))


def check_place(path: Path) -> None:
    """Refuse a path where SQLite cannot keep a database.

    Raises:
        EngineUnusable: the folder is missing, the path is a folder, or the disk belongs to another machine.
    """
    folder = path.parent
    if not folder.is_dir():
        raise EngineUnusable(
            f"the folder {str(folder)!r} does not exist: create it (mkdir -p {folder}) or change engine.path"
        )
    if path.is_dir():
        raise EngineUnusable(f"{str(path)!r} is a folder: engine.path must name a file")
    kind = file_system_of(folder, _read_mounts())
    if kind in _NETWORK:
        raise EngineUnusable(
            f"{str(path)!r} is on a network file system ({kind}), where SQLite loses data: use a local disk"
        )


def renumbers_files(path: Path) -> bool:
    """Whether the file system may change the inode of a file that stays the same: overlay and FUSE."""
    kind = file_system_of(path.parent, _read_mounts())
    return kind == "overlay" or kind.startswith("fuse")


def file_system_of(folder: Path, mounts: str) -> str:
    """Find the type of the file system of a folder in the kernel's list of mounts; empty if it is not listed."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # The kernel writes a space as \040 and so on.
        point = fields[1].encode("latin-1", "replace").decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def _read_mounts() -> str:
    return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if _MOUNTS.exists() else ""
