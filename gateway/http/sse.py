"""Events as server-sent events: one bounded stream per follower, of bytes that are made once for all of them."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import DragomanError, Overloaded
from gateway.events import Envelope, Gap, Live, Missed, dump_event, to_json
from gateway.events.frozen import frozen
from gateway.guard import Tasks, guard
from gateway.http.reply import dump
from gateway.http.room import Room
from gateway.http.views import show_interaction
from gateway.runtime.views import Heartbeat, InteractionItem, InteractionShown, News, StreamItem

_BURST_BYTES = 32 * 1024
"""What leaves in one write; the server keeps no more of it than this for a client that does not read."""
_SEND_DEADLINE = timedelta(seconds=30)
_STUCK = 0.05
"""Seconds without a byte taken, after which a follower may be cut off where the others need its room."""
_PATIENCE = 0.25
"""Seconds for which a follower that does not read keeps the page of history that was read for it."""

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def chunk_of(body: bytes) -> bytes:
    """Write a chunk of HTTP (RFC 9112, section 7.1), as it goes on the wire."""
    return b"%x\r\n%b\r\n" % (len(body), body)


_RETRY = chunk_of(b"retry: 1000\n")
"""A line of the first event's block: a block of its own would be an empty event to some clients (httpx-sse)."""
_HEARTBEAT = chunk_of(b": heartbeat\n")
"""A comment line; with an empty line behind it, the same clients would see an empty event."""


@frozen
class Beyond(Gap):
    """The session ends before the reader's place, as it may after its store was restored."""


class Frames:
    """Writes stream items as chunks of SSE, once for all who are given the same one; bounded by count and bytes."""

    def __init__(self, *, most: int = 4_096, most_bytes: int = 4 * 1024**2) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        # By identity, not by event_id: an event that is read back after an erasure is another object.
        self._kept: OrderedDict[int, tuple[StreamItem, bytes]] = OrderedDict()

    def write(self, item: StreamItem | InteractionItem) -> bytes:
        """Write one item."""
        kept = self._kept.get(id(item))
        if kept is not None:
            return kept[1]
        if isinstance(item, Heartbeat):
            return _HEARTBEAT
        frame = chunk_of(frame_of(item))
        if isinstance(item, InteractionShown | Missed):
            # No other follower is given the same object.
            return frame
        self._kept[id(item)] = (item, frame)
        self._bytes += len(frame)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= len(dropped)
        return frame


def frame_of(item: News | Gap | InteractionShown | Missed) -> bytes:
    """Write one item as an SSE frame; JSON never holds a raw newline, so `data` is one line."""
    match item:
        case News():
            return b"".join(map(_frame_of_one, item.items))
        case Beyond():
            # With an id, whoever comes back before the next event goes on behind this place, and not its own again.
            return b"id: %d\n%b" % (item.first_sequence - 1, frame_of(Gap(item.first_sequence)))
        case Gap():
            return b"event: gap\ndata: %s\n\n" % dump({"first_sequence": item.first_sequence})
        case InteractionShown():
            return b"event: interaction\ndata: %s\n\n" % dump(show_interaction(item.row, item.asked))
        case Missed():
            return b"event: gap\ndata: {}\n\n"


def _frame_of_one(item: Envelope | Live) -> bytes:
    kind = item.event.kind.encode()
    if isinstance(item, Envelope):
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (item.sequence, kind, dump(to_json(item)))
    body = {"live": True, "after_sequence": item.after_sequence, "event": dump_event(item.event)}
    return b"event: %s\ndata: %s\n\n" % (kind, dump(body))


