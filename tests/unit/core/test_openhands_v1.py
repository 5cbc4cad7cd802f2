"""OpenHands V1 in the core: approvals of a group, abandoned actions, calls of our tools, streamed text."""

from typing import Any

import pytest

from adapters.openhands.v1 import ADAPTER as OPENHANDS_V1
from gateway.core import interactions
from gateway.core.callers import CallRequest, ask
from gateway.core.effects import Ask, Transmit
from gateway.core.own_actions import TICKET
from gateway.core.resend import RuntimeNeeds, SendHistory, may_leave, plan_resend
from gateway.core.routing import Route
from gateway.core.state import Remembered
from gateway.errors import Conflict
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    CallLinked,
    MessagePosted,
    SessionId,
    SessionMoved,
    Text,
    ToolFinished,
    TurnInterrupted,
)
from gateway.store.rows import Send
from gateway.store.step import RUNTIME
from tests.unit.core.harness import ASK, GOOD, Harness

POLICY = (Route(event="approval.asked", to="chat"), Route(tool="ask_*", to="cards"))


class Conversation:
    """A conversation with an acting agent; each event has the next sequence."""

    def __init__(self, **given: Any) -> None:
        self.harness = Harness(OPENHANDS_V1, routes=POLICY, **given)
        self.sequence = -1

    def hear(self, *events: dict[str, Any]) -> None:
        for event in events:
            self.sequence += 1
            durable = {"type": "durable", "seq": self.sequence, "event": event}
            self.harness.receive(durable, channel="session")

    def stream(self, item: str, text: str) -> None:
        delta = {"type": "delta", "item_id": item, "attempt": 1, "order": 0, "kind": "text", "content": text}
        self.harness.receive(delta, channel="session")

    @property
    def memory(self) -> Remembered:
        return self.harness.view.memory

    @property
    def recorded(self) -> list[Any]:
        return [envelope.event for envelope, _ in self.harness.journal]

    @property
    def asked(self) -> list[str]:
        return [asked.event.id for asked in self.memory.asked]


def _event(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "timestamp": "2026-11-22T07:10:36.387049", "source": "agent", **more}


def status(value: str, number: int) -> dict[str, Any]:
    update = {"id": f"00000000-0000-4000-8000-{number:012}", "source": "environment"}
    return _event("ConversationStateUpdateEvent", **update, key="execution_status", value=value)


def act(name: str, tool: str = "terminal", **arguments: Any) -> dict[str, Any]:
    given = arguments or {"command": f"echo {name}"}
    action: dict[str, Any] = {"kind": "TerminalAction", **given}
    if tool != "terminal":
        action = {"kind": "MCPToolAction", "data": given}
    return _event(
        "ActionEvent", id=_id(name), thought=[], action=action, tool_name=tool, tool_call_id=f"call_{name}",
        llm_response_id="r", security_risk="UNKNOWN",
    )  # fmt: skip


def done(name: str, tool: str = "terminal") -> dict[str, Any]:
    seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": "ok"}], "is_error": False}
    if tool != "terminal":
        seen |= {"kind": "MCPToolObservation", "tool_name": tool}
    return _event(
        "ObservationEvent", id=_id(name, 1), source="environment", tool_name=tool, tool_call_id=f"call_{name}",
        action_id=_id(name), observation=seen,
    )  # fmt: skip


def fail(name: str, number: int) -> dict[str, Any]:
    """The end that names no action, only the model's id of the call."""
    about = {"tool_name": "terminal", "tool_call_id": f"call_{name}", "error": "interrupted"}
    return _event("AgentErrorEvent", id=_id(name, 2 + number), **about)


def _id(name: str, number: int = 0) -> str:
    return f"{ord(name[0]):08x}-0000-4000-8000-{number:012}"


def _approval(work: Conversation) -> ApprovalAsked:
    [asked] = work.memory.asked
    assert isinstance(asked.event, ApprovalAsked)
    return asked.event


