"""Events as server-sent events: one bounded, coalescing stream per follower over plain ASGI."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Protocol, cast

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.envelope import Envelope, Live, dump_event, to_json
from gateway.errors import DragomanError, Overloaded
from gateway.http.reply import dump
from gateway.http.views import interaction_view
from gateway.runtime.gateway import Gap, Heartbeat, InteractionItem, InteractionShown, Missed, StreamItem

_RETRY = b"retry: 1000\n"
"""A line of the first event's block: a block of its own would be an empty event to some clients (httpx-sse)."""
_HEARTBEAT = b": heartbeat\n"
"""A comment line; with an empty line behind it, the same clients would see an empty event."""
_BURST_BYTES = 64 * 1024
"""What leaves in one write; the server keeps no more of it than this for a client that does not read."""
_SEND_DEADLINE = timedelta(seconds=30)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Frames:
    """Writes stream items as SSE, once for all followers of the same item; bounded by count and bytes."""

    def __init__(self, *, most: int = 4_096, most_bytes: int = 4 * 1024**2) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        # By identity, not by event_id: an event that is read back after an erasure is another object.
        self._kept: dict[int, tuple[StreamItem | InteractionItem, bytes]] = {}

    def write(self, item: StreamItem | InteractionItem) -> bytes:
        """Write one item."""
        if isinstance(item, Heartbeat | InteractionShown | Missed):
            # No other follower is given the same object.
            return frame_of(item)
        kept = self._kept.get(id(item))
        if kept is not None:
            return kept[1]
        frame = frame_of(item)
        self._kept[id(item)] = (item, frame)
        self._bytes += len(frame)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            _, dropped = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(dropped)
        return frame


def frame_of(item: StreamItem | InteractionItem) -> bytes:
    """Write one item as an SSE frame; JSON never holds a raw newline, so `data` is one line."""
    match item:
        case Envelope():
            return b"id: %d\nevent: %s\ndata: %s\n\n" % (item.sequence, item.event.kind.encode(), dump(to_json(item)))
        case Live():
            body = {"live": True, "after_sequence": item.after_sequence, "event": dump_event(item.event)}
            return b"event: %s\ndata: %s\n\n" % (item.event.kind.encode(), dump(body))
        case Gap():
            return b"event: gap\ndata: %s\n\n" % dump({"first_sequence": item.first_sequence})
        case InteractionShown():
            return b"event: interaction\ndata: %s\n\n" % dump(interaction_view(item.row, item.asked))
        case Missed():
            return b"event: gap\ndata: {}\n\n"
        case Heartbeat():
            return _HEARTBEAT


class Followers:
    """All open streams, so that a stopping server can end them at once."""

    def __init__(self) -> None:
        self.frames = Frames()
        self._streams: set[EventStream] = set()
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._streams)

    def admit(self, about: str, *, most: int, most_each: int) -> None:
        """Check that there is room for one more stream about something.

        Raises:
            Overloaded: there is not.
        """
        if len(self._streams) >= most:
            raise Overloaded(f"{most} event streams are open already; close some, or share one")
        if self._of[about] >= most_each:
            raise Overloaded(f"{most_each} event streams of this session are open already; close some, or share one")

    def join(self, stream: "EventStream") -> None:
        self._streams.add(stream)
        self._of[stream.about] += 1

    def leave(self, stream: "EventStream") -> None:
        self._streams.discard(stream)
        self._of[stream.about] -= 1
        if not self._of[stream.about]:
            del self._of[stream.about]

    def end_all(self) -> None:
        """End all streams; clients come back with their `Last-Event-ID`."""
        for stream in self._streams:
            stream.end()


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class EventStream(Response):
    """The response that follows something until the client, the gateway or the server ends it."""

    media_type = "text/event-stream"

    def __init__(
        self, items: AsyncIterator[StreamItem | InteractionItem], followers: Followers, *, about: str, buffer: int
    ) -> None:
        """Make the response; `about` is what limits count by, `buffer` the bytes that may wait for the client."""
        self.about = about
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._items = items
        self._followers = followers
        self._most_bytes = buffer
        # The first bytes leave at once, so that proxies and clients see that the stream stands.
        self._pending: deque[bytes] = deque((_HEARTBEAT,))
        self._pending_bytes = len(_HEARTBEAT)
        self._told_retry = False
        self._ended = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many bytes wait for the client."""
        return self._pending_bytes

    def end(self) -> None:
        """End the stream after what is pending."""
        self._ended = True
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["state"]["head"]:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self._followers.join(self)
        self._wake.set()
        complete = False
        try:
            # One request is one task of the server; the two beside it live and die with it.
            async with asyncio.TaskGroup() as group:
                beside = (group.create_task(self._read()), group.create_task(self._watch(receive)))
                # The reader joins first: from the first line on, nothing that is only live is missed.
                await asyncio.sleep(0)
                try:
                    complete = await self._write(send)
                finally:
                    for task in beside:
                        task.cancel()
        finally:
            self._followers.leave(self)
        if complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self) -> None:
        # Reads ahead while items are at hand, so that a burst leaves in few writes; the bound holds it back.
        try:
            async with aclosing(cast(_Closable, self._items)):
                async for item in self._items:
                    if not self._told_retry and not isinstance(item, Heartbeat):
                        self._told_retry = True
                        self._append(_RETRY)
                    self._append(self._followers.frames.write(item))
                    self._wake.set()
                    if self._pending_bytes >= self._most_bytes:
                        self._room.clear()
                        await self._room.wait()
        except DragomanError as exc:
            log.warning("stream of a follower ended", reason=str(exc))
        self.end()

    def _append(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._pending_bytes += len(piece)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._pending.clear()
        self._pending_bytes = 0
        self.end()

    async def _write(self, send: Send) -> bool:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                try:
                    async with asyncio.timeout(_SEND_DEADLINE.total_seconds()):
                        await send({"type": "http.response.body", "body": self._take_burst(), "more_body": True})
                except TimeoutError:
                    log.info("follower cut off", reason="it did not read for 30 s")
                    return False
            if self._ended:
                return True

    def _take_burst(self) -> bytes:
        burst: list[bytes] = []
        size = 0
        while self._pending and size < _BURST_BYTES:
            burst.append(self._pending.popleft())
            size += len(burst[-1])
        self._pending_bytes -= size
        if self._pending_bytes < self._most_bytes:
            self._room.set()
        return b"".join(burst)
