"""How many bytes may wait for all followers of event streams together."""

from gateway.runtime.feeds.wakeup import Wakeup, woken


class Room:
    """Counts the bytes that wait for followers; what several of them wait for counts once."""

    def __init__(self, most: int = 64 * 1024**2) -> None:
        self.most = most
        self.bytes = 0
        self._holders: dict[int, int] = {}
        self._freed = Wakeup()

    def try_hold(self, piece: bytes) -> bool:
        """Keep a piece for one follower more; False where there is no room for it now.

        However large it is, it has room as soon as half of all is free.
        """
        holders = self._holders.get(id(piece), 0)
        if not holders and self.bytes and self.bytes + min(len(piece), self.most // 2) > self.most:
            return False
        self._holders[id(piece)] = holders + 1
        self.bytes += 0 if holders else len(piece)
        return True

    def has_left(self, size: int) -> bool:
        """Whether so many bytes may wait beside all others."""
        return self.bytes + size <= self.most

    def let_go(self, piece: bytes) -> None:
        """One follower waits for a piece no more."""
        holders = self._holders.pop(id(piece)) - 1
        if holders:
            self._holders[id(piece)] = holders
        else:
            self.add(-len(piece))

    def add(self, size: int) -> None:
        """Count what is one follower's alone."""
        self.bytes += size
        if size < 0:
            self._freed.wake()

    async def freed(self, *, within: float) -> None:
        """Wait until there may be room."""
        await woken(self._freed, within=within)
