"""A waiting room that is full by bytes: who brings more than there is room for waits, first come, first served."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class ByteRoom:
    """Lets in what fits; into an empty room, anything."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncGenerator[None]:
        """Wait for room, and take it up."""
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, size))
            try:
                await turn
            except asyncio.CancelledError:
                # Let in at the same moment, or still in the queue, where a canceled one is passed over.
                if not turn.cancelled():
                    self._leave(size)
                raise
        else:
            self._taken += size
        try:
            yield
        finally:
            self._leave(size)

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._most

    def _leave(self, size: int) -> None:
        self._taken -= size
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, wanted = self._waiting.popleft()
            if not turn.done():
                self._taken += wanted
                turn.set_result(None)
