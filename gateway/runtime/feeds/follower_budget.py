"""The bytes of large news that wait to be written to followers."""

from collections import Counter

from gateway.runtime.views import Batch
from gateway.store.byte_budget import ByteBudget

LARGE = 128 * 1024
"""The weight from which news are counted."""
_MOST = 64 * 1024 * 1024
_COPIES = 2
"""The event and its encoding."""


class FollowerBudget:
    """Reserves bytes for large news; the followers of one feed share its news, which count once."""

    def __init__(self, most: int = _MOST) -> None:
        self._budget = ByteBudget(most)
        self._followers = Counter[int]()

    def takes(self, weight: int) -> bool:
        """Reserve bytes until `leave`; return False if the caller must release the news and `enter`."""
        return self._budget.takes(weight * _COPIES)

    async def enter(self, weight: int) -> None:
        """Wait until the bytes fit, and reserve them until `leave`."""
        await self._budget.enter(weight * _COPIES)

    def leave(self, weight: int) -> None:
        """Release bytes."""
        self._budget.leave(weight * _COPIES)

    def shares(self, news: Batch) -> bool:
        """Reserve the bytes of shared news until `leave_shared`; return False if they do not fit."""
        if news.weight > LARGE:
            if id(news) not in self._followers and not self.takes(news.weight):
                return False
            self._followers[id(news)] += 1
        return True

    def leave_shared(self, news: Batch) -> None:
        """Release the bytes of news if no other follower has them to write."""
        if news.weight > LARGE:
            self._followers[id(news)] -= 1
            if not self._followers[id(news)]:
                del self._followers[id(news)]
                self.leave(news.weight)
