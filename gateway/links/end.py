"""The end of a link: it comes once, with a reason."""

import asyncio

from gateway.errors import LinkLost, LinkRefused
from gateway.guard import FAULTS


class LinkEnd:
    """Whether a link has ended, and why."""

    def __init__(self, name: str) -> None:
        """`name` is what its faults are noted under."""
        self._name = name
        self._ended: asyncio.Event = asyncio.Event()
        self._reason = ""

    def come(self, reason: str) -> None:
        """Mark the link as ended; the first reason is kept."""
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()

    def note_reading(self, reading: "asyncio.Future[None]", *, otherwise: str) -> None:
        """Mark the link as ended when its reading has; `otherwise` is the reason without a failure."""
        failure = None if reading.cancelled() else reading.exception()
        match failure:
            case None:
                self.come(otherwise)
            case LinkLost() | LinkRefused():
                self.come(str(failure))
            case _:
                FAULTS.get().note(self._name, failure)
                self.come(f"reading failed: {type(failure).__name__}")

    def check_open(self) -> None:
        """Check that the link has not ended.

        Raises:
            LinkLost: unsent; it has.
        """
        if self._ended.is_set():
            raise LinkLost(f"the link is closed: {self._reason}", unsent=True)

    async def wait(self) -> str:
        """Wait until the link has ended and return the reason."""
        await self._ended.wait()
        return self._reason
