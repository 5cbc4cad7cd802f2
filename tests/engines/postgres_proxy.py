"""Stands between an engine and its server, and breaks connections at the moment a test asks for."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import parse_qs, urlsplit

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
_TOKEN = re.compile(rb"[0-9a-f]{24}-\d+")
"""What the engine leaves in each transaction; said outside of one, it is in a statement that is a commit of its own."""

Cut = Literal["never", "before", "after"]
"""Whether a connection breaks before its COMMIT is passed on, or after the server has answered it."""


class Proxy:
    """Passes bytes on, until it is told otherwise."""

    def __init__(self, dsn: str) -> None:
        self._target = dsn
        self.choose: Callable[[], Cut] = lambda: "never"
        """Asked at each COMMIT."""
        self.drop_notifications = False
        """Whether notifications are taken out of what the server says, while all else gets through."""
        self.cuts: list[Cut] = []
        self.opened = 0
        """How many connections there were."""
        self.turns = 0
        """How often the server has answered and waits for what comes next: round trips."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.Task[None]] = set()
        self._muted: set[asyncio.StreamWriter] = set()
        self.dsn = ""

    def point_at(self, dsn: str) -> None:
        """Lead new connections elsewhere, as a name service does after a failover."""
        self._target = dsn

    def mute(self) -> None:
        """Let nothing through any more on the connections that are open now, without closing them."""
        self._muted |= self._writers

    def cut_all(self) -> None:
        for writer in [*self._writers]:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.opened += 1
        self._open.add(task)
        self._writers.add(writer)
        try:
            with suppress(OSError):
                await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._open.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above, server = await _connect(self._target)
        answered = asyncio.Event()
        broken = asyncio.Event()
        commits = _Commits()

        async def up() -> None:
            while data := await reader.read(65_536):
                if writer in self._muted:
                    continue
                cut: Cut = self.choose() if commits.hold(data) else "never"
                if cut != "never":
                    self.cuts.append(cut)
                if cut == "before":
                    return
                if cut == "after":
                    broken.set()
                    answered.clear()
                server.write(data)
                await server.drain()
                if cut == "after":
                    await answered.wait()
                    return

        async def down() -> None:
            while True:
                head = await above.readexactly(5)
                message = head + await above.readexactly(int.from_bytes(head[1:], "big") - 4)
                self.turns += commits.hear(message)
                if broken.is_set():
                    answered.set()
                elif writer not in self._muted and not (self.drop_notifications and head[:1] == b"A"):
                    writer.write(message)
                    await writer.drain()

        directions = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.transport.abort()
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def end(self) -> None:
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


class _Commits:
    """Tells what commits of what else a client says, by what the server says of its transaction."""

    def __init__(self) -> None:
        self._idle = False

    def hear(self, message: bytes) -> bool:
        """Hear the server; answers whether it waits for what comes next."""
        waits = message[:1] == b"Z"
        if waits:
            self._idle = message[5:] == b"I"
        return waits

    def hold(self, data: bytes) -> bool:
        return COMMIT in data or (self._idle and _TOKEN.search(data) is not None)


@asynccontextmanager
async def between(dsn: str) -> AsyncGenerator[Proxy]:
    """Open a way to a server that a test can break."""
    proxy = Proxy(dsn)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        port = listener.sockets[0].getsockname()[1]
        parts = urlsplit(dsn)
        user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
        password = f":{parts.password}" if parts.password else ""
        proxy.dsn = f"postgresql://{user}{password}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        yield proxy
    finally:
        listener.close()
        await proxy.end()


async def _connect(dsn: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(dsn)
    port = parts.port or 5432
    if parts.hostname:
        return await asyncio.open_connection(parts.hostname, port)
    (folder,) = parse_qs(parts.query)["host"]
    return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
