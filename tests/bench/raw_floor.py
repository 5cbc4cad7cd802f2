"""The ceiling of the fake peers: hand-written protocols on both sides, bytes in, bytes out."""

import asyncio
import os
import sys
from typing import cast
from urllib.parse import urlsplit

from tests.bench import wire


async def raw(runtime: str, webhook: str, agents: list[str]) -> None:
    """Answer tool calls with bytes in, bytes out."""
    loop = asyncio.get_running_loop()
    backend = RawBackend(webhook)
    parts = urlsplit(runtime)
    for agent in agents:
        _, link = await loop.create_connection(lambda: RawLink(backend), parts.hostname or "", parts.port or 0)
        link.enter(parts.netloc, agent)
    await loop.run_in_executor(None, sys.stdin.read)


class RawLink(asyncio.Protocol):
    """The websocket of the raw floor."""

    def __init__(self, backend: "RawBackend") -> None:
        self._backend = backend
        self._frames = wire.FrameReader()
        self._head: bytes | None = b""
        self._mask = os.urandom(4)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def enter(self, host: str, agent: str) -> None:
        """Ask for the websocket."""
        self._transport.write(
            wire.request_upgrade(f"/socket.io/?transport=websocket&EIO=4&agentId={agent}&apiKey=key", host)
        )

    def send(self, packet: bytes) -> None:
        """Send one packet."""
        self._transport.write(wire.client_frame(packet, mask=self._mask))

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            head, found, rest = (self._head + data).partition(b"\r\n\r\n")
            self._head = None if found else head
            data = rest
        for _, packet in self._frames.feed(data):
            if packet.startswith(b"42"):
                call = packet.partition(b'"toolCallId":"')[2].partition(b'"')[0]
                self._backend.post(call, packet, self)
            elif packet.startswith(b"0"):
                self.send(b"40")
            elif packet == wire.ENGINE_PING:
                self.send(wire.ENGINE_PONG)


class RawBackend:
    """Kept-alive connections to the webhook, as many as are needed at once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: ".encode()
        self._idle: list[RawRequest] = []
        self._opened: list[RawRequest] = []
        self._opening: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            connection.close()

    def post(self, call: bytes, packet: bytes, link: RawLink) -> None:
        """Send a call to the webhook."""
        body = b'{"native_call_id":"%b","event":%b}' % (call, packet[2:])
        request = self._head + b"%d\r\n\r\n%b" % (len(body), body)
        if self._idle:
            self._idle.pop().ask(request, call, link)
        else:
            opening = asyncio.get_running_loop().create_task(self._open(request, call, link))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, request: bytes, call: bytes, link: RawLink) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: RawRequest(self._idle), self._host, self._port)
        self._opened.append(connection)
        connection.ask(request, call, link)


class RawRequest(asyncio.Protocol):
    """One connection of the raw floor to the webhook."""

    def __init__(self, idle: list["RawRequest"]) -> None:
        self._idle = idle
        self._call = b""
        self._transport: asyncio.Transport
        self._link: RawLink

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def ask(self, request: bytes, call: bytes, link: RawLink) -> None:
        """Send a request; its answer goes to the link."""
        self._call, self._link = call, link
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        # The webhook's answers are short and leave in one write.
        said = data.partition(b"\r\n\r\n")[2]
        self._link.send(
            b'42["message",{"type":"tool-result","triggering":true,"toolCallId":"%b","toolName":"ask_for_cards",%b]'
            % (self._call, said[1:])
        )
        self._idle.append(self)
