"""Wake-ups inside one process: they wake whoever waits, and carry nothing.

Waiting costs one future. A thousand followers wait anew after each event, and for them the two tasks that
`asyncio.wait` would take, or a timer, were most of what an event cost.
"""

import asyncio

from gateway.guard import guard_call


def finish(future: "asyncio.Future[None]") -> None:
    """Complete a future that several callers may complete."""
    if not future.done():
        future.set_result(None)


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


class Waits:
    """Waits for wake-ups again and again, each time for so many seconds; its one timer is armed anew where it rings.

    Whoever waits has looked before, without a wait in between, whether there is anything to wait for.
    """

    def __init__(self, *wakeups: Wakeup, within: float) -> None:
        self._wakeups = wakeups
        self._within = within
        self._until = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def wait_any(self) -> bool:
        """Wait until one of them wakes; False where none does in time."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        self._until = loop.time() + self._within
        if self._alarm is None:
            self._arm(self._within)
        for wakeup in self._wakeups:
            wakeup.waiting.add(waiter)
        try:
            return await waiter
        finally:
            for wakeup in self._wakeups:
                wakeup.waiting.discard(waiter)

    def end(self) -> None:
        """Wait no more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self, seconds: float) -> None:
        self._alarm = asyncio.get_running_loop().call_later(seconds, guard_call("notifications", self._ring))

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._until - asyncio.get_running_loop().time()
        if left > 0:
            self._arm(left)
        else:
            self._waiter.set_result(False)


async def wait_any(*wakeups: Wakeup, within: float) -> bool:
    """Wait once until one of them wakes; False where none does in so many seconds."""
    waiting = Waits(*wakeups, within=within)
    try:
        return await waiting.wait_any()
    finally:
        waiting.end()
