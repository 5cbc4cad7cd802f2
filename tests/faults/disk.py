"""A small disk that can be filled: a file system on a loop device or in memory, where mounting is allowed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_LIMIT = 30


class SmallDisk:
    """A mounted file system of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Take all the room that is left."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (64 * 1024, 512):
                piece = b"\0" * size
                try:
                    while file.write(piece) == size:
                        pass
                    os.fsync(file.fileno())
                except OSError:
                    continue

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk | None]:
    """Mount a disk; None where this machine does not let us."""
    with tempfile.TemporaryDirectory(prefix="dragoman-disk-") as name:
        folder, place = Path(name), Path(name) / "mounted"
        # A database server runs as somebody else.
        folder.chmod(0o755)
        place.mkdir()
        if not _mount(folder, place, megabytes):
            yield None
            return
        try:
            yield SmallDisk(place)
        finally:
            _run("umount", "--lazy", str(place))


def _mount(folder: Path, place: Path, megabytes: int) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(megabytes * 1024**2)
    if _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and _run("mount", "-o", "loop", str(image), str(place)):
        return True
    return _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place))


def _run(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=_LIMIT, check=False).returncode == 0
