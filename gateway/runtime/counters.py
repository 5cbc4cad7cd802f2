"""Counters and histograms as plain numbers, which the registry reads on each scrape.

The library's own types take a lock for each increment; ours are only changed on the event loop and need none.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


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