class Followers:
    """All open streams, so that a stopping server can end them at once, and what waits for all of them is bounded."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.room = Room()
        self._streams: set[EventStream] = set()
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._streams)

    def admit(self, about: str, *, most: int, most_each: int, memory: int) -> None:
        """Check that there is room for one more stream about something; `memory` holds for all from now on.

        Raises:
            Overloaded: there is not.
        """
        self.room.most = memory
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

    def end_refused(self) -> None:
        """End the streams of those who would not be let in any more; coming back, they are told so."""
        refused = [stream for stream in self._streams if not stream.is_allowed()]
        for stream in refused:
            stream.end()
        if refused:
            log.info("event streams ended", reason="their keys may read no more", streams=len(refused))

    def cut_slowest(self, *, for_: "EventStream") -> bool:
        """Cut the follower off that has taken nothing for the longest time; False where nobody else is stuck."""
        slowest = min(
            # One that is cut lets go of its last write a moment later.
            (stream for stream in self._streams if stream.waiting and not stream.is_cut),
            key=lambda stream: stream.moved_at,
            default=None,
        )
        if slowest is None or slowest is for_ or asyncio.get_running_loop().time() - slowest.moved_at < _STUCK:
            return False
        slowest.cut()
        return True


@dataclass(frozen=True, slots=True)
class Wire:
    """The connection behind a stream, as the server shows it (`extensions` of the ASGI scope).

    What all followers are told goes there as it is: `send` of ASGI would put each one's together anew.
    """

    write: Callable[[bytes], None]
    """Writes chunks; what the kernel does not take waits there."""
    is_full: Callable[[], bool]
    """Whether too much waits there for more to be written."""
    drained: Callable[[], Awaitable[None]]
    """Waits until it is not."""
    abort: Callable[[], None]
    """Drops the connection and what waits in it."""


WIRE = "dragoman.wire"
Items = AsyncGenerator[StreamItem | InteractionItem]


class EventStream(Response):
    """The response that follows something until the client, the gateway or the server ends it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        items: Items,
        followers: Followers,
        *,
        about: str,
        buffer: int,
        again: Callable[[int], Items] | None = None,
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make the response; `about` is what limits count by, `buffer` the bytes that may wait for the client.

        `again` goes on behind a sequence, for a client that has stopped reading for a while: nothing is kept for it.
        `is_allowed` says whether the client would still be let in.
        """
        self.is_allowed = is_allowed
        self.about = about
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self.moved_at = 0.0
        """When the client last took something, or began to have something to take."""
        self.rests = False
        """Whether nothing is read for the client until it takes what waits for it."""
        self._items = items
        self._again = again
        # Only a session is gone on with.
        self._named = {} if again is None else {"session_id": about}
        self._last: int | None = None
        self._followers = followers
        self._most_bytes = buffer
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._taken = 0
        """How much of the first pending piece has left already."""
        self._burst = 0
        """Bytes of the last write, while the kernel does not take them."""
        self._next = 0
        self._told_retry = False
        self._ended = False
        self._cut = False
        self._deadline: asyncio.Timeout | None = None
        self._wire: Wire
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def is_cut(self) -> bool:
        """Whether it was cut off, and only has to end."""
        return self._cut

    @property
    def waiting(self) -> int:
        """How many bytes wait for the client."""
        return self._pending_bytes + self._burst

    def end(self) -> None:
        """End the stream after what is pending."""
        self._ended = True
        self._wake.set()

    def cut(self) -> None:
        """End the stream now; its client may come back and resume."""
        self._cut = True
        self._forget()
        self.end()
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["state"]["head"]:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self._wire = scope["extensions"][WIRE]
        self._followers.join(self)
        if not self.is_allowed():
            # The configuration has changed while the request was on its way here.
            self.end()
        await self._hold(_HEARTBEAT)
        complete = False
        try:
            # One request is one task of the server; the two beside it live and die with it.
            async with Tasks() as beside:
                guard("stream", self._read, beside, again=False)
                guard("stream", partial(self._watch, receive), beside, again=False)
                # The reader joins first: from the first line on, nothing that is only live is missed.
                await asyncio.sleep(0)
                # The first bytes leave at once, so that proxies and clients see that the stream stands.
                self._flush()
                try:
                    complete = await self._write_on()
                finally:
                    await beside.close()
        finally:
            self._forget()
            self._let_go_of_burst()
            self._followers.leave(self)
        if complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            why = "others needed the room" if self._cut else f"it did not read for {_SEND_DEADLINE.seconds} s"
            log.info("follower cut off", reason=why, **self._named)
            # Closing would wait for a client that does not read.
            self._wire.abort()
            # The server calls an answer that ends before its connection does a mistake.
            await self._watch(receive)

    # Reading ahead ---------------------------------------------------------------------------------------

    async def _read(self) -> None:
        # Reads ahead where the client does not take what is written; the bound holds it back.
        try:
            while not await self._read_on() and self._again is not None and self._last is not None:
                self.rests = True
                await self._room.wait()
                self.rests = False
                self._items = self._again(self._last)
        except DragomanError as exc:
            log.warning("stream of a follower ended", reason=str(exc), **self._named)
        finally:
            self.end()

    async def _read_on(self) -> bool:
        """Read until the items end; False where the client reads so slowly that they are better read again later."""
        async with aclosing(self._items):
            async for item in self._items:
                if self._ended:
                    return True
                frame = self._followers.frames.write(item)
                if self._told_retry and self._leaves_at_once(len(frame)):
                    self._send(frame)
                elif await self._find_place(len(frame)):
                    if not self._told_retry and not isinstance(item, Heartbeat):
                        self._told_retry = True
                        await self._hold(_RETRY)
                    await self._hold(frame)
                    self._flush()
                else:
                    return False
                match item:
                    case News():
                        self._last = item.place
                    case Gap():
                        self._last = item.first_sequence - 1
                    case _:
                        pass
        return True

    def _leaves_at_once(self, size: int) -> bool:
        """Whether something of a size is written as it comes: nothing is before it, and it could wait in one write."""
        return not self.waiting and size <= _BURST_BYTES and self._followers.room.has_left(size) and not self._cut

    async def _find_place(self, size: int) -> bool:
        """Wait until something of a size may wait for the client; False where that takes long."""
        self._next = size
        if self._has_place():
            return True
        self._room.clear()
        try:
            async with asyncio.timeout(None if self._again is None or self._last is None else _PATIENCE):
                await self._room.wait()
        except TimeoutError:
            return False
        return True

    def _has_place(self) -> bool:
        # Whatever its size: one item goes to a client that has taken all before it.
        return not self.waiting or self.waiting + self._next <= self._most_bytes

    async def _hold(self, piece: bytes) -> None:
        while not self._cut and not self._followers.room.try_hold(piece):
            if not self._followers.cut_slowest(for_=self):
                await self._followers.room.freed(within=_STUCK)
        if not self._cut:
            self._append(piece)

    def _append(self, piece: bytes) -> None:
        if not self.waiting:
            self.moved_at = asyncio.get_running_loop().time()
        self._pending.append(piece)
        self._pending_bytes += len(piece)

    def _forget(self) -> None:
        while self._pending:
            self._followers.room.let_go(self._pending.popleft())
        self._pending_bytes = self._taken = 0

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._forget()
        self.end()

    # Writing ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what waits until the kernel takes no more: whole pieces, and of one that is too long a part."""
        while self._pending and not self._burst:
            piece = self._pending[0]
            part = piece[self._taken : self._taken + _BURST_BYTES]
            self._taken += len(part)
            self._pending_bytes -= len(part)
            if self._taken == len(piece):
                self._followers.room.let_go(self._pending.popleft())
                self._taken = 0
            self._send(part)
        if self._has_place():
            self._room.set()

    def _send(self, part: bytes) -> None:
        """Write, at most a burst; what the kernel does not take at once counts as waiting."""
        self._wire.write(part)
        if self._wire.is_full():
            self.moved_at = asyncio.get_running_loop().time()
            self._burst = len(part)
            self._followers.room.add(self._burst)
            self._wake.set()

    async def _write_on(self) -> bool:
        """Go on where the kernel takes what it did not, until the end; False where the client is to be cut off."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._burst and not self._cut:
                if not await self._is_taken():
                    return False
                self._flush()
            if self._ended:
                return not self._cut

    async def _is_taken(self) -> bool:
        """Wait until the kernel has taken what was written; False where that takes too long."""
        try:
            async with asyncio.timeout(_SEND_DEADLINE.total_seconds()) as self._deadline:
                await self._wire.drained()
        except TimeoutError:
            return False
        finally:
            self._deadline = None
        self._let_go_of_burst()
        self.moved_at = asyncio.get_running_loop().time()
        return True

    def _let_go_of_burst(self) -> None:
        if self._burst:
            self._followers.room.add(-self._burst)
            self._burst = 0
