"""What the followers of one session see: one log of recent news, bounded by count and bytes, and a wake-up.

A follower keeps its own place in it, and all who are at the same place are given the same news. One that falls
behind the tail reads the journal instead, so nobody is sent less than everything that is on record, and a slow
follower costs nobody else anything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from gateway.events import CallId, Envelope, Live, ToolFinished
from gateway.events.weight import weight
from gateway.runtime.feeds.wakeup import Ending, Waits, Wakeup
from gateway.runtime.views import News

TAIL = 1_000
TAIL_BYTES = 4 * 1024 * 1024


class OutcomeWatch(Wakeup):
    """Wakes who waits for the outcome of one call, and no more often than that needs."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome: ToolFinished | None = None


class Feed:
    """Keeps the tail of one session in memory and wakes who waits for more."""

    def __init__(self, last_sequence: int, *, tail: int = TAIL) -> None:
        """Start without followers; `tail` is how many items are kept at most."""
        self._tail = tail
        self.last_sequence = last_sequence
        self.closed = False
        # Made for the first follower, since most sessions have none.
        self._log: deque[News] | None = None
        self._wakeup: Wakeup | None = None
        self._bytes = 0
        self._items = 0
        self._count = 0
        """News that were begun, those that are no longer kept included."""
        self._is_read = True
        """Whether somebody may have read the last of them, so that nothing is added to it."""
        self._followers = 0
        self._watches: dict[str, set[OutcomeWatch]] = {}
        """By the call."""
        self._others: Callable[[Live | None], None] | None = None
        self._others_until = 0.0

    @property
    def followed(self) -> bool:
        """Whether anybody follows here."""
        return self._followers > 0

    def join(self) -> int:
        """Start to follow; returns the place to read from. Without followers the tail is not kept."""
        self._followers += 1
        self._is_read = True
        if self._wakeup is None:
            self._log, self._wakeup = deque(), Wakeup()
        return self._count

    def leave(self) -> None:
        """Stop following."""
        self._followers -= 1
        if self._followers == 0:
            self._log = self._wakeup = None
            self._bytes = self._items = 0

    def extend(self, envelopes: Sequence[Envelope]) -> None:
        """Show newly recorded events."""
        if not envelopes:
            return
        self.last_sequence = envelopes[-1].sequence
        if self._watches:
            self._tell_watches(envelopes)
        if self._followers:
            for envelope in envelopes:
                self._show(envelope)
        if self._others is not None:
            self._tell_others(self._others, None)

    @contextmanager
    def watching(self, call_id: CallId) -> Generator[OutcomeWatch]:
        """Watch for the outcome of an open call; wakes as well where the feed ends, or others have written."""
        watch = OutcomeWatch()
        watches = self._watches.setdefault(call_id, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(call_id, None)

    def _tell_watches(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            event = envelope.event
            if isinstance(event, ToolFinished) and event.call_id is not None:
                for watch in self._watches.get(event.call_id, ()):
                    watch.outcome = event
                    watch.wake()

    def _wake_watches(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    def tell(self, live: Live) -> None:
        """Show something that is not recorded."""
        self._show(live)
        if self._others is not None:
            self._tell_others(self._others, live)

    def tell_others(self, tell: Callable[[Live | None], None], *, seconds: float) -> None:
        """Call this after whatever comes in the next seconds, with what is only live: somebody follows elsewhere."""
        self._others = tell
        self._others_until = asyncio.get_running_loop().time() + seconds

    def _tell_others(self, tell: Callable[[Live | None], None], live: Live | None) -> None:
        if asyncio.get_running_loop().time() > self._others_until:
            self._others = None
        else:
            tell(live)

    def skip_to(self, sequence: int) -> None:
        """Let all followers read the journal: what comes before this sequence was removed."""
        self.last_sequence = max(self.last_sequence, sequence)
        self._wake_watches()
        if self._log is not None and self._wakeup is not None:
            self._log.clear()
            self._bytes = self._items = 0
            self._count += 1
            self._is_read = True
            self._wakeup.wake()

    def ends_with(self, kind: str) -> bool:
        """Whether the last item kept is a recorded event of this kind."""
        last = self._log[-1].items[-1] if self._log else None
        return isinstance(last, Envelope) and last.event.kind == kind

    def close(self) -> None:
        """Let all followers end."""
        self.closed = True
        self._wake_watches()
        if self._wakeup is not None:
            self._wakeup.wake()

    def since(self, place: int) -> tuple[News | None, int, bool]:
        """Read the next news behind a place; returns them, the place behind them, and whether some were missed.

        One at a time, so that a follower that stops reading holds no more than these.
        """
        more, kept = self._count - place, len(self._log or ())
        if not more or not self._log:
            return None, self._count, more > 0
        if more > kept:
            return None, self._count - kept, True
        # From the end, where a deque is quick: a follower that keeps up reads the last ones.
        self._is_read = self._is_read or more == 1
        return self._log[-more], place + 1, False

    def waiting(self, ended: Ending, *, within: float) -> Waits:
        """Prepare, having joined, to wait for what comes or for the end, for so many seconds each time."""
        assert self._wakeup is not None, "nobody has joined"
        return Waits(self._wakeup, ended, within=within)

    async def wait(self, place: int, waiting: Waits) -> bool:
        """Wait for something behind a place, or the end; False when neither came in time."""
        return self._has_more(place) or await waiting.wait_any()

    def _has_more(self, place: int) -> bool:
        return self._count > place or self.closed

    def _show(self, item: Envelope | Live) -> None:
        if self._log is None or self._wakeup is None:
            return
        size = weight(item.event)
        if self._is_read or not self._log[-1].takes(size):
            self._log.append(News())
            self._count += 1
            self._is_read = False
        self._log[-1].add(item, size)
        self._items += 1
        self._bytes += size
        while self._items > self._tail or self._bytes > TAIL_BYTES:
            oldest = self._log.popleft()
            self._items -= len(oldest.items)
            self._bytes -= oldest.weight
            self._is_read = self._is_read or not self._log
        self._wakeup.wake()
