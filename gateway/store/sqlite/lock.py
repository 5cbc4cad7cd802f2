"""Makes sure that one gateway alone uses a database file, and that the file is where SQLite can be trusted."""

import fcntl
import glob
import os
import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from gateway.errors import EngineLocked, EngineUnusable

# SQLite's shared memory and locks do not work across machines.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs"})
_MOUNTS = Path("/proc/mounts")
_SHARED_FOLDERS = (Path("/run/lock"), Path(tempfile.gettempdir()))
"""Where gateways look for each other's locks whatever path leads them to a database; the first usable one counts."""

SIDES = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and finds by its name."""
_ASIDE = ".before-restore"


class FileLock:
    """Hold `<path>.lock`, and a lock named after the database file itself, until freed.

    The second one holds also where the first was removed, or where another path leads to the same file. The
    kernel frees both even after kill -9. The database itself is never opened for it: closing any descriptor of
    a file drops the locks that SQLite holds on it.
    """

    def __init__(self, path: Path, *, mend: str = "give this one an engine.path of its own") -> None:
        """Begin with nothing held; `mend` is what to do where the gateway that holds it shall not be stopped."""
        self.path = lock_path(path)
        self._database = path
        self._mend = mend
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

    def take_to_replace(self) -> None:
        """Take what locks there are of a file that is about to be replaced, at once or not at all.

        Unlike `take`, it makes no `<path>.lock` where no gateway has made one, and minds no other names of the file.

        Raises:
            EngineLocked, EngineUnusable: as for `take`.
        """
        try:
            descriptor = _open_lock(self.path)
            if descriptor is not None:
                self._hold(descriptor, self.path)
            with suppress(FileNotFoundError):
                self._take_named(self._database.stat())
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
        self._take_named(found)

    def _take_named(self, found: os.stat_result) -> None:
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
                f"or {self._mend}"
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


def _open_lock(file: Path) -> int | None:
    """Open a lock that a gateway has made, perhaps another user's; None where there is none."""
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(file, mode | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as exc:
            refused = exc
    raise EngineUnusable(
        f"cannot read {str(file)!r} ({refused.strerror}), which says whether a gateway runs: "
        "run this as the gateway's user, or name another file"
    ) from refused


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


def check_place(path: Path, *, restoring: bool = False) -> None:
    """Refuse a path where a database cannot be, or where one should be and only a restore may make it.

    Raises:
        EngineUnusable: the folder is missing, the path is a folder, the disk is another machine's, or a restore was
            interrupted.
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
    if not restoring:
        _refuse_interrupted(path)


def _refuse_interrupted(path: Path) -> None:
    """Refuse to begin an empty database where a restore has set the old one aside and made none."""
    aside = None if path.exists() else newest_aside(path)
    if aside is not None:
        raise EngineUnusable(
            f"there is no database at {str(path)!r}, and a restore that set the old one aside did not come to its end: "
            f"restore again (`dragoman restore FILE`), or put the old one back (`{write_moves(aside, path)}`); "
            f"to begin with an empty database, move {str(aside)!r} away"
        )


def newest_aside(path: Path) -> Path | None:
    """Say which database a restore has set aside last."""
    found = _asides(path)
    return _name_aside(path, max(found)) if found else None


def next_aside(path: Path) -> Path:
    """Name a database that a restore is about to set aside."""
    number = max(_asides(path), default=0) + 1
    while any(beside(_name_aside(path, number), side).exists() for side in SIDES):
        number += 1
    return _name_aside(path, number)


def _asides(path: Path) -> list[int]:
    names = re.compile(re.escape(path.name + _ASIDE) + r"(?:-(\d+))?")
    found = path.parent.glob(glob.escape(path.name + _ASIDE) + "*")
    return [int(match[1] or 1) for file in found if (match := names.fullmatch(file.name))]


def _name_aside(path: Path, number: int) -> Path:
    return beside(path, _ASIDE if number == 1 else f"{_ASIDE}-{number}")


def write_moves(aside: Path, path: Path) -> str:
    """Write the command that puts a database back: its log first, since it must not be opened without."""
    names = [(beside(aside, side), beside(path, side)) for side in (*SIDES, "")]
    return " && ".join(shlex.join(["mv", str(old), str(new)]) for old, new in names if old.exists())


def beside(path: Path, side: str) -> Path:
    """Name a file that belongs to a database by its name."""
    return path.with_name(path.name + side)


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
