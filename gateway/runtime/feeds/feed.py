"""The feed of one session: a log of recent news, bounded by count and bytes, and a wake-up for followers.

Each follower keeps its own place in the log; followers at the same place share the same news. A follower that falls
behind the log reads the journal instead, so every follower gets all recorded events and a slow one affects no other.
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
    """Wakes the requests that wait for the outcome of one call; other events do not wake them."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome: ToolFinished | None = None


class Feed:
    """Keeps the recent events of one session in memory and wakes its followers."""

    def __init__(self, last_sequence: int, *, tail: int = TAIL) -> None:
        """Start without followers; `tail` is the maximum number of items kept."""
        self._tail = tail
        self.last_sequence = last_sequence
        self.closed = False
        # Created for the first follower, since most sessions have none.
        self._log: deque[News] | None = None
        self._wakeup: Wakeup | None = None
        self._bytes = 0
        self._items = 0
        self._count = 0
        """The number of `News` started, including dropped ones."""
        self._is_read = True
        """Whether a follower may have read the last `News`; then nothing may be added to it."""
        self._followers = 0
        self._watches: dict[str, set[OutcomeWatch]] = {}
        """Watches by call."""
        self._others: Callable[[Live | None], None] | None = None
        self._others_until = 0.0

    @property
    def followed(self) -> bool:
        """Whether the session has local followers."""
        return self._followers > 0

    def join(self) -> int:
        """Add a follower; return its place to read from. Events are kept only while there are followers."""
        self._followers += 1
        self._is_read = True
        if self._wakeup is None:
            self._log, self._wakeup = deque(), Wakeup()
        return self._count

    def leave(self) -> None:
        """Remove a follower."""
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
            self._set_outcomes(envelopes)
        if self._followers:
            for envelope in envelopes:
                self._show(envelope)
        if self._others is not None:
            self._notify_others(self._others, None)

    @contextmanager
    def watching(self, call_id: CallId) -> Generator[OutcomeWatch]:
        """Watch for the outcome of an open call; also wakes when the feed ends or skips events."""
        watch = OutcomeWatch()
        watches = self._watches.setdefault(call_id, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(call_id, None)

    def _set_outcomes(self, envelopes: Sequence[Envelope]) -> None:
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
        """Show a live event."""
        self._show(live)
        if self._others is not None:
            self._notify_others(self._others, live)

    def notify_others(self, tell: Callable[[Live | None], None], *, seconds: float) -> None:
        """Call `tell` for each change in the next seconds: with a live event, or None after recorded ones."""
        self._others = tell
        self._others_until = asyncio.get_running_loop().time() + seconds

    def _notify_others(self, tell: Callable[[Live | None], None], live: Live | None) -> None:
        if asyncio.get_running_loop().time() > self._others_until:
            self._others = None
        else:
            tell(live)

    def skip_to(self, sequence: int) -> None:
        """Make all followers read the journal, since events before this sequence were removed."""
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
        """End all followers."""
        self.closed = True
        self._wake_watches()
        if self._wakeup is not None:
            self._wakeup.wake()

    def since(self, place: int) -> tuple[News | None, int, bool]:
        """Return the `News` after a place, the next place, and whether news were missed.

        Returns one `News` at a time, so that a follower that stops reading holds only one.
        """
        more, kept = self._count - place, len(self._log or ())
        if not more or not self._log:
            return None, self._count, more > 0
        if more > kept:
            return None, self._count - kept, True
        # Indexed from the end, since a deque is fast there and followers usually read the last items.
        self._is_read = self._is_read or more == 1
        return self._log[-more], place + 1, False

    def waiting(self, ended: Ending, *, within: float) -> Waits:
        """Prepare the waits of a follower that has joined; each lasts until news, the end or `within` seconds."""
        assert self._wakeup is not None, "the feed has no followers"
        return Waits(self._wakeup, ended, within=within)

    async def wait(self, place: int, waiting: Waits) -> bool:
        """Wait for news after a place, or for the end; return False on timeout."""
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
