"""Gateway processes that are forked from a server that has loaded all modules, which saves most of their start."""

import asyncio
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gateway.cli.commands import main
from tests.faults.broken import BUILDS
from tests.faults.dying_gateway import run

# A real process with a real SIGKILL; only the imports are shared. It forks without threads, so nothing is cut in two.
_FORKS = multiprocessing.get_context("forkserver")
# What a gateway loads by its configuration would be loaded again in each of them.
_FORKS.set_forkserver_preload(
    [
        "tests.faults.process",
        "tests.kit.sender",
        "dragoman.kit.postgres",
        "gateway.store.postgres",
        "adapters.huma.connector",
        "adapters.huma.v0_1",
        "adapters.huma.v0_2",
        "adapters.herm.codec",
        "adapters.herm.connector",
        "adapters.openhands.codec",
        "adapters.openhands.connector",
        "adapters.mcp.codec",
        "uvloop",
    ]
)


Inherited = tuple[Path, dict[str, str], tuple[int, int]]
"""The working directory, the environment, and the soft and hard limit of open files."""


class Process(Protocol):
    """What `asyncio.subprocess.Process` and `Forked` have in common."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    async def wait(self) -> int: ...


class Forked:
    """A process that runs a function, with its output in a file."""

    def __init__(self, log: Path, run: Callable[..., None], *arguments: object) -> None:
        inherited = (Path.cwd(), dict(os.environ), resource.getrlimit(resource.RLIMIT_NOFILE))
        self._process = _FORKS.Process(target=_run, args=(log, inherited, run, arguments), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        # The pipe that tells of the end also carries the code.
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


async def end(process: Process) -> None:
    """Make sure that a process is gone."""
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        await process.wait()


def run_command(*words: str) -> None:
    """Run the CLI, as `python -m gateway` does."""
    sys.argv[1:] = words
    main()


def run_mortal(config: Path, port: int, die_at: str | None = None, nth: int = 1, broken: str | None = None) -> None:
    """Run a gateway that dies at a point, or never by itself; one that is broken in a way of `broken.py`."""
    if broken is not None:
        BUILDS[broken]()
    run(config, port, die_at, nth)


def _run(log: Path, inherited: Inherited, run: Callable[..., None], arguments: tuple[object, ...]) -> None:
    # The server it is forked from has what the test had that started it.
    folder, environment, files = inherited
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    with log.open("ab") as lines:
        os.dup2(lines.fileno(), 1)
        os.dup2(lines.fileno(), 2)
    run(*arguments)
