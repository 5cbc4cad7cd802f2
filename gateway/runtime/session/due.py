"""When a session's deadlines are due: one timer a session, which rings with a `Tick` in the inbox."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from itertools import islice

from gateway.clock import Clock
from gateway.guard import guard_call, pause_after
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.signals import Tick

_REVIEW_AFTER = 0.25
"""Seconds after which a change has moved the timer; what is due sooner is as late as that."""
AT_ONCE = 256
"""Sessions whose timers are set in one turn of the loop."""
_LATE = 0.001


class Reviews:
    """Sets the timers of all sessions that had something to do, four times a second.

    Looking through the open calls of a session after each of its steps would cost more than its deadlines gain.
    """

    def __init__(self) -> None:
        self._due: dict[DueTimer, None] = {}

    def add(self, timer: "DueTimer") -> None:
        """Set a timer soon: something may be due earlier by now."""
        if not self._due:
            asyncio.get_running_loop().call_later(_REVIEW_AFTER, _REVIEW, self)
        self._due[timer] = None

    def review(self) -> None:
        """Set them."""
        some = list(islice(self._due, AT_ONCE))
        for timer in some:
            del self._due[timer]
            _SET(timer)
        if self._due:
            asyncio.get_running_loop().call_soon(_REVIEW, self)


class DueTimer:
    """One session's; `next_due` says when something is due next, if anything is."""

    __slots__ = ("_at", "_clock", "_ended", "_inbox", "_next_due", "_timer", "faults")

    def __init__(self, inbox: Inbox, clock: Clock, next_due: Callable[[], datetime | None]) -> None:
        self.faults = 0
        """How often in a row a tick could not be decided on."""
        self._inbox = inbox
        self._clock = clock
        self._next_due = next_due
        self._timer: asyncio.TimerHandle | None = None
        self._at: datetime | None = None
        self._ended = False

    def cancel(self) -> None:
        """Ring no more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def set(self) -> None:
        """Let the timer ring when something is due next, or before."""
        due = self._next_due()
        if due is None or self._ended:
            return
        if self._timer is not None:
            if self._at is not None and self._at <= due:
                return  # it rings early, finds nothing due, and is set again
            self._timer.cancel()
        wait = max(0.0, (due - self._clock.now()).total_seconds()) + _LATE
        if self.faults:
            wait = max(wait, pause_after(self.faults))
        self._at, self._timer = due, asyncio.get_running_loop().call_later(wait, _RING, self)

    def ring(self) -> None:
        """Tell the session that something is due, if it still is."""
        self._timer = self._at = None
        due = self._next_due()
        if due is not None and due <= self._clock.now():
            self._inbox.put(Tick())
        else:
            self.set()


_REVIEW = guard_call("session", Reviews.review)
_SET = guard_call("session", DueTimer.set)
_RING = guard_call("session", DueTimer.ring)
