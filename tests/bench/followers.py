"""Many followers of one event stream: raw sockets that count what arrives during a burst of posted events."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, cast

from tests.bench.usage import cpu_seconds

KIND = "context.updated"
MARKER = b"\nevent: context.updated\n"
BEGUN = b": heartbeat"
_OPENING = 64
"""Connections that are opened at once."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What to follow and what to post; `port` is of loopback."""

    port: int
    stream: str
    """Path of the stream."""
    post: str
    """Path that takes the posts."""
    bodies: list[str]
    """Each is one post, and all of them the burst."""
    events: int
    followers: int
    pid: int
    patience: float


class Audience:
    """All followers of one burst, and how many still wait."""

    def __init__(self, burst: Burst) -> None:
        self.events = burst.events
        self._burst = burst
        self._unbegun = self._unfinished = burst.followers
        self.begun = asyncio.Event()
        self.finished = asyncio.Event()
        self.ended_early = 0

    def one_begun(self) -> None:
        """Note that a follower's stream is open."""
        self._unbegun -= 1
        if self._unbegun == 0:
            self.begun.set()

    def one_finished(self) -> None:
        """Note that a follower has everything."""
        self._unfinished -= 1
        if self._unfinished == 0:
            self.finished.set()

    async def run(self) -> dict[str, Any]:
        """Connect everybody, post, wait until everybody has everything, and leave."""
        burst = self._burst
        followers: list[Follower] = []
        async with asyncio.timeout(burst.patience):
            for start in range(0, burst.followers, _OPENING):
                made = [Follower(self) for _ in range(start, min(start + _OPENING, burst.followers))]
                await asyncio.gather(*(follower.connect(burst.port, burst.stream) for follower in made))
                followers += made
            await self.begun.wait()
            before, own_before, begun = cpu_seconds(burst.pid), time.process_time(), time.perf_counter()
            for body in burst.bodies:
                await _post(burst.port, burst.post, body.encode())
            await self.finished.wait()
            took = time.perf_counter() - begun
            deliveries = burst.events * burst.followers
            figures = {
                "seconds": took,
                "deliveries_per_s": deliveries / took,
                "cpu_us_per_delivery": (cpu_seconds(burst.pid) - before) / deliveries * 1e6,
                "peers_busy": (time.process_time() - own_before) / took,
                "wrong": sum(follower.seen != burst.events for follower in followers) + self.ended_early,
            }
        for follower in followers:
            follower.leave()
        return figures


class Follower(asyncio.Protocol):
    """One open stream."""

    def __init__(self, audience: Audience) -> None:
        self.seen: int = 0
        self._audience = audience
        self._begun = self._left = False
        self._tail: bytes = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._audience.ended_early += not self._left

    async def connect(self, port: int, path: str) -> None:
        """Ask for the stream."""
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        self._transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())

    def leave(self) -> None:
        """Go without a word."""
        self._left = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._tail:
            data = self._tail + data
        if not self._begun and BEGUN in data:
            self._begun = True
            self._audience.one_begun()
        count = data.count(MARKER)
        # A marker may be cut in two; the tail is too short to be counted twice.
        self._tail = data[1 - len(MARKER) :]
        if count:
            before, self.seen = self.seen, self.seen + count
            if before < self._audience.events <= self.seen:
                self._audience.one_finished()


async def _post(port: int, path: str, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    answer = await reader.read()
    writer.close()
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
        raise RuntimeError(f"the burst was not taken: {answer[:300]!r}")
