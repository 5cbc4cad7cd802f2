"""A session's inbox: one queue, in order, bounded for what the runtime sends.

Signals of our own (answers, deliveries, ticks) always get in: their number is bounded by the calls
in flight. Frames are counted; past the bound the overload rule of DESIGN.md 11 applies.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import orjson

from gateway.ports.adapter import Frame
from gateway.runtime.signals import FrameArrived, Signal

_HARD_FACTOR = 4
# Small frames are let in far past the bound, so that each call among them can still be told "overloaded".
_HARD_FRAMES = 10_000
# Each link begins with what is known already; where that alone fills the inbox, nothing new would ever get in.
_MOST_ROOM = 16


class Inbox:
    """Takes signals from callbacks at once; hands them to the pump in batches."""

    def __init__(
        self,
        *,
        frames: int,
        size: int,
        resumes: bool,
        overflow: Callable[[str], None],
        weighed: Callable[[int], None],
    ) -> None:
        """Bound what the runtime sends; `weighed` hears of bytes that come in and go out.

        Where the protocol `resumes`, a full inbox costs the link and nothing else: what did not get in is
        sent again by the next one.
        """
        self._resumes, self._shut = resumes, False
        self._room = 1
        self._resumed_at: str | None = None
        self._queue: deque[Signal] = deque()
        self._wake = asyncio.Event()
        self._most_frames, self._most_bytes = frames, size
        self._frames = self._bytes = 0
        self._overflow = overflow
        self._weighed = weighed

    def put(self, signal: Signal) -> None:
        """Add a signal of our own."""
        self._queue.append(signal)
        self._wake.set()

    def put_frame(self, frame: Frame, cursor: str | None) -> None:
        """Add a frame; one past the bound is marked, one far past it costs the link."""
        if self._shut:
            return
        size = _size_of(frame)
        most_bytes = self._most_bytes * self._room
        crowded = self._frames >= self._most_frames * self._room or self._bytes + size > max(most_bytes, size)
        if crowded and self._resumes:
            self._shut = True
            self._overflow("the inbox is full; what is missing is asked for again")
            return
        most_frames = max(self._most_frames * _HARD_FACTOR, _HARD_FRAMES)
        if self._frames >= most_frames or self._bytes > self._most_bytes * _HARD_FACTOR:
            self._overflow("the inbox is full")
            return
        self._weigh(1, size)
        self.put(FrameArrived(frame, cursor, size, overloaded=crowded))

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

    async def take(self, most: int) -> list[Signal]:
        """Wait for signals and take what is there, at most `most`."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        if len(self._queue) <= most:
            batch = list(self._queue)
            self._queue.clear()
        else:
            batch = [self._queue.popleft() for _ in range(most)]
        for signal in batch:
            if isinstance(signal, FrameArrived):
                self._weigh(-1, -signal.size)
        return batch

    def put_back(self, signals: Sequence[Signal]) -> None:
        """Put signals that could not be carried out in front again, in their order."""
        for signal in reversed(signals):
            self._queue.appendleft(signal)
            if isinstance(signal, FrameArrived):
                self._weigh(1, signal.size)
        self._wake.set()

    def empty_out(self) -> list[Signal]:
        """Take everything out, for the end."""
        left = list(self._queue)
        self._queue.clear()
        self._weigh(-self._frames, -self._bytes)
        return left

    def _weigh(self, frames: int, size: int) -> None:
        self._frames += frames
        self._bytes += size
        self._weighed(size)

    @property
    def empty(self) -> bool:
        """Whether no signal waits."""
        return not self._queue


def _size_of(frame: Frame) -> int:
    """Estimate a frame's size cheaply: exact for text, by encoding for the rest."""
    payload = frame.payload
    if isinstance(payload, str | bytes):
        return len(payload)
    try:
        return len(orjson.dumps(payload))
    except (TypeError, ValueError, orjson.JSONEncodeError):
        return 1_024
