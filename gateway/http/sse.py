"""Server-sent events: events are encoded once for all followers; each follower is one streaming response.

A follower holds its position and the piece that is being sent. While its client does not read, `send` waits and no
further items are read.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from traceback import clear_frames

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.errors import DragomanError, Overloaded
from gateway.events import Envelope, Gap, Live, Missed, to_live_json, write_position
from gateway.http.reply import dump
from gateway.http.views import show_event, show_interaction
from gateway.log_limit import limited
from gateway.runtime.views import Heartbeat, InteractionItem, InteractionShown, News, StreamItem

LARGEST_PIECE = 64 * 1024
"""Bytes passed to the server at once, so that a client that does not read holds no large event in memory."""
_RETRY = b"retry: 1000\n"
"""A line of the first event: as a separate block some clients (httpx-sse) would read an empty event."""
_HEARTBEAT = b": heartbeat\n"
"""A comment line; with an empty line after it, the same clients would read an empty event."""

Items = AsyncGenerator[StreamItem | InteractionItem | bytes]
"""The items of a stream; bytes are encoded already."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Beyond(Gap):
    """The client's position is of another history, which happens after the store was restored."""


def encode(item: StreamItem | InteractionItem | bytes, generation: str) -> bytes:
    """Encode one item; JSON contains no raw newline, so `data` is one line."""
    match item:
        case bytes():
            return item
        case News():
            if item.encoded is None:
                item.encoded = b"".join([_encode_event(one, generation) for one in item.items])
            return item.encoded
        case Heartbeat():
            return b": %b\n" % item.note.encode() if item.note else _HEARTBEAT
        case Beyond():
            # With an id: a client that reconnects before the next event continues here, not at its own position.
            place = write_position(item.first_sequence - 1, generation)
            data = dump({"first_sequence": item.first_sequence, "position": place})
            return b"id: %b\nevent: gap\ndata: %b\n\n" % (place.encode(), data)
        case Gap():
            return b"event: gap\ndata: %s\n\n" % dump({"first_sequence": item.first_sequence})
        case InteractionShown():
            return b"event: interaction\ndata: %s\n\n" % dump(show_interaction(item.row, item.asked))
        case Missed():
            return b"event: gap\ndata: {}\n\n"


def _encode_event(item: Envelope | Live, generation: str) -> bytes:
    kind = item.event.kind.encode()
    if isinstance(item, Envelope):
        data = show_event(item, generation)
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (data["position"].encode(), kind, dump(data))
    return b"event: %s\ndata: %s\n\n" % (kind, dump(to_live_json(item)))


class Followers:
    """The open streams of one application: limits their number and ends them."""

    def __init__(self) -> None:
        self._streams: dict[EventStream, None] = {}
        self._count_by_subject: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._streams)

    def check_limits(self, subject: str, *, most: int, most_each: int) -> None:
        """Check that one more stream about a subject is allowed.

        Raises:
            Overloaded: too many streams are open, in total or about the subject.
        """
        if len(self._streams) >= most:
            raise Overloaded(f"{most} event streams are open already; close some, or share one")
        if self._count_by_subject[subject] >= most_each:
            raise Overloaded(f"{most_each} event streams of this session are open already; close some, or share one")

    @contextmanager
    def register(self, stream: "EventStream") -> Generator[None]:
        """Count a stream while it is open."""
        self._streams[stream] = None
        self._count_by_subject[stream.subject] += 1
        try:
            yield
        finally:
            self._streams.pop(stream, None)
            self._count_by_subject[stream.subject] -= 1
            if not self._count_by_subject[stream.subject]:
                del self._count_by_subject[stream.subject]

    def end_all(self) -> None:
        """End all streams; clients reconnect with their `Last-Event-ID`."""
        for stream in self._streams:
            stream.end()

    def end_refused(self) -> None:
        """End the streams whose keys no longer allow them; a client that reconnects is refused."""
        refused = [stream for stream in self._streams if not stream.is_allowed()]
        for stream in refused:
            stream.end()
        if refused:
            log.info("event streams ended", reason="keys removed or without the scope `read`", streams=len(refused))


class EventStream(StreamingResponse):
    """A streaming response that ends when the client, the gateway or the server ends it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        items: Items,
        followers: Followers,
        *,
        subject: str,
        generation: str = "",
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make the response; `is_allowed` checks whether the client's key still permits it.

        `generation` is that of the store, for a stream of events.
        """
        self.subject = subject
        self._generation = generation
        self.is_allowed = is_allowed
        self._items = items
        self._followers = followers
        self._open: asyncio.Timeout | None = None
        self._pieces = self._encode_pieces()
        super().__init__(self._pieces, headers={"cache-control": "no-store", "x-accel-buffering": "no"})

    def end(self) -> None:
        """End the stream before its next piece."""
        if self._open is not None:
            self._open.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["state"]["head"]:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the pieces until the items or the stream end."""
        with self._followers.register(self):
            try:
                async with asyncio.timeout(None) as self._open, aclosing(self._pieces):
                    if not self.is_allowed():
                        # The configuration changed after the request was admitted.
                        self.end()
                    try:
                        await super().stream_response(send)
                    except BaseException as exc:
                        # The task group of the response keeps the exception until the next collection of garbage, and
                        # the frames of its traceback would keep what was to be sent.
                        clear_frames(exc.__traceback__)
                        raise
            except TimeoutError:
                await send({"type": "http.response.body", "body": b""})

    async def _encode_pieces(self) -> AsyncGenerator[bytes]:
        # Sent at once, so that proxies and clients see that the stream is open.
        yield _HEARTBEAT
        prefix = _RETRY
        try:
            async with aclosing(self._items):
                async for item in self._items:
                    encoded = encode(item, self._generation)
                    if prefix and encoded is not _HEARTBEAT:
                        yield prefix
                        prefix = b""
                    if len(encoded) <= LARGEST_PIECE:
                        yield encoded
                        continue
                    for start in range(0, len(encoded), LARGEST_PIECE):
                        yield encoded[start : start + LARGEST_PIECE]
        except DragomanError as exc:
            limited(log.warning, "event stream ended", per=str(exc), subject=self.subject, reason=str(exc))
