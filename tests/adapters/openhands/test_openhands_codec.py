"""The codec of OpenHands against its vectors, the recorded conversations, hostile input, and its limits."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapters.openhands import ADAPTER
from adapters.openhands.codec import OpenHandsCodec
from adapters.openhands.options import OpenHandsOptions
from gateway.adapter.port import Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    ActionOrdered,
    Direction,
    Draft,
    Envelope,
    Event,
    EventId,
    Image,
    MessagePosted,
    Opaque,
    Origin,
    SessionId,
    SessionMoved,
    Text,
    ThoughtShared,
    ToolFinished,
    ToolRequested,
)
from gateway.strict_json import Malformed
from gateway.testing.conformance.codec import CodecSuite, load_vectors, nested

CODEC = ADAPTER.codec()
WHOLE = OpenHandsCodec(keep_prompt=True)
VECTORS = Path(__file__).parents[2] / "vectors" / "openhands"
CAPTURES = sorted((VECTORS / "captures").glob("*.jsonl"))
TIME = "2026-11-20T19:52:36.389787"


class TestOpenHandsCodec(CodecSuite):
    adapter = ADAPTER
    vectors = VECTORS
    channels = ("oh_event", "oh_user_action", "oh_action")


def recorded(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def comparable(payload: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the rules let differ: OH23 and OH26 wholly, OH25 but for the id, the prose, OH16's source."""
    kept = {key: value for key, value in payload.items() if key not in {"timeout", "llm_metrics", "message"}}
    if "tool_call_metadata" in kept:
        kept["tool_call_metadata"] = {"tool_call_id": kept["tool_call_metadata"]["tool_call_id"]}
    if kept.get("source") == "environment":
        kept["source"] = "agent"
    return kept


@pytest.mark.requirement("OH5", "OH23", "OH25", "OH26", "OH27", "OH40", "OH42")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_recorded_conversation_is_read_without_a_loss_and_written_as_it_was(path: Path) -> None:
    for payload in recorded(path):
        (draft,) = WHOLE.decode(Frame("oh_event", payload))
        assert draft.losses == ()
        encoded = WHOLE.encode(draft)
        assert encoded.losses == ()
        (frame,) = encoded.frames
        assert comparable(frame.payload) == comparable(payload)
        assert WHOLE.decode(frame)[0].event == draft.event


@pytest.mark.requirement("OH34")
def test_a_system_prompt_is_kept_as_size_and_hash_and_each_part_is_a_loss() -> None:
    prompt, tools = "You are an agent. " * 1_500, [{"name": "execute_bash"}]
    payload = {
        "id": 1,
        "timestamp": "2026-11-20T19:52:36.455772",
        "source": "agent",
        "message": prompt,
        "action": "system",
        "args": {"content": prompt, "tools": tools, "openhands_version": "0.62.0"},
    }
    (draft,) = CODEC.decode(Frame("oh_event", payload))
    assert isinstance(draft.event, Opaque)
    assert len(repr(draft.event.payload)) < 600
    assert draft.event.payload["args"]["content"]["bytes"] == len(prompt) + 2
    assert draft.event.payload["args"]["openhands_version"] == "0.62.0"
    assert [(loss.how, loss.path) for loss in draft.losses] == [
        ("narrowed", "/args/content"), ("narrowed", "/args/tools"), ("dropped", "/message"),
    ]  # fmt: skip
    (again,) = CODEC.decode(Frame("oh_event", payload | {"id": 9}))
    assert isinstance(again.event, Opaque)
    assert again.event.payload["args"] == draft.event.payload["args"]
    (whole,) = WHOLE.decode(Frame("oh_event", payload))
    assert isinstance(whole.event, Opaque)
    assert whole.event.payload["args"]["content"] == prompt
    assert whole.losses == ()


def test_a_text_beside_a_state_is_listed_as_lost() -> None:
    payload = next(one for one in recorded(CAPTURES[0]) if one.get("observation") == "agent_state_changed")
    (draft,) = CODEC.decode(Frame("oh_event", payload | {"content": "because"}))
    assert [(loss.how, loss.path) for loss in draft.losses] == [("dropped", "/content")]


@pytest.mark.requirement("OH25", "OH26")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_the_bulk_of_a_recorded_conversation_is_not_kept(path: Path) -> None:
    for payload in recorded(path):
        kept = repr(CODEC.decode(Frame("oh_event", payload)))
        assert "chatcmpl" not in kept
        assert "accumulated_cost" not in kept


def drafts_of(name: str) -> list[Draft]:
    path = next(path for path in CAPTURES if path.stem == name)
    return [draft for payload in recorded(path) for draft in CODEC.decode(Frame("oh_event", payload))]


