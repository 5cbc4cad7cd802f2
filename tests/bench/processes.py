"""Starts the processes of a benchmark on their cores, speaks with the peers, and ends all of them by their own pid."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
START = 60.0
STOP = 15.0
_LINE = 16 * 1024 * 1024


class BenchProblem(Exception):
    """The benchmark cannot go on, and why."""


@contextmanager
def _on(cores: Collection[int]) -> Generator[None]:
    """Let children that are started meanwhile run on these cores only."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@asynccontextmanager
async def running(
    *command: str, cores: Collection[int], log: Path, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a process from beginning to end of the block; it goes when its stdin ends, or when it is told to."""
    with log.open("ab") as said, _on(cores):
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            cwd=cwd,
            env=os.environ | (env or {}),
            limit=_LINE,
        )
    try:
        yield process
    finally:
        await _end(process)


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """Write the command that runs one of our modules."""
    return (sys.executable, "-m", name, *arguments)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class Peers:
    """The peers' process, seen from outside."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, *, runtime: int, webhook: int, herm: int
    ) -> None:
        self._process, self._log = process, log
        self.runtime = f"http://127.0.0.1:{runtime}"
        self.webhook = f"http://127.0.0.1:{webhook}/tools"
        self.herm = f"http://127.0.0.1:{herm}"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, do: str, *, within: float = START, **order: Any) -> Any:
        """Give an order and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps({"do": do, **order}) + b"\n")
        said = await read_line(self._process, self._log, within=within)
        if "problem" in said:
            raise BenchProblem(f"the peers say: {said['problem']}")
        return said["answer"]


@asynccontextmanager
async def peers(cores: Collection[int], folder: Path) -> AsyncGenerator[Peers]:
    """Run the fake peers."""
    log = folder / "peers.log"
    async with running(*module("tests.bench.peers"), cores=cores, log=log) as process:
        ports = await read_line(process, log)
        yield Peers(process, log, **ports)


async def read_line(process: asyncio.subprocess.Process, log: Path, *, within: float = START) -> dict[str, Any]:
    """Read one JSON line that a process says.

    Raises:
        BenchProblem: it says nothing in time, or is gone; the end of its log tells more.
    """
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within):
            line = await process.stdout.readline()
    except TimeoutError:
        line = b""
    if not line:
        raise BenchProblem(f"no answer within {within:g} s from process {process.pid}:\n{tail(log)}")
    said: dict[str, Any] = orjson.loads(line)
    return said


def tail(log: Path) -> str:
    """Read the end of a log."""
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""
