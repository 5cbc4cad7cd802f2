"""Counts the calls of this instance per minute, for the last hour; in memory only."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.events import OutcomeKind

MINUTES = 60
"""The number of minutes that are kept."""
_DURATIONS = 1_000
"""The number of durations that are kept."""
_FAILED = frozenset[OutcomeKind]({"failure", "expired"})


@dataclass(slots=True)
class Minute:
    """The calls of one minute; a call counts in the minute of its start and in that of its end."""

    at: datetime
    calls: int = 0
    failed: int = 0
    unknown: int = 0


class Activity:
    """The calls of the last 60 minutes; only changed on the event loop."""

    def __init__(self) -> None:
        self._minutes: dict[int, Minute] = {}
        """The minutes with calls, by their number since 1970."""
        self._durations: deque[tuple[datetime, float]] = deque(maxlen=_DURATIONS)
        """The ends of the newest ended calls, and the seconds that these took."""

    def started(self, at: datetime) -> None:
        """Count a new call."""
        self._minute(at).calls += 1

    def ended(self, at: datetime, outcome: OutcomeKind, *, unknown: bool, seconds: float | None) -> None:
        """Note how long a call took, if known, and count its end if it failed."""
        if seconds is not None:
            self._durations.append((at, seconds))
        if outcome in _FAILED or unknown:
            minute = self._minute(at)
            minute.failed += outcome in _FAILED
            minute.unknown += unknown

    def last(self, *, since: datetime, now: datetime) -> Sequence[Minute]:
        """Return the last 60 minutes, oldest first, and none before `since`; the current minute is the last one."""
        end = _number(now)
        begin = max(_number(since), end - MINUTES + 1)
        return [self._minutes.get(number) or _empty(number) for number in range(begin, end + 1)]

    def percentiles(self, now: datetime) -> tuple[float | None, float | None]:
        """Return p50 and p95 of the newest calls that ended in the last hour, in seconds; None if there are none."""
        since = now - timedelta(minutes=MINUTES)
        taken = sorted(seconds for at, seconds in self._durations if at >= since)
        return (taken[len(taken) // 2], taken[len(taken) * 95 // 100]) if taken else (None, None)

    def _minute(self, at: datetime) -> Minute:
        number = _number(at)
        found = self._minutes.get(number)
        if found is None:
            found = self._minutes[number] = _empty(number)
            for old in [one for one in self._minutes if one <= number - MINUTES]:
                del self._minutes[old]
        return found


def _number(at: datetime) -> int:
    return int(at.timestamp()) // 60


def _empty(number: int) -> Minute:
    return Minute(datetime.fromtimestamp(number * 60, UTC))