@pytest.mark.requirement("OH17", "OH18", "OH19")
def test_an_event_is_known_by_its_id_and_time_and_twins_of_replay_and_live_are_one() -> None:
    first, second = drafts_of("basic")[:2]
    assert first.native_id == second.native_id == f"0@{TIME}"
    assert (first.native_sequence, first.native_time) == (0, TIME)


@pytest.mark.requirement("OH24", "OH25", "OH47")
def test_an_observation_names_its_action_by_its_cause_and_by_its_tool_call() -> None:
    drafts = drafts_of("mcp")
    asked, told = drafts[11], drafts[12]
    assert isinstance(asked.event, ToolRequested)
    assert isinstance(told.event, ToolFinished)
    assert told.event.native_call_id == asked.event.native_call_id == "8"
    assert told.correlation == asked.correlation == "call_77_0"


@pytest.mark.requirement("OH44")
def test_a_gated_action_comes_after_its_state_and_again_with_the_same_correlation() -> None:
    drafts = drafts_of("confirm_user_confirmed")
    at = next(place for place, draft in enumerate(drafts) if _waits(draft))
    state = drafts[at - 1].event
    assert isinstance(state, SessionMoved)
    assert state.state == "awaiting_approval"
    again = next(draft for draft in drafts[at + 1 :] if draft.correlation == drafts[at].correlation)
    assert isinstance(again.event, ToolRequested)
    assert not again.event.needs_approval
    assert again.native_id != drafts[at].native_id
    finished = next(draft.event for draft in drafts[at + 1 :] if isinstance(draft.event, ToolFinished))
    assert finished.native_call_id == again.event.native_call_id


def _waits(draft: Draft) -> bool:
    return isinstance(draft.event, ToolRequested) and draft.event.needs_approval


@pytest.mark.requirement("OH48")
def test_a_delegate_is_bracketed_by_its_thread_which_has_the_tool_calls_id() -> None:
    kinds = [draft.event.kind for draft in drafts_of("delegate")]
    sent, received = kinds.index("thread.sent"), kinds.index("thread.received")
    assert "session.moved" in kinds[sent:received]
    threads = [getattr(draft.event, "thread_id", None) for draft in drafts_of("delegate")]
    assert threads[sent] == threads[received] == "call_165_0"


@pytest.mark.requirement("OH41", "OH44", "OH53")
def test_only_what_a_client_may_have_said_is_marked_as_an_echo() -> None:
    vectors = load_vectors(VECTORS)
    echoes = {
        vector["name"]
        for vector in vectors
        if "drafts" in vector and any(draft.echo for draft in CODEC.decode(Frame(**vector["frame"])))
    }
    assert echoes == {
        "echo of a user's message",
        "the task of a delegate looks like a user's message",
        "echo of an ordered command",
        "a write that another client ordered",
        "an approval comes back",
        "a refusal comes back",
        "a stop comes back",
        "a pause comes back",
        "a resume comes back",
        "a state of a client's own invention comes back",
    }


@pytest.mark.requirement("OH2")
def test_the_name_of_the_event_that_carries_our_words_is_an_option() -> None:
    options = OpenHandsOptions(
        adapter="openhands", url="http://localhost:3000", conversation_id="c", action_event="oh_user_action"
    )
    said = Draft(MessagePosted(content=(Text(text="Hi"),)))
    assert ADAPTER.codec(options).encode(said).frames[0].channel == "oh_user_action"
    assert CODEC.encode(said).frames[0].channel == "oh_action"


def envelope(event: Event, direction: Direction, origin: Origin | None = None) -> Envelope:
    return Envelope(
        event_id=EventId("e"),
        session_id=SessionId("s"),
        sequence=7,
        recorded_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        direction=direction,
        event=event,
        origin=origin,
    )


def test_a_recorded_message_is_an_action_towards_the_runtime_and_an_event_from_it() -> None:
    event = MessagePosted(content=(Text(text="Hi"),))
    assert CODEC.encode(envelope(event, "to_runtime")).frames[0].channel == "oh_action"
    origin = Origin("openhands", "openhands/0.62", f"4@{TIME}", 4, TIME)
    payload = CODEC.encode(envelope(event, "from_runtime", origin)).frames[0].payload
    assert (payload["id"], payload["timestamp"], payload["source"]) == (4, TIME, "user")


@pytest.mark.requirement("OH25")
def test_a_recorded_event_keeps_the_id_of_its_tool_call_and_takes_none_of_another_protocol() -> None:
    for protocol, kept in (("openhands/0.62", {"tool_call_id": "call_1"}), ("other/1", None)):
        origin = Origin("a", protocol, f"4@{TIME}", 4, TIME, "call_1")
        written = CODEC.encode(envelope(ThoughtShared(text="Hm."), "from_runtime", origin)).frames[0].payload
        assert written.get("tool_call_metadata") == kept


