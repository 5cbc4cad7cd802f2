"""Recorded OpenHands conversations in the core: echoes, approvals by state, delegates, history."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.adapter.port import Frame
from gateway.core import inbound, interactions, lifecycle
from gateway.core.effects import Ask
from gateway.core.routing import Route
from gateway.core.session import StepBuilder
from gateway.core.state import Action, Gate, Remembered
from gateway.errors import Conflict, Inexpressible
from gateway.events import (
    ActionOrdered,
    ApprovalGiven,
    ContextUpdated,
    DeliverySettled,
    LinkChanged,
    MessagePosted,
    Text,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    text_of,
)
from gateway.executors.port import Replied
from tests.unit.core.harness import OPENHANDS, Harness

CAPTURES = Path(__file__).parents[2] / "vectors" / "openhands" / "captures"
POLICY = (Route(event="approval.asked", to="chat"),)


def _lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def _hear(harness: Harness, *payloads: Any) -> None:
    for payload in payloads:
        harness.receive(payload, channel="oh_event")


def _recorded(harness: Harness) -> list[Any]:
    return [recorded.event for recorded, _ in harness.journal]


def _ordered_states(harness: Harness) -> list[str]:
    assert all(payload["action"] == "change_agent_state" for payload in harness.sent)
    return [payload["args"]["agent_state"] for payload in harness.sent]


def _state(number: int, state: str) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": f"2026-11-20T20:00:{number:02}.000000",
        "source": "agent",
        "message": "",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": state, "reason": ""},
    }


def _message(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": "2026-11-20T20:00:00.000000",
        "source": "agent",
        "message": f"word {number}",
        "action": "message",
        "args": {"content": f"word {number}"},
    }


def _run(number: int, command: str, *, correlation: str, confirmation: str | None = None) -> dict[str, Any]:
    args: dict[str, Any] = {"command": command, "thought": ""}
    if confirmation:
        args["confirmation_state"] = confirmation
    return {
        "id": number,
        "timestamp": f"2026-11-20T20:00:{number:02}.000000",
        "source": "agent",
        "message": f"Running command: {command}",
        "action": "run",
        "args": args,
        "tool_call_metadata": {
            "function_name": "execute_bash",
            "tool_call_id": correlation,
            "model_response": {},
            "total_calls_in_response": 1,
        },
    }


def _edit(number: int, *, correlation: str) -> dict[str, Any]:
    args = {"path": "/a", "command": "create", "thought": ""}
    return {**_run(number, "x", correlation=correlation), "action": "edit", "args": args}


@pytest.mark.parametrize("name", ["basic", "confirm_user_confirmed", "delegate", "mcp"])
def test_a_recorded_conversation_is_recorded_once_and_nothing_of_it_is_executed(name: str):
    harness = Harness(OPENHANDS)
    _hear(harness, *_lines(name))
    kinds = [event.kind for event in _recorded(harness)]
    assert "frame.rejected" not in kinds
    assert not harness.view.calls
    before = harness.view.last_sequence
    _hear(harness, *[payload for payload in _lines(name) if "timestamp" in payload])
    assert harness.view.last_sequence == before


def test_an_action_and_its_observation_are_tied_together():
    harness = Harness(OPENHANDS)
    _hear(harness, *_lines("basic"))
    finished = [(recorded, n) for recorded, n in harness.journal if isinstance(recorded.event, ToolFinished)]
    sequences = {n: recorded.event for recorded, n in harness.journal}
    assert finished
    for recorded, _ in finished:
        request = sequences[recorded.caused_by]
        assert isinstance(request, ToolRequested)
        assert request.native_call_id == recorded.event.native_call_id


def test_our_own_message_coming_back_confirms_it_and_is_not_recorded_again():
    harness = Harness(OPENHANDS)
    sequence = harness.post(MessagePosted(content=(Text(text="SCENARIO:basic"),)))
    _hear(harness, *_lines("basic"))
    settled = [event for event in _recorded(harness) if isinstance(event, DeliverySettled)]
    assert [(event.sequence, event.state) for event in settled] == [(sequence, "delivered")]
    assert sum(isinstance(event, MessagePosted) and event.author.role == "user" for event in _recorded(harness)) == 1


def test_another_clients_message_is_recorded_as_said_to_the_runtime():
    harness = Harness(OPENHANDS)
    harness.post(MessagePosted(content=(Text(text="something else"),)))
    _hear(harness, *_lines("basic"))
    texts = [text_of(event.content) for event in _recorded(harness) if isinstance(event, MessagePosted)]
    assert texts[:2] == ["something else", "SCENARIO:basic"]


@pytest.mark.parametrize("state_first", [True, False])
def test_an_approval_is_derived_from_state_and_action_in_either_order(state_first: bool):
    harness = Harness(OPENHANDS, routes=POLICY)
    state = _state(1, "awaiting_user_confirmation")
    action = _run(2, "rm -r x", correlation="c1", confirmation="awaiting_confirmation")
    _hear(harness, *([state, action] if state_first else [action, state]))
    assert [event.kind for event in _recorded(harness)].count("approval.asked") == 1
    (asked,) = harness.view.memory.asked
    assert asked.event.id == "2"
    (ask,) = [effect for effect in harness.effects if isinstance(effect, Ask)]
    assert ask.data["event"]["tool"] == "run"
    harness.decide(lambda b: interactions.replied(b, asked, Replied({"decision": "allow"})))
    assert _ordered_states(harness) == ["user_confirmed"]


def test_a_state_that_comes_before_its_action_asks_nothing_about_an_older_one_that_still_runs():
    harness = Harness(OPENHANDS, routes=POLICY)
    _hear(harness, _run(1, "sleep 9", correlation="c0"), _state(2, "awaiting_user_confirmation"))
    assert harness.view.memory.asked == ()
    _hear(harness, _run(3, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"))
    assert [asked.event.id for asked in harness.view.memory.asked] == ["3"]


def test_only_the_newest_question_by_state_waits():
    harness = Harness(OPENHANDS)
    _hear(harness, _state(1, "awaiting_user_confirmation"), _edit(2, correlation="c0"))
    assert [asked.event.id for asked in harness.view.memory.asked] == ["2"]
    _hear(harness, _run(3, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"))
    assert [asked.event.id for asked in harness.view.memory.asked] == ["3"]
    assert sorted(change.state for change in harness.step.interactions) == ["moot", "waiting"]


@pytest.mark.requirement("OH44")
@pytest.mark.parametrize("tool", ["edit", "read", "browse_interactive", "call_tool_mcp"])
def test_an_action_that_follows_the_state_is_asked_about_although_it_does_not_say_that_it_waits(tool: str):
    harness = Harness(OPENHANDS)
    _hear(harness, _state(1, "awaiting_user_confirmation"), {**_edit(2, correlation="c0"), "action": tool})
    assert [asked.event.id for asked in harness.view.memory.asked] == ["2"]


def test_without_numbers_only_an_action_that_says_that_it_waits_is_asked_about():
    gate = Gate(2)
    actions = Action("a", None, "edit", {}, 3), Action("b", None, "edit", {}, 4)
    assert Remembered(state="awaiting_approval", gate=gate, actions=actions).gated_action() is None
    said = (replace(actions[0], gated=True), actions[1])
    assert Remembered(state="awaiting_approval", gate=gate, actions=said).gated_action() == said[0]


@pytest.mark.requirement("OH44")
def test_an_older_edit_with_a_late_end_raises_no_question():
    harness = Harness(OPENHANDS, routes=POLICY)
    _hear(harness, _edit(1, correlation="c0"), _state(2, "awaiting_user_confirmation"))
    assert harness.view.memory.asked == ()
    _hear(harness, _edit(3, correlation="c1"))
    assert [asked.event.id for asked in harness.view.memory.asked] == ["3"]


@pytest.mark.requirement("OH44")
def test_a_later_state_ends_a_question_that_an_earlier_one_asked():
    harness = Harness(OPENHANDS)
    _hear(harness, _state(1, "awaiting_user_confirmation"), _edit(2, correlation="c0"))
    # The link did not show the events between them.
    _hear(harness, _state(9, "awaiting_user_confirmation"))
    assert harness.view.memory.asked == ()
    assert [change.state for change in harness.step.interactions] == ["moot"]
    _hear(harness, _edit(10, correlation="c1"))
    assert [asked.event.id for asked in harness.view.memory.asked] == ["10"]


@pytest.mark.requirement("OH44")
def test_a_confirmed_action_sent_again_supersedes_the_first_and_asks_nothing_more():
    harness = Harness(OPENHANDS)
    _hear(
        harness,
        _state(1, "awaiting_user_confirmation"),
        _run(2, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"),
    )
    harness.post(ApprovalGiven(id="2", decision="allow"))
    _hear(
        harness,
        {
            "id": 3,
            "timestamp": "2026-11-20T20:00:03.000000",
            "source": "user",
            "message": "",
            "action": "change_agent_state",
            "args": {"agent_state": "user_confirmed", "thought": ""},
        },
        _run(4, "rm -r x", correlation="c1", confirmation="confirmed"),
        _state(5, "user_confirmed"),
    )
    kinds = [event.kind for event in _recorded(harness)]
    assert kinds.count("approval.asked") == 1
    again = _recorded(harness)[-2]
    assert isinstance(again, ToolRequested)
    assert again.supersedes == "2"


def test_an_approval_of_a_question_that_has_ended_is_refused():
    harness = Harness(OPENHANDS)
    _hear(
        harness,
        _state(1, "awaiting_user_confirmation"),
        _run(2, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"),
        _state(3, "user_rejected"),
    )
    with pytest.raises(Conflict):
        harness.post(ApprovalGiven(id="2", decision="allow"))


@pytest.mark.requirement("OH44")
def test_an_unanswered_approval_is_denied_in_time():
    harness = Harness(OPENHANDS)
    _hear(
        harness,
        _state(1, "awaiting_user_confirmation"),
        _run(2, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"),
    )
    harness.wait(300)
    assert _ordered_states(harness) == ["user_rejected"]


@pytest.mark.requirement("OH48")
def test_states_between_a_delegate_and_its_answer_end_nothing():
    harness = Harness(OPENHANDS)
    for payload in _lines("delegate"):
        _hear(harness, payload)
        if payload.get("extras", {}).get("agent_state") in {"error", "stopped"}:
            assert harness.view.memory.running
        if payload.get("observation") == "delegate":
            # The agent continues without an event, and lists show the last recorded one.
            moved = harness.journal[-1][0].event
            assert (moved.kind, moved.state, harness.listed) == ("session.moved", "running", "running")
    assert not harness.view.memory.running
    assert harness.listed == "finished"


@pytest.mark.requirement("OH48")
def test_a_message_to_a_delegate_is_not_recorded_as_one_of_a_client():
    harness = Harness(OPENHANDS)
    _hear(harness, *_lines("delegate"))
    said = [new for new, _ in harness.journal if isinstance(new.event, MessagePosted)]
    (task,) = [new for new in said if text_of(new.event.content).startswith("TASK: ")]
    assert (task.direction, task.event.author.role) == ("from_runtime", "system")
    assert [(loss.how, loss.path) for loss in task.losses] == [("narrowed", "/source")]
    assert [text_of(new.event.content) for new in said if new.direction == "to_runtime"] == ["SCENARIO:delegate"]
    # A later message with the same text is one of a client.
    again = next(line for line in _lines("delegate") if "TASK" in str(line.get("message")))
    _hear(harness, again | {"id": 99, "timestamp": "2026-11-20T19:59:00.000000"})
    assert harness.journal[-1][0].direction == "to_runtime"


@pytest.mark.requirement("OH46")
def test_a_stopped_action_may_end_a_second_time_and_both_ends_are_told_with_their_cause():
    harness = Harness(OPENHANDS)
    _hear(harness, _run(1, "sleep 9", correlation="c1"))
    ends: list[dict[str, Any]] = [
        {
            "observation": "error",
            "content": "Stopped",
            "extras": {"error_id": "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_STOPPED"},
        },
        {
            "observation": "run",
            "content": "",
            "extras": {"command": "sleep 9", "metadata": {"exit_code": 0}},
            "success": True,
        },
    ]
    for number, end in enumerate(ends, 2):
        _hear(
            harness,
            {
                "id": number,
                "timestamp": f"2026-11-20T20:00:{number:02}.000000",
                "source": "agent",
                "message": "",
                "cause": 1,
                **end,
            },
        )
    finished = [recorded for recorded, _ in harness.journal if isinstance(recorded.event, ToolFinished)]
    assert [(recorded.caused_by, recorded.event.outcome) for recorded in finished] == [(1, "canceled"), (1, "success")]
    assert not harness.view.calls


def test_an_order_is_tied_to_its_echo_and_its_observation():
    harness = Harness(OPENHANDS)
    sequence = harness.post(ActionOrdered(action="run", arguments={"command": "ls"}))
    _hear(
        harness,
        {
            "id": 7,
            "timestamp": "2026-11-20T20:00:07.000000",
            "source": "user",
            "message": "Running command: ls",
            "action": "run",
            "args": {"command": "ls", "is_input": False, "thought": "", "blocking": False, "hidden": False},
        },
        {
            "id": 8,
            "timestamp": "2026-11-20T20:00:08.000000",
            "source": "user",
            "message": "Command `ls` executed with exit code 0.",
            "cause": 7,
            "observation": "run",
            "content": "a.txt",
            "extras": {"command": "ls", "metadata": {"exit_code": 0}, "hidden": False},
            "success": True,
        },
    )
    finished, _ = harness.journal[-1]
    assert isinstance(finished.event, ToolFinished)
    assert finished.caused_by == sequence


@pytest.mark.requirement("OH53")
def test_the_result_of_another_clients_order_names_the_order_as_its_cause():
    harness = Harness(OPENHANDS)
    order = {**_run(7, "ls", correlation="x"), "source": "user"}
    del order["tool_call_metadata"]
    seen = {**_state(8, "x"), "source": "user", "cause": 7, "observation": "run", "content": "a.txt",
            "extras": {"command": "ls", "metadata": {"exit_code": 0}}, "success": True}  # fmt: skip
    _hear(harness, order, seen)
    (ordered, sequence), (finished, _) = harness.journal
    assert isinstance(ordered.event, ActionOrdered)
    assert isinstance(finished.event, ToolFinished)
    assert finished.caused_by == sequence


def test_a_write_is_refused_with_its_reason_and_other_kinds_with_theirs():
    harness = Harness(OPENHANDS)
    with pytest.raises(Inexpressible, match="edit"):
        harness.post(ActionOrdered(action="write", arguments={"path": "/x", "content": "y"}))
    harness.post(TurnInterrupted())
    assert _ordered_states(harness) == ["stopped"]


def test_a_context_waits_for_the_next_message():
    harness = Harness(OPENHANDS)
    harness.post(ContextUpdated(name="files", context={"open": "a.py"}, description="a.py is open"))
    assert harness.sent == []
    harness.post(MessagePosted(content=(Text(text="Repair it."),)))
    assert harness.sent[0]["args"]["content"] == 'a.py is open\n{"open":"a.py"}\nRepair it.'
    harness.post(MessagePosted(content=(Text(text="And test it."),)))
    assert harness.sent[0]["args"]["content"] == "And test it."


def test_history_asks_nothing_until_the_link_has_caught_up():
    harness = Harness(OPENHANDS, routes=POLICY)
    harness.decide(inbound.connecting)
    _hear(
        harness,
        _state(1, "awaiting_user_confirmation"),
        _run(2, "rm -r x", correlation="c1", confirmation="awaiting_confirmation"),
    )
    assert not [effect for effect in harness.effects if isinstance(effect, Ask)]
    harness.catch_up()
    assert [effect for effect in harness.effects if isinstance(effect, Ask)]
    harness.decide(lambda b: lifecycle.link(b, LinkChanged(state="up")))
    assert harness.sent == []


def test_one_step_takes_a_native_message_once_however_much_stands_between_and_again_after_going_back():
    harness = Harness(OPENHANDS)
    numbers = [*range(1, 400), 1]

    def take(builder: StepBuilder, *chosen: int) -> None:
        for number in chosen:
            inbound.take(builder, Frame("oh_event", _message(number)))

    def decide(builder: StepBuilder) -> None:
        mark = builder.mark()
        take(builder, *numbers)
        builder.back_to(mark)
        take(builder, *numbers)

    harness.decide(decide)
    assert [recorded.origin.native_sequence for recorded, _ in harness.journal] == list(range(1, 400))
