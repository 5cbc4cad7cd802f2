"""The inbox of a session: one ordered queue, bounded for frames and client requests; and what a failed session leaves.

Internal signals (responses, deliveries, ticks) are always accepted, because the calls in flight bound their number.
Beyond the bound, config/README.md#bounds applies to frames, and client requests are refused.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.adapter.port import Codec, Frame
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import Overloaded
from gateway.events import CallId
from gateway.guard import guard_call
from gateway.links.frame_memory import FRAMES
from gateway.links.json import excerpt
from gateway.runtime.signals import (
    AnsweredLate,
    Attempted,
    Delivered,
    ExecutorReplied,
    FrameArrived,
    Signal,
    reply_of,
)
from gateway.strict_json import Malformed

if TYPE_CHECKING:
    from gateway.runtime.session.decide import SignalBatch

HARD_FACTOR = 4
HARD_FRAMES = 10_000
"""Small frames are accepted far beyond the bound, so that each call among them still gets "overloaded"."""
MOST_REQUESTS = 256
"""Client requests that may wait."""
# Each link starts with known frames; if they alone filled the inbox, no new frame would ever be accepted.
_LARGEST_FACTOR = 16
Tried = tuple[Signal, int]
"""An input with the number of times that the session has failed on it."""
OWN_RESULTS = (Attempted, AnsweredLate, ExecutorReplied, Delivered)
"""Results of this process's own work; without them recovery would have to guess."""


