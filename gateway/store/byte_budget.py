"""A limit on bytes in use: callers wait in order of arrival until their bytes fit."""

import asyncio
from collections import deque


class ByteBudget:
    """Reserve bytes up to a limit; a single reservation may exceed it if nothing else is reserved."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def held(self, size: int) -> "ReservedBytes":
        """Reserve bytes for a block: `async with budget.held(size):`."""
        return ReservedBytes(self, size)

    def takes(self, size: int) -> bool:
        """Reserve bytes until `leave` if they fit at once; return False if the caller must `enter`."""
        if self._waiting or (self._taken and self._taken + size > self._most):
            return False
        self._taken += size
        return True

    async def enter(self, size: int) -> None:
        """Wait until the bytes fit, and reserve them until `leave`."""
        if self.takes(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            # The reservation was granted just before the cancel. A canceled entry in the queue is skipped.
            if not turn.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Release bytes, and grant the first reservations in the queue."""
        self._taken -= size
        while self._waiting and (not self._taken or self._taken + self._waiting[0][1] <= self._most):
            turn, wanted = self._waiting.popleft()
            if not turn.done():
                self._taken += wanted
                turn.set_result(None)


class ReservedBytes:
    """Bytes that are reserved within an `async with`; a generator would cost every step five times as much."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: ByteBudget, size: int) -> None:
        self._room = room
        self._size = size

    async def __aenter__(self) -> None:
        await self._room.enter(self._size)

    async def __aexit__(self, *exc: object) -> None:
        self._room.leave(self._size)
