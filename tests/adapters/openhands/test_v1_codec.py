"""The codec of OpenHands V1 against its vectors, the recorded conversations, hostile input, and its limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.openhands.v1 import ADAPTER, wire
from adapters.openhands.v1.capabilities import CAPABILITIES
from adapters.openhands.v1.codec import OpenHandsV1Codec
from gateway.adapter.port import Frame, McpCall
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    Direction,
    Draft,
    Envelope,
    EventId,
    Loss,
    MessagePosted,
    Opaque,
    Origin,
    SessionId,
    SessionMoved,
    Text,
    ThoughtShared,
    ToolFinished,
    ToolRequested,
    TurnSteered,
)
from gateway.events.frozen import replace
from gateway.links import json as link_json
from gateway.strict_json import Malformed
from gateway.testing.conformance.codec import CodecSuite, load_vectors, nested

CODEC = OpenHandsV1Codec()
VECTORS = Path(__file__).parents[2] / "vectors" / "openhands_v1"
CAPTURES = sorted((VECTORS / "captures").glob("*.jsonl"))
ID = "1fd57aae-ca74-489c-a17b-ffba3afac1a5"
TIME = "2026-11-22T07:10:37.953716"
CANARY = "canary-horse-battery-staple"
EXPECTED_LOSSES = {
    "SystemPromptEvent": {"/system_prompt", "/tools"},
    "AgentErrorEvent": {"/classification"},
    "ACPToolCallEvent": {"/content"},
}
"""What the codec leaves out of the recordings, by kind."""


class TestOpenHandsV1Codec(CodecSuite):
    adapter = ADAPTER
    vectors = VECTORS
    channels = (wire.EVENTS, wire.SESSION, *wire.POST_PATHS)


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def event_of(line: dict[str, Any]) -> dict[str, Any]:
    payload: dict[str, Any] = line["payload"]
    return payload.get("event", payload)


def event(kind: str, **members: Any) -> dict[str, Any]:
    return {"kind": kind, "id": ID, "timestamp": TIME, "source": "agent", **members}


def call(**members: Any) -> dict[str, Any]:
    return event("ActionEvent", tool_name="ask", tool_call_id="c", **members)


def durable(native: dict[str, Any], sequence: int = 7) -> Frame:
    return Frame(wire.SESSION, {"type": "durable", "seq": sequence, "event": native})


@pytest.mark.requirement("OV8", "OV11", "OV22", "OV27", "OV38", "OV39", "OV54", "OV55", "OV57")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_recorded_conversation_is_read_without_an_unexpected_loss_and_written_as_the_same_events(path: Path) -> None:
    kinds: set[str] = set()
    for line in recorded(path):
        for draft in CODEC.decode(Frame(line["channel"], line["payload"])):
            lost = {loss.path for loss in draft.losses}
            assert lost <= EXPECTED_LOSSES.get(event_of(line).get("kind", ""), set()), line
            encoded = CODEC.encode(draft)
            assert encoded.losses == ()
            (frame,) = encoded.frames
            again = [one for one in CODEC.decode(frame) if one.event.kind == draft.event.kind]
            assert [one.event for one in again] == [draft.event]
            kinds.add(draft.event.kind)
    assert {"message.posted", "tool.requested", "session.moved"} <= kinds


@pytest.mark.requirement("OV11", "OV22", "OV23")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_stored_event_gives_equal_drafts_from_both_sockets_except_for_its_sequence(path: Path) -> None:
    compared = 0
    for line in recorded(path):
        if line["channel"] == wire.SESSION and line["payload"].get("type") == "durable":
            inside = line["payload"]
            session = CODEC.decode(Frame(wire.SESSION, inside))
            bare = CODEC.decode(Frame(wire.EVENTS, inside["event"]))
            assert [one.native_sequence for one in session if not one.live] == [inside["seq"]] * sum(
                not one.live for one in session
            )
            assert tuple(replace(one, native_sequence=None) for one in session) == bare
            compared += 1
    assert compared > 10


def test_every_vector_of_the_events_socket_gives_equal_drafts_inside_an_envelope() -> None:
    for vector in load_vectors(VECTORS):
        if "drafts" in vector and vector["frame"]["channel"] == wire.EVENTS and "kind" in vector["frame"]["payload"]:
            native = vector["frame"]["payload"]
            session = CODEC.decode(durable(native))
            assert tuple(replace(one, native_sequence=None) for one in session) == CODEC.decode(
                Frame(wire.EVENTS, native)
            )


@pytest.mark.requirement("OV22")
def test_each_stored_event_of_the_recordings_has_its_own_native_ids() -> None:
    for path in CAPTURES:
        seen: dict[str, str] = {}
        for line in recorded(path):
            if line["channel"] == wire.SESSION and line["payload"].get("type") == "durable":
                for draft in CODEC.decode(Frame(wire.SESSION, line["payload"])):
                    if not draft.live and draft.event.kind != "tool.requested":
                        assert draft.native_id is not None
                        assert seen.setdefault(draft.native_id, event_of(line)["id"]) == event_of(line)["id"]


@pytest.mark.requirement("OV34", "OV22", "OV8")
def test_a_snapshot_is_live_has_no_id_and_is_written_as_a_snapshot() -> None:
    for line in (line for path in CAPTURES for line in recorded(path) if event_of(line).get("key") == "full_state"):
        (draft,) = CODEC.decode(Frame(line["channel"], line["payload"]))
        assert isinstance(draft.event, SessionMoved)
        assert draft.live
        assert draft.native_id is None
        (frame,) = CODEC.encode(draft).frames
        assert wire.is_full_state(frame.payload)


@pytest.mark.requirement("OV54")
def test_the_resume_secret_of_an_acp_agent_is_in_no_draft_and_in_no_encoded_frame() -> None:
    state = event("ConversationStateUpdateEvent", key="agent_state", value={"acp_session_id": CANARY, "more": [CANARY]})
    whole = {"execution_status": "idle", "agent_state": {"acp_session_id": CANARY}}
    snapshot = event("ConversationStateUpdateEvent", key="full_state", value=whole)
    for native in (state, snapshot):
        native["value"].pop("more", None)
        for frame in (Frame(wire.EVENTS, native), durable(native)):
            (draft,) = CODEC.decode(frame)
            assert CANARY not in repr(draft)
            assert CANARY not in repr(CODEC.encode(draft))


@pytest.mark.requirement("OV5", "OV45")
@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (wire.EVENTS, {"type": "auth", "session_api_key": CANARY}),
        (wire.SESSION, {"type": "auth", "session_api_key": CANARY}),
        (wire.EVENTS, event("GlowEvent", llm={"api_key": CANARY}, mcp=[{"headers": {"Authorization": CANARY}}])),
        (wire.SESSION, {"type": "presence", "Password": CANARY, "github_token": CANARY}),
        ("POST secrets", {"token": CANARY}),
    ],
)
def test_keys_in_messages_without_an_equivalent_are_masked(channel: str, payload: dict[str, Any]) -> None:
    assert CANARY not in repr(CODEC.decode(Frame(channel, payload)))


@pytest.mark.requirement("OV18", "OV46")
def test_a_long_system_prompt_is_kept_as_size_hash_and_at_most_200_names() -> None:
    tools = [{"title": f"tool_{number}", "description": "d" * 1_000} for number in range(500)]
    (draft,) = CODEC.decode(
        Frame(wire.EVENTS, event("SystemPromptEvent", system_prompt={"text": "x" * 30_000}, tools=tools))
    )
    assert isinstance(draft.event, Opaque)
    assert draft.event.payload["tools"]["titles"] == [f"tool_{number}" for number in range(200)]
    assert draft.event.payload["system_prompt"]["bytes"] > 30_000
    assert len(json.dumps(draft.event.payload)) < 5_000
    # What was shortened once stays as it is.
    (again,) = CODEC.decode(CODEC.encode(draft).frames[0])
    assert again.event == draft.event


@pytest.mark.requirement("OV38")
@pytest.mark.parametrize(
    "arguments", ["{", "[]", "7", '{"a": NaN}', '{"n": 1e999}', "\\", "", f'{{"a": {"[" * 90}{"]" * 90}}}']
)
def test_a_call_that_the_server_could_not_use_is_a_call_without_arguments(arguments: str) -> None:
    (draft,) = CODEC.decode(Frame(wire.EVENTS, call(tool_call={"name": "ask", "arguments": arguments})))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.arguments == {}
    assert [(loss.how, loss.path) for loss in draft.losses] == [("dropped", "/tool_call/arguments")]


@pytest.mark.requirement("OV41", "OV38")
def test_a_call_and_its_ends_share_the_models_id_as_their_correlation() -> None:
    ends = [
        event(
            "ObservationEvent",
            tool_name="ask",
            tool_call_id="c",
            action_id=ID,
            observation={"kind": "MCPToolObservation"},
        ),
        event("AgentErrorEvent", tool_name="ask", tool_call_id="c", error="x"),
        event("UserRejectObservation", tool_name="ask", tool_call_id="c", action_id=ID),
    ]
    drafts = [CODEC.decode(Frame(wire.EVENTS, native))[0] for native in (call(), *ends)]
    assert [draft.correlation for draft in drafts] == ["c"] * 4
    assert [draft.event.native_call_id for draft in drafts if isinstance(draft.event, ToolFinished)] == [ID, "", ID]


@pytest.mark.requirement("OV38", "OV10")
def test_native_times_are_kept_word_for_word() -> None:
    (draft,) = CODEC.decode(Frame(wire.EVENTS, call(timestamp="2026-11-22T07:10:37")))
    assert draft.native_time == "2026-11-22T07:10:37"
    (frame,) = CODEC.encode(draft).frames
    assert frame.payload["timestamp"] == "2026-11-22T07:10:37"


@pytest.mark.requirement("OV55")
def test_an_acp_call_gives_its_request_once_per_arguments_and_its_end_once() -> None:
    def drafts(status: str, native_id: str, raw_input: Any = None) -> tuple[Draft, ...]:
        native = event("ACPToolCallEvent", tool_call_id="tc", title="mcp__dragoman__ask", status=status)
        return CODEC.decode(Frame(wire.EVENTS, {**native, "id": native_id, "raw_input": raw_input}))

    (start,) = drafts("pending", "1", {"a": 1, "b": 2})
    asked, end = drafts("completed", "2", {"b": 2, "a": 1})
    other, _ = drafts("completed", "2", {"a": 2})
    assert start.native_id == asked.native_id != other.native_id
    assert start.event == asked.event
    assert (end.event.kind, end.native_id) == ("tool.finished", "2")
    assert {draft.correlation for draft in (start, asked, end, other)} == {"tc"}


@pytest.mark.requirement("OV47", "OV51", "OV55")
@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ("ask", "ask"),
        ("dragoman_ask", "dragoman_ask"),
        ("mcp__dragoman__ask", "mcp__dragoman__ask"),
        ("mcp.dragoman.ask", "dragoman_ask"),
        ("terminal", None),
        ("think", None),
        ("acp.execute", None),
    ],
)
def test_the_mcp_tool_of_an_action_is_named_with_or_without_its_server(tool: str, named: str | None) -> None:
    assert CODEC.mcp_call(tool, {"a": 1}) == (None if named is None else McpCall(named, {"a": 1}))


@pytest.mark.requirement("OV59", "OV30")
def test_a_hint_joins_the_running_turn_or_replaces_it() -> None:
    hint = Draft(TurnSteered(text="faster"))
    assert CODEC.encode(hint).frames[0].payload["run"] is False
    assert OpenHandsV1Codec(steering_runs=True).encode(hint).frames[0].payload["run"] is True


@pytest.mark.requirement("OV29")
def test_the_echo_of_a_message_has_its_text_and_is_marked() -> None:
    said = MessagePosted(content=(Text(text="one"), Text(text="two")))
    (sent,) = CODEC.encode(Draft(said)).frames
    message = {"role": "user", "content": sent.payload["content"]}
    (heard,) = CODEC.decode(Frame(wire.EVENTS, event("MessageEvent", source="user", llm_message=message)))
    assert heard.echo
    assert heard.event == said
    assert not CODEC.decode(sent)[0].echo


@pytest.mark.requirement("OV28", "OV20")
def test_a_message_above_the_limit_of_the_server_is_refused() -> None:
    largest = wire.FRAME_BYTES - len('{"role":"user","content":[{"type":"text","text":""}],"run":true}')
    assert CODEC.encode(Draft(MessagePosted(content=(Text(text="x" * largest),)))).frames
    with pytest.raises(CannotExpress, match="accepts 16777216 bytes"):
        CODEC.encode(Draft(MessagePosted(content=(Text(text="x" * (largest + 1)),))))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_text_that_json_cannot_express_is_refused_in_both_directions(text: str) -> None:
    said = MessagePosted(content=(Text(text=text),))
    moved = SessionMoved(state="running", native_state=text)
    for draft in (
        Draft(said),
        Draft(said, native_id=ID),
        Draft(TurnSteered(text=text)),
        Draft(moved),
        Draft(moved, live=True),
    ):
        with pytest.raises(CannotExpress):
            CODEC.encode(draft)
    with pytest.raises(MalformedFrame):
        CODEC.decode(Frame(wire.POST_MESSAGE, {"role": "user", "content": [{"type": "text", "text": text}]}))


@pytest.mark.parametrize("value", [float("nan"), 2**70, b"x", nested(90)])
def test_what_is_no_json_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(MalformedFrame) as refusal:
        CODEC.decode(durable(call(action={"kind": "MCPToolAction", "data": {"n": value}})))
    assert refusal.value.path.startswith("/event/action/data/n")
    with pytest.raises(CannotExpress):
        CODEC.encode(Draft(ToolRequested(native_call_id="c", tool="ask", arguments={"n": value}, runs_in="runtime")))


def test_what_a_link_could_not_read_is_malformed_with_its_reason() -> None:
    with pytest.raises(MalformedFrame, match="beyond 64 bits"):
        CODEC.decode(Frame(wire.SESSION, Malformed("an integer is beyond 64 bits", "{")))


def test_a_frame_that_a_link_has_parsed_gives_the_same_drafts() -> None:
    for path in CAPTURES:
        for line in recorded(path):
            payload, written = link_json.read_frame(json.dumps(line["payload"]))
            parsed = CODEC.decode(Frame(line["channel"], payload, written=written))
            assert parsed == CODEC.decode(Frame(line["channel"], line["payload"]))


def recorded_event(draft: Draft, direction: Direction) -> Envelope:
    origin = Origin("openhands-v1", wire.PROTOCOL, draft.native_id, draft.native_sequence, draft.native_time)
    return Envelope(
        event_id=EventId("01ABC"),
        session_id=SessionId("ses_1"),
        sequence=9,
        recorded_at=None,  # type: ignore[arg-type] # a frame must not contain it
        direction=direction,
        event=draft.event,
        origin=replace(origin, correlation=draft.correlation),
    )


def test_a_recorded_event_is_shown_as_it_came() -> None:
    for path in CAPTURES:
        for line in recorded(path):
            for draft in CODEC.decode(Frame(line["channel"], line["payload"])):
                if not draft.live and not line["sent"]:
                    shown = CODEC.encode(recorded_event(draft, "from_runtime"))
                    assert shown == CODEC.encode(draft)


def test_a_message_of_another_client_is_written_as_that_client_posts_it() -> None:
    posted = Draft(MessagePosted(content=(Text(text="Hi"),)), native_id=ID, echo=True)
    (frame,) = CODEC.encode(recorded_event(posted, "to_runtime")).frames
    assert frame.channel == wire.POST_MESSAGE
    assert CODEC.encode(posted).frames[0].channel == wire.EVENTS


def test_a_live_thought_is_written_as_a_piece_and_a_recorded_one_as_an_action() -> None:
    live, whole = (CODEC.encode(Draft(ThoughtShared(text="x"), live=live)).frames[0] for live in (True, False))
    assert live.payload["kind"] == "StreamingDeltaEvent"
    assert whole.payload["action"] == {"thought": "x", "kind": "ThinkAction"}


def test_an_outcome_whose_form_the_server_has_not_lists_what_differs() -> None:
    outcome = ToolFinished(native_call_id=ID, tool="add", outcome="expired", error="late", unknown=True)
    losses = CODEC.encode(Draft(outcome, native_id=ID)).losses
    assert [(loss.how, loss.path) for loss in losses] == [("narrowed", "/outcome"), ("narrowed", "/unknown")]
    assert all(isinstance(loss, Loss) for loss in losses)


@pytest.mark.requirement("OV2", "OV1")
@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"version": "1.58.2", "sdk_version": "1.58.2"}, (1, 58)),
        ({"version": "1.23.0", "usable_tools": []}, (1, 23)),
        ({"version": "1.0.0a6", "usable_tools": []}, (1, 0)),
        ({"version": "2.7", "sdk_version": "x"}, (2, 7)),
        ({"version": "dev", "sdk_version": "x"}, None),
        ({"version": "٣.٤", "sdk_version": "x"}, None),
        ({"version": "1" * 400 + ".2", "sdk_version": "x"}, None),
        ({"version": "1.58.2"}, None),
        ({"uptime": 1, "resources": {}}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_version_of_a_server_is_read_or_unknown(info: Any, version: tuple[int, int] | None) -> None:
    assert wire.version_of(info) == version


@pytest.mark.requirement("OV49")
def test_a_call_of_our_tool_is_answered_before_the_runtime_gives_up() -> None:
    assert CAPABILITIES.mcp_hold is not None
    assert CAPABILITIES.mcp_hold.total_seconds() < 300
