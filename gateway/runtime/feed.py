"""What the followers of one session see: a bounded tail of recent items and a bell.

A follower keeps its own place. One that falls behind the tail reads the journal instead, so nobody
is sent less than everything that is on record, and a slow follower costs nobody else anything.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from gateway.envelope import Envelope, Live

TAIL = 1_000


class Feed:
    """Keeps the tail of one session in memory and wakes who waits for more."""

    def __init__(self, last_sequence: int) -> None:
        self.last_sequence = last_sequence
        self.closed = False
        self._items: deque[Envelope | Live] = deque(maxlen=TAIL)
        self._count = 0
        self._bell = asyncio.Event()
        self._followers = 0

    def join(self) -> int:
        """Start to follow; returns the place to read from. Without followers the tail is not kept."""
        self._followers += 1
        return self._count

    def leave(self) -> None:
        """Stop following."""
        self._followers -= 1
        if self._followers == 0:
            self._items.clear()

    def extend(self, envelopes: Iterable[Envelope]) -> None:
        """Show newly recorded events."""
        for envelope in envelopes:
            self.last_sequence = envelope.sequence
            self._show(envelope)

    def tell(self, live: Live) -> None:
        """Show something that is not recorded."""
        self._show(live)

    def close(self) -> None:
        """Let all followers end."""
        self.closed = True
        self._bell.set()

    def since(self, place: int) -> tuple[list[Envelope | Live], int, bool]:
        """Read what came after a place: the items, the new place, and whether some were missed."""
        missed = self._count - len(self._items) > place
        skip = max(0, place - (self._count - len(self._items)))
        return list(self._items)[skip:], self._count, missed

    async def wait(self, place: int) -> None:
        """Wait for something behind a place, or the end."""
        while self._count <= place and not self.closed:
            self._bell.clear()
            await self._bell.wait()

    def _show(self, item: Envelope | Live) -> None:
        if self._followers:
            self._items.append(item)
            self._count += 1
            self._bell.set()
