"""The real clock and the real source of fresh ids."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from threading import Lock

from gateway.clock import Clock
from gateway.events import EventId, ulid_entropy, ulid_time

_ENTROPY_BITS = 80
_LETTERS = [ulid_entropy(n)[-1] for n in range(32)]
_NEXT = dict(pairwise(_LETTERS))
"""The letter behind each but the last, which carries over."""


def _find_steady() -> Callable[[], float]:
    """Find a clock that nobody sets and that also counts while the machine sleeps, where there is one."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


class SystemClock:
    """Wall time read once at the start, carried on by a steady clock, so that steps of the wall clock do not matter."""

    def __init__(self) -> None:
        self._steady = _find_steady()
        self._offset = time.time() - self._steady()
        self.monotonic = time.monotonic

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + self._steady(), UTC)

    def timestamp(self) -> float:
        return self._offset + self._steady()


class SystemIds:
    """Ids that sort in the order of their minting, also within one millisecond and when the clock stands still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._milliseconds = -1
        self._time = ""
        # Asking the system for each id would let go of the interpreter in the middle of every decision, and unlike
        # tokens, ids need only differ. The top bit stays free, so that counting up cannot run over.
        self._entropy = secrets.randbits(_ENTROPY_BITS - 1)
        self._written = ""

    def event_id(self) -> EventId:
        milliseconds = int(self._clock.timestamp() * 1000)
        with self._lock:
            if milliseconds > self._milliseconds:
                self._milliseconds = milliseconds
                self._time = ulid_time(milliseconds)
            self._entropy += 1
            # Counting up changes the last letter alone, but for one time in 32.
            letter = _NEXT.get(self._written[-1:])
            self._written = ulid_entropy(self._entropy) if letter is None else self._written[:-1] + letter
            return EventId(self._time + self._written)

    def token(self) -> str:
        return secrets.token_urlsafe(32)
