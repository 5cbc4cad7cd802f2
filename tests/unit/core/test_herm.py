"""Herm in the core: one message a turn, questions by id, catch-up, cut-off texts, secrets."""

from typing import Any

import pytest

from gateway.core import inbound, interactions
from gateway.core.effects import Ask, Transmit
from gateway.core.resend import may_leave
from gateway.core.routing import Route
from gateway.errors import Conflict, Inexpressible, InvalidRequest
from gateway.events import (
    ApprovalGiven,
    ContextUpdate,
    ContextUpdated,
    MessagePosted,
    Outcome,
    QuestionAnswered,
    SecretSupplied,
    Text,
    TurnSteered,
)
from gateway.executors.port import Answered
from tests.unit.core.harness import GOOD, HERM, Harness


class Herm:
    """A Herm session at a table."""

    def __init__(self, **how: Any) -> None:
        self.harness = Harness(HERM, **how)
        self.number = 0

    def hear(self, kind: str, **payload: Any) -> None:
        self.number += 1
        envelope = {
            "id": f"evt_{self.number}",
            "type": kind,
            "sessionId": "s",
            "sequence": self.number,
            "status": "complete",
            "payload": {"type": kind, **payload},
            "createdAt": "2026-11-20T20:00:00.000Z",
        }
        self.harness.receive(envelope, channel="stream")

    def wants(self, native: str, tool: str = "ask_for_cards", **arguments: Any) -> None:
        self.hear("agent.custom_tool_use", id=native, tool=tool, input=arguments or GOOD)

    def idle(self, *waiting: str) -> None:
        reason = {"type": "requires_action", "event_ids": list(waiting)} if waiting else {"type": "end_turn"}
        self.hear("session.status_idle", stop_reason=reason)

    @property
    def recorded(self) -> list[Any]:
        return [recorded.event for recorded, _ in self.harness.journal]


def _texts(payload: Any) -> list[str]:
    return [block["text"] for block in payload["content"]]


@pytest.mark.requirement("H50", "H56", "H61")
def test_a_custom_tool_is_executed_and_its_updates_lead_the_result():
    herm = Herm()
    herm.wants("c1")
    assert len(herm.harness.dispatched) == 1
    update = ContextUpdate(name="hand", context={"cards": ["7"]}, description="You drew a 7.")
    herm.harness.answer(Answered(Outcome(outcome="success", result={"got": 2}), updates=(update,)), native="c1")
    (payload,) = herm.harness.sent
    assert (payload["type"], payload["tool_use_id"], payload.get("is_error", False)) == (
        "user.custom_tool_result",
        "c1",
        False,
    )
    assert "You drew a 7." in _texts(payload)[0]
    assert _texts(payload)[-1] == '{"got":2}'


@pytest.mark.requirement("H56")
def test_only_the_end_of_a_turn_settles_its_open_calls():
    herm = Herm()
    herm.hear("session.status_running")
    herm.wants("c1")
    herm.idle("c1")
    assert herm.harness.view.calls
    herm.idle()
    assert not herm.harness.view.calls
    assert herm.harness.settled[0].state == "canceled"
    assert herm.harness.sent == []


def test_the_same_event_twice_is_recorded_once():
    herm = Herm()
    herm.wants("c1")
    herm.number = 0
    herm.wants("c1")
    assert herm.harness.step.events == ()


def test_history_is_recorded_and_only_open_calls_run():
    herm = Herm(routes=(Route(tool="ask_*", to="cards"), Route(event="question.asked", to="chat")))
    herm.harness.decide(inbound.connecting)
    herm.wants("done")
    herm.hear("user.custom_tool_result", tool_use_id="done", content=[{"type": "text", "text": "x"}])
    herm.wants("open")
    herm.hear("agent.clarify_request", request_id="q1", question="Which?", choices=None)
    assert herm.harness.dispatched == []
    assert not herm.harness.view.calls
    herm.harness.catch_up()
    assert [call.native_call_id for call in herm.harness.dispatched] == ["open"]
    assert [effect.kind for effect in herm.harness.effects if isinstance(effect, Ask)] == ["question.asked"]
    herm.harness.answer(Answered(Outcome(outcome="success", result=1)), native="open")
    assert herm.harness.sent[0]["tool_use_id"] == "open"


def test_an_answer_by_another_client_ends_our_call():
    herm = Herm()
    herm.wants("c1")
    herm.hear("user.custom_tool_result", tool_use_id="c1", content=[{"type": "text", "text": "theirs"}])
    assert not herm.harness.view.calls
    assert herm.harness.sent == []
    assert herm.harness.released


def test_our_own_answer_coming_back_changes_nothing():
    herm = Herm()
    herm.wants("c1")
    herm.harness.answer(Answered(Outcome(outcome="success", result="ok")), native="c1")
    herm.hear("user.custom_tool_result", tool_use_id="c1", content=[{"type": "text", "text": "ok"}])
    assert herm.harness.step.events == ()


