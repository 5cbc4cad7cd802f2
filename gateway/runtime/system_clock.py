"""The system clock and the generator of ids."""

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from random import Random, SystemRandom
from threading import Lock

from gateway.clock import Clock
from gateway.events import EventId, ulid_entropy, ulid_time

_ENTROPY_BITS = 80
_READINGS = 5
"""Readings of both clocks, of which the fastest counts."""
_DIGITS = [ulid_entropy(n)[-1] for n in range(32)]
_NEXT = dict(pairwise(_DIGITS))
"""The successor of each digit but the last, which carries over."""


def _find_steady() -> Callable[[], float]:
    """Return a clock that cannot be set and, if the system has one, includes time in suspend."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


def _find_offset(steady: Callable[[], float]) -> float:
    """Return the wall time at the zero of a steady clock; a stall between two reads would make all times wrong."""
    readings: list[tuple[float, float]] = []
    for _ in range(_READINGS):
        before, wall, after = steady(), time.time(), steady()
        readings.append((after - before, wall - (before + after) / 2))
    return min(readings)[1]


class SystemClock:
    """Wall time that is read once and continued by a steady clock, so that clock changes have no effect."""

    def __init__(self) -> None:
        self._steady = _find_steady()
        self._offset = _find_offset(self._steady)
        self.monotonic = time.monotonic

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._offset + self._steady(), UTC)

    def timestamp(self) -> float:
        return self._offset + self._steady()


class SystemIds:
    """Generates ids that sort in the order of creation, even within one millisecond or while the clock stops."""

    def __init__(self, clock: Clock, random: Random | None = None) -> None:
        self._clock = clock
        self._random = random or SystemRandom()
        # For what may be guessed: a system call for each would release the interpreter lock in every decision.
        self._guessable = Random(self._random.getrandbits(128))  # noqa: S311
        self.jitter = self._guessable.random
        self._lock = Lock()
        self._milliseconds = -1
        self._time = ""
        # Read once, because ids may be guessed. The top bit stays free, so that counting up cannot overflow.
        self._entropy = self._random.getrandbits(_ENTROPY_BITS - 1)
        self._written = ""

    def event_id(self) -> EventId:
        milliseconds = int(self._clock.timestamp() * 1000)
        with self._lock:
            if milliseconds > self._milliseconds:
                self._milliseconds = milliseconds
                self._time = ulid_time(milliseconds)
            self._entropy += 1
            # Counting up changes only the last digit, except once in 32 times.
            digit = _NEXT.get(self._written[-1:])
            self._written = ulid_entropy(self._entropy) if digit is None else self._written[:-1] + digit
            return EventId(self._time + self._written)

    def token(self) -> str:
        return urlsafe_b64encode(self._random.randbytes(32)).rstrip(b"=").decode()

    def span_id(self) -> str:
        return f"{self._guessable.getrandbits(63) + 1:016x}"
