"""The codec of Herm against its vectors, against hostile input, and against its limits."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st
from pydantic import SecretStr

from adapters.herm import ADAPTER
from adapters.herm.content import split_text
from gateway.adapter.port import Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    ContextUpdate,
    Draft,
    Envelope,
    EventId,
    MessagePosted,
    MessageStreamed,
    Opaque,
    QuestionAnswered,
    SecretSupplied,
    SessionId,
    Text,
    ThoughtShared,
    ToolFinished,
    ToolRequested,
)
from gateway.strict_json import Malformed, utf16_length
from gateway.testing.conformance.codec import CodecSuite, nested

CODEC = ADAPTER.codec()
CANARY = "canary-horse-battery-staple"


class TestHermCodec(CodecSuite):
    adapter = ADAPTER
    vectors = Path(__file__).parents[2] / "vectors" / "herm"
    channels = ("stream", "events")
    derived = frozenset({"call_id", "tool"})


def envelope(payload: dict[str, Any], **more: Any) -> Frame:
    wrapped = {"id": "evt_1", "type": payload["type"], "sequence": 1, "payload": payload}
    return Frame("stream", {**wrapped, **more})


def posted(*texts: str) -> Draft:
    return Draft(MessagePosted(content=tuple(Text(text=text) for text in texts)))


def finished(result: Any, **more: Any) -> Draft:
    return Draft(ToolFinished(native_call_id="c", outcome="success", result=result, **more))


def texts_of(draft: Draft) -> list[str]:
    return [block["text"] for block in CODEC.encode(draft).frames[0].payload["content"]]


@pytest.mark.requirement("H16", "H-aa")
@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("x" * 20_000, 1),
        ("x" * 20_001, 2),
        ("🂡" * 10_000, 1),
        ("🂡" * 10_001, 2),
        ("x" + "🂡" * 10_000, 2),
        ("é" * 40_001, 3),
    ],
)
def test_a_long_text_is_split_at_20000_utf16_units_and_never_inside_a_character(text: str, blocks: int) -> None:
    encoded = CODEC.encode(posted(text))
    pieces = texts_of(posted(text))
    assert len(pieces) == blocks
    assert "".join(pieces) == text
    assert all(utf16_length(piece) <= 20_000 for piece in pieces)
    assert [loss.how for loss in encoded.losses] == (["narrowed"] if blocks > 1 else [])


@given(text=st.text(st.sampled_from("aé🂡")), length=st.integers(2, 7))
def test_pieces_of_a_text_join_to_the_text_and_keep_their_length(text: str, length: int) -> None:
    pieces = split_text(text, length)
    assert "".join(pieces) == text
    assert all(0 < utf16_length(piece) <= length for piece in pieces)


@pytest.mark.requirement("H15", "H-aa")
def test_what_needs_more_than_100_blocks_is_refused() -> None:
    assert len(texts_of(posted("x" * 2_000_000))) == 100
    assert len(texts_of(posted(*["x"] * 100))) == 100
    for beyond in (posted("x" * 2_000_001), posted("x" * 20_001, *["y"] * 99), posted(*["x"] * 101)):
        with pytest.raises(CannotExpress) as refusal:
            CODEC.encode(beyond)
        assert refusal.value.path == "/content"


@pytest.mark.requirement("H29", "H-aa")
def test_a_result_and_its_updates_share_the_100_blocks() -> None:
    update = ContextUpdate(name="n", context={"a": 1})
    assert len(texts_of(finished("x" * 1_980_000, updates=(update,)))) == 100
    with pytest.raises(CannotExpress) as refusal:
        CODEC.encode(finished("x" * 2_000_000, updates=(update,)))
    assert refusal.value.path == "/result"


@pytest.mark.requirement("H29")
@pytest.mark.parametrize(
    ("result", "path"),
    [
        (math.nan, "/result"),
        ({"a": [1, math.inf]}, "/result/a/1"),
        ({"a": b"bytes"}, "/result/a"),
        (2**64, "/result"),
        ("\ud800", "/result"),
        (nested(80), "/result"),
    ],
)
def test_a_result_that_is_not_plain_json_is_refused_by_its_place(result: Any, path: str) -> None:
    with pytest.raises(CannotExpress) as refusal:
        CODEC.encode(finished(result))
    assert refusal.value.path.startswith(path)


@pytest.mark.requirement("H29")
@pytest.mark.parametrize("result", [0, False, [], {}, [None], "  ", "text", {"a": {"b": [1.5]}}])
def test_a_result_is_told_as_it_is_or_as_compact_json(result: Any) -> None:
    (text,) = texts_of(finished(result))
    assert text == (result if isinstance(result, str) else orjson.dumps(result).decode())


@pytest.mark.requirement("H50", "H49")
@pytest.mark.parametrize("given_input", ["text", 7, True, [1], {"n": math.nan}, {"b": b"x"}, {"d": nested(80)}])
def test_a_call_with_an_id_is_a_call_with_a_problem_whatever_its_input_is(given_input: Any) -> None:
    payload = {"type": "agent.custom_tool_use", "id": "c", "tool": "t", "input": given_input}
    (draft,) = CODEC.decode(envelope(payload, sequence={}, createdAt=b"bytes", odd=math.nan))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.problem
    assert draft.event.arguments == {}


def test_a_call_keeps_its_id_when_a_field_nobody_asked_for_is_unspeakable() -> None:
    payload: dict[str, Any] = {"type": "agent.custom_tool_use", "id": "c", "tool": "t", "input": {}, "\ud800": 1}
    (draft,) = CODEC.decode(envelope(payload, id="\udfff"))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.problem is None
    assert draft.native_id is None


@pytest.mark.requirement("H6", "H57", "H24", "H28")
def test_the_answer_to_a_call_names_the_id_inside_the_payload_and_not_the_envelopes() -> None:
    (draft,) = CODEC.decode(
        envelope({"type": "agent.custom_tool_use", "id": "custom_toolu_1", "tool": "t", "input": {}})
    )
    assert isinstance(draft.event, ToolRequested)
    assert draft.native_id == "evt_1"
    answer = ToolFinished(native_call_id=draft.event.native_call_id, outcome="success", result="x")
    assert CODEC.encode(Draft(answer)).frames[0].payload["tool_use_id"] == "custom_toolu_1"


def test_only_a_clients_event_in_a_list_or_stream_is_taken_for_an_echo() -> None:
    message = {"type": "user.message", "content": [{"type": "text", "text": "Hi"}]}
    agents = {"type": "agent.message", "content": [{"type": "text", "text": "Hi"}], "delta": False}
    unknown = {"type": "user.new_thing"}
    assert [CODEC.decode(envelope(p))[0].echo for p in (message, agents, unknown)] == [True, False, True]
    assert not CODEC.decode(Frame("events", message))[0].echo


@pytest.mark.requirement("H40", "H41", "H42", "H38")
def test_pieces_and_titles_are_live_and_wholes_are_not() -> None:
    said = {
        ("agent.message", True): True,
        ("agent.message", False): False,
        ("agent.thinking", True): True,
        ("agent.thinking", False): False,
    }
    for (kind, delta), is_live in said.items():
        payload = {"type": kind, "content": [{"type": "text", "text": "x"}], "delta": delta}
        assert CODEC.decode(envelope(payload))[0].live is is_live
    assert CODEC.decode(envelope({"type": "session.title_updated", "title": "T"}))[0].live


def test_a_live_event_without_an_id_has_none() -> None:
    frame = Frame(
        "stream", {"type": "session.title_updated", "payload": {"type": "session.title_updated", "title": "T"}}
    )
    (draft,) = CODEC.decode(frame)
    assert (draft.native_id, draft.native_sequence, draft.native_time) == (None, None, None)


def test_a_tool_use_that_waits_says_two_things_under_two_keys() -> None:
    payload: dict[str, Any] = {
        "type": "agent.tool_use",
        "id": "t1",
        "tool": "terminal",
        "input": {},
        "requires_action": True,
    }
    first, second = CODEC.decode(envelope(payload, createdAt="2026-06-20T23:28:02Z"))
    assert (first.native_id, second.native_id) == ("evt_1", "evt_1#approval")
    assert first.native_sequence == second.native_sequence == 1
    assert first.native_time == second.native_time == "2026-06-20T23:28:02Z"
    # The approval is asked by the tool use itself.
    assert CODEC.encode(second).frames == ()


@pytest.mark.requirement("H32")
def test_an_empty_answer_is_sent_as_an_empty_answer() -> None:
    (frame,) = CODEC.encode(Draft(QuestionAnswered(id="q", answer=""))).frames
    assert frame.payload == {"type": "user.clarify_result", "request_id": "q", "answer": ""}


@pytest.mark.requirement("H33", "H34")
@pytest.mark.parametrize(("purpose", "field"), [("sudo", "password"), ("secret", "value")])
def test_a_secret_is_in_the_frame_and_in_no_representation_of_it(purpose: Any, field: str) -> None:
    event = SecretSupplied(id="s", purpose=purpose, value=SecretStr(CANARY))
    (frame,) = CODEC.encode(Draft(event)).frames
    assert frame.payload[field] == CANARY
    assert CANARY in orjson.dumps(frame.payload).decode()
    assert CANARY not in repr(frame)
    assert CANARY not in f"{frame.payload}"


def test_a_secret_that_cannot_be_said_is_refused_without_quoting_it() -> None:
    with pytest.raises(CannotExpress) as refusal:
        CODEC.encode(Draft(SecretSupplied(id="s", value=SecretStr(CANARY + "\ud800"))))
    assert CANARY not in repr(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


def test_what_the_stream_could_not_read_is_malformed_with_its_reason() -> None:
    with pytest.raises(MalformedFrame, match="beyond 64 bits"):
        CODEC.decode(Frame("stream", Malformed("an integer is beyond 64 bits", "{")))


def recorded(event: Any, direction: Any) -> Envelope:
    return Envelope(
        event_id=EventId("01ABC"),
        session_id=SessionId("ses_1"),
        sequence=9,
        recorded_at=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        direction=direction,
        event=event,
    )


def test_what_a_runtime_said_is_shown_in_an_envelope_of_its_own() -> None:
    event = ToolFinished(native_call_id="c", tool="terminal", outcome="success", result="x")
    (frame,) = CODEC.encode(recorded(event, "from_runtime")).frames
    assert frame.channel == "stream"
    assert {key: value for key, value in frame.payload.items() if key != "payload"} == {
        "id": "01ABC",
        "type": "agent.tool_result",
        "sessionId": "ses_1",
        "sequence": 9,
        "status": "complete",
        "createdAt": "2026-01-02T03:04:05.678Z",
    }
    (frame,) = CODEC.encode(recorded(event, "to_runtime")).frames
    assert (frame.channel, frame.payload["type"]) == ("events", "user.custom_tool_result")


def test_a_message_that_came_back_is_shown_again_as_it_came() -> None:
    frame = envelope({"type": "user.message", "content": [{"type": "text", "text": "Hi"}]}, status="complete")
    (draft,) = CODEC.decode(frame)
    assert CODEC.encode(draft).frames == (frame,)


def test_pieces_are_written_as_pieces_and_records_as_wholes() -> None:
    thought = ThoughtShared(text="x")
    assert CODEC.encode(Draft(thought, live=True)).frames[0].payload["payload"]["delta"] is True
    assert CODEC.encode(Draft(thought)).frames[0].payload["payload"]["delta"] is False
    assert CODEC.encode(Draft(MessageStreamed(text="x"), live=True)).frames[0].payload["payload"]["delta"] is True


def test_an_opaque_event_of_a_later_version_passes_and_a_known_one_does_not() -> None:
    later: dict[str, Any] = {"type": "user.define_outcome", "outcome": {}}
    assert CODEC.encode(Draft(Opaque(channel="events", payload=later))).frames == (Frame("events", later),)
    for known in ({"type": "user.secret_result", "request_id": "r", "value": "v"}, {"type": "agent.message"}):
        with pytest.raises(CannotExpress):
            CODEC.encode(Draft(Opaque(channel="events", payload=known)))


def test_an_id_without_end_is_refused_in_both_directions() -> None:
    with pytest.raises(MalformedFrame):
        CODEC.decode(envelope({"type": "agent.custom_tool_use", "id": "c" * 1025, "tool": "t"}))
    with pytest.raises(CannotExpress):
        CODEC.encode(Draft(ToolFinished(native_call_id="c" * 1025, outcome="success")))


@pytest.mark.parametrize(("field", "path"), [("id", "/payload/id"), ("tool", "/payload/tool")])
def test_a_call_whose_name_cannot_be_said_is_malformed_there(field: str, path: str) -> None:
    payload: dict[str, Any] = {"type": "agent.custom_tool_use", "id": "c", "tool": "t", "input": {}, field: "\ud800"}
    with pytest.raises(MalformedFrame) as refusal:
        CODEC.decode(envelope(payload))
    assert refusal.value.path == path


def test_a_result_that_does_not_wake_is_written_with_a_loss_in_both_directions() -> None:
    event = ToolFinished(native_call_id="c", tool="terminal", outcome="success", result="x", wakes_agent=False)
    for direction in ("from_runtime", "to_runtime"):
        losses = CODEC.encode(recorded(event, direction)).losses
        assert [(loss.how, loss.path) for loss in losses] == [("narrowed", "/wakes_agent")]
