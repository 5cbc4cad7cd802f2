"""Recorded conversations of OpenHands V1 in the core, and repeated ids."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.openhands.v1 import ADAPTER
from gateway.core.callers import CallRequest, ask
from gateway.core.own_actions import TICKET
from gateway.events import (
    ApprovalAsked,
    CallLinked,
    FrameRejected,
    MessagePosted,
    Opaque,
    SessionMoved,
    ToolFinished,
    ToolRequested,
    text_of,
)
from tests.unit.core.harness import ASK, GOOD, Harness

CAPTURES = Path(__file__).parents[2] / "vectors" / "openhands_v1" / "captures"
NAMES = ("acp_supersede", "acp_tools", "basic", "confirm_accept", "mcp", "streaming")


def frames(name: str, channel: str = "session") -> list[Any]:
    lines = [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["payload"] for line in lines if line["channel"] == channel and not line["sent"]]


class Conversation:
    """A session of an agent-server that has caught up."""

    def __init__(self) -> None:
        self.harness = Harness(ADAPTER)
        self.harness.catch_up()
        self.sequence = 0

    def hears(self, *payloads: Any, channel: str = "session") -> None:
        for payload in payloads:
            self.harness.receive(payload, channel=channel)

    def stores(self, kind: str, native_id: str | None = None, **members: Any) -> str:
        """The server stores an event; returns its id."""
        self.sequence += 1
        event = {"kind": kind, "id": native_id or f"event-{self.sequence}", "timestamp": "t", "source": "agent"}
        self.hears({"type": "durable", "seq": self.sequence, "event": {**event, **members}})
        return str(event["id"])

    def acts(self, tool: str = ASK.name, arguments: Any = GOOD, *, call: str = "c1") -> str:
        action = {"kind": "MCPToolAction", "data": arguments}
        return self.stores("ActionEvent", action=action, tool_name=tool, tool_call_id=call)

    def ends(self, action: str, tool: str = ASK.name, *, call: str = "c1") -> None:
        observation = {"kind": "MCPToolObservation", "content": [{"type": "text", "text": "ok"}]}
        self.stores("ObservationEvent", action_id=action, tool_name=tool, tool_call_id=call, observation=observation)

    def asks(self, arguments: Any = GOOD, *, key: str = "k") -> str:
        """The agent calls a tool at our MCP server."""
        request = CallRequest(ASK.name, arguments, TICKET, key, "mcp/2025-11-25")
        return str(self.harness.decide(lambda builder: ask(builder, request)))

    def recorded(self, *kinds: type) -> list[Any]:
        return [one.event for one, _ in self.harness.journal if not kinds or isinstance(one.event, kinds)]


@pytest.fixture
def conversation() -> Conversation:
    return Conversation()


@pytest.mark.requirement("OV9", "OV22")
@pytest.mark.parametrize("name", NAMES)
def test_a_repeated_conversation_records_nothing_twice(name: str, conversation: Conversation) -> None:
    stored = [frame for frame in frames(name) if frame["type"] == "durable"]
    conversation.hears(*stored)
    before = len(conversation.harness.journal)
    conversation.hears(*stored)
    conversation.hears(*[frame["event"] for frame in stored], channel="events")
    assert len(conversation.harness.journal) == before
    assert not conversation.recorded(FrameRejected)


@pytest.mark.requirement("OV22", "OV63", "OV27")
def test_of_a_run_messages_calls_and_states_are_recorded_and_nothing_that_repeats_them() -> None:
    conversation = Conversation()
    conversation.hears(*frames("basic"))
    states = [event.state for event in conversation.recorded(SessionMoved)]
    assert states == ["running", "finished"]
    texts = [text_of(event.content) for event in conversation.recorded(MessagePosted)]
    assert texts == ["SCENARIO:basic", "Finished: b.py prints B."]
    assert len(conversation.recorded(ToolRequested)) == len(conversation.recorded(ToolFinished)) == 7
    assert [event.payload["kind"] for event in conversation.recorded(Opaque)] == ["SystemPromptEvent"]


@pytest.mark.requirement("OV33", "OV34")
def test_the_recorded_state_asks_for_the_approval_of_the_held_action() -> None:
    conversation = Conversation()
    conversation.hears(*frames("confirm_accept"))
    asked = conversation.recorded(ApprovalAsked)
    assert [(one.tool, one.arguments["command"]) for one in asked] == [
        ("terminal", "echo danger"),
        ("file_editor", "create"),
    ]
    assert conversation.harness.view.memory.asked == ()


@pytest.mark.requirement("OV55", "OV51")
@pytest.mark.parametrize("title", ["mcp__dragoman__ask_for_cards", "mcp.dragoman.ask_for_cards"])
def test_an_acp_call_with_late_arguments_is_one_call_linked_to_ours(title: str) -> None:
    conversation = Conversation()
    known: Any = GOOD
    if title.startswith("mcp."):
        known = {"server": "dragoman", "tool": ASK.name, "arguments": GOOD}
    start = {"tool_call_id": "tc1", "title": title, "tool_kind": "other"}
    conversation.stores("ACPToolCallEvent", **start, status="pending", raw_input={})
    made = conversation.asks()
    conversation.stores("ACPToolCallEvent", **start, status="completed", raw_input=known, raw_output="3")
    (linked,) = conversation.recorded(CallLinked)
    assert (linked.native_call_id, linked.call_id) == ("tc1", made)
    own = [one for one in conversation.recorded(ToolRequested) if one.native_call_id == "tc1"]
    assert [one.arguments for one in own] == [{}, GOOD]
    (end,) = [one for one in conversation.recorded(ToolFinished) if one.native_call_id == "tc1"]
    assert (end.outcome, end.result) == ("success", "3")
    assert conversation.harness.view.memory.open_actions() == ()


@pytest.mark.requirement("OV55")
def test_an_acp_call_is_requested_once_if_its_end_repeats_its_arguments(conversation: Conversation) -> None:
    conversation.hears(*frames("acp_tools"))
    requested = [one.native_call_id for one in conversation.recorded(ToolRequested)]
    assert requested == ["tc1", "tc1", "tc2", "tc3", "tc4"]
    assert [one.native_call_id for one in conversation.recorded(ToolFinished)] == ["tc1", "tc2", "tc4", "tc3"]


@pytest.mark.requirement("OV41")
def test_a_model_that_repeats_its_ids_makes_a_new_call_each_time(conversation: Conversation) -> None:
    made: list[str] = []
    actions: list[str] = []
    for key in ("k1", "k2"):
        actions.append(conversation.acts(call="call_0"))
        made.append(conversation.asks(key=key))
        conversation.ends(actions[-1], call="call_0")
    assert [(one.native_call_id, one.call_id) for one in conversation.recorded(CallLinked)] == list(
        zip(actions, made, strict=True)
    )
