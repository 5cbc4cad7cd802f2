"""The fast Herm server: an empty history, and a stream on which pieces of a message come one by one."""

import asyncio
from itertools import count
from typing import cast

_EMPTY = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"data":[]}'
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n"
_EVERY = 0.001
"""Seconds between two pieces: each is read alone."""
_PIECE = (
    b'id: evt_%d\ndata: {"id":"evt_%d","type":"agent.message","sessionId":"bench","sequence":%d,"status":"complete",'
    b'"payload":{"type":"agent.message","content":[{"type":"text","text":"a few words more, "}],"delta":true},'
    b'"processedAt":"2026-11-20T12:00:00.000Z","createdAt":"2026-11-20T12:00:00.000Z"}\n\n'
)


class FakeHerm:
    """All sessions; whoever streams the events of one is its listener."""

    def __init__(self) -> None:
        self.listeners: dict[str, asyncio.Transport] = {}
        self._numbers = count(1)

    def connect(self) -> asyncio.Protocol:
        """Make the protocol of one connection."""
        return _Connection(self)

    async def stream(self, session: str, chunks: int) -> None:
        """Send pieces to the listener of a session."""
        listener = self.listeners[session]
        for _ in range(chunks):
            number = next(self._numbers)
            listener.write(_PIECE % (number, number, number))
            await asyncio.sleep(_EVERY)


class _Connection(asyncio.Protocol):
    def __init__(self, herm: FakeHerm) -> None:
        self._herm = herm
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # Requests are short and arrive in one piece: /v1/sessions/NAME/events, and the same with /stream.
        path = data.split(b" ", 2)[1].partition(b"?")[0].decode().split("/")
        if path[-1] == "stream":
            self._herm.listeners[path[3]] = self._transport
            self._transport.write(_STREAM)
        else:
            self._transport.write(_EMPTY)
