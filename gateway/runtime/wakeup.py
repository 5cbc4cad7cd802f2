"""Wake-ups inside one process, without data.

A wait costs one future. A thousand followers wait again after each event; with `asyncio.wait`, its two tasks or a timer
were most of the cost of an event.
"""

import asyncio

from gateway.guard import guard_call


def finish(future: "asyncio.Future[None]") -> None:
    """Complete a future that several callers may complete."""
    if not future.done():
        future.set_result(None)


class Wakeup:
    """Wakes all waiters; without waiters it has no effect."""

    def __init__(self) -> None:
        # A dict wakes them in the order in which they began to wait.
        self.waiting: dict[asyncio.Future[bool], None] = {}

    def wake(self) -> None:
        """Wake all waiters."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(True)
        self.waiting.clear()


class Ending(Wakeup):
    """A wake-up that happens once; later waiters see that it has `happened`."""

    def __init__(self) -> None:
        super().__init__()
        self.happened = False

    def set(self) -> None:
        """Let it happen, and wake all waiters."""
        self.happened = True
        self.wake()


class Waits:
    """Waits for wake-ups repeatedly, each time for up to `within` seconds; one timer serves all waits.

    Before waiting, the caller must check its condition without an await in between.
    """

    def __init__(self, *wakeups: Wakeup, within: float) -> None:
        self._wakeups = wakeups
        self._within = within
        self._until = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def wait_any(self) -> bool:
        """Wait until any of the wake-ups happens; return False on timeout."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        self._until = loop.time() + self._within
        if self._alarm is None:
            self._arm(self._within)
        for wakeup in self._wakeups:
            wakeup.waiting[waiter] = None
        try:
            return await waiter
        finally:
            for wakeup in self._wakeups:
                wakeup.waiting.pop(waiter, None)

    def end(self) -> None:
        """Cancel the timer."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self, seconds: float) -> None:
        self._alarm = asyncio.get_running_loop().call_later(seconds, guard_call("notifications", self._ring))

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._waiter.done():
            return
        remaining = self._until - asyncio.get_running_loop().time()
        if remaining > 0:
            self._arm(remaining)
        else:
            self._waiter.set_result(False)


async def wait_any(*wakeups: Wakeup, within: float) -> bool:
    """Wait once until any of the wake-ups happens; return False after `within` seconds."""
    waiting = Waits(*wakeups, within=within)
    try:
        return await waiting.wait_any()
    finally:
        waiting.end()
