"""What this instance counts, in memory: numbers that the registry reads on each scrape, and the calls of the last hour.

The library's own types take a lock for each increment; ours are only changed on the event loop and need none.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.events import OutcomeKind

MINUTES = 60
"""Minutes of calls that are kept."""
_DURATIONS = 1_000
"""Durations of calls that are kept."""
_FAILED = frozenset[OutcomeKind]({"failure", "expired"})


class Counter(Collector):
    """A counter; a series starts with its first increment, or at 0 if it is `known` or has no labels.

    An alert on an increase does not see the first value of a series, so series to alert on should be `known`.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        *,
        known: Iterable[tuple[str, ...]] = (),
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = dict.fromkeys(known if labels else [()], 0)
        registry.register(self)

    def add(self, *labels: str, by: int = 1) -> None:
        """Increase the series of these labels."""
        self._counts[labels] = self._counts.get(labels, 0) + by

    def collect(self) -> Iterable[Metric]:
        """Return all counts."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        return [family]


class ExternalCounter(Collector):
    """A counter with one label, read from counts of another module since its creation."""

    def __init__(
        self, name: str, text: str, label: str, counts: Mapping[str, int], *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._counts, self._before = counts, dict(counts)
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return all counts."""
        family = CounterMetricFamily(self._name, self._text, labels=(self._label,))
        for label, count in self._counts.items():
            here = count - self._before.get(label, 0)
            if here:
                family.add_metric((label,), here)
        return [family]


class Buckets(Collector):
    """A histogram without labels."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], *, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """Return all buckets."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        totals = [float(total) for total in accumulate(self._counts)]
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(bounds, totals, strict=True)), self._sum)
        return [family]


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