def test_an_event_of_another_protocol_gets_the_journals_number_and_time() -> None:
    origin = Origin("herm", "herm/1", "evt-9", 9, "12:00")
    payload = CODEC.encode(envelope(SessionMoved(state="running"), "from_runtime", origin)).frames[0].payload
    assert (payload["id"], payload["timestamp"]) == (7, "2026-01-02T03:04:05.000000")


@pytest.mark.requirement("OH36")
def test_an_outcome_outlives_extras_that_no_json_can_hold() -> None:
    payload = {
        "id": 9,
        "timestamp": TIME,
        "source": "agent",
        "cause": 8,
        "observation": "browse",
        "content": "a page",
        "extras": {"dom_object": nested(100)},
    }
    (draft,) = CODEC.decode(Frame("oh_event", payload))
    assert isinstance(draft.event, ToolFinished)
    assert draft.event.outcome == "success"
    assert [(loss.how, loss.path) for loss in draft.losses] == [("dropped", "/extras")]


@pytest.mark.requirement("OH25")
@pytest.mark.parametrize("metadata", [None, 7, [], {}, {"tool_call_id": 7}, {"tool_call_id": "x" * 2_000}, "\ud800"])
def test_a_broken_tool_call_metadata_costs_nothing_but_the_correlation(metadata: Any) -> None:
    payload = {
        "id": 9,
        "timestamp": TIME,
        "source": "agent",
        "action": "think",
        "args": {"thought": "x"},
        "tool_call_metadata": metadata,
    }
    (draft,) = CODEC.decode(Frame("oh_event", payload))
    assert draft.correlation is None
    assert draft.losses == ()


@pytest.mark.requirement("OH58")
def test_a_message_passes_up_to_four_mebibytes() -> None:
    def message(size: int) -> Draft:
        return Draft(MessagePosted(content=(Image(url="x" * size),)))

    assert CODEC.encode(message(4 * 1024 * 1024 - 2048)).frames
    with pytest.raises(CannotExpress, match="4194304"):
        CODEC.encode(message(4 * 1024 * 1024))


@pytest.mark.requirement("OH55")
def test_an_order_to_write_is_refused_with_the_way_that_works() -> None:
    with pytest.raises(CannotExpress, match=r"edit.*create") as refusal:
        CODEC.encode(Draft(ActionOrdered(action="write", arguments={"path": "/a", "content": "x"})))
    assert refusal.value.path == "/action"
    for channel in ("oh_action", "oh_user_action"):
        with pytest.raises(CannotExpress):
            CODEC.encode(Draft(Opaque(channel=channel, payload={"action": "write", "args": {"path": "/a"}})))


@pytest.mark.requirement("OH54", "OH55")
def test_orders_that_spoil_a_conversation_are_for_servers_that_accept_them() -> None:
    options: dict[str, Any] = {"adapter": "openhands", "url": "http://h", "conversation": {}, "unsafe_orders": True}
    unsafe = ADAPTER.codec(ADAPTER.options.model_validate(options))
    for action, arguments in (
        ("write", {"path": "/a", "content": "x"}),
        ("run", {"command": "ls", "confirmation_state": "awaiting_confirmation"}),
        ("run_ipython", {"code": "1", "confirmation_state": "rejected"}),
    ):
        order = Draft(ActionOrdered(action=action, arguments=arguments))
        with pytest.raises(CannotExpress, match="unsafe_orders"):
            CODEC.encode(order)
        assert unsafe.encode(order).frames[0].payload == {"action": action, "args": arguments}
    for arguments in ({"path": "/a"}, {"path": "/a", "content": "x", "mode": 1}):
        with pytest.raises(CannotExpress):
            unsafe.encode(Draft(ActionOrdered(action="write", arguments=arguments)))
    with pytest.raises(CannotExpress):
        unsafe.encode(Draft(ActionOrdered(action="run", arguments={"command": "ls", "confirmation_state": "maybe"})))


def test_what_the_socket_could_not_read_is_malformed_with_its_reason() -> None:
    with pytest.raises(MalformedFrame, match="beyond 64 bits"):
        CODEC.decode(Frame("oh_event", Malformed("an integer is beyond 64 bits", "{")))


@pytest.mark.requirement("OH56")
def test_an_order_that_is_no_json_is_refused() -> None:
    with pytest.raises(CannotExpress):
        CODEC.encode(Draft(ActionOrdered(action="run", arguments={"command": "\ud800"})))