class Inbox:
    """Accepts signals from callbacks at once, and hands them to the session in batches."""

    __slots__ = (
        "_capacity",
        "_deciding",
        "_ended",
        "_factor",
        "_filled",
        "_frames",
        "_is_live",
        "_last_live",
        "_memory",
        "_most_bytes",
        "_most_frames",
        "_overflow",
        "_queue",
        "_requests",
        "_resumed_at",
        "_resumes",
        "_shut",
        "_taken",
        "bytes",
    )

    def __init__(
        self,
        *,
        frames: int,
        size: int,
        resumes: bool,
        is_live: Callable[[Frame], bool],
        overflow: Callable[[str], None],
        filled: Callable[[], None],
    ) -> None:
        """Bound the frames of the runtime; `filled` is called when an empty inbox gets a signal.

        If the protocol `resumes`, a full inbox costs only the link: the next link replays refused frames. Otherwise
        live frames are dropped first; `is_live` identifies them.
        """
        self._resumes, self._shut, self._ended = resumes, False, False
        self._factor = 1
        """Multiplies the bounds after a link without progress."""
        self._resumed_at: str | None = None
        # Created with the first signal, because most sessions are idle.
        self._queue: list[Signal] | None = None
        self._filled = filled
        self._capacity: asyncio.Future[None] | None = None
        self._last_live: FrameArrived | None = None
        self.bound(frames=frames, size=size)
        self._frames = self._requests = 0
        self.bytes = 0
        """Bytes of the waiting frames."""
        self._taken = 0
        """Bytes of the frames that the session is deciding; they stay in the shared budget meanwhile."""
        self._deciding = 0
        """Signals that the session is deciding."""
        self._is_live = is_live
        self._overflow = overflow
        self._memory = FRAMES.get()

    def bound(self, *, frames: int, size: int) -> None:
        """Replace the bounds; waiting frames stay."""
        self._most_frames, self._most_bytes = frames, size

    def put(self, signal: Signal) -> None:
        """Add an internal signal or a client request.

        Raises:
            Overloaded: too many client requests wait.
        """
        # A cheap check, because nearly all signals are internal.
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
        """Add a frame; mark it beyond the bound, and close the link far beyond it. `alone` is stored with it."""
        if self._shut:
            return
        size, factor = frame.size or _size_of(frame), self._factor
        if (reason := self._memory.why_rejected(size)) is not None:
            frame, size = _rejected(frame, reason), 0
        if self._ended:
            size = 0
        overloaded = self._frames >= self._most_frames * factor or self.bytes + size > max(
            self._most_bytes * factor, size
        )
        if not self._memory.has_capacity(size):
            overloaded = True
            if not self._resumes:
                frame, size = _rejected(frame, f"has {size:,} bytes; other frames take all of limits.frame_memory"), 0
        if (overloaded or factor > HARD_FACTOR) and self._refuse(frame, cursor, overloaded=overloaded):
            return
        self._frames += 1
        self.bytes += size
        self._memory.hold(size)
        self._add(FrameArrived(frame, cursor, size, overloaded, alone))

    def _refuse(self, frame: Frame, cursor: str | None, *, overloaded: bool) -> bool:
        """Refuse a frame beyond the bound; return False if it is accepted nevertheless."""
        if overloaded and self._resumes:
            self._shut = True
            self._overflow("the inbox is full; the next link replays the missing frames")
        elif overloaded and self._is_live(frame):
            # Only the newest is published, once the queue is empty; it never displaces a call or cancel.
            self._last_live = FrameArrived(frame, cursor, 0)
        elif self._overfull:
            self._overflow("the inbox is full")
        else:
            return False
        return True

    def reopen(self, cursor: str | None = None) -> None:
        """Accept frames of a new link, with more capacity if the last link made no progress."""
        if not self._shut:
            self._factor = 1
        elif cursor == self._resumed_at:
            self._factor = min(self._factor * 2, _LARGEST_FACTOR)
        self._resumed_at, self._shut = cursor, False

    @property
    def shut(self) -> bool:
        """Whether frames of the current link were refused."""
        return self._shut

    @property
    def _overfull(self) -> bool:
        """Whether even marked frames are refused."""
        most_frames = max(self._most_frames * HARD_FACTOR, HARD_FRAMES)
        return self._frames >= most_frames or self.bytes > self._most_bytes * HARD_FACTOR

    async def has_capacity(self) -> None:
        """Wait until a link that a full inbox closed may connect again."""
        while self._is_half_full:
            if self._capacity is None:
                self._capacity = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._capacity)
        await self._memory.wait_capacity(self._memory.largest)

    @property
    def _is_half_full(self) -> bool:
        return self._frames > self._most_frames // 2 or self.bytes > self._most_bytes // 2

    def take(self, most: int, *, size: int) -> list[Signal]:
        """Take the waiting signals in order: at most `most`, and frames of `size` bytes or a single larger one."""
        self.done()
        before, batch = self.bytes, self._queue or []
        count = min(len(batch), most) if self.bytes <= size else _count(batch, most, size)
        if count == len(batch):
            self._queue = None
            self._frames = self._requests = self.bytes = 0
        else:
            batch, self._queue = batch[:count], batch[count:]
            self._requests -= sum(reply_of(signal) is not None for signal in batch)
            sizes = [signal.size for signal in batch if isinstance(signal, FrameArrived)]
            self._frames -= len(sizes)
            self.bytes -= sum(sizes)
        self._taken = before - self.bytes
        if self._capacity is not None:
            self._notify_capacity()
        if self._queue is None and self._last_live is not None:
            batch.append(self._last_live)
            self._last_live = None
        self._deciding = len(batch)
        return batch

    def done(self) -> None:
        """Note that the taken signals are decided; return the bytes of their frames to the shared budget."""
        self._deciding = 0
        if self._taken:
            taken, self._taken = self._taken, 0
            self._memory.release(taken)

    def take_requests(self) -> list[Signal]:
        """Take the client requests alone."""
        requests = [signal for signal in self._queue or () if reply_of(signal) is not None]
        if requests:
            self._queue = [signal for signal in self._queue or () if reply_of(signal) is None] or None
            self._requests = 0
        return requests

    def put_back(self, signals: Sequence[Signal]) -> None:
        """Put undecided signals back at the front, in their order."""
        was_empty = self._queue is None
        self._queue = [*signals, *(self._queue or ())] or None
        for signal in signals:
            if isinstance(signal, FrameArrived):
                self._frames += 1
                self.bytes += signal.size
                self._memory.hold(signal.size)
            elif reply_of(signal) is not None:
                self._requests += 1
        if was_empty and self._queue is not None:
            self._filled()

    def take_all(self) -> list[Signal]:
        """Take all signals, because the session ends; later frames leave the shared budget alone."""
        self._ended = True
        remaining = list(self._queue or ())
        self._queue = None
        self._memory.release(self.bytes)
        self.done()
        self._frames = self.bytes = self._requests = 0
        self._notify_capacity()
        return remaining

    def _add(self, signal: Signal) -> None:
        if self._queue is None:
            self._queue = [signal]
            self._filled()
        else:
            self._queue.append(signal)

    def _withdraw(self, signal: Signal) -> None:
        """Withdraw a request whose client gave up."""
        if self._queue is not None and signal in self._queue:
            self._queue.remove(signal)
            self._queue = self._queue or None
            self._requests -= 1

    def _notify_capacity(self) -> None:
        if self._capacity is not None and not self._is_half_full:
            self._capacity.set_result(None)
            self._capacity = None

    @property
    def count(self) -> int:
        """The number of signals that wait or are being decided."""
        return len(self._queue or ()) + self._deciding

    @property
    def empty(self) -> bool:
        """Whether no signal waits."""
        return not self._queue


