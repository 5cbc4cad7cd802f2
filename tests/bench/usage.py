"""What a process has used so far, as the kernel counts it: processor time, writes to the disk, memory."""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used since it began."""

    cpu: float
    """Seconds on a core, of all threads."""
    written: int
    """Bytes that it made the kernel write to a disk."""
    writes: int
    """Its calls of write: a page of the store each; next to nothing else writes so (sockets send)."""


def look(pid: int) -> Usage:
    """Read what a process has used."""
    said = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return Usage(cpu_seconds(pid), int(said["write_bytes"]), int(said["syscw"]))


def cpu_seconds(pid: int) -> float:
    """Read for how many seconds the threads of a process have been on a core."""
    return sum(cpu_by_thread(pid).values())


def cpu_by_thread(pid: int) -> dict[int, float]:
    """Read for how many seconds each thread of a process has been on a core; the first has the process's own number."""
    used: dict[int, float] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            used[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            # Ended since it was listed.
            continue
    return used


def resident_bytes(pid: int) -> int:
    """Read how much memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
