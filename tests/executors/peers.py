"""Servers on raw sockets that answer as a script says, bytes by bytes, so that they can misbehave in every way."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import orjson


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def timestamp(self) -> float:
        return self.now().timestamp()

    def monotonic(self) -> float:
        return monotonic()


@dataclass(frozen=True)
class Seen:
    """One request as it came over the wire."""

    head: bytes
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Script = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Peer:
    """A running server, with what it has seen."""

    port: int
    scheme: str = "http"
    seen: list[Seen] = field(default_factory=list[Seen])
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])
    """Of all connections, in their order."""
    gone: int = 0
    """How many of them have ended."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection has ended."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/tools"


@asynccontextmanager
async def listen(converse: Conversation, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Peer]:
    """Listen on a free port and leave each connection to `converse`; what is still open at the end is closed."""
    peer = Peer(port=0, scheme="https" if tls else "http")
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer.connections += 1
        peer.writers.append(writer)
        try:
            await converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            peer.gone += 1
            peer.left.set()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=5)


@asynccontextmanager
async def serve(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Peer]:
    """Read whole requests and answer each as the script says."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            seen = await _read_request(reader)
            peer.seen.append(seen)
            peer.asked.set()
            await script(seen, writer)

    async with listen(converse, tls=tls) as peer:
        yield peer


@asynccontextmanager
async def serve_bytes(answer: bytes) -> AsyncGenerator[Peer]:
    """Answer each request with the same bytes and close."""

    async def script(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, answer, close=True)

    async with serve(script) as peer:
        yield peer


async def send(writer: asyncio.StreamWriter, answer: bytes, *, close: bool = False) -> None:
    writer.write(answer)
    await writer.drain()
    if close:
        writer.close()


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Write a proper answer; underscores in header names are hyphens."""
    lines = [f"HTTP/1.1 {status} Whatever Secret Phrase", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_json(status: int, value: Any, **headers: str) -> bytes:
    return http(status, orjson.dumps(value), **({"content_type": "application/json"} | headers))


async def hang(_seen: Seen, _writer: asyncio.StreamWriter) -> None:
    """Never answer; the connection is read on, so that the client's leaving is noticed."""


def headers_of(head: bytes) -> list[tuple[str, str]]:
    """List the headers of a request, names in lower case, as they stand behind its first line."""
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:-2])
    return [(name.lower(), value.strip()) for name, _, value in lines]


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = await reader.readuntil(b"\r\n\r\n")
    headers = dict(headers_of(head))
    return Seen(head=head, headers=headers, body=await reader.readexactly(int(headers.get("content-length", "0"))))
