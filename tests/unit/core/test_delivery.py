"""Outbound events on a new link."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.core.effects import Transmit
from gateway.core.resend import RuntimeNeeds, SendHistory, is_held, plan_resend
from gateway.core.state import Start
from gateway.events import (
    ContextUpdated,
    Envelope,
    Event,
    EventId,
    MessageConfirmed,
    MessagePosted,
    SessionId,
    Text,
    ToolFinished,
)
from gateway.store.rows import Send
from gateway.store.step import RUNTIME, Lane
from tests.unit.core.harness import HUMA_0_1, HUMA_0_2, OPENHANDS, START

WAITS = timedelta(seconds=30)
"""How long a runtime waits for a confirmation."""


def _row(sequence: int, event: Event, attempt: int = 0) -> Send:
    envelope = Envelope(EventId(str(sequence)), SessionId("s"), sequence, START, "to_runtime", event)
    return Send(
        SessionId("s"), sequence, RUNTIME, "turn", "pending", attempt, None, None, envelope, envelope.recorded_at
    )


def _context(*, wakes: bool = False, call_id: str | None = None) -> ContextUpdated:
    return ContextUpdated(name="x", context={}, wakes_agent=wakes, call_id=call_id)


def _fates(rows: list[Send], *, unsure_up_to: int = 0, after: float = 0, adapter: Any = HUMA_0_2) -> list[str]:
    plans = plan_resend(
        rows,
        SendHistory(unsure_up_to=unsure_up_to),
        RuntimeNeeds(confirm_within=WAITS),
        capabilities=adapter.capabilities,
        now=START + timedelta(seconds=after),
    )
    return [plan.fate for plan in plans]


def test_outcomes_are_always_offered_again_in_order():
    rows = [_row(n, ToolFinished(native_call_id=str(n), tool="t", outcome="success")) for n in (3, 1, 2)]
    plans = plan_resend(
        rows, SendHistory(unsure_up_to=9), RuntimeNeeds(), capabilities=HUMA_0_2.capabilities, now=START
    )
    assert [(plan.row.sequence, plan.fate) for plan in plans] == [(1, "send"), (2, "send"), (3, "send")]


def test_of_plain_contexts_only_the_newest_and_the_newest_waking_one_are_sent():
    rows = [_row(1, _context(wakes=True)), _row(2, _context(wakes=True)), _row(3, _context()), _row(4, _context())]
    assert _fates(rows) == ["moot", "send", "moot", "send"]


def _wakes(*, attempt: int = 0, lost: frozenset[int] = frozenset(), working: bool) -> bool:
    [plan] = plan_resend(
        [_row(4, _context(wakes=True), attempt)],
        SendHistory(unsure_up_to=4, doubted=lost),
        RuntimeNeeds(working=working),
        capabilities=HUMA_0_2.capabilities,
        now=START,
    )
    event = plan.row.envelope.event
    assert isinstance(event, ContextUpdated)
    return event.wakes_agent


def test_a_repeated_waking_context_does_not_wake_an_agent_that_waits_for_calls():
    assert not _wakes(attempt=1, working=True)
    assert not _wakes(lost=frozenset({4}), working=True)
    assert _wakes(attempt=1, working=False)
    assert _wakes(attempt=0, working=True)


def test_the_updates_of_an_outcome_go_with_it():
    assert _fates([_row(1, _context(call_id="c")), _row(2, _context())]) == ["send", "send"]


def test_a_confirmation_the_runtime_no_longer_waits_for_is_moot():
    row = _row(1, MessageConfirmed(native_call_id="b", index=0))
    assert _fates([row], after=29) == ["send"]
    assert _fates([row], after=30) == ["moot"]


def test_the_time_of_a_confirmation_runs_from_its_message():
    row = _row(9, MessageConfirmed(native_call_id="b", index=0))
    for ago, fate in ((29, "send"), (30, "moot")):
        [plan] = plan_resend(
            [row],
            SendHistory(),
            RuntimeNeeds(posted={9: START + timedelta(seconds=10 - ago)}, confirm_within=WAITS),
            capabilities=HUMA_0_2.capabilities,
            now=START + timedelta(seconds=10),
        )
        assert plan.fate == fate


def test_an_event_that_an_earlier_process_may_have_sent_is_listed_and_not_sent_again():
    hello = MessagePosted(content=(Text(text="hi"),))
    assert _fates([_row(5, hello, attempt=1)], unsure_up_to=5, adapter=HUMA_0_1) == ["unknown"]
    assert _fates([_row(5, hello, attempt=0)], unsure_up_to=5, adapter=HUMA_0_1) == ["send"]


def test_an_attempt_that_this_process_has_put_on_record_is_unknown_only_if_its_send_broke_off():
    row = _row(5, MessagePosted(content=(Text(text="hi"),)), attempt=1)
    one, none = frozenset({row.sequence}), frozenset[int]()
    for cut, fate in ((none, "send"), (one, "unknown")):
        [plan] = plan_resend(
            [row],
            SendHistory(started=one, doubted=cut),
            RuntimeNeeds(),
            capabilities=OPENHANDS.capabilities,
            now=START,
        )
        assert plan.fate == fate


@pytest.mark.parametrize(
    ("lane", "kind", "held"),
    [
        ("new_work", "message.posted", True),
        ("new_work", "context.updated", True),
        ("turn", "message.posted", True),
        ("turn", "turn.steered", True),
        ("turn", "action.ordered", True),
        ("turn", "approval.given", False),
        ("turn", "context.updated", False),
        ("urgent", "turn.interrupted", False),
    ],
)
def test_new_work_is_held_in_whichever_lane_while_a_runtime_starts(lane: Lane, kind: str, held: bool):
    item = Transmit(5, lane, kind, ())
    assert [is_held(item, Start(state=state)) for state in ("unknown", "starting")] == [held] * 2
    assert [is_held(item, Start(state=state)) for state in ("ready", "overdue")] == [False] * 2


def test_a_confirmation_leaves_only_while_its_runtime_waits():
    row = _row(9, MessageConfirmed(native_call_id="b", index=0))
    needs = RuntimeNeeds(confirm_within=WAITS)
    [plan] = plan_resend([row], SendHistory(), needs, capabilities=HUMA_0_2.capabilities, now=START)
    assert plan.leave_before == START + timedelta(seconds=30)
