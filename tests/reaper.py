"""Kills the processes that a test run leaves behind, even if the run itself is killed.

The run holds the other end of this process's standard input, which closes when the run ends in any way. Its processes
are those that inherited its mark in their environment.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "DRAGOMAN_TEST_RUN"
_GRACE = 2.0
"""Seconds for the processes of a run that ended by itself to finish."""
_ROUNDS = 3
"""A process may start another one while it is being killed."""


def pytest_configure(config: pytest.Config) -> None:
    """Start the reaper of this run; the workers of xdist belong to it."""
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    mark = os.environ[MARK] = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    reaper = subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, env=environment, start_new_session=True
    )

    def stop() -> None:
        assert reaper.stdin is not None
        reaper.stdin.close()
        reaper.wait()

    config.add_cleanup(stop)


def processes_of(mark: str) -> Iterator[int]:
    """Yield the processes with the mark of a run."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


def main(mark: str) -> None:
    sys.stdin.buffer.read()
    until = time.monotonic() + _GRACE
    while any(processes_of(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for _ in range(_ROUNDS):
        for pid in processes_of(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


if __name__ == "__main__":
    main(sys.argv[1])
