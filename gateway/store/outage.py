"""Logs an unavailable store: at its first failure, once a minute with the number of failures, and when it is over."""

import structlog

from gateway.clock import Clock
from gateway.errors import DragomanError

log = structlog.get_logger(__name__)

_MOST_REASONS = 5
"""Reasons of one outage that are logged at once; further ones wait for the next line."""


class StoreOutage:
    """The current outage of one store, if any; sessions and loops report every failed attempt.

    It ends when the store works `quiet` seconds after the last failure, since sessions try again sooner.
    """

    def __init__(self, clock: Clock, *, again: float = 60.0, quiet: float = 3.0) -> None:
        self._clock = clock
        self._again = again
        self._quiet = quiet
        self._began = self._last = self._due = 0.0
        self._failures = 0
        self._reasons: set[str] = set()

    def failed(self, exc: DragomanError, task: str) -> None:
        """Log a failed attempt of a task, at `debug` if the outage has a newer line than a minute ago."""
        now, reason = self._clock.monotonic(), str(exc)
        if not self._failures:
            self._began = self._due = now
        self._last = now
        self._failures += 1
        is_new = reason not in self._reasons and len(self._reasons) < _MOST_REASONS
        write = log.debug
        if is_new or now >= self._due:
            self._due, write = now + self._again, log.error
            self._reasons.add(reason)
        seconds = round(now - self._began)
        write("store unavailable", reason=reason, task=task, failures=self._failures, seconds=seconds)

    def works(self) -> None:
        """Note that the store has just been read and written."""
        if self._failures and self._clock.monotonic() - self._last >= self._quiet:
            seconds = round(self._last - self._began)
            log.warning("store available again", failures=self._failures, seconds=seconds)
            self._failures = 0
            self._reasons.clear()
