"""The real clock and the real source of fresh ids."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Lock

from gateway.envelope import EventId, sortable_id
from gateway.ports.clock import Clock

_ENTROPY_BITS = 80


def _find_steady() -> Callable[[], float]:
    """Find a clock that nobody sets and that also counts while the machine sleeps, where there is one."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


class SystemClock:
    """Wall time read once at the start, carried on by a steady clock, so that steps of the wall clock do not matter."""

    def __init__(self) -> None:
        self._steady = _find_steady()
        self._offset = time.time() - self._steady()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + self._steady(), UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class SystemIds:
    """Ids that sort in the order of their minting, also within one millisecond and when the clock stands still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._milliseconds = -1
        self._entropy = 0

    def event_id(self) -> EventId:
        milliseconds = int(self._clock.now().timestamp() * 1000)
        with self._lock:
            if milliseconds > self._milliseconds:
                self._milliseconds = milliseconds
                # The top bit stays free, so that counting up within the millisecond cannot run over.
                self._entropy = secrets.randbits(_ENTROPY_BITS - 1)
            else:
                self._entropy += 1
            return EventId(sortable_id(self._milliseconds, self._entropy))

    def token(self) -> str:
        return secrets.token_urlsafe(32)
