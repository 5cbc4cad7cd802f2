"""Acknowledgements of a Socket.IO link: numbers our frames and waits for the peer's word on each."""

import asyncio
import re
from datetime import timedelta

from gateway.adapter.port import Receipt
from gateway.errors import LinkLost

_PACKET = re.compile(r"43(\d{1,20})\[")


class Acks:
    """The frames that wait for their acknowledgement; bounded by the senders, each of which waits for its own."""

    def __init__(self, timeout: timedelta, why: str) -> None:
        """Prepare; `why` says what a missing acknowledgement may mean."""
        self._seconds = timeout.total_seconds()
        self._why = why
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._last = 0

    def expect(self) -> str:
        """Number the next frame."""
        self._last += 1
        ack = str(self._last)
        self._waiting[ack] = asyncio.get_running_loop().create_future()
        return ack

    def forget(self, ack: str) -> None:
        """Wait no longer: the frame has not left."""
        self._waiting.pop(ack, None)

    def take(self, packet: str) -> None:
        """Take an acknowledgement packet; one that nobody waits for is nothing."""
        if found := _PACKET.match(packet):
            self._resolve(found[1], None)

    def end(self, reason: str) -> None:
        """Let nobody wait any more: the link is over."""
        for ack in self._waiting:
            self._resolve(ack, reason)

    async def wait(self, ack: str) -> Receipt:
        """Wait for the acknowledgement, within the time-out.

        Raises:
            LinkLost: the link ended before it came; the frame may have been taken.
        """
        try:
            async with asyncio.timeout(self._seconds):
                lost = await self._waiting[ack]
        except TimeoutError:
            reason = f"no acknowledgement within {self._seconds:g} s; {self._why}"
            return Receipt("sent", reason)
        finally:
            self.forget(ack)
        if lost is not None:
            raise LinkLost(f"the link ended before the acknowledgement: {lost}")
        return Receipt("delivered")

    def _resolve(self, ack: str, lost: str | None) -> None:
        waiting = self._waiting.get(ack)
        if waiting is not None and not waiting.done():
            waiting.set_result(lost)
