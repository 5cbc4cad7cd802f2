"""Wake-ups inside one process: they wake whoever waits, and carry nothing.

Waiting costs one future and one timer. A thousand followers wait anew after each event, and for them the two
tasks that `asyncio.wait` would take were most of what an event cost.
"""

import asyncio

from gateway.guard import guard_call


class Wakeup:
    """Wakes all who wait; where nobody waits it is forgotten."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[bool]] = set()

    def wake(self) -> None:
        """Wake all who wait."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(True)
        self.waiting.clear()


class Ending(Wakeup):
    """A wake-up that comes once, and stays."""

    def __init__(self) -> None:
        super().__init__()
        self._over = False

    def set(self) -> None:
        """End it."""
        self._over = True
        self.wake()

    def is_set(self) -> bool:
        """Whether it is over."""
        return self._over


async def woken(*wakeups: Wakeup, within: float) -> bool:
    """Wait until one of them wakes; False where none does in so many seconds.

    Who calls this has looked before, without a wait in between, whether there is anything to wait for.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()
    alarm = loop.call_later(within, guard_call("notifications", _give_up), waiter)
    for wakeup in wakeups:
        wakeup.waiting.add(waiter)
    try:
        return await waiter
    finally:
        alarm.cancel()
        for wakeup in wakeups:
            wakeup.waiting.discard(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
