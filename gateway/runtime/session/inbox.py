"""A session's inbox: one queue, in order, bounded for what the runtime and API clients send.

Signals of our own (answers, deliveries, ticks) always get in: their number is bounded by the calls
in flight. Past the bound frames are dealt with as config/README.md#bounds says; requests of clients are refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from gateway.adapter.port import Frame
from gateway.errors import Overloaded
from gateway.guard import guard_call
from gateway.links.frame_memory import FRAMES
from gateway.links.json import excerpt
from gateway.runtime.session.replies import reply_of
from gateway.runtime.session.signals import FrameArrived, Signal
from gateway.strict_json import Malformed

HARD_FACTOR = 4
HARD_FRAMES = 10_000
"""Small frames are let in far past the bound, so that each call among them can still be told "overloaded"."""
MOST_REQUESTS = 256
"""Requests of clients that may wait to be decided about."""
# Each link begins with what is known already; where that alone fills the inbox, nothing new would ever get in.
_MOST_ROOM = 16


class Inbox:
    """Takes signals from callbacks at once; hands them to the worker in batches."""

    __slots__ = (
        "_frames",
        "_is_live",
        "_last_live",
        "_most_bytes",
        "_most_frames",
        "_overflow",
        "_queue",
        "_requests",
        "_resumed_at",
        "_resumes",
        "_room",
        "_roomy",
        "_shut",
        "_taken",
        "_taker",
        "bytes",
        "loop",
    )

    def __init__(
        self,
        *,
        frames: int,
        size: int,
        resumes: bool,
        is_live: Callable[[Frame], bool],
        overflow: Callable[[str], None],
    ) -> None:
        """Bound what the runtime sends.

        Where the protocol `resumes`, a full inbox costs the link and nothing else: what did not get in is
        sent again by the next one. Elsewhere frames that are only live give way first: `is_live` tells them.
        """
        self._resumes, self._shut = resumes, False
        self._room = 1
        self._resumed_at: str | None = None
        # Made when the first signal comes, since most sessions are idle most of the time.
        self._queue: list[Signal] | None = None
        self._taker: asyncio.Future[None] | None = None
        self.loop = asyncio.get_running_loop()
        """The session's own; to find the running one is a question to the system, which nobody asks for each call."""
        self._roomy: asyncio.Future[None] | None = None
        self._last_live: FrameArrived | None = None
        self.bound(frames=frames, size=size)
        self._frames = self._requests = 0
        self.bytes = 0
        """How much the frames take that wait."""
        self._taken = 0
        """Bytes of the frames that the worker decides about; they count in the budget of all sessions until then."""
        self._is_live = is_live
        self._overflow = overflow

    def __del__(self) -> None:
        FRAMES.release(self.bytes + self._taken)

    def bound(self, *, frames: int, size: int) -> None:
        """Bound what the runtime sends, from now on; what waits already stays."""
        self._most_frames, self._most_bytes = frames, size

    def put(self, signal: Signal) -> None:
        """Add a signal of our own, or a request of a client.

        Raises:
            Overloaded: it is a request, and too many wait already.
        """
        # No more than a look, since nearly all are our own.
        reply: asyncio.Future[Any] | None = getattr(signal, "reply", None)
        if reply is not None:
            if self._requests >= MOST_REQUESTS:
                raise Overloaded(f"{MOST_REQUESTS} requests wait for this session already; try again later")
            self._requests += 1
            reply.add_done_callback(
                guard_call("inbox", lambda done: self._withdraw(signal) if done.cancelled() else None)
            )
        self._add(signal)

    def put_frame(self, frame: Frame, cursor: str | None, *, alone: bool = False) -> None:
        """Add a frame; one past the bound is marked, one far past it costs the link. `alone` goes with it."""
        if self._shut:
            return
        size, room = frame.size or _size_of(frame), self._room
        if (reason := FRAMES.why_rejected(size)) is not None:
            frame, size = _rejected(frame, reason), 0
        crowded = self._frames >= self._most_frames * room or self.bytes + size > max(self._most_bytes * room, size)
        if not FRAMES.has_capacity(size):
            crowded = True
            if not self._resumes:
                frame, size = _rejected(frame, f"has {size:,} bytes; other frames take all of limits.frame_memory"), 0
        if (crowded or room > HARD_FACTOR) and self._turns_away(frame, cursor, crowded=crowded):
            return
        self._frames += 1
        self.bytes += size
        FRAMES.hold(size)
        self._add(FrameArrived(frame, cursor, size, crowded, alone))

    def _turns_away(self, frame: Frame, cursor: str | None, *, crowded: bool) -> bool:
        """Deal with a frame for which there is no room; False where it gets in all the same."""
        if crowded and self._resumes:
            self._shut = True
            self._overflow("the inbox is full; what is missing is asked for again")
        elif crowded and self._is_live(frame):
            # Only the newest is shown, once there is room; a call or cancel never gives way to it.
            self._last_live = FrameArrived(frame, cursor, 0)
        elif self.overfull:
            self._overflow("the inbox is full")
        else:
            return False
        return True

    def reopen(self, cursor: str | None = None) -> None:
        """A new link is being made: take its frames; there is room for more where the last one got nowhere."""
        if not self._shut:
            self._room = 1
        elif cursor == self._resumed_at:
            self._room = min(self._room * 2, _MOST_ROOM)
        self._resumed_at, self._shut = cursor, False

    @property
    def shut(self) -> bool:
        """Whether frames of the present link were turned away."""
        return self._shut

    @property
    def is_waited_for(self) -> bool:
        """Whether what comes next is waited for: nothing is before it, and nothing under way."""
        return self._taker is not None and not self._taker.done() and not self._shut

    @property
    def overfull(self) -> bool:
        """Whether not even marked frames get in any more."""
        most_frames = max(self._most_frames * HARD_FACTOR, HARD_FRAMES)
        return self._frames >= most_frames or self.bytes > self._most_bytes * HARD_FACTOR

    async def has_capacity(self) -> None:
        """Wait until a link that was cut because of a full inbox may be made again."""
        while self._is_half_full:
            if self._roomy is None:
                self._roomy = self.loop.create_future()
            await asyncio.shield(self._roomy)
        await FRAMES.wait_capacity(FRAMES.largest)

    @property
    def _is_half_full(self) -> bool:
        return self._frames > self._most_frames // 2 or self.bytes > self._most_bytes // 2

    def filled(self) -> Awaitable[None]:
        """Wait until a signal may be there; for the one who takes them."""
        self._forget_taken()
        self._taker = self.loop.create_future()
        return self._taker

    def take(self, most: int) -> list[Signal]:
        """Take what is there, at most `most`."""
        self._forget_taken()
        before = self.bytes
        batch = self._queue or []
        if len(batch) <= most:
            self._queue = None
            self._frames = self._requests = self.bytes = 0
        else:
            batch, self._queue = batch[:most], batch[most:]
            self._requests -= sum(reply_of(signal) is not None for signal in batch)
            sizes = [signal.size for signal in batch if isinstance(signal, FrameArrived)]
            self._frames -= len(sizes)
            self.bytes -= sum(sizes)
        self._taken = before - self.bytes
        if self._roomy is not None:
            self._notify_capacity()
        if self._queue is None and self._last_live is not None:
            batch.append(self._last_live)
            self._last_live = None
        return batch

    def put_back(self, signals: Sequence[Signal]) -> None:
        """Put signals that could not be carried out in front again, in their order."""
        self._queue = [*signals, *(self._queue or ())] or None
        for signal in signals:
            if isinstance(signal, FrameArrived):
                self._frames += 1
                self.bytes += signal.size
                FRAMES.hold(signal.size)
            elif reply_of(signal) is not None:
                self._requests += 1
        if self._taker is not None:
            self._wake()

    def empty_out(self) -> list[Signal]:
        """Take everything out, for the end."""
        left = list(self._queue or ())
        self._queue = None
        FRAMES.release(self.bytes)
        self._frames = self.bytes = self._requests = 0
        self._notify_capacity()
        return left

    def _forget_taken(self) -> None:
        if self._taken:
            taken, self._taken = self._taken, 0
            FRAMES.release(taken)

    def _add(self, signal: Signal) -> None:
        if self._queue is None:
            self._queue = [signal]
        else:
            self._queue.append(signal)
        if self._taker is not None:
            self._wake()

    def _withdraw(self, signal: Signal) -> None:
        """Nobody waits for a request any more, so that it is not carried out either."""
        if self._queue is not None and signal in self._queue:
            self._queue.remove(signal)
            self._requests -= 1

    def _notify_capacity(self) -> None:
        if self._roomy is not None and not self._is_half_full:
            self._roomy.set_result(None)
            self._roomy = None

    def _wake(self) -> None:
        taker, self._taker = self._taker, None
        if taker is not None and not taker.done():
            taker.set_result(None)

    @property
    def waiting(self) -> list[Signal]:
        """Show everything that waits, in its order."""
        return list(self._queue or ())

    @property
    def empty(self) -> bool:
        """Whether no signal waits."""
        return not self._queue


def _rejected(frame: Frame, reason: str) -> Frame:
    """Replace the payload of a frame by the reason and the beginning of its text."""
    if isinstance(frame.payload, Malformed):
        return frame
    written = frame.written if frame.written is not None else orjson.dumps(frame.payload)
    return Frame(frame.channel, Malformed(f"the frame {reason}", excerpt(written)))


def _size_of(frame: Frame) -> int:
    """Find the size of a frame whose link does not tell it."""
    payload = frame.payload
    if isinstance(payload, str | bytes):
        return len(payload)
    try:
        return len(orjson.dumps(payload))
    except (TypeError, ValueError, orjson.JSONEncodeError):
        return 1_024
