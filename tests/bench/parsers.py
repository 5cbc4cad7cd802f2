"""`python -m tests.bench.parsers`: two HTTP parsers of uvicorn under the gateway's own application, side by side.

Each is a process of its own on one core, with the whole application and a store in memory; the client on the other
core keeps some requests in flight on as many connections. They take turns, so that a busy machine slows both down.

    python -m tests.bench.parsers
    python -m tests.bench.parsers --turns 9 --seconds 3 --connections 1
"""

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import orjson
import structlog
import uvloop

from gateway.http.app import build_app
from gateway.http.plain_http import PlainHttp
from gateway.http.server import make_server
from gateway.settings.model import Limits
from tests.bench import machine, usage
from tests.bench.processes import ROOT, module, read_line, running
from tests.bench.table import Table, show
from tests.http.environment import environment_of

PARSERS: dict[str, Any] = {"h11": "h11", "httptools": PlainHttp}
_EVENTS = 50
_OUTCOME = {
    "outcome": "success",
    "result": {"cards": [{"rank": "7", "suit": suit} for suit in ("hearts", "spades", "clubs")], "left": 31},
}


async def _serve(parser: str) -> None:
    """Serve the application until stdin ends; one line says where, and which requests to send."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    async with environment_of() as environment:
        session_id = await environment.attach()
        await environment.post(session_id, _EVENTS)
        call_id = await environment.ask()
        listener = socket.create_server(("127.0.0.1", 0))
        server = make_server(build_app(environment.gateway), Limits())
        server.config.http = PARSERS[parser]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port: int = listener.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        callback = f"{address}/v1/calls/{call_id}/outcome?token={environment.token(call_id)}"
        listing = f"{address}/v1/calls?limit=20"
        sys.stdout.write(orjson.dumps({"port": port, "callback": callback, "list": listing}).decode() + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving


def _request(url: str, body: bytes | None) -> bytes:
    """Write a request as an HTTP client sends it."""
    parts = urlsplit(url)
    lines = [
        f"{'GET' if body is None else 'POST'} {parts.path}?{parts.query} HTTP/1.1",
        f"Host: {parts.netloc}",
        "User-Agent: python-httpx/0.28.1",
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "Connection: keep-alive",
    ]
    if body is None:
        lines.append("Authorization: Bearer all-of-it")
    else:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass(slots=True)
class _Subject:
    pid: int
    port: int
    requests: dict[str, bytes]


@asynccontextmanager
async def _subject(parser: str, cores: frozenset[int], folder: Path) -> AsyncGenerator[_Subject]:
    log = folder / f"{parser}.log"
    async with running(*module("tests.bench.parsers", "--serve", parser), cores=cores, log=log) as process:
        told = await read_line(process, log)
        requests = {
            "POST of an outcome": _request(told["callback"], orjson.dumps(_OUTCOME)),
            "GET of a list": _request(told["list"], None),
        }
        yield _Subject(process.pid, told["port"], requests)


async def _ask(port: int, request: bytes, until: float) -> int:
    """Send a request over and over on one connection; count the responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    try:
        while time.perf_counter() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
            count += 1
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return count


async def _turn(subject: _Subject, what: str, connections: int, seconds: float) -> tuple[float, float]:
    """Measure requests per second, and seconds of CPU per request."""
    cpu, began = usage.cpu_seconds(subject.pid), time.perf_counter()
    asking = (_ask(subject.port, subject.requests[what], began + seconds) for _ in range(connections))
    count = sum(await asyncio.gather(*asking))
    return count / (time.perf_counter() - began), (usage.cpu_seconds(subject.pid) - cpu) / count


async def _compare(turns: int, seconds: float, connections: int, folder: Path) -> None:
    cores = machine.share_cores()
    async with AsyncExitStack() as stack:
        subjects = {name: await stack.enter_async_context(_subject(name, cores.subject, folder)) for name in PARSERS}
        table = Table(
            f"{connections} connections, {turns} turns of {seconds:g} s each, medians",
            ("request", "parser", "requests/s", "µs of CPU per request"),
            frozenset({"request", "parser"}),
        )
        for what in next(iter(subjects.values())).requests:
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PARSERS}
            for turn in range(turns + 1):
                for name, subject in subjects.items():
                    measured = await _turn(subject, what, connections, seconds)
                    # The first turn warms up.
                    if turn:
                        taken[name].append(measured)
            for name, all_of_it in taken.items():
                rate, cpu = (median(one[place] for one in all_of_it) for place in (0, 1))
                table.add(what, name, round(rate), round(cpu * 1e6))
    show([table], [])


def main() -> None:
    """Compare; `--serve` is for the processes that are compared."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.parsers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", choices=PARSERS, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--connections", type=int, default=16)
    asked = parser.parse_args()
    if asked.serve:
        uvloop.run(_serve(asked.serve))
        return
    folder = ROOT / ".cache"
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_compare(asked.turns, asked.seconds, asked.connections, folder))


if __name__ == "__main__":
    main()
