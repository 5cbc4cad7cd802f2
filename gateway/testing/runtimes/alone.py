"""The common part of simulated runtimes that run alone: command-line options and printed lines."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import typer
from dotenv import dotenv_values

from gateway.testing.runtimes.asking import Asking

WAIT = 120.0
"""The time in seconds for which the first call waits for a gateway."""


@dataclass(frozen=True, slots=True)
class FirstCall:
    """The call that the agent makes as soon as a gateway is connected."""

    tool: str
    arguments: dict[str, Any]


class Options:
    """The options of all simulated runtimes; each adds its own."""

    def __init__(self, runtime: str, description: str) -> None:
        program = f"python -m gateway.testing.runtimes.{runtime}"
        self.parser = argparse.ArgumentParser(prog=program, description=description)
        add = self.parser.add_argument
        add("--env-file", type=Path, metavar="FILE", help="file with the key, if it is not in the environment")
        add("--call", nargs=2, metavar=("TOOL", "JSON"), help="call a tool as soon as a gateway is connected")

    def add_address(self) -> None:
        """Add the options for the address of a server."""
        self.parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
        self.parser.add_argument("--port", type=int, default=0, help="port to listen on (a free one)")

    def read(self) -> argparse.Namespace:
        """Parse the command line; `call` is a `FirstCall`, `env` the file overridden by the environment."""
        given = self.parser.parse_args()
        given.env = self._environment(given.env_file)
        given.call = None if given.call is None else self._first_call(*given.call)
        return given

    def _environment(self, file: Path | None) -> Mapping[str, str | None]:
        if file is None:
            return os.environ
        if not file.is_file():
            self.parser.error(f"--env-file: there is no file {str(file)!r}")
        return {**dotenv_values(file), **os.environ}

    def _first_call(self, tool: str, text: str) -> FirstCall:
        try:
            arguments = json.loads(text)
        except ValueError as exc:
            self.parser.error(f"--call: the arguments are not JSON: {exc}")
        if not isinstance(arguments, dict):
            self.parser.error('--call: the arguments must be a JSON object, such as {"rank": "7"}')
        return FirstCall(tool, cast("dict[str, Any]", arguments))


def tell(line: str) -> None:
    """Print one line."""
    typer.echo(line)


async def stay(first: FirstCall | None, call: Callable[[FirstCall], Awaitable[str]]) -> None:
    """Make the first call, if there is one, and keep running until Ctrl-C."""
    if first is not None:
        tell("waiting for a gateway")
        try:
            result = await call(first)
        except TimeoutError as exc:
            result = f"no result: {exc}"
        tell(f"← {result}")
    await asyncio.Event().wait()


def play(playing: Coroutine[Any, Any, None]) -> None:
    """Run a server until Ctrl-C; exit with one line of text if it cannot listen."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(playing)
        except OSError as exc:
            sys.exit(f"cannot listen: {exc.strerror or exc}; select another address with --host and --port")


def tell_asked(first: FirstCall) -> None:
    """Print the call."""
    tell(f"→ call {first.tool} {json.dumps(first.arguments, ensure_ascii=False)}")


def told(outcome: str, result: object, latency: timedelta | None) -> str:
    """Format the result of a call."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    took = "" if latency is None else f" ({latency.total_seconds() * 1000:.0f} ms)"
    return f"{outcome}: {text}{took}"


def show_line(what: str, url: str, body: object, *headers: str) -> None:
    """Print a shell command, wrapped to fit a terminal."""
    given = (f"-H '{header}'" for header in (*headers, "Content-Type: application/json"))
    tell(" \\\n    ".join([f"{what}\n  curl {url}", *given, f"-d '{json.dumps(body)}'"]))


def show_questions(url: str, asking: Asking) -> None:
    """Print the commands that let the agent ask a human; from now on, print requests and answers."""
    tell("Let it ask a human:")
    for kind, way in asking.ways.items():
        tell(f"  curl {url}/simulator/ask/{kind} -d '{way.usual}'")
    asking.tell = tell
