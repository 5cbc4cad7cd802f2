"""Makes sure that one gateway alone uses a database file, and that the file is where SQLite can be trusted."""

import fcntl
import os
from pathlib import Path
from typing import IO

from gateway.errors import EngineLocked, EngineUnusable

# SQLite's shared memory and locks do not work across machines.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs"})
_MOUNTS = Path("/proc/mounts")


class FileLock:
    """Hold `<path>.lock` until closed; the kernel frees it even after kill -9."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._database = path
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take the lock, at once or not at all.

        Raises:
            EngineLocked: somebody else holds it.
            EngineUnusable: the lock file cannot be written.
        """
        try:
            file = self._path.open("a+", encoding="ascii")
        except OSError as exc:
            raise EngineUnusable(
                f"cannot write {str(self._path)!r} ({exc.strerror}): the gateway's user must be able to write there"
            ) from exc
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            file.seek(0)
            holder = file.read(20).strip()
            file.close()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise EngineLocked(
                f"{who} uses the database {str(self._database)!r}: stop that gateway, "
                "or give this one an engine.path of its own"
            ) from exc
        except OSError as exc:
            file.close()
            raise EngineUnusable(f"cannot lock {str(self._path)!r} ({exc.strerror}): use a local disk") from exc
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def free(self) -> None:
        """Give the lock back; the file stays, since removing it would let two gateways in."""
        if self._file is not None:
            self._file.close()
            self._file = None


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