def _transmits(herm: Herm) -> list[Transmit]:
    return [effect for effect in herm.harness.effects if isinstance(effect, Transmit)]


def test_a_message_waits_for_the_turn_to_end():
    herm = Herm()
    herm.hear("session.status_running")
    herm.harness.post(MessagePosted(content=(Text(text="next"),)))
    (item,) = _transmits(herm)
    assert not may_leave(item, herm.harness.view.memory, HERM.capabilities)
    herm.idle()
    assert may_leave(item, herm.harness.view.memory, HERM.capabilities)


@pytest.mark.requirement("H-e")
def test_a_pause_for_an_action_is_still_a_turn():
    herm = Herm()
    herm.wants("c1")
    herm.idle("c1")
    herm.harness.post(MessagePosted(content=(Text(text="next"),)))
    assert not may_leave(_transmits(herm)[0], herm.harness.view.memory, HERM.capabilities)


def test_contexts_are_hints_during_a_turn_and_wait_for_the_next_message_otherwise():
    herm = Herm()
    herm.harness.post(ContextUpdated(name="x", context={"a": 1}, description="A is one."))
    assert herm.harness.sent == []
    herm.harness.post(MessagePosted(content=(Text(text="Go."),)))
    assert _texts(herm.harness.sent[0]) == ['A is one.\n{"a":1}', "Go."]
    herm.hear("session.status_running")
    herm.harness.post(ContextUpdated(name="y", context={}, description="B is two."))
    assert herm.harness.sent == [{"type": "user.steer", "message": "B is two."}]
    herm.harness.post(TurnSteered(text="Shorter."))
    assert herm.harness.sent == [{"type": "user.steer", "message": "Shorter."}]


def _approvals(herm: Herm) -> None:
    for native in ("t1", "t2"):
        herm.hear(
            "agent.tool_use",
            id=native,
            tool="terminal",
            input={"command": native},
            status="running",
            requires_action=True,
        )
    herm.idle("t1", "t2")


@pytest.mark.requirement("H-x", "H18")
def test_approvals_are_sent_in_the_order_of_asking_even_when_answered_the_other_way_round():
    herm = Herm()
    _approvals(herm)
    assert [asked.event.id for asked in herm.harness.view.memory.asked] == ["t1", "t2"]
    herm.harness.post(ApprovalGiven(id="t2", decision="deny"))
    (second,) = _transmits(herm)
    assert not may_leave(second, herm.harness.view.memory, HERM.capabilities)
    herm.harness.post(ApprovalGiven(id="t1", decision="allow", scope="session"))
    (first,) = _transmits(herm)
    assert may_leave(first, herm.harness.view.memory, HERM.capabilities)
    assert may_leave(second, herm.harness.view.memory, HERM.capabilities)
    assert first.frames[0].payload["scope"] == "session"
    assert "scope" not in second.frames[0].payload


def test_an_answer_given_twice_or_to_nothing_is_refused():
    herm = Herm()
    _approvals(herm)
    herm.harness.post(ApprovalGiven(id="t1", decision="allow"))
    with pytest.raises(Conflict):
        herm.harness.post(ApprovalGiven(id="t1", decision="deny"))
    with pytest.raises(Conflict):
        herm.harness.post(QuestionAnswered(id="none", answer="x"))


def test_a_question_is_answered_by_its_interaction_and_an_empty_answer_is_kept():
    herm = Herm()
    herm.hear("agent.clarify_request", request_id="q1", question="Which?", choices=["a", "b"])
    harness = herm.harness
    (asked,) = harness.view.memory.asked
    wanted = interactions.id_of(harness.view.session_id, asked)
    with pytest.raises(InvalidRequest, match="answer"):
        harness.decide(lambda b: interactions.answer(b, wanted, {"value": "x"}, by="me"))
    harness.decide(lambda b: interactions.answer(b, wanted, {"answer": ""}, by="me"))
    assert harness.sent == [{"type": "user.clarify_result", "request_id": "q1", "answer": ""}]
    (change,) = harness.step.interactions
    assert (change.state, change.answered_by) == ("answered", "me")


def test_questions_without_an_answer_are_denied_or_skipped_in_time():
    herm = Herm()
    _approvals(herm)
    herm.hear("agent.clarify_request", request_id="q1", question="Which?", choices=None)
    herm.harness.wait(300)
    assert [payload["type"] for payload in herm.harness.sent] == [
        "user.tool_confirmation",
        "user.tool_confirmation",
        "user.clarify_result",
    ]
    assert [payload.get("result", payload.get("answer")) for payload in herm.harness.sent] == ["deny", "deny", ""]
    assert {change.state for change in herm.harness.step.interactions} == {"expired"}