def _count(batch: Sequence[Signal], most: int, size: int) -> int:
    """Return how many of the first signals fit."""
    total = 0
    for place, signal in enumerate(batch[:most]):
        if isinstance(signal, FrameArrived):
            total += signal.size
            if place and total > size:
                return place
    return min(len(batch), most)


def _rejected(frame: Frame, reason: str) -> Frame:
    """Replace the payload of a frame with the reason and the start of its text."""
    if isinstance(frame.payload, Malformed):
        return frame
    written = frame.written if frame.written is not None else orjson.dumps(frame.payload)
    return Frame(frame.channel, Malformed(f"the frame {reason}", excerpt(written)))


def _size_of(frame: Frame) -> int:
    """Return the size of a frame whose link does not report it."""
    payload = frame.payload
    if isinstance(payload, str | bytes):
        return len(payload)
    try:
        return len(orjson.dumps(payload))
    except (TypeError, ValueError, orjson.JSONEncodeError):
        return 1_024


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """The undecided inputs of a session; recorded ones are in the store."""

    sequence: int
    """The last known sequence in the store."""
    under_way: tuple[Tried, ...]
    """The inputs of the failed step, which may be committed."""
    waiting: tuple[Tried, ...]
    replayed: tuple[Tried, ...] = ()
    """Frames of the failed step that the runtime replays if they are not recorded; decided when they arrive."""
    unsure: bool = False
    """Whether the failed step may be committed; otherwise it is certainly not."""
    codec: Codec | None = None
    """Decodes its frames if the protocol does not replay them."""

    @property
    def frames(self) -> list[FrameArrived]:
        """The frames of the runtime, in order."""
        return [signal for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, FrameArrived)]

    @property
    def answered_calls(self) -> list[CallId]:
        """The calls whose attempt has ended; the new owner decides about them without its answer."""
        return [signal.call_id for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, Attempted)]


def worth_deciding(pending: PendingInputs | None, view: SessionView) -> tuple[list[Tried], list[Tried]]:
    """Return the inputs that are not recorded yet, as results and frames."""
    if pending is None:
        return [], []
    # Without a new event the step was not committed, or wrote no event and may be decided again.
    unrecorded = [*(pending.under_way if view.last_sequence == pending.sequence else ()), *pending.waiting]
    frames = [one for one in unrecorded if isinstance(one[0], FrameArrived)]
    return [one for one in unrecorded if not isinstance(one[0], FrameArrived)], frames


def collect(
    sequence: int,
    batch: "SignalBatch | None",
    waiting: Sequence[Tried],
    replayed: Sequence[Tried],
    runtime: RuntimeContext,
) -> PendingInputs:
    """Collect the inputs to decide again; a link that replays sends unrecorded frames again by itself."""
    resumes = runtime.capabilities.resumes
    kinds = OWN_RESULTS if resumes else (*OWN_RESULTS, FrameArrived)
    failed: list[Tried] = []
    if batch is not None and batch.written != "yes":
        failed = [(signal, batch.times + 1) for signal in batch.signals]
    frames = [one for one in failed if resumes and isinstance(one[0], FrameArrived)]
    return PendingInputs(
        sequence,
        tuple(one for one in failed if isinstance(one[0], kinds)),
        tuple(one for one in waiting if isinstance(one[0], kinds)),
        replayed=(*replayed, *frames),
        unsure=batch is not None and batch.written == "unsure",
        codec=None if resumes else runtime.codec,
    )


def split_repeated(signals: list[Signal], replayed: Sequence[Tried]) -> tuple[list[Signal], list[Signal], Tried | None]:
    """Split signals before or behind a frame on which the session has failed; return it if it is the first one."""
    for place, signal in enumerate(signals):
        known = next((one for one in replayed if _is_same_frame(signal, one[0])), None)
        if known is not None:
            count = max(1, place)
            return signals[:count], signals[count:], None if place else known
    return signals, [], None


def _is_same_frame(signal: Signal, known: Signal) -> bool:
    """Return whether a signal is the same frame as a known one."""
    if not (isinstance(signal, FrameArrived) and isinstance(known, FrameArrived)):
        return False
    return (signal.cursor, signal.frame) == (known.cursor, known.frame)
