"""Ends links of which nothing comes any more, by one timer for all of a loop: an idle link holds none of its own."""

import asyncio
from collections.abc import Callable
from math import inf
from weakref import WeakKeyDictionary

from gateway.guard import guard_call

End = Callable[[], None]
"""What is called when nothing has come of somebody for too long; tells one from the other."""


class Silence:
    """One loop's; of whoever is heard something must be heard again in time, unless it is forgotten before."""

    def __init__(self) -> None:
        self._until: dict[End, float] = {}
        """When each will have been silent for too long."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = inf

    def hear(self, end: End, patience: float) -> None:
        """Something has come of this one, and something must again within so many seconds."""
        self._until[end] = until = asyncio.get_running_loop().time() + patience
        if until < self._rings_at:
            self._ring_at(until)

    def forget(self, end: End) -> None:
        """This one has ended."""
        self._until.pop(end, None)
        if not self._until:
            self._ring_at(inf)

    def look(self) -> None:
        """End who has been silent for too long, and look again when the next one will have been."""
        now = asyncio.get_running_loop().time()
        late = [end for end, until in self._until.items() if until <= now]
        for end in late:
            del self._until[end]
        self._ring_at(min(self._until.values(), default=inf))
        for end in late:
            guard_call("link", end)()

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = None if when == inf else asyncio.get_running_loop().call_at(when, _LOOK, self)


_LOOK = guard_call("link", Silence.look)
_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Silence] = WeakKeyDictionary()


def silence_here() -> Silence:
    """Give that of the running loop."""
    return _OF_LOOPS.setdefault(asyncio.get_running_loop(), Silence())