def _deny(conversation: Conversation) -> None:
    [asked] = conversation.memory.asked
    wanted = interactions.id_of(conversation.harness.view.session_id, asked)
    conversation.harness.decide(lambda b: interactions.answer(b, wanted, {"decision": "deny", "reason": "No."}, by="x"))


@pytest.mark.requirement("OV33", "OV38")
def test_all_open_actions_are_asked_about_as_one_and_each_is_shown() -> None:
    work = Conversation()
    work.hear(act("a"), act("b"), done("a"), act("c"), status("waiting_for_confirmation", 1))
    event = _approval(work)
    assert (event.id, event.tool) == (_id("b"), None)
    assert event.arguments["actions"] == [
        {"native_call_id": _id("b"), "tool": "terminal", "arguments": {"command": "echo b"}},
        {"native_call_id": _id("c"), "tool": "terminal", "arguments": {"command": "echo c"}},
    ]
    moved = next(event for event in work.recorded if isinstance(event, SessionMoved))
    assert moved.waiting_for == (_id("b"), _id("c"))
    (ask,) = [effect for effect in work.harness.effects if isinstance(effect, Ask)]
    assert ask.data["event"]["arguments"]["actions"][1]["tool"] == "terminal"


def test_a_single_action_is_asked_about_with_its_tool() -> None:
    work = Conversation()
    work.hear(act("a"), status("waiting_for_confirmation", 1))
    event = _approval(work)
    assert (event.tool, event.arguments) == ("terminal", {"command": "echo a"})


@pytest.mark.requirement("OV36")
def test_a_decision_is_about_each_action_and_is_asked_for_once() -> None:
    work = Conversation()
    work.hear(act("a"), act("b"), status("waiting_for_confirmation", 1))
    _deny(work)
    assert work.asked == []
    assert [frame["reason"] for frame in work.harness.sent] == ["No."]
    work.hear(_event("PauseEvent", id=_id("p")))
    assert work.asked == []
    with pytest.raises(Conflict):
        work.harness.post(ApprovalGiven(id=_id("a"), decision="allow"))


@pytest.mark.requirement("OV37")
def test_another_clients_answer_and_an_error_end_the_question() -> None:
    for native in ("running", "idle", "error"):
        work = Conversation()
        work.hear(act("a"), status("waiting_for_confirmation", 1), status(native, 2))
        assert work.asked == []
        assert [change.state for change in work.harness.step.interactions] == ["moot"]


def test_a_later_group_replaces_an_earlier_one() -> None:
    work = Conversation()
    work.hear(act("a"), status("waiting_for_confirmation", 1), status("running", 2), done("a"))
    work.hear(act("b"), status("waiting_for_confirmation", 3))
    assert work.asked == [_id("b")]


@pytest.mark.requirement("OV35")
def test_work_waits_while_actions_are_held_and_an_interrupt_does_not() -> None:
    work = Conversation()
    work.hear(act("a"), status("waiting_for_confirmation", 1))
    able = work.harness.runtime.capabilities
    work.harness.post(MessagePosted(content=(Text(text="Do X instead."),)))
    [message] = _transmits(work)
    work.harness.post(TurnInterrupted())
    [interrupt] = _transmits(work)
    assert [may_leave(item, work.memory, able) for item in (message, interrupt)] == [False, True]
    work.hear(status("idle", 2))
    assert may_leave(message, work.memory, able)


@pytest.mark.requirement("OV34")
def test_a_decision_is_sent_again_only_while_its_group_waits() -> None:
    work = Conversation()
    work.hear(act("a"), act("b"), status("waiting_for_confirmation", 1))
    _deny(work)
    row = _row(work)
    assert _fate(work, row) == "send"
    work.hear(status("running", 2), done("a"), done("b"), act("c"), status("waiting_for_confirmation", 3))
    assert _fate(work, row) == "moot"


