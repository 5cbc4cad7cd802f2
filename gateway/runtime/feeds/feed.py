"""What the followers of one session see: a tail of recent items, bounded by count and bytes, and a wake-up.

A follower keeps its own place. One that falls behind the tail reads the journal instead, so nobody
is sent less than everything that is on record, and a slow follower costs nobody else anything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from gateway.events import Envelope, Live
from gateway.events.weight import weight
from gateway.runtime.feeds.wakeup import Ending, Wakeup, woken

TAIL = 1_000
TAIL_BYTES = 4 * 1024 * 1024


class Feed:
    """Keeps the tail of one session in memory and wakes who waits for more."""

    def __init__(self, last_sequence: int, *, tail: int = TAIL) -> None:
        """Start without followers; `tail` is how many items are kept at most."""
        self._tail = tail
        self.last_sequence = last_sequence
        self.closed = False
        # Made for the first follower, since most sessions have none.
        self._items: deque[tuple[Envelope | Live, int]] | None = None
        self._wakeup: Wakeup | None = None
        self._bytes = 0
        self._count = 0
        self._followers = 0
        self._others: Callable[[Live | None], None] | None = None
        self._others_until = 0.0

    @property
    def followed(self) -> bool:
        """Whether anybody follows here."""
        return self._followers > 0

    def join(self) -> int:
        """Start to follow; returns the place to read from. Without followers the tail is not kept."""
        self._followers += 1
        if self._wakeup is None:
            self._items, self._wakeup = deque(), Wakeup()
        return self._count

    def leave(self) -> None:
        """Stop following."""
        self._followers -= 1
        if self._followers == 0:
            self._items = self._wakeup = None
            self._bytes = 0

    def extend(self, envelopes: Sequence[Envelope]) -> None:
        """Show newly recorded events."""
        if not envelopes:
            return
        self.last_sequence = envelopes[-1].sequence
        if self._followers:
            for envelope in envelopes:
                self._show(envelope)
        if self._others is not None:
            self._tell_others(self._others, None)

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
        if self._items is not None and self._wakeup is not None:
            self._items.clear()
            self._bytes = 0
            self._count += 1
            self._wakeup.wake()

    def ends_with(self, kind: str) -> bool:
        """Whether the last item kept is a recorded event of this kind."""
        last = self._items[-1][0] if self._items else None
        return isinstance(last, Envelope) and last.event.kind == kind

    def close(self) -> None:
        """Let all followers end."""
        self.closed = True
        if self._wakeup is not None:
            self._wakeup.wake()

    def since(self, place: int) -> tuple[list[Envelope | Live], int, bool]:
        """Read what came after a place: the items, the new place, and whether some were missed."""
        items = self._items or ()
        more = self._count - place
        # From the end, where a deque is quick: a follower who keeps up reads a few of a thousand.
        return [items[-back][0] for back in range(min(more, len(items)), 0, -1)], self._count, more > len(items)

    async def wait(self, place: int, *, ended: Ending, within: float) -> bool:
        """Wait, having joined, for something behind a place, or the end; False when neither came in so many seconds."""
        assert self._wakeup is not None, "nobody has joined"
        return self._has_more(place) or await woken(self._wakeup, ended, within=within)

    def _has_more(self, place: int) -> bool:
        return self._count > place or self.closed

    def _show(self, item: Envelope | Live) -> None:
        if self._items is None or self._wakeup is None:
            return
        size = weight(item.event)
        self._items.append((item, size))
        self._count += 1
        self._bytes += size
        while len(self._items) > self._tail or self._bytes > TAIL_BYTES:
            self._bytes -= self._items.popleft()[1]
        self._wakeup.wake()
