"""A memory limit for a process: a control group where this process may make one, and its peak in any case."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited(pid: int, most: int) -> Generator[None]:
    """Move a process into a control group with this much memory, if possible; check its peak at the end."""
    group = _make_group(pid, most)
    try:
        yield
        assert peak_of(pid) < most, f"{peak_of(pid) / 2**20:.0f} MiB"
    finally:
        if group is not None:
            (group.parent / "cgroup.procs").write_text(str(pid))
            group.rmdir()


def peak_of(pid: int) -> int:
    """Return the most resident memory that a process ever had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _make_group(pid: int, most: int) -> Path | None:
    """Make a group under the own one, in version 1 or 2 of control groups."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        folder, name = (_ROOT / "memory", "memory.limit_in_bytes") if controllers else (_ROOT, "memory.max")
        group = folder / own.lstrip("/") / f"dragoman-{pid}"
        if controllers not in {"memory", ""}:
            continue
        try:
            group.mkdir()
            (group / name).write_text(str(most))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group
    return None
