"""The queue of spans never waits for a collector, and counts what it drops."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import Event
from time import monotonic, sleep

import pytest
from structlog.testing import capture_logs

from gateway.core.trace_context import TraceContext
from gateway.traces.queue import WAITING_BYTES, Traces
from gateway.traces.spans import Span
from tests.pace import PATIENCE, within

NOW = datetime(2026, 11, 27, tzinfo=UTC)
SPAN = Span("POST", "client", TraceContext("a" * 32), "1" * 16, NOW, NOW, {})

DROPPED: Counter[str] = Counter()


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
    traces = Traces(collector.export, collector.shutdown, content=False, dropped=DROPPED)
    spans = [Span(str(n), "client", SPAN.place, SPAN.span_id, NOW, NOW, {}) for n in range(1_500)]
    for span in spans:
        traces.put(span)
    traces.close()
    assert collector.taken == spans
    assert collector.was_shut_down
    assert DROPPED.total() == 0


def test_a_hanging_collector_delays_nobody_and_the_overflow_is_counted(collector: Collector) -> None:
    traces = Traces(collector.export, collector.shutdown, content=False, capacity=10, dropped=DROPPED)
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
    traces = Traces(export, collector.shutdown, content=False, dropped=DROPPED)
    traces.put(SPAN)
    assert failed.wait(PATIENCE)
    traces.put(SPAN)
    traces.close()
    assert collector.taken == [SPAN]
    assert DROPPED["export_failed"] == 1


def test_a_span_that_waits_keeps_the_masked_beginning_of_its_values_only(collector: Collector) -> None:
    collector.open.set()
    traces = Traces(collector.export, collector.shutdown, content=True, mask=lambda text: text.replace("secret", "***"))
    given = {"arguments": {"key": "secret", "text": "x" * 1_000_000}, "port": 80, "absent": None}
    traces.put(Span(f"POST secret{'x' * 20_000}", "client", SPAN.place, SPAN.span_id, NOW, NOW, given))
    traces.close()
    (taken,) = collector.taken
    assert taken.name == f"POST ***{'x' * (16 * 1024 - 8)}"
    assert taken.attributes.keys() == {"arguments", "port"}
    assert taken.attributes["port"] == 80
    assert taken.attributes["arguments"].startswith('{"key":"***","text":"xxx')
    assert len(taken.attributes["arguments"]) == 16 * 1024


def test_waiting_spans_are_bounded_by_bytes_and_what_the_collector_has_taken_makes_room(collector: Collector) -> None:
    given = {"arguments": "x" * 16 * 1024, "result": "y" * 16 * 1024}
    large = Span("POST", "client", SPAN.place, SPAN.span_id, NOW, NOW, given)
    traces = Traces(collector.export, collector.shutdown, content=True, dropped=DROPPED)
    for _ in range(2_000):
        traces.put(large)
    kept = 2_000 - DROPPED["queue_full"]
    assert WAITING_BYTES // (34 * 1024) <= kept <= WAITING_BYTES // (32 * 1024) + 1
    collector.open.set()
    until = monotonic() + PATIENCE
    while len(collector.taken) < kept:
        assert monotonic() < until
        sleep(0.01)
    traces.put(large)
    traces.close()
    assert len(collector.taken) == kept + 1
    assert DROPPED.total() == 2_000 - kept


def test_what_was_cut_off_takes_no_room(collector: Collector) -> None:
    collector.open.set()
    traces = Traces(collector.export, collector.shutdown, content=True, dropped=DROPPED)
    given = {"arguments": "x" * (WAITING_BYTES // 2)}
    for _ in range(4):
        traces.put(Span("POST", "client", SPAN.place, SPAN.span_id, NOW, NOW, given))
    traces.close()
    assert len(collector.taken) == 4
    assert DROPPED.total() == 0


def test_batches_are_bounded_and_a_refused_one_is_counted_whole_and_logged_once(collector: Collector) -> None:
    batches: list[int] = []

    def refuse(spans: Sequence[Span]) -> bool:
        batches.append(len(spans))
        collector.reached.set()
        collector.open.wait(PATIENCE)
        return False

    with capture_logs() as logs:
        traces = Traces(refuse, collector.shutdown, content=False, dropped=DROPPED)
        traces.put(SPAN)
        assert collector.reached.wait(PATIENCE)
        for _ in range(1_100):
            traces.put(SPAN)
        collector.open.set()
        traces.close()
    assert batches == [1, 512, 512, 76]
    assert DROPPED["export_failed"] == 1_101
    assert [line["event"] for line in logs] == ["spans dropped"]