@pytest.mark.requirement("OV40", "OV56")
def test_an_action_that_is_open_at_an_error_ends_as_unknown() -> None:
    work = Conversation()
    work.hear(act("a"), done("a"), act("b"), status("error", 1))
    ends = [event for event in work.recorded if isinstance(event, ToolFinished)]
    assert [(end.native_call_id, end.outcome, end.unknown) for end in ends] == [
        (_id("a"), "success", False),
        (_id("b"), "failure", True),
    ]
    assert all(action.finished for action in work.memory.actions)


@pytest.mark.requirement("OV41")
def test_an_end_without_an_action_id_is_of_the_open_action_with_its_correlation() -> None:
    work = Conversation()
    first, second = act("a"), act("b") | {"tool_call_id": "call_a"}
    work.hear(first, second, done("b") | {"tool_call_id": "call_a"}, fail("a", 0))
    ends = [event for event in work.recorded if isinstance(event, ToolFinished)]
    assert [end.native_call_id for end in ends] == [_id("b"), _id("a")]


@pytest.mark.requirement("OV12")
def test_a_piece_of_another_message_starts_its_text_anew() -> None:
    work = Conversation()
    work.stream(_id("a"), "Hel")
    work.stream(_id("a"), "lo")
    assert work.harness.view.partial.text == "Hello"
    work.stream(_id("b"), "Good")
    assert work.harness.view.partial.text == "Good"


@pytest.mark.requirement("OV12")
@pytest.mark.parametrize("end", ["paused", "error"])
def test_a_text_that_an_interrupt_or_error_cuts_off_is_recorded_once(end: str) -> None:
    """The server stores it nowhere."""
    work = Conversation()
    work.hear(status("running", 1))
    work.stream(_id("a"), "Hel")
    work.stream(_id("a"), "lo")
    work.hear(status(end, 2), _event("InterruptEvent", id=_id("i"), source="user"), status("running", 3))
    (cut,) = [event for event in work.recorded if isinstance(event, MessagePosted)]
    assert (cut.complete, cut.content) == (False, (Text(text="Hello"),))


@pytest.mark.parametrize("end", ["paused", "error", "finished"])
def test_a_thought_before_an_action_is_not_recorded_again_as_a_text_that_was_cut_off(end: str) -> None:
    work = Conversation()
    work.hear(status("running", 1))
    work.stream(_id("a"), "I list the files.")
    work.hear(act("a") | {"thought": [{"type": "text", "text": "I list the files."}]}, fail("a", 0), status(end, 2))
    assert [event for event in work.recorded if isinstance(event, MessagePosted)] == []


@pytest.mark.requirement("OV47", "OV48", "OV51")
@pytest.mark.parametrize("name", ["ask_for_cards", "dragoman_ask_for_cards"])
def test_an_action_of_our_tool_is_linked_to_its_call(name: str) -> None:
    work = Conversation()
    work.hear(act("a", name, **GOOD))
    request = CallRequest(ASK.name, GOOD, TICKET, "k", "mcp/2025-11-25")
    call_id = work.harness.decide(lambda builder: ask(builder, request))
    [linked] = [event for event in work.recorded if isinstance(event, CallLinked)]
    assert (linked.native_call_id, linked.call_id) == (_id("a"), call_id)


def _transmits(work: Conversation) -> list[Transmit]:
    return [effect for effect in work.harness.effects if isinstance(effect, Transmit)]


def _row(work: Conversation) -> Send:
    """The pending row of the last decision."""
    envelope = next(one for one, _ in reversed(work.harness.journal) if isinstance(one.event, ApprovalGiven))
    return Send(
        SessionId("s"), envelope.sequence, RUNTIME, "turn", "pending", 0, None, None, envelope, work.harness.now
    )


def _fate(work: Conversation, row: Send) -> str:
    able, now = work.harness.runtime.capabilities, work.harness.now
    [plan] = plan_resend([row], SendHistory(), RuntimeNeeds(work.memory), capabilities=able, now=now)
    return plan.fate
