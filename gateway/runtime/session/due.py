"""When a session's deadlines are due: one timer, which rings with a `Tick` in the inbox."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from gateway.clock import Clock
from gateway.guard import guard_call, pause_after
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.signals import Tick

_REVIEW_AFTER = 0.05
"""Seconds after which a change may move the timer."""


class DueTimer:
    """One session's; `next_due` says when something is due next, if anything is."""

    def __init__(self, inbox: Inbox, clock: Clock, next_due: Callable[[], datetime | None]) -> None:
        self.faults = 0
        """How often in a row a tick could not be decided on."""
        self._inbox = inbox
        self._clock = clock
        self._next_due = next_due
        self._timer: asyncio.TimerHandle | None = None
        self._at: datetime | None = None
        self._review: asyncio.TimerHandle | None = None

    def review(self) -> None:
        """Look soon whether something is due earlier or later by now."""
        if self._review is None:
            # Looking through all open calls after each batch would cost a busy session more than its deadlines gain.
            self._review = asyncio.get_running_loop().call_later(_REVIEW_AFTER, _SET, self)

    def cancel(self) -> None:
        """Ring no more."""
        for timer in (self._timer, self._review):
            if timer is not None:
                timer.cancel()

    def set(self) -> None:
        """Set the timer to what is due next."""
        self._review = None
        due = self._next_due()
        if due == self._at and self._timer is not None:
            return
        if self._timer is not None and self._at is not None and due is not None and due >= self._at:
            return  # the timer fires early, finds nothing due and is set again
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, due
        if due is not None:
            wait = max(0.0, (due - self._clock.now()).total_seconds()) + 0.001
            if self.faults:
                wait = max(wait, pause_after(self.faults))
            self._timer = asyncio.get_running_loop().call_later(wait, _RING, self)

    def ring(self) -> None:
        """Tell the session that something is due."""
        self._timer = self._at = None
        self._inbox.put(Tick())


_SET = guard_call("session", DueTimer.set)
_RING = guard_call("session", DueTimer.ring)
