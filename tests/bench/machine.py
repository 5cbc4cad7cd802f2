"""Says what machine the figures come from: cores, versions, how fast its disk syncs, and whether its cores stall."""

import os
import platform
import resource
import sqlite3
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "dragoman", "aiohttp", "fastapi", "httpx", "jsonschema-rs", "orjson", "pydantic", "python-engineio",
    "python-socketio", "uvicorn", "uvloop",
)  # fmt: skip
_SYNCS = 200
_BLOCK = 4096
_BLOCKS = 256
_LOOK = 3.0
"""Seconds in which stalls are looked for."""
_PIECE = range(4_000)
_STALL = 1.5
"""Times the median from which a piece of work counts as stalled."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where: the subject on a core of its own, everybody else on the others."""

    subject: frozenset[int]
    peers: frozenset[int]
    pinned: bool


def share_cores() -> Cores:
    """Split the cores this process may use; on a single one nothing can be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(frozenset(), frozenset(), pinned=False)
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return Cores(frozenset({first}), frozenset({first}), pinned=False)
    return Cores(frozenset({first}), frozenset(others), pinned=True)


def raise_file_limit() -> None:
    """Allow as many open sockets as the system lets us, for this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure_sync(folder: Path) -> float:
    """Measure the median of a 4 KiB write and fdatasync into a file that has its blocks, as SQLite's log has; in s."""
    path = folder / "sync.probe"
    block = os.urandom(_BLOCK)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    took: list[float] = []
    try:
        os.write(handle, block * _BLOCKS)
        os.fsync(handle)
        for number in range(_SYNCS):
            begun = time.perf_counter()
            os.pwrite(handle, block, number % _BLOCKS * _BLOCK)
            os.fdatasync(handle)
            took.append(time.perf_counter() - begun)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(took)


def measure_stalls() -> float:
    """Measure the share of its time that an idle core loses while it runs nothing else.

    The same piece of work runs for three seconds; what a stalled piece takes beyond the median is lost.
    """
    took: list[float] = []
    ends = time.perf_counter() + _LOOK
    while (begun := time.perf_counter()) < ends:
        for _ in _PIECE:
            pass
        took.append(time.perf_counter() - begun)
    usual = statistics.median(took)
    return sum(one - usual for one in took if one > _STALL * usual) / _LOOK


def describe(cores: Cores, *, sync: float) -> dict[str, Any]:
    """List what a reader needs to know of this machine."""
    return {
        "cores": os.cpu_count(),
        "pinned": cores.pinned,
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "fdatasync_p50_ms": round(sync * 1000, 4),
        "load_before": round(os.getloadavg()[0], 2),
        "stalled_before": round(measure_stalls(), 4),
        "versions": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"
