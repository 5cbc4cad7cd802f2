"""The deadline timer of each session; it puts a `Tick` into the inbox."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from itertools import islice

from gateway.clock import Clock
from gateway.guard import FAULTS, guard_call
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.signals import Tick

_REVIEW_AFTER = 0.25
"""Seconds until a changed deadline reaches the timer; an earlier deadline fires late by up to this time."""
AT_ONCE = 256
"""Timers set in one turn of the loop."""
_LATE = 0.001


class Reviews:
    """Sets the timers of all sessions with recent steps, four times a second.

    A scan of a session's open calls after each step would cost too much.
    """

    def __init__(self) -> None:
        self._due: dict[DueTimer, None] = {}

    def add(self, timer: "DueTimer") -> None:
        """Schedule a timer to be set, because a deadline may be earlier now."""
        if not self._due:
            asyncio.get_running_loop().call_later(_REVIEW_AFTER, _REVIEW, self)
        self._due[timer] = None

    def review(self) -> None:
        """Set the scheduled timers."""
        some = list(islice(self._due, AT_ONCE))
        for timer in some:
            del self._due[timer]
            _SET(timer)
        if self._due:
            asyncio.get_running_loop().call_soon(_REVIEW, self)


class DueTimer:
    """The timer of one session; `next_due` returns its next deadline, if it has one."""

    __slots__ = ("_at", "_clock", "_ended", "_inbox", "_next_due", "_timer", "faults")

    def __init__(self, inbox: Inbox, clock: Clock, next_due: Callable[[], datetime | None]) -> None:
        self.faults = 0
        """Consecutive ticks whose decision failed."""
        self._inbox = inbox
        self._clock = clock
        self._next_due = next_due
        self._timer: asyncio.TimerHandle | None = None
        self._at: datetime | None = None
        self._ended = False

    def cancel(self) -> None:
        """Stop the timer."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def set(self) -> None:
        """Let the timer fire at the next deadline, or earlier."""
        due = self._next_due()
        if due is None or self._ended:
            return
        if self._timer is not None:
            if self._at is not None and self._at <= due:
                return  # It fires early, finds nothing due, and is set again.
            self._timer.cancel()
        wait = max(0.0, (due - self._clock.now()).total_seconds()) + _LATE
        if self.faults:
            wait = max(wait, FAULTS.get().pause_after(self.faults))
        self._at, self._timer = due, asyncio.get_running_loop().call_later(wait, _RING, self)

    def ring(self) -> None:
        """Put a tick into the inbox if a deadline has passed."""
        self._timer = self._at = None
        due = self._next_due()
        if due is not None and due <= self._clock.now():
            self._inbox.put(Tick())
        else:
            self.set()


_REVIEW = guard_call("session", Reviews.review)
_SET = guard_call("session", DueTimer.set)
_RING = guard_call("session", DueTimer.ring)
