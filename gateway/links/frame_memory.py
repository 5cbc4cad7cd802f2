"""The size of one frame, and one memory budget for the frames that wait in all sessions of a gateway."""

import asyncio
from collections import deque
from contextvars import ContextVar

from gateway.guard import guard_call

SMALL = 64 * 1024
"""Bytes of a frame that never waits for the budget; the number of such frames is bounded for each session."""
PATIENCE = 8.0
"""Maximum pause of a link's reading in seconds; Engine.IO servers wait at least 20 s for a pong."""


class FrameMemory:
    """Counts the bytes of frames between their arrival and the commit that records them."""

    def __init__(self) -> None:
        self.largest = 4 * 1024 * 1024
        self.most = 64 * 1024 * 1024
        self.held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def why_rejected(self, size: int) -> str | None:
        """Explain why a frame of this size is rejected; None if it is not."""
        return None if size <= self.largest else f"has {size:,} bytes; limits.frame allows {self.largest:,}"

    def has_capacity(self, size: int) -> bool:
        """Report whether a frame fits now. A small frame always fits, and any frame fits if none is held."""
        return size <= SMALL or self.held + size <= self.most or not self.held

    def hold(self, size: int) -> None:
        """Count a frame, whether or not it fits."""
        self.held += size

    def release(self, size: int) -> None:
        """Stop counting frames."""
        self.held -= size
        if size and self._waiting:
            self._wake_first()

    async def wait_capacity(self, size: int, within: float = PATIENCE) -> bool:
        """Wait until a frame fits, first come, first served; returns whether it does. `within` is in seconds."""
        if self.has_capacity(size) and not self._waiting:
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(within):
                while self._waiting[0] is not turn or not self.has_capacity(size):
                    await turn
                    turn = self._waiting[0] = asyncio.get_running_loop().create_future()
        except TimeoutError:
            return self.has_capacity(size)
        finally:
            self._waiting.remove(turn)
            # The next one may fit too, after the caller has counted this one.
            asyncio.get_running_loop().call_soon(guard_call("frame memory", self._wake_first))
        return True

    def _wake_first(self) -> None:
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


FRAMES: ContextVar[FrameMemory] = ContextVar("frames", default=FrameMemory())  # noqa: B039 - for links without a gateway
"""The limit and the budget of the gateway in whose context the code runs."""
