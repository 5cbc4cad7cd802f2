"""A small disk that can be filled, or lose its power: a file system on a loop device, where mounting is allowed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_LIMIT = 30
_SHUT_DOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN of the kernel's ext4: nothing more reaches the disk."""
_WITHOUT_A_WORD = b"\x02\x00\x00\x00"
"""Not even what waits in the journal of the file system."""


class SmallDisk:
    """A mounted file system of a few megabytes."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        self._image = image
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

    def cut_power(self) -> None:
        """Let nothing more reach the disk, as when its power fails; whatever was not synced is gone."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUT_DOWN, _WITHOUT_A_WORD)
        finally:
            os.close(handle)

    def restore_power(self) -> None:
        """Mount it again with what is on it; nobody may have a file of it open."""
        assert _run("umount", str(self.folder))
        assert _run("mount", "-o", "loop", str(self._image), str(self.folder))


@contextmanager
def small_disk(megabytes: int, *, in_memory: bool = True) -> Generator[SmallDisk | None]:
    """Mount a disk, or at least one in memory; None where this machine does not let us."""
    with tempfile.TemporaryDirectory(prefix="dragoman-disk-") as name:
        folder, place = Path(name), Path(name) / "mounted"
        # A database server runs as somebody else.
        folder.chmod(0o755)
        place.mkdir()
        image = folder / "disk.img"
        if not _mount(image, place, megabytes, in_memory=in_memory):
            yield None
            return
        try:
            yield SmallDisk(place, image)
        finally:
            _run("umount", "--lazy", str(place))


def _mount(image: Path, place: Path, megabytes: int, *, in_memory: bool) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with image.open("wb") as file:
        file.truncate(megabytes * 1024**2)
    if _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and _run("mount", "-o", "loop", str(image), str(place)):
        return True
    return in_memory and _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place))


def _run(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=_LIMIT, check=False).returncode == 0
