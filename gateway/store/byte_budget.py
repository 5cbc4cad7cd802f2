"""A waiting room that is full by bytes: who brings more than there is room for waits, first come, first served."""

import asyncio
from collections import deque


class ByteBudget:
    """Lets in what fits; into an empty room, anything."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def held(self, size: int) -> "ReservedBytes":
        """Wait for room, and take it up: `async with room.held(size):`."""
        return ReservedBytes(self, size)

    def takes(self, size: int) -> bool:
        """Take it up until `leave`, where nobody would wait who brings so much; False where one has to `enter`."""
        if self._waiting or (self._taken and self._taken + size > self._most):
            return False
        self._taken += size
        return True

    async def enter(self, size: int) -> None:
        """Wait for room, and take it up until `leave`."""
        if self.takes(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            # Let in at the same moment, or still in the queue, where a canceled one is passed over.
            if not turn.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Give room back, to those who wait first."""
        self._taken -= size
        while self._waiting and (not self._taken or self._taken + self._waiting[0][1] <= self._most):
            turn, wanted = self._waiting.popleft()
            if not turn.done():
                self._taken += wanted
                turn.set_result(None)


class ReservedBytes:
    """Room that is taken inside of an `async with`; a generator would cost every step five times as much."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: ByteBudget, size: int) -> None:
        self._room = room
        self._size = size

    async def __aenter__(self) -> None:
        await self._room.enter(self._size)

    async def __aexit__(self, *exc: object) -> None:
        self._room.leave(self._size)
