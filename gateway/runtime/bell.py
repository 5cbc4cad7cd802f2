"""Bells inside one process: they wake whoever waits, and carry nothing.

Waiting costs one future and one timer. A thousand followers wait anew after each event, and for them the two
tasks that `asyncio.wait` would take were most of what an event cost.
"""

import asyncio

from gateway.guard import guard_call


class Bell:
    """Wakes all who wait; a ring that nobody waits for is forgotten."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[bool]] = set()

    def ring(self) -> None:
        """Wake all who wait."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(True)
        self.waiting.clear()


class Ending(Bell):
    """A bell that rings once, and stays rung."""

    def __init__(self) -> None:
        super().__init__()
        self._over = False

    def set(self) -> None:
        """End it."""
        self._over = True
        self.ring()

    def is_set(self) -> bool:
        """Whether it is over."""
        return self._over


async def heard(*bells: Bell, within: float) -> bool:
    """Wait until one of them rings; False where none does in so many seconds.

    Who calls this has looked before, without a wait in between, whether there is anything to wait for.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()
    alarm = loop.call_later(within, guard_call("bell", _give_up), waiter)
    for bell in bells:
        bell.waiting.add(waiter)
    try:
        return await waiter
    finally:
        alarm.cancel()
        for bell in bells:
            bell.waiting.discard(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
