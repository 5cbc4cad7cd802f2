"""A log of recent news, bounded by count and bytes, and a wake-up for followers.

Each follower keeps its own place in the log; followers at the same place share the same news. A follower that falls
behind the log reads the store instead, so a slow one affects no other.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gateway.runtime.views import Batch
from gateway.runtime.wakeup import Ending, Waits, Wakeup

TAIL = 1_000
TAIL_BYTES = 4 * 1024 * 1024

News = TypeVar("News", bound=Batch)


class NewsLog(Generic[News]):
    """Keeps recent news while there are followers, and wakes them."""

    def __init__(self, make: Callable[[], News], *, tail: int = TAIL) -> None:
        """Start without followers; `make` starts a batch, `tail` is the maximum number of items kept."""
        self._make = make
        self._tail = tail
        self.closed = False
        # Created for the first follower, since most sessions have none.
        self._log: deque[News] | None = None
        self._wakeup: Wakeup | None = None
        self._bytes = 0
        self._items = 0
        self._count = 0
        """The number of batches started, including dropped ones."""
        self._is_read = True
        """Whether a follower may have read the last batch; then nothing may be added to it."""
        self._followers = 0

    @property
    def followed(self) -> bool:
        """Whether there are local followers."""
        return self._followers > 0

    @property
    def last(self) -> News | None:
        """The last batch that is kept."""
        return self._log[-1] if self._log else None

    def join(self) -> int:
        """Add a follower; return its place to read from. News are kept only while there are followers."""
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

    def skip(self) -> None:
        """Make all followers read the store."""
        if self._log is not None and self._wakeup is not None:
            self._log.clear()
            self._bytes = self._items = 0
            self._count += 1
            self._is_read = True
            self._wakeup.wake()

    def close(self) -> None:
        """End all followers."""
        self.closed = True
        if self._wakeup is not None:
            self._wakeup.wake()

    def since(self, place: int) -> tuple[News | None, int, bool]:
        """Return the news after a place, the next place, and whether news were missed.

        Returns one batch at a time, so that a follower that stops reading holds only one.
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
        assert self._wakeup is not None, "the log has no followers"
        return Waits(self._wakeup, ended, within=within)

    async def wait(self, place: int, waiting: Waits) -> bool:
        """Wait for news after a place, or for the end; return False on timeout."""
        return self._has_more(place) or await waiting.wait_any()

    def _has_more(self, place: int) -> bool:
        return self._count > place or self.closed

    def show(self, item: Any, size: int) -> None:
        """Append an item of a weight."""
        if self._log is None or self._wakeup is None:
            return
        if self._is_read or not self._log[-1].takes(size):
            self._log.append(self._make())
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
