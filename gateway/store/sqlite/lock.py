"""Makes sure that one gateway alone uses a database file, and that the file is where SQLite can be trusted."""

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from gateway.errors import EngineLocked, EngineUnusable

# SQLite's shared memory and locks do not work across machines.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs"})
_MOUNTS = Path("/proc/mounts")
_SHARED_FOLDERS = (Path("/run/lock"), Path(tempfile.gettempdir()))
"""Where gateways look for each other's locks whatever path leads them to a database; the first usable one counts."""


class FileLock:
    """Hold `<path>.lock`, and a lock named after the database file itself, until freed.

    The second one holds also where the first was removed, or where another path leads to the same file. The
    kernel frees both even after kill -9. The database itself is never opened for it: closing any descriptor of
    a file drops the locks that SQLite holds on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = lock_path(path)
        self._database = path
        self._held: list[int] = []
        self._named: Path | None = None

    def take(self) -> None:
        """Take the lock, and that of the file where there is one, at once or not at all.

        Raises:
            EngineLocked: somebody else holds one of them.
            EngineUnusable: the lock file cannot be written, or the database has more than one name.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise EngineUnusable(
                f"cannot write {str(self.path)!r} ({exc.strerror}): the gateway's user must be able to write there"
            ) from exc
        self._hold(descriptor, self.path)
        try:
            self.take_file()
        except BaseException:
            self.free()
            raise

    def take_file(self) -> None:
        """Take the lock of the database file, once there is one.

        Raises:
            EngineLocked, EngineUnusable: as for `take`.
        """
        if self._named is not None:
            return
        try:
            found = self._database.stat()
        except FileNotFoundError:
            return
        if found.st_nlink > 1:
            raise EngineUnusable(
                f"the file {str(self._database)!r} has {found.st_nlink} names (hard links), and SQLite would lose data "
                f"under the others: find them with `find / -xdev -inum {found.st_ino}`, and remove all but this one"
            )
        name = f"dragoman-{found.st_dev:x}-{found.st_ino:x}.lock"
        trusted = {0, os.geteuid(), found.st_uid}
        # The database's own folder at last, where no other is usable: that much is known to be.
        for folder in (*_SHARED_FOLDERS, self._database.parent):
            descriptor = self._open_shared(folder / name, trusted)
            if descriptor is not None:
                self._named = folder / name
                return
        raise EngineUnusable(
            f"no lock can be made in {' or '.join(map(str, _SHARED_FOLDERS))} nor beside {str(self._database)!r}: "
            "the gateway's user must be able to write in one of them"
        )

    def _open_shared(self, file: Path, trusted: set[int]) -> int | None:
        """Hold a lock in a folder where everybody may write; None where somebody else's file is in the way."""
        while True:
            descriptor = _open_either_way(file)
            if descriptor is None:
                return None
            if os.fstat(descriptor).st_uid not in trusted:
                os.close(descriptor)
                return None
            self._hold(descriptor, file)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    return descriptor
            # Whoever had it before removed it at this moment.
            self._held.remove(descriptor)
            os.close(descriptor)

    def _hold(self, descriptor: int, file: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise EngineLocked(
                f"{who} uses the database {str(self._database)!r} (it holds {str(file)!r}): stop that gateway, "
                "or give this one an engine.path of its own"
            ) from exc
        except OSError as exc:
            os.close(descriptor)
            raise EngineUnusable(f"cannot lock {str(file)!r} ({exc.strerror}): use a local disk") from exc
        # One that may only be read is held as well, and says no name.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._held.append(descriptor)

    def free(self) -> None:
        """Give the locks back; `<path>.lock` stays, since removing it would let two gateways in."""
        if self._named is not None:
            # Whoever takes it looks whether it is still there.
            with suppress(OSError):
                self._named.unlink()
            self._named = None
        while self._held:
            os.close(self._held.pop())


def lock_path(path: Path) -> Path:
    """Say where the lock of a database is."""
    return path.with_name(path.name + ".lock")


def _open_either_way(file: Path) -> int | None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    # Not made by opening what is there: systems refuse that for another user's file in a folder like /tmp.
    for more in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        with suppress(OSError):
            return os.open(file, flags | more, 0o644)
    return None


def locate(path: Path) -> Path:
    """Say the one name of a database, so that it has one lock whatever links lead to it."""
    place = path.absolute().parent.resolve() / path.name
    return place.resolve() if place.is_symlink() else place


def check_place(path: Path) -> None:
    """Refuse a path where a database cannot be.

    Raises:
        EngineUnusable: the folder is missing, the path is a folder, or the disk is another machine's.
    """
    folder = path.parent
    if not folder.is_dir():
        raise EngineUnusable(
            f"the folder {str(folder)!r} does not exist: create it (mkdir -p {folder}) or change engine.path"
        )
    if path.is_dir():
        raise EngineUnusable(f"{str(path)!r} is a folder: engine.path must name a file")
    if _MOUNTS.exists():
        kind = file_system_of(folder, _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
        if kind in _NETWORK:
            raise EngineUnusable(
                f"{str(path)!r} is on a network file system ({kind}), where SQLite loses data: use a local disk"
            )


def file_system_of(folder: Path, mounts: str) -> str | None:
    """Say the type of the file system a folder is on, by the kernel's list of mounts."""
    best, kind = -1, None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # The kernel writes a space as \040 and so on.
        point = fields[1].encode("latin-1", "replace").decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def is_unsteady(folder: Path) -> bool:
    """Whether the numbers of files may change on the file system of a folder while the files stay the same."""
    if not _MOUNTS.exists():
        return False
    kind = file_system_of(folder, _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")) or ""
    return kind == "overlay" or kind.startswith("fuse")
