"""Ends links of which nothing comes any more, by one timer for all of a loop: an idle link holds none of its own."""

import asyncio
from math import inf
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.guard import guard_call


class Silent(Protocol):
    """What ends when nothing has come for too long."""

    def fall_silent(self) -> None: ...


class Silence:
    """One loop's; of whoever is heard something must be heard again in time, unless it is forgotten before."""

    def __init__(self) -> None:
        self._until: dict[Silent, float] = {}
        """When each will have been silent for too long."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = inf

    def hear(self, one: Silent, patience: float) -> None:
        """Something has come of this one, and something must again within so many seconds."""
        self._until[one] = until = asyncio.get_running_loop().time() + patience
        if until < self._rings_at:
            self._ring_at(until)

    def forget(self, one: Silent) -> None:
        """This one has ended."""
        self._until.pop(one, None)
        if not self._until:
            self._ring_at(inf)

    def look(self) -> None:
        """End who has been silent for too long, and look again when the next one will have been."""
        now = asyncio.get_running_loop().time()
        late = [one for one, until in self._until.items() if until <= now]
        for one in late:
            del self._until[one]
        self._ring_at(min(self._until.values(), default=inf))
        for one in late:
            guard_call("link", one.fall_silent)()

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
