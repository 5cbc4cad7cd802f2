"""The metrics page has the documented names and labels, and no peer can make it grow."""

from datetime import UTC, datetime
from math import isnan

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.state import SessionView
from gateway.events import ContextUpdated, Envelope, EventId, Loss, SessionId
from gateway.runtime.log_queue import DROPPED
from gateway.runtime.metrics import Metrics
from gateway.runtime.observe import note

DOCUMENTED = {
    "dragoman_calls_total": {"runtime", "tool", "outcome"},
    "dragoman_call_seconds": set[str](),
    "dragoman_executor_attempts_total": {"executor", "result"},
    "dragoman_secrets_in_results_total": {"executor"},
    "dragoman_outbox_oldest_seconds": {"runtime"},
    "dragoman_dead_letters": set[str](),
    "dragoman_interactions_waiting": set[str](),
    "dragoman_held_calls": set[str](),
    "dragoman_approvals_total": {"rule", "result"},
    "dragoman_approval_seconds": set[str](),
    "dragoman_conditions": {"condition"},
    "dragoman_unknown_outcomes_total": set[str](),
    "dragoman_late_outcomes_total": set[str](),
    "dragoman_link_up": {"runtime"},
    "dragoman_links_asleep": {"runtime"},
    "dragoman_journal_commit_seconds": set[str](),
    "dragoman_queue_bytes": set[str](),
    "dragoman_losses_total": {"adapter", "how"},
    "dragoman_repeats_total": set[str](),
    "dragoman_disk_free_bytes": set[str](),
    "dragoman_tasks": set[str](),
    "dragoman_build_info": {"version"},
    "dragoman_breaker_state": {"executor"},
    "dragoman_sessions": {"runtime"},
    "dragoman_frames_total": {"runtime", "direction"},
    "dragoman_frames_rejected_total": {"runtime"},
    "dragoman_links_reconnects_total": {"runtime"},
    "dragoman_lease_seconds_left": set[str](),
    "dragoman_sessions_owned": set[str](),
    "dragoman_adoptions_total": set[str](),
    "dragoman_takeovers_total": set[str](),
    "dragoman_leases_lost_total": set[str](),
    "dragoman_fenced_total": set[str](),
    "dragoman_forwards_total": {"result"},
    "dragoman_faults_total": {"part"},
    "dragoman_log_lines_dropped_total": {"level"},
    "dragoman_spans_dropped_total": {"reason"},
    "process_cpu_seconds_total": set[str](),
    "process_max_fds": set[str](),
    "process_open_fds": set[str](),
    "process_resident_memory_bytes": set[str](),
    "process_start_time_seconds": set[str](),
    "process_virtual_memory_bytes": set[str](),
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(
        version="1.2.3", runtimes=["finn"], tools=["ask_for_cards"], executors=["cards"], adapters=["huma-0.2"]
    )


def touch_all(metrics: Metrics) -> None:
    metrics.faults["link"] += 1
    DROPPED["info"] += 1
    metrics.spans_dropped["queue_full"] += 1
    metrics.call_settled("finn", "ask_for_cards", outcome="success", seconds=0.02)
    metrics.attempt("cards", "answered")
    metrics.secret_in_result("cards")
    metrics.unknown_outcome()
    metrics.late_outcome()
    metrics.repeated()
    metrics.commit(0.002)
    metrics.frame("finn", "from_runtime")
    metrics.frame_rejected("finn")
    metrics.loss("huma-0.2", "dropped")
    metrics.link("finn", up=True)
    metrics.reconnected("finn")
    metrics.breaker("cards", "half_open")
    metrics.sessions("finn", 3)
    metrics.outbox_oldest("finn", 1.5)
    metrics.dead_letters(2)
    metrics.interactions_waiting(3)
    metrics.held_calls(4)
    metrics.approval("routes[2]", "denied", 12.5)
    metrics.approval("routes[2]", "expired", 900)
    metrics.conditions({"link": 2})
    metrics.watch_queues(lambda: 60)
    metrics.disk_free(10**9)
    metrics.tasks(12)
    metrics.watch_lease(lambda: 4.5, lambda: 3)
    metrics.taken_up(takeover=True)
    metrics.lease_lost()
    metrics.fenced()
    metrics.forwarded("answered")


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    page = metrics.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_names_and_labels_are_exactly_the_documented_ones(metrics: Metrics) -> None:
    touch_all(metrics)
    found: dict[str, set[str]] = {}
    for name, labels in samples(metrics):
        plain = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        found.setdefault(plain, set()).update({label for label, _ in labels} - {"le"})
    assert found == DOCUMENTED


def test_every_happening_is_counted_under_its_labels(metrics: Metrics) -> None:
    touch_all(metrics)
    touch_all(metrics)
    assert value(metrics, "dragoman_calls_total", runtime="finn", tool="ask_for_cards", outcome="success") == 2
    assert value(metrics, "dragoman_call_seconds_count") == 2
    assert value(metrics, "dragoman_executor_attempts_total", executor="cards", result="answered") == 2
    assert value(metrics, "dragoman_secrets_in_results_total", executor="cards") == 2
    assert value(metrics, "dragoman_unknown_outcomes_total") == 2
    assert value(metrics, "dragoman_late_outcomes_total") == 2
    assert value(metrics, "dragoman_repeats_total") == 2
    assert value(metrics, "dragoman_journal_commit_seconds_sum") == 0.004
    assert value(metrics, "dragoman_frames_total", runtime="finn", direction="from_runtime") == 2
    assert value(metrics, "dragoman_frames_rejected_total", runtime="finn") == 2
    assert value(metrics, "dragoman_losses_total", adapter="huma-0.2", how="dropped") == 2
    assert value(metrics, "dragoman_link_up", runtime="finn") == 1
    assert value(metrics, "dragoman_links_reconnects_total", runtime="finn") == 2
    assert value(metrics, "dragoman_sessions", runtime="finn") == 3
    assert value(metrics, "dragoman_outbox_oldest_seconds", runtime="finn") == 1.5
    assert value(metrics, "dragoman_dead_letters") == 2
    assert value(metrics, "dragoman_held_calls") == 4
    assert value(metrics, "dragoman_approvals_total", rule="routes[2]", result="denied") == 2
    assert value(metrics, "dragoman_approval_seconds_count") == 2
    assert value(metrics, "dragoman_approval_seconds_sum") == 25
    assert value(metrics, "dragoman_queue_bytes") == 60
    assert value(metrics, "dragoman_disk_free_bytes") == 1e9
    assert value(metrics, "dragoman_tasks") == 12
    assert value(metrics, "dragoman_build_info", version="1.2.3") == 1


def test_a_thousand_undeclared_tools_are_one_series(metrics: Metrics) -> None:
    for n in range(1_000):
        metrics.call_settled("finn", f"invented_{n}", outcome="failure", seconds=0)
    assert value(metrics, "dragoman_calls_total", runtime="finn", tool="_other", outcome="failure") == 1_000
    assert b"invented" not in metrics.render()


def test_a_declared_tool_called_other_is_not_counted_with_undeclared_ones(metrics: Metrics) -> None:
    metrics.learn(runtimes=["other"], tools=["other"], executors=["other"], adapters=["other"], destinations=["other"])
    for name in ("other", "ghost"):
        metrics.call_settled(name, name, outcome="success", seconds=0)
        metrics.attempt(name, "answered")
        metrics.loss(name, "dropped")
        metrics.frame(name, "to_runtime")
        metrics.copies_lost(name, 1)
        metrics.live_copies_lost(name, 1)
    for label in ("other", "_other"):
        assert value(metrics, "dragoman_calls_total", runtime=label, tool=label, outcome="success") == 1
        assert value(metrics, "dragoman_executor_attempts_total", executor=label, result="answered") == 1
        assert value(metrics, "dragoman_losses_total", adapter=label, how="dropped") == 1
        assert value(metrics, "dragoman_frames_total", runtime=label, direction="to_runtime") == 1
        assert value(metrics, "dragoman_copies_lost_total", destination=label) == 1
        assert value(metrics, "dragoman_live_copies_lost_total", destination=label) == 1


def test_names_outside_the_configuration_share_one_label(metrics: Metrics) -> None:
    metrics.attempt("ghost", "uncertain")
    metrics.loss("ghost", "invented")
    metrics.frame("ghost", "to_runtime")
    assert b"ghost" not in metrics.render()
    assert value(metrics, "dragoman_executor_attempts_total", executor="_other", result="uncertain") == 1


def test_a_reload_teaches_new_names_and_forgets_the_gauges_of_old_ones(metrics: Metrics) -> None:
    touch_all(metrics)
    metrics.learn(runtimes=["coder"], tools=["run"], executors=["shell"], adapters=["huma-0.1"])
    metrics.call_settled("coder", "run", outcome="success", seconds=0)
    assert value(metrics, "dragoman_calls_total", runtime="coder", tool="run", outcome="success") == 1
    assert value(metrics, "dragoman_calls_total", runtime="finn", tool="ask_for_cards", outcome="success") == 1
    assert value(metrics, "dragoman_link_up", runtime="finn") is None
    assert value(metrics, "dragoman_sessions", runtime="finn") is None


def test_a_runtime_without_links_has_no_series_that_could_alert(metrics: Metrics) -> None:
    assert value(metrics, "dragoman_link_up", runtime="finn") is None
    metrics.link("finn", up=None)
    metrics.link("finn", up=False)
    assert value(metrics, "dragoman_link_up", runtime="finn") == 0
    metrics.link("finn", up=None)
    assert value(metrics, "dragoman_link_up", runtime="finn") is None


def test_free_disk_is_not_a_number_until_somebody_has_looked(metrics: Metrics) -> None:
    free = value(metrics, "dragoman_disk_free_bytes")
    assert free is not None
    assert isnan(free)


def test_two_gateways_in_one_process_count_apart(metrics: Metrics) -> None:
    other = Metrics(version="1.2.3")
    metrics.unknown_outcome()
    assert value(other, "dragoman_unknown_outcomes_total") == 0


def test_a_value_is_counted_in_every_bucket_whose_bound_it_does_not_exceed(metrics: Metrics) -> None:
    for seconds in (0.0005, 0.001, 0.0011, 2.5, 3):
        metrics.commit(seconds)
    counted = {
        bound: value(metrics, "dragoman_journal_commit_seconds_bucket", le=bound)
        for bound in ("0.0005", "0.001", "1.0", "2.5", "+Inf")
    }
    assert counted == {"0.0005": 1, "0.001": 2, "1.0": 3, "2.5": 4, "+Inf": 5}
    assert value(metrics, "dragoman_journal_commit_seconds_count") == 5


def test_a_loss_of_what_is_said_in_the_place_of_an_event_is_counted_once(metrics: Metrics) -> None:
    now, said = datetime.now(UTC), ContextUpdated(name="n", context={})
    shared, own = Loss(how="narrowed", path="/content", note="a"), Loss(how="narrowed", path="", note="b")

    def envelope(sequence: int, losses: tuple[Loss, ...], caused_by: int | None = None) -> Envelope:
        return Envelope(
            EventId(str(sequence)), SessionId("s"), sequence, now, "to_runtime", said, None, caused_by, losses
        )

    view = SessionView(SessionId("s"), "finn", "n")
    posted = [envelope(1, (shared,)), envelope(2, (shared, own), caused_by=1)]
    note(posted, view, adapter="huma-0.2", metrics=metrics, log=structlog.get_logger())
    assert value(metrics, "dragoman_losses_total", adapter="huma-0.2", how="narrowed") == 2
    note([envelope(3, (shared,), caused_by=1)], view, adapter="huma-0.2", metrics=metrics, log=structlog.get_logger())
    assert value(metrics, "dragoman_losses_total", adapter="huma-0.2", how="narrowed") == 3
