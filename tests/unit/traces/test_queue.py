"""The queue of spans never waits for a collector, and counts what it drops."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import Event
from time import monotonic

import pytest

from gateway.core.trace_context import TraceContext
from gateway.traces.queue import DROPPED, Traces
from gateway.traces.spans import Span
from tests.pace import PATIENCE, within

NOW = datetime(2026, 11, 27, tzinfo=UTC)
SPAN = Span("POST", "client", TraceContext("a" * 32), "1" * 16, NOW, NOW, {})


class Collector:
    """Takes batches while it is open."""

    def __init__(self) -> None:
        self.taken: list[Span] = []
        self.reached, self.open = Event(), Event()
        self.accepts = True
        self.was_shut_down = False

    def export(self, spans: Sequence[Span]) -> bool:
        self.reached.set()
        self.open.wait(PATIENCE)
        if self.accepts:
            self.taken += spans
        return self.accepts

    def shutdown(self) -> None:
        self.was_shut_down = True


@pytest.fixture
def collector() -> Iterator[Collector]:
    DROPPED.clear()
    made = Collector()
    yield made
    made.open.set()
    DROPPED.clear()


def test_spans_are_exported_in_order_and_the_rest_at_the_end(collector: Collector) -> None:
    collector.open.set()
    traces = Traces(collector.export, collector.shutdown, content=False)
    spans = [Span(str(n), "client", SPAN.place, SPAN.span_id, NOW, NOW, {}) for n in range(1_500)]
    for span in spans:
        traces.put(span)
    traces.close()
    assert collector.taken == spans
    assert collector.was_shut_down
    assert DROPPED.total() == 0


def test_a_hanging_collector_delays_nobody_and_the_overflow_is_counted(collector: Collector) -> None:
    traces = Traces(collector.export, collector.shutdown, content=False, capacity=10)
    traces.put(SPAN)
    assert collector.reached.wait(PATIENCE)
    began = monotonic()
    for _ in range(1_010):
        traces.put(SPAN)
    assert monotonic() - began < within(1)
    assert DROPPED["queue_full"] == 1_000
    began = monotonic()
    traces.close()
    assert monotonic() - began < within(5)
    assert DROPPED["stopped"] == 10


@pytest.mark.parametrize("raises", [False, True])
def test_a_refused_batch_is_counted_and_the_next_one_is_sent(collector: Collector, raises: bool) -> None:
    failed = Event()

    def export(spans: Sequence[Span]) -> bool:
        if failed.is_set():
            return collector.export(spans)
        failed.set()
        if raises:
            raise RuntimeError("a bug of the library")
        return False

    collector.open.set()
    traces = Traces(export, collector.shutdown, content=False)
    traces.put(SPAN)
    assert failed.wait(PATIENCE)
    traces.put(SPAN)
    traces.close()
    assert collector.taken == [SPAN]
    assert DROPPED["export_failed"] == 1
