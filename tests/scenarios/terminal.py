"""Commands as people and scripts run them: in this process, as processes, and in terminals of some width."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.events import Author, MessagePosted, Text
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, Running, until

BOUND = PATIENCE
"""Starting a process takes a while on a busy machine."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment_of(running: Running | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN")}
    ours = {} if running is None else {"DRAGOMAN_URL": running.url, "DRAGOMAN_KEY": API_KEY}
    return {**kept, "PYTHONUTF8": "1", **ours, **(more or {})}


async def dragoman(running: Running | None, *words: str, stdin: bytes = b"", **env: str) -> Done:
    """Run a command to its end; in this process, because starting one takes longer than most commands."""
    runner = CliRunner(env=environment_of(running, env))
    async with asyncio.timeout(BOUND):
        done = await asyncio.to_thread(runner.invoke, app, list(words), input=stdin, prog_name="dragoman")
    # The gateway of this process logs to the same place.
    err = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith('{"timestamp"')]
    return Done(done.exit_code, done.stdout, "".join(err))


async def process_of(running: Running | None, *words: str, stdin: bytes = b"", **env: str) -> Done:
    """Run a command to its end as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, env=environment_of(running, env),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@dataclass
class Tailing:
    """A `tail` at work."""

    process: asyncio.subprocess.Process

    async def line(self) -> str:
        """Wait for the next line of its output; empty at the end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def until(self, part: str) -> list[str]:
        """Read lines up to and with the first that holds a text."""
        lines = [await self.line()]
        while part not in lines[-1]:
            assert lines[-1], f"the end, without {part!r}"
            lines.append(await self.line())
        return lines

    async def complaint(self) -> str:
        """Wait for the next line of its stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(BOUND):
            return (await self.process.stderr.readline()).decode()

    async def ended(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.process.wait()


@asynccontextmanager
async def tailing(running: Running, *words: str) -> AsyncGenerator[Tailing]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "tail", *words, env=environment_of(running),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Tailing(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def said(text: str) -> MessagePosted:
    return MessagePosted(author=Author(role="agent", name="Finn"), content=(Text(text=text),))


async def asked(running: Running, count: int) -> dict[str, dict[str, Any]]:
    """Wait for waiting questions, by native id."""

    async def look() -> list[dict[str, Any]] | None:
        rows = (await running.get("/v1/interactions", state="waiting"))["data"]
        return rows if len(rows) >= count else None

    return {row["event"]["id"]: row for row in await until(look)}


@dataclass
class Screen:
    """A command in a terminal."""

    process: asyncio.subprocess.Process
    ours: int
    raw: bytes = b""

    @property
    def text(self) -> str:
        """All that it has shown so far, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw.decode(errors="replace")).replace("\r\n", "\n")

    async def shows(self, part: str, times: int = 1) -> str:
        """Wait until a text is there."""
        async with asyncio.timeout(BOUND):
            while self.text.count(part) < times:
                assert await self._read(), f"the end, without {part!r}: {self.text!r}"
        return self.text

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.ours, text.encode())

    async def ended(self) -> int:
        """Read to the end; the exit code."""
        async with asyncio.timeout(BOUND):
            while await self._read():
                pass
            return await self.process.wait()

    async def _read(self) -> bool:
        try:
            piece = await asyncio.to_thread(os.read, self.ours, 65_536)
        except OSError:
            # How Linux says that nobody has the terminal open any more.
            return False
        self.raw += piece
        return bool(piece)


@asynccontextmanager
async def screen(
    running: Running | None, *words: str, width: int = 80, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Screen]:
    """Run a command of ours in a terminal so many columns wide."""
    program = [sys.executable, "-c", _IN_A_TERMINAL, *words]
    # Whatever terminal the tests themselves run in.
    plain = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": ""}
    async with terminal(program, environment_of(running, {**plain, **(env or {})}), width=width) as shown:
        yield shown


@asynccontextmanager
async def terminal(program: Sequence[str], env: Mapping[str, str], *, width: int = 80) -> AsyncGenerator[Screen]:
    """Run a program in a terminal so many columns wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *program, env=env,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


# Ctrl-C reaches a process only by a terminal that is its own.
_IN_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from gateway.cli import main
main()
"""
