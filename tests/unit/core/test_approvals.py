"""Calls that wait for a person: the question, its end, the right to allow, and the request after it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.core import approvals, callers, calls, inbound, lifecycle, redriving
from gateway.core.arguments import Fragment
from gateway.core.binding import binding_of
from gateway.core.effects import Queue, Transmit
from gateway.core.holding import Restored, asked_again, question_of, spell
from gateway.core.resend import waits_for_approval
from gateway.core.routing import Approval, Route, Routes
from gateway.core.session import Approvals, StepBuilder
from gateway.errors import (
    ApprovalStale,
    BindingRequired,
    CallHeld,
    Conflict,
    Denied,
    InvalidRequest,
    NotApprover,
    OwnCall,
)
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    InteractionId,
    MessagePosted,
    Outcome,
    Text,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
)
from gateway.executors.port import Answered, NeverSent
from gateway.store.call import TRANSITIONS, Call, Open
from tests.unit.core.harness import ASK, GOOD, HERM, START, Harness
from tests.unit.core.test_herm import Herm

RULE, OTHER = "a" * 64, "b" * 64
GATED = Route(tool="ask_*", to="cards", approve=Approval(), rule=RULE)
OPEN = Route(tool="ask_*", to="cards", rule="c" * 64)
SEVENS = Fragment({"properties": {"rank": {"const": "7"}}, "required": ["rank"]})
KINGS = {"targetPlayer": "Victoria", "rank": "K"}
DONE = Answered(Outcome(outcome="success", result="Go fish"))


def held(*routes: Route, **more: Any) -> Harness:
    """Hold the call `tc-1` of the agent."""
    harness = Harness(routes=routes or (GATED,), **more)
    harness.call()
    return harness


def reload(harness: Harness, *routes: Route) -> None:
    policy = harness.runtime.policy
    harness.runtime = replace(harness.runtime, policy=replace(policy, routes=Routes(routes)))


def only(harness: Harness) -> Call:
    (call,) = harness.view.calls.values()
    return call


def allow(harness: Harness, arguments: Any = None, *, by: str = "lead", binding: str | None = "") -> Any:
    call = only(harness)
    given = call.binding if binding == "" else binding
    return harness.decide(lambda builder: approvals.allow(builder, call.call_id, given, arguments, by=by))


def deny(harness: Harness, reason: str | None = None, *, by: str = "lead") -> Any:
    call_id = only(harness).call_id
    return harness.decide(lambda builder: approvals.deny(builder, call_id, reason, by=by))


def leave(harness: Harness) -> bool:
    """Let the only call have the slot that it waits for."""
    call_id = only(harness).call_id
    return harness.decide(lambda builder: calls.claim(builder, call_id))


def state_of_question(harness: Harness) -> list[tuple[str, str | None]]:
    return [(change.state, change.answered_by) for change in harness.step.interactions]


def test_a_call_with_approval_is_held_in_the_step_that_records_it() -> None:
    harness = held(slots=1)
    assert harness.kinds == ["session.moved", "tool.requested", "approval.asked"]
    call = only(harness)
    assert (call.state, call.attempt, call.executor, call.rule, call.place) == ("held", 0, "cards", RULE, "routes[0]")
    expected = binding_of(session="s", call=call.call_id, tool=ASK.name, arguments=GOOD, rule=RULE)
    assert call.binding == expected
    assert (call.held_at, call.deadline_at) == (START, START + timedelta(minutes=15))
    assert harness.effects == ()
    assert harness.slots == 1
    (question,) = harness.step.interactions
    assert (question.interaction_id, question.state, question.kind) == (question_of(call), "waiting", "approval.asked")
    assert (question.call_id, question.request_sequence) == (call.call_id, call.arguments_sequence)
    assert question.expires_at == call.deadline_at
    asked = harness.step.events[2]
    assert asked.origin is not None
    assert (asked.origin.adapter, asked.direction, asked.synthetic) == ("gateway", "from_runtime", True)
    assert asked.event == ApprovalAsked(
        id=call.call_id, native_call_id="tc-1", tool=ASK.name, arguments=GOOD, call_id=call.call_id,
        rule="routes[0]", rule_sha=RULE, binding=expected,
    )  # fmt: skip


def test_the_memory_of_the_runtime_knows_nothing_of_held_calls() -> None:
    harness = Harness(routes=(GATED,))
    before = harness.view.memory
    for number in range(150):
        harness.call(f"tc-{number}")
        assert [change.state for change in harness.step.interactions] == ["waiting"]
    assert harness.view.memory.asked == before.asked == ()
    assert len(harness.view.calls) == 150
    for number in range(150):
        harness.cancel(f"tc-{number}")
    assert harness.view.calls == {}


@pytest.mark.parametrize(
    ("routes", "arguments", "said"),
    [
        ((Route(tool="*", deny="Never here."), GATED), GOOD, "Never here."),
        ((GATED, Route(tool="ask_*", arguments=SEVENS, deny="No sevens.")), GOOD, "No sevens."),
        ((Route(tool="ask_*", arguments=SEVENS, to="cards"),), KINGS, "No route takes the tool 'ask_for_cards' with"),
    ],
    ids=["first", "last", "unfitting"],
)
def test_a_call_that_the_routes_refuse_fails_and_was_not_made(
    routes: tuple[Route, ...], arguments: Any, said: str
) -> None:
    harness = Harness(routes=routes, unrouted="ignore")
    harness.call(arguments=arguments)
    (settled,) = harness.settled
    assert (settled.state, settled.unknown, settled.dead) == ("failed", False, False)
    assert (settled.error or "").startswith(said)
    assert harness.dispatched == []
    assert harness.step.interactions == ()


def test_faults_schema_and_limits_come_before_a_person_is_asked() -> None:
    harness = Harness(routes=(GATED,))
    harness.call(arguments={"rank": 7})
    assert harness.kinds == ["session.moved", "tool.requested", "tool.finished"]
    harness.runtime = replace(harness.runtime, policy=replace(harness.runtime.policy, open_calls=1))
    harness.call("tc-2")
    assert only(harness).state == "held"
    harness.call("tc-3")
    assert harness.kinds == ["tool.requested", "tool.finished"]
    assert "overloaded" in harness.sent[0]["error"]


def test_a_repeat_of_a_held_call_opens_no_second_question() -> None:
    harness = held()
    harness.call()
    assert harness.kinds == []
    assert harness.step.interactions == ()


# Every signal --------------------------------------------------------------------------------------------------


def test_the_table_has_four_signals_for_held_calls() -> None:
    assert set(TRANSITIONS["held"]) == {"hold", "approve", "settle", "listen"}


def _elsewhere(builder: StepBuilder, call: Call) -> None:
    finished = ToolFinished(native_call_id=call.native_call_id, outcome="success", result="from another client")
    builder.apply(finished, "to_runtime")
    calls.end_elsewhere(builder, call, finished)


def _answered(builder: StepBuilder, call: Call) -> None:
    calls.answered(builder, call.call_id, 1, DONE, jitter=0.5)


SIGNALS: dict[str, tuple[Callable[[StepBuilder, Call], Any], str]] = {
    "claim": (lambda builder, call: calls.claim(builder, call.call_id), "held"),
    "attempted": (_answered, "held"),
    "never sent": (
        lambda builder, call: calls.answered(builder, call.call_id, 0, NeverSent("no"), jitter=0.5),
        "held",
    ),
    "turned away": (lambda builder, call: calls.turn_away(builder, call.call_id, "gone"), "held"),
    "tick": (lambda builder, _: lifecycle.tick(builder), "held"),
    "recover": (lambda builder, _: lifecycle.recover(builder), "held"),
    "caught up": (lambda builder, _: inbound.caught_up(builder), "held"),
    "cancel": (lambda builder, call: calls.cancel(builder, call.call_id, reason="Enough."), "canceled"),
    "close": (lambda builder, _: lifecycle.close(builder, reason=None), "canceled"),
    "elsewhere": (_elsewhere, "succeeded"),
    "outcome": (lambda builder, call: calls.outcome(builder, call.call_id, DONE), "refused"),
    "progress": (lambda builder, call: calls.progressed(builder, call.call_id, {"percent": 1}), "refused"),
    "repeat": (lambda builder, call: calls.repeat(builder, call.call_id), "refused"),
}


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_signal_leaves_a_held_call_held_or_ends_it(signal: str) -> None:
    harness = held()
    call = only(harness)
    move, expected = SIGNALS[signal]
    if expected == "refused":
        with pytest.raises(Conflict) as refused:
            harness.decide(lambda builder: move(builder, call))
        assert isinstance(refused.value, CallHeld) is (signal != "repeat")
        assert only(harness) == call
        return
    harness.decide(lambda builder: move(builder, call))
    assert harness.dispatched == []
    assert harness.released == []
    if expected == "held":
        assert only(harness) == call
        assert harness.step.interactions == ()
    else:
        assert [settled.state for settled in harness.settled] == [expected]
        assert state_of_question(harness) == [("moot", None)]


def test_the_agent_and_an_interrupt_end_a_held_call() -> None:
    harness = held()
    harness.cancel()
    assert [settled.state for settled in harness.settled] == ["canceled"]
    assert state_of_question(harness) == [("moot", None)]
    harness.call("tc-2")
    harness.post(TurnInterrupted(reason="Stop."))
    assert [settled.state for settled in harness.settled] == ["canceled"]
    assert state_of_question(harness) == [("moot", None)]


@pytest.mark.parametrize(
    ("own", "said"), [(None, "15 minutes"), (timedelta(hours=1), "1 hour"), (timedelta(seconds=90), "90 seconds")]
)
def test_a_held_call_without_an_answer_in_time_was_not_made(own: timedelta | None, said: str) -> None:
    harness = held(replace(GATED, approve=Approval(timeout=own)))
    wait = own or timedelta(minutes=15)
    assert lifecycle.next_due(harness.runtime, harness.view) == START + wait
    harness.wait(wait.total_seconds() - 1)
    assert only(harness).state == "held"
    harness.wait(1)
    (settled,) = harness.settled
    assert settled.error == f"The call was not made: nobody allowed it within {said}."
    assert (settled.state, settled.unknown, settled.dead) == ("expired", False, False)
    assert state_of_question(harness) == [("expired", None)]


def test_an_answer_after_the_time_is_too_late_although_nothing_has_ended_the_call_yet() -> None:
    harness = held()
    harness.now += timedelta(minutes=15)
    for answer in (allow, deny):
        with pytest.raises(Conflict, match="in time"):
            answer(harness)
    assert only(harness).state == "held"


def test_a_duration_is_written_in_its_largest_whole_unit() -> None:
    assert [spell(timedelta(seconds=n)) for n in (0.5, 1, 60, 3600, 5400, 172800)] == [
        "0.5 seconds",
        "1 second", "1 minute", "1 hour", "90 minutes", "2 days"
    ]  # fmt: skip


# Answers -------------------------------------------------------------------------------------------------------


def test_an_allowed_call_leaves_once_with_the_allowed_arguments() -> None:
    harness = held()
    call = only(harness)
    harness.wait(300)
    sequence = allow(harness)
    assert harness.kinds == ["approval.given"]
    assert harness.events[0] == ApprovalGiven(
        id=call.call_id, native_call_id="tc-1", decision="allow", call_id=call.call_id, arguments=GOOD,
        binding=call.binding, rule_sha=RULE, by="lead",
    )  # fmt: skip
    assert state_of_question(harness) == [("answered", "lead")]
    after = only(harness)
    assert (after.state, after.arguments_sequence, after.edited) == ("queued", sequence, False)
    assert after.approved_sha == calls.fingerprint(ASK.name, GOOD)
    # Its own deadline starts now.
    assert after.deadline_at == harness.now + timedelta(seconds=120)
    assert harness.effects == (Queue(call.call_id, "cards"),)
    assert leave(harness)
    (dispatched,) = harness.dispatched
    assert (dispatched.attempt, dispatched.arguments) == (1, GOOD)
    harness.answer(DONE)
    assert harness.sent[0]["result"] == "Go fish"
    with pytest.raises(Conflict):
        harness.decide(lambda builder: approvals.allow(builder, call.call_id, call.binding, None, by="other"))


def test_a_denied_call_was_not_made_and_the_agent_gets_the_reason_without_the_name() -> None:
    harness = held()
    deny(harness, "Ask Victor instead.")
    assert harness.kinds == ["approval.given", "tool.finished"]
    (settled,) = harness.settled
    assert settled.error == "The call was not made: a person denied it: Ask Victor instead."
    assert (settled.state, settled.unknown, settled.dead) == ("failed", False, False)
    assert state_of_question(harness) == [("answered", "lead")]
    assert "lead" not in str(harness.sent)
    again = held()
    deny(again)
    assert again.settled[0].error == "The call was not made: a person denied it."
    third = held()
    with pytest.raises(InvalidRequest):
        deny(third, "x" * 2_001)


def test_changed_arguments_are_those_of_the_call_and_the_agent_is_told() -> None:
    harness = held()
    call = only(harness)
    allow(harness, KINGS)
    given = harness.events[0]
    assert isinstance(given, ApprovalGiven)
    assert (given.arguments, given.edited) == (KINGS, True)
    expected = binding_of(session="s", call=call.call_id, tool=ASK.name, arguments=KINGS, rule=RULE)
    assert given.binding == only(harness).binding == expected != call.binding
    assert only(harness).args_sha == call.args_sha
    # The agent sends the same request again: it is the same call.
    harness.call()
    assert harness.kinds == []
    leave(harness)
    assert [dispatched.arguments for dispatched in harness.dispatched] == [KINGS]
    harness.answer(DONE)
    told = harness.sent[0]["result"]
    assert told == 'A person changed the arguments to {"targetPlayer":"Victoria","rank":"K"}\n\nGo fish'


def test_arguments_that_are_sent_back_unchanged_are_no_edit() -> None:
    harness = held()
    allow(harness, dict(reversed(GOOD.items())))
    assert not only(harness).edited


@pytest.mark.parametrize("arguments", [{"rank": "7"}, KINGS], ids=["schema", "deny"])
def test_changed_arguments_that_may_not_run_are_refused(arguments: Any) -> None:
    kings = Fragment({"properties": {"rank": {"const": "K"}}, "required": ["rank"]})
    harness = held(GATED, Route(tool="ask_*", arguments=kings, deny="No kings."))
    call = only(harness)
    with pytest.raises(Denied):
        allow(harness, arguments)
    assert only(harness) == call


def test_a_change_of_arguments_does_not_evade_the_keys_that_the_rule_names() -> None:
    kings = Fragment({"properties": {"rank": {"const": "K"}}, "required": ["rank"]})
    harness = held(replace(OPEN, arguments=kings), replace(GATED, approve=Approval(by=("lead",))))
    call = only(harness)
    with pytest.raises(NotApprover):
        allow(harness, KINGS, by="somebody")
    assert only(harness) == call
    allow(harness, KINGS, by="lead")
    assert only(harness).state == "queued"


def test_changed_arguments_follow_their_own_route() -> None:
    harness = held(Route(tool="ask_*", arguments=SEVENS, to="cards", approve=Approval(), rule=RULE), OPEN)
    allow(harness, KINGS)
    assert only(harness).state == "queued"
    harness = held(
        Route(tool="ask_*", arguments=SEVENS, to="cards", approve=Approval(), rule=RULE),
        Route(tool="ask_*", to="once", approve=Approval(by=("lead",)), rule=OTHER),
    )
    first = only(harness)
    allow(harness, KINGS)
    assert harness.kinds == ["approval.asked"]
    call = only(harness)
    assert (call.state, call.rule, call.executor, call.arguments) == ("held", OTHER, "once", KINGS)
    assert [(change.state, change.call_id) for change in harness.step.interactions] == [
        ("moot", None), ("waiting", call.call_id)
    ]  # fmt: skip
    assert question_of(first) != question_of(call)
    allow(harness)
    leave(harness)
    assert [dispatched.arguments for dispatched in harness.dispatched] == [KINGS]
    assert harness.dispatched[0].edited


def test_an_answer_needs_the_binding_of_the_current_question() -> None:
    harness = held()
    call = only(harness)
    with pytest.raises(BindingRequired):
        allow(harness, binding=None)
    with pytest.raises(ApprovalStale):
        allow(harness, binding="0" * 64)
    harness.call("tc-2")
    other = harness.view.calls[harness.id_of("tc-2")]
    assert other.binding != call.binding
    with pytest.raises(ApprovalStale):
        harness.decide(lambda builder: approvals.allow(builder, call.call_id, other.binding, None, by="lead"))


@pytest.mark.parametrize(
    ("before", "text"), [(1, "2nd"), (2, "3rd"), (3, "4th"), (9, "10th"), (10, "11th"), (11, "12th"), (20, "21st")]
)
def test_how_often_a_person_is_asked_is_written_as_an_ordinal(before: int, text: str) -> None:
    assert asked_again(before) == f"asked again, {text} time"


def test_an_answer_to_ones_own_call_or_against_the_rule_is_refused() -> None:
    by = ("lead", "executor policy", "executor cards", "executor alias")
    harness = Harness(routes=(replace(GATED, approve=Approval(by=by)),))
    at = {"cards": "webhook http://a/", "alias": "webhook http://a/", "policy": "webhook http://b/"}
    harness.runtime = replace(harness.runtime, policy=replace(harness.runtime.policy, addresses=at))
    request = callers.CallRequest(ASK.name, GOOD, "lead", "k-1", "dragoman/1")
    harness.decide(lambda builder: callers.ask(builder, request))
    refusals = dict.fromkeys(("lead", "executor cards", "executor alias"), OwnCall) | {"lea": NotApprover}
    for name, refusal in refusals.items():
        with pytest.raises(refusal):
            allow(harness, by=name)
        with pytest.raises(refusal):
            deny(harness, by=name)
    allow(harness, by="executor policy")
    assert only(harness).state == "queued"


# The configuration changes ----------------------------------------------------------------------------------------


def test_an_allow_checks_the_current_routes() -> None:
    harness = held()
    reload(harness, GATED, Route(tool="ask_*", deny="Not today."))
    allow(harness)
    assert [settled.error for settled in harness.settled] == ["Not today."]
    harness = held()
    reload(harness)
    allow(harness)
    assert [settled.error for settled in harness.settled] == [
        "The call was not made: the tool 'ask_for_cards' is no longer routed."
    ]
    assert state_of_question(harness) == [("moot", None)]
    harness = held()
    reload(harness, replace(GATED, rule=OTHER))
    allow(harness)
    assert (harness.kinds, only(harness).state, only(harness).rule) == (["approval.asked"], "held", OTHER)
    assert only(harness).held_at == harness.now


def test_a_call_that_never_left_is_asked_about_if_its_route_asks_now() -> None:
    harness = held(OPEN, slots=0)
    assert only(harness).state == "queued"
    reload(harness, GATED)
    assert not leave(harness)
    assert (harness.kinds, only(harness).state, only(harness).rule) == (["approval.asked"], "held", RULE)
    assert harness.dispatched == []
    allow(harness)
    assert leave(harness)
    # The first attempt covers the later ones.
    reload(harness, replace(GATED, rule=OTHER))
    harness.answer(NeverSent("no connection"))
    assert not leave(harness)
    assert only(harness).state == "held"


def test_a_waiting_call_that_is_denied_now_does_not_leave() -> None:
    harness = held(OPEN, slots=0)
    reload(harness, Route(tool="ask_*", deny="Not today."), OPEN)
    assert not leave(harness)
    assert [settled.error for settled in harness.settled] == ["Not today."]
    assert harness.released == []


def test_a_call_that_leaves_later_needs_no_new_answer_of_a_route_that_is_gone() -> None:
    harness = held(OPEN, slots=0)
    reload(harness)
    assert leave(harness)
    harness = held()
    allow(harness)
    reload(harness)
    assert not leave(harness)
    assert [settled.state for settled in harness.settled] == ["failed"]


# Other ways to open a call ------------------------------------------------------------------------------------------


def test_a_callers_call_is_held_and_survives_the_end_of_a_turn() -> None:
    harness = Harness(routes=(GATED,))
    request = callers.CallRequest(ASK.name, GOOD, "backend", "k-1", "dragoman/1")
    harness.decide(lambda builder: callers.ask(builder, request))
    assert harness.kinds == ["tool.requested", "approval.asked"]
    harness.receive({"type": "status", "status": "idle"})
    harness.wait(600)
    assert only(harness).state == "held"
    harness.decide(lambda builder: callers.ask(builder, request))
    assert harness.kinds == []
    harness.post(TurnInterrupted(reason="Stop."))
    assert [settled.state for settled in harness.settled] == ["canceled"]


def test_a_callers_call_that_is_denied_has_an_outcome() -> None:
    harness = Harness(routes=(Route(tool="ask_*", deny="Never."), GATED))
    request = callers.CallRequest(ASK.name, GOOD, "backend", "k-1", "dragoman/1")
    harness.decide(lambda builder: callers.ask(builder, request))
    assert [settled.error for settled in harness.settled] == ["Never."]


def test_a_call_of_the_history_is_held_at_the_catch_up_and_another_client_may_answer_it() -> None:
    herm = Herm(routes=(GATED,))
    harness = herm.harness
    harness.decide(inbound.connecting)
    herm.wants("toolu_1")
    assert "approval.asked" not in harness.kinds
    harness.catch_up()
    assert harness.kinds == ["approval.asked"]
    assert only(harness).state == "held"
    harness.catch_up()
    assert harness.kinds == []
    herm.hear("user.custom_tool_result", tool_use_id="toolu_1", content=[{"type": "text", "text": "theirs"}])
    assert [settled.state for settled in harness.settled] == ["succeeded"]
    assert state_of_question(harness) == [("moot", None)]
    assert harness.sent == []


def _redrive(harness: Harness, row: Call, arguments: Any) -> Any:
    request = ToolRequested(native_call_id="tc-1", tool=ASK.name, arguments=arguments)
    return harness.decide(lambda builder: redriving.redrive(builder, row, request, new_key=False, deliver=True))


def test_a_redrive_is_held_again_and_starts_from_the_allowed_arguments() -> None:
    harness = held()
    allow(harness, KINGS)
    leave(harness)
    row = replace(only(harness), edited=True)
    harness.answer(Answered(Outcome(outcome="failure", error="Broken.")))
    _redrive(harness, replace(row, state="failed"), KINGS)
    call = only(harness)
    assert (call.state, call.arguments, call.key, call.redrive_of) == ("held", KINGS, row.call_id, row.call_id)
    opened = next(change for change in harness.step.calls if isinstance(change, Open))
    assert opened.call.state == "held"
    asked = harness.events[-1]
    assert isinstance(asked, ApprovalAsked)
    assert (asked.arguments, asked.edited) == (KINGS, True)
    allow(harness)
    leave(harness)
    assert harness.dispatched[0].edited
    reload(harness, Route(tool="ask_*", deny="Never."))
    with pytest.raises(Conflict, match="Never"):
        _redrive(harness, replace(row, state="failed"), KINGS)


# Answers of runtimes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["", "tc-1", "the call id"])
def test_no_event_answers_a_held_call(id_: str) -> None:
    harness = held()
    call = only(harness)
    event = ApprovalGiven(id=call.call_id if id_ == "the call id" else id_, decision="allow")
    harness.decide(lambda builder: builder.apply(event, "to_runtime"))
    assert only(harness) == call
    assert harness.step.interactions == ()


@pytest.mark.parametrize(
    "members", [{"by": "lead"}, {"arguments": {}}, {"binding": "0"}, {"edited": True}, {"call_id": "c"}]
)
def test_a_client_says_nothing_that_only_the_gateway_says(members: Any) -> None:
    harness = Harness(HERM)
    with pytest.raises(InvalidRequest):
        harness.post(ApprovalGiven(id="q", decision="allow", **members))


def test_the_time_out_of_the_policy_is_that_of_a_route_without_one() -> None:
    harness = Harness(routes=(GATED,))
    policy = replace(harness.runtime.policy, approvals=Approvals(timeout=timedelta(minutes=1)))
    harness.runtime = replace(harness.runtime, policy=policy)
    harness.call()
    assert only(harness).deadline_at == START + timedelta(minutes=1)


def restore(harness: Harness, *, up_to: int | None = None) -> str:
    """Begin anew with a backup, which has all events up to a sequence; returns the warning for people."""
    backup = Restored(START, harness.view.last_sequence if up_to is None else up_to)
    harness.decide(lambda builder: lifecycle.recover(builder, restored=backup))
    return backup.warning


def test_a_call_that_was_held_in_a_backup_is_asked_about_again() -> None:
    harness = held()
    first = only(harness)
    warning = restore(harness)
    assert warning == f"restored from a backup of {START:%Y-%m-%d %H:%M} UTC; it may have run since"
    assert state_of_question(harness) == [("moot", None), ("waiting", None)]
    call = only(harness)
    assert (call.state, call.rule, call.binding, call.arguments) == ("held", RULE, first.binding, GOOD)
    assert question_of(call) != question_of(first)
    (asked,) = harness.step.events
    assert isinstance(asked.event, ApprovalAsked)
    assert asked.event.warning == warning
    # A later start of the restored store opens no second question.
    restore(harness, up_to=first.arguments_sequence)
    assert harness.kinds == []
    allow(harness)
    leave(harness)
    assert [dispatched.arguments for dispatched in harness.dispatched] == [GOOD]


def test_a_restored_call_is_held_even_if_its_route_needs_no_approval_any_more() -> None:
    harness = held()
    reload(harness, OPEN)
    restore(harness)
    assert (harness.kinds, only(harness).state, only(harness).rule) == (["approval.asked"], "held", OPEN.rule)
    allow(harness)
    assert leave(harness)


@pytest.mark.parametrize("route", [Route(tool="*", deny="Not today."), None], ids=["denied", "gone"])
def test_a_restored_call_that_no_route_takes_ends(route: Route | None) -> None:
    harness = held()
    reload(harness, *([] if route is None else [route]))
    restore(harness)
    error = "Not today." if route else "The call was not made: the tool 'ask_for_cards' is no longer routed."
    assert [settled.error for settled in harness.settled] == [error]


def test_a_held_call_is_found_by_its_question() -> None:
    harness = held()
    call = only(harness)
    found = harness.decide(lambda builder: approvals.held_call(builder, question_of(call)))
    assert found == call
    assert harness.decide(lambda builder: approvals.held_call(builder, InteractionId("other"))) is None


@pytest.mark.parametrize("while_held", ["deliver", "queue"])
def test_a_waking_message_waits_for_the_approval_and_the_call_that_it_would_cancel(while_held: Any) -> None:
    harness = held()
    policy = replace(harness.runtime.policy, approvals=Approvals(while_held=while_held))
    harness.runtime = replace(harness.runtime, policy=policy)
    harness.post(MessagePosted(content=(Text(text="Hello?"),)))
    (message,) = (effect for effect in harness.effects if isinstance(effect, Transmit))

    def waits(*lanes: Transmit) -> bool:
        return waits_for_approval(message, lanes, harness.view, harness.runtime)

    queues = while_held == "queue"
    assert waits() is queues
    allow(harness)
    assert waits() is queues
    leave(harness)
    assert waits() is queues
    harness.answer(DONE)
    (result,) = (effect for effect in harness.effects if isinstance(effect, Transmit))
    assert waits(result) is queues
    assert not waits()
    assert not waits_for_approval(result, (), harness.view, harness.runtime)