def test_the_end_of_a_turn_makes_its_questions_moot():
    herm = Herm()
    _approvals(herm)
    herm.idle()
    assert herm.harness.view.memory.asked == ()
    assert [change.state for change in herm.harness.step.interactions] == ["moot", "moot"]


def test_a_secret_is_sent_and_never_written():
    herm = Herm()
    herm.harness.post(SecretSupplied.model_validate({"id": "sudo_1", "purpose": "sudo", "value": "canary-7"}))
    assert herm.harness.sent == [{"type": "user.sudo_result", "request_id": "sudo_1", "password": "canary-7"}]
    assert "canary-7" not in repr(herm.harness.step)
    assert "canary-7" not in herm.harness.step.events[0].event.model_dump_json()


@pytest.mark.requirement("H-n")
def test_a_text_that_was_cut_off_is_kept_as_incomplete():
    herm = Herm()
    herm.hear("session.status_running")
    herm.hear("agent.message", content=[{"type": "text", "text": "Hel"}], delta=True)
    herm.hear("agent.message", content=[{"type": "text", "text": "lo"}], delta=True)
    herm.idle()
    (cut,) = [event for event in herm.recorded if isinstance(event, MessagePosted)]
    assert (cut.complete, cut.content[0].model_dump()["text"]) == (False, "Hello")


def test_of_a_long_text_that_was_cut_off_the_end_is_kept():
    herm = Herm()
    herm.hear("session.status_running")
    pieces = [f"{number:03}" * 500 for number in range(60)]
    for piece in pieces:
        herm.hear("agent.message", content=[{"type": "text", "text": piece}], delta=True)
    herm.idle()
    (cut,) = [event for event in herm.recorded if isinstance(event, MessagePosted)]
    assert cut.content[0].model_dump()["text"] == "".join(pieces)[-65_536:]


def test_a_whole_text_replaces_the_streamed_one():
    herm = Herm()
    herm.hear("agent.message", content=[{"type": "text", "text": "Hel"}], delta=True)
    herm.hear("agent.message", content=[{"type": "text", "text": "Hello"}], delta=False)
    herm.idle()
    assert [event.complete for event in herm.recorded if isinstance(event, MessagePosted)] == [True]


def test_herms_own_actions_are_recorded_and_not_executed():
    herm = Herm()
    herm.hear("agent.tool_use", id="t1", tool="terminal", input={"command": "ls"}, status="running")
    herm.hear(
        "agent.tool_result",
        tool_use_id="t1",
        tool="terminal",
        status="completed",
        content=[{"type": "text", "text": "a.txt"}],
        is_error=False,
    )
    assert herm.harness.dispatched == []
    assert not herm.harness.view.calls
    finished, _ = herm.harness.journal[-1]
    assert finished.caused_by == 1


@pytest.mark.requirement("H61")
def test_arguments_that_do_not_fit_are_answered_and_not_executed():
    herm = Herm()
    herm.wants("c1", rank="1")
    assert herm.harness.dispatched == []
    assert herm.harness.sent[0]["is_error"] is True


@pytest.mark.requirement("H-q")
def test_an_id_of_an_unknown_kind_is_shown_and_never_answered():
    herm = Herm()
    herm.idle("mystery_1")
    (moved,) = herm.recorded
    assert moved.waiting_for == ("mystery_1",)
    herm.harness.wait(1_000)
    assert herm.harness.sent == []


def test_a_scope_that_was_not_offered_is_refused():
    herm = Herm()
    _approvals(herm)
    asked = herm.harness.view.memory.asked[0].event
    if asked.kind == "approval.asked" and "always" not in asked.scopes:
        with pytest.raises(Inexpressible):
            herm.harness.post(ApprovalGiven(id="t1", decision="allow", scope="always"))
    else:
        herm.harness.post(ApprovalGiven(id="t1", decision="allow", scope="always"))
        assert herm.harness.sent[0]["scope"] == "always"


# Turns that end in an error ------------------------------------------------------------------------------


@pytest.mark.requirement("H17", "H36")
@pytest.mark.parametrize(
    ("more", "text"),
    [({"message": "No tokens left."}, "No tokens left."), ({}, "The agent stopped with an error.")],
)
def test_a_turn_that_ends_in_an_error_moves_the_session_and_reports_the_fault(more: dict[str, str], text: str):
    herm = Herm()
    herm.hear("session.status_running")
    herm.hear("session.status_idle", stop_reason={"type": "error", **more})
    moved, fault = herm.recorded[-2:]
    assert (moved.kind, moved.state) == ("session.moved", "error")
    assert (fault.kind, fault.code, fault.message) == ("fault.reported", "error", text)
    assert herm.harness.listed == "error"
    # The same once more, on the list, is a repeat of both.
    before = len(herm.recorded)
    herm.number -= 1
    herm.hear("session.status_idle", stop_reason={"type": "error", **more})
    assert len(herm.recorded) == before
