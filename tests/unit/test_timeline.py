"""The timeline of a session groups events by turn, and those of a call into one row."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.http.ui.timeline import AgentTurn, TimelineCall, TimelineRow, group, span_of

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ASKED: dict[str, Any] = {
    "kind": "tool.requested",
    "native_call_id": "n",
    "call_id": "c",
    "tool": "deal",
    "arguments": {},
}
FAILED: dict[str, Any] = {
    "kind": "tool.finished",
    "native_call_id": "n",
    "call_id": "c",
    "outcome": "failure",
    "error": "no cards",
}


def timeline(*events: tuple[float, dict[str, Any]]) -> list[AgentTurn]:
    """Group events, each at a number of seconds."""
    return list(
        group(
            [
                {
                    "sequence": number,
                    "recorded_at": (START + timedelta(seconds=seconds)).isoformat(),
                    "direction": "from_runtime",
                    "losses": [],
                    "event": event,
                }
                for number, (seconds, event) in enumerate(events, start=1)
            ]
        )
    )


def shape(turn: AgentTurn) -> list[Any]:
    """Return the sequences of each item; a list stands for a call."""
    return [[one.sequence for one in i.lines] if isinstance(i, TimelineCall) else i.sequence for i in turn.items]


def test_a_call_holds_its_updates_progress_outcome_and_delivery() -> None:
    (turn,) = timeline(
        (0, ASKED),
        (1, {"kind": "call.progressed", "native_call_id": "n", "call_id": "c", "data": {}}),
        (2, {"kind": "message.posted", "content": "hm"}),
        (3, {"kind": "context.updated", "call_id": "c", "context": {}}),
        (4, FAILED),
        (5, {"kind": "delivery.settled", "sequence": 5, "target": "runtime", "state": "delivered"}),
    )
    assert shape(turn) == [[1, 2, 4, 5, 6], 3]
    call = turn.items[0]
    assert turn.failures == [call]
    assert isinstance(call, TimelineCall)
    row = {"started_at": (START + timedelta(seconds=1)).isoformat(), "finished_at": None}
    span = span_of(call, row, turn, START)
    assert span.hint == "started after 1 s, answered after 4 s, delivered after 5 s"
    # Linear: a fifth of the turn is a fifth of the width, which is 198.
    assert (span.asked, span.started, span.answered, span.delivered) == (0, 39.6, 158.4, 198)


def test_a_failed_delivery_and_an_ignored_outcome_have_rows_of_their_own() -> None:
    (turn,) = timeline(
        (0, ASKED),
        (1, FAILED | {"outcome": "success", "error": None}),
        (2, {"kind": "delivery.settled", "sequence": 2, "target": "runtime", "state": "refused", "reason": "gone"}),
        (3, {"kind": "outcome.ignored", "native_call_id": "n", "call_id": "c"}),
        (4, {"kind": "approval.asked", "native_call_id": "n", "tool": "deal"}),
    )
    assert shape(turn) == [[1, 2], 3, 4, 5]
    assert [one.sequence for one in turn.failures if isinstance(one, TimelineRow)] == [3, 4]


def test_an_outcome_in_a_later_turn_stays_there() -> None:
    first, second = timeline((0, ASKED), (600, FAILED))
    assert (shape(first), shape(second)) == ([[1]], [2])
    call = first.items[0]
    assert isinstance(call, TimelineCall)
    assert call.outcome is None
    assert [one.failed for one in second.items] == [True]


def test_actions_that_the_runtime_runs_itself_are_calls_too() -> None:
    own = {"runs_in": "runtime", "call_id": None}
    (turn,) = timeline((0, ASKED | own), (1, ASKED | own | {"native_call_id": "m"}), (2, FAILED | own))
    assert shape(turn) == [[1, 3], [2]]
