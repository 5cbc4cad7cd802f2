"""The codec of HUMA 0.2.0 against its vectors, against hostile input, and against its limits."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from adapters.huma import HUMA_0_1, HUMA_0_2 as ADAPTER
from gateway.adapter.port import Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    ContextUpdated,
    Draft,
    Envelope,
    EventId,
    Image,
    MessagePosted,
    Opaque,
    SessionId,
    Text,
    ToolFinished,
    ToolRequested,
)
from gateway.strict_json import Malformed
from gateway.testing.conformance.codec import CodecSuite, nested

CODEC = ADAPTER.codec()


class TestHumaCodec(CodecSuite):
    adapter = ADAPTER
    vectors = Path(__file__).parents[1] / "vectors" / "huma_v0_2"


def finished(result: Any) -> Draft:
    return Draft(ToolFinished(native_call_id="c", tool="t", outcome="success", result=result))


@pytest.mark.requirement("N31", "N85", "A10")
def test_a_result_passes_at_exactly_65536_utf16_units_of_json_and_not_one_beyond() -> None:
    # Two quotes belong to the JSON of a text, and an emoji is two units.
    for fits in ("x" * 65_534, "🎴" * 32_767, "é" * 65_534):
        assert CODEC.encode(finished(fits)).frames[0].payload["result"] == fits
    for beyond in ("x" * 65_535, "🎴" * 32_767 + "x", "é" * 65_535):
        with pytest.raises(CannotExpress) as refusal:
            CODEC.encode(finished(beyond))
        assert refusal.value.path == "/result"


@pytest.mark.requirement("N30", "A37", "A12")
@pytest.mark.parametrize(
    ("result", "path"),
    [
        (math.nan, "/result"),
        ({"a": [1, math.inf]}, "/result/a/1"),
        ({"a": b"bytes"}, "/result/a"),
        ({"a/b~": {1: 2}}, "/result/a~1b~0"),
        ({"n": [2**64]}, "/result/n/0"),
        ({"n": [-(2**63) - 1]}, "/result/n/0"),
        ("\ud800", "/result"),
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "/result/x"),
    ],
)
def test_a_result_that_is_not_plain_json_is_refused_by_its_place(result: Any, path: str) -> None:
    with pytest.raises(CannotExpress) as refusal:
        CODEC.encode(finished(result))
    assert refusal.value.path == path


@pytest.mark.requirement("A12")
def test_nesting_passes_at_64_levels_and_not_at_65() -> None:
    assert CODEC.encode(finished(nested(63)))
    with pytest.raises(CannotExpress):
        CODEC.encode(finished(nested(64)))


@pytest.mark.requirement("A12", "N9")
def test_a_forbidden_key_is_found_in_a_large_value_and_a_forbidden_word_is_not_one() -> None:
    large: dict[str, Any] = {f"key {n}": ["constructor", None] for n in range(5_000)}
    assert CODEC.encode(Draft(ContextUpdated(name="n", context=large)))
    with pytest.raises(CannotExpress):
        CODEC.encode(Draft(ContextUpdated(name="n", context={**large, "last": [{"prototype": 1}]})))


@pytest.mark.requirement("N43", "N56")
@pytest.mark.parametrize("arguments", ["text", 7, True, [1], {"n": math.nan}, {"b": b"x"}, {"d": nested(80)}])
def test_a_call_with_an_id_is_a_call_with_a_problem_whatever_its_arguments_are(arguments: Any) -> None:
    payload = {"type": "tool-call", "toolCallId": "c", "toolName": "t", "arguments": arguments}
    (draft,) = CODEC.decode(Frame("event", payload))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.problem
    assert draft.event.arguments == {}


def test_a_call_keeps_its_id_when_a_field_nobody_asked_for_is_unspeakable() -> None:
    payload: dict[str, Any] = {"type": "tool-call", "toolCallId": "c", "toolName": "t", "arguments": {}, "\ud800": 1}
    (draft,) = CODEC.decode(Frame("event", payload))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.problem is None
    assert [loss.how for loss in draft.losses] == ["dropped"]
    (draft,) = CODEC.decode(Frame("event", {**payload, "extra": b"bytes"}))
    assert isinstance(draft.event, ToolRequested)


def test_many_unknown_fields_are_listed_up_to_a_bound() -> None:
    payload = {"type": "error", "message": "m", **{f"field {n}": n for n in range(1_000)}}
    (draft,) = CODEC.decode(Frame("error", payload))
    assert len(draft.losses) == 33
    assert "968 more" in draft.losses[-1].note


def test_what_the_socket_could_not_read_is_malformed_with_its_reason() -> None:
    with pytest.raises(MalformedFrame, match="beyond 64 bits"):
        CODEC.decode(Frame("event", Malformed("an integer is beyond 64 bits", "{")))


@pytest.mark.requirement("A8")
@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
def test_an_image_of_a_known_type_passes_up_to_four_megabytes(kind: str) -> None:
    head = f"data:image/{kind};base64,"
    largest = 4 * 1024 * 1024 * 4 // 3 - len(head)
    for length, passes in ((largest, True), (largest + 8, False)):
        message = MessagePosted(message_id="m", content=(Image(url=head + "A" * length),))
        update = Draft(ContextUpdated(name="n", context={}, message=message))
        if passes:
            assert CODEC.encode(update).frames
        else:
            with pytest.raises(CannotExpress) as refusal:
                CODEC.encode(update)
            assert refusal.value.path == "/message/content/0/url"


def test_a_message_without_an_id_gets_the_same_one_on_every_repeat() -> None:
    event = ContextUpdated(name="n", context={}, message=MessagePosted(content=(Text(text="Hi"),)))
    envelope = Envelope(
        event_id=EventId("01ABC"),
        session_id=SessionId("s"),
        sequence=1,
        recorded_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        direction="to_runtime",
        event=event,
    )
    once, again = CODEC.encode(envelope), CODEC.encode(envelope)
    assert once == again
    assert once.frames[0].payload["context"]["message"]["id"] == "01ABC"
    assert once.frames[0].payload["context"]["message"]["createdAt"] == "2026-01-02T03:04:05Z"
    assert CODEC.encode(Draft(event)) == CODEC.encode(Draft(event))


@pytest.mark.requirement("N9", "N86", "A12")
@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
@pytest.mark.parametrize("member", ["context", "data"])
def test_a_forbidden_key_is_refused_only_in_the_records_that_the_document_names(key: str, member: str) -> None:
    for payload in ({"type": "new", member: {"a": [{key: 1}]}}, {"type": "new", member: {key: 1}}):
        with pytest.raises(CannotExpress):
            CODEC.encode(Draft(Opaque(channel="message", payload=payload)))
    elsewhere = {"type": "new", "x": {key: 1}, key: {member: 1}, member: [key]}
    assert CODEC.encode(Draft(Opaque(channel="message", payload=elsewhere))).frames[0].payload == elsewhere
    from_server = {"type": "new", member: {key: 1}}
    assert CODEC.encode(Draft(Opaque(channel="event", payload=from_server))).frames[0].payload == from_server


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype", "message", "a/b", "a~b", "", "x" * 129])
def test_a_key_that_a_context_cannot_have_is_no_history_key(key: str) -> None:
    options = {"adapter": "huma-0.2", "url": "http://h", "api_key": "k", "agent_id": "a"}
    assert ADAPTER.options.model_validate({**options, "history": "chat"}).history_key == "chat"
    with pytest.raises(ValidationError, match="history"):
        ADAPTER.options.model_validate({**options, "history": key})
    assert ADAPTER.options.model_validate({**options, "history": "off", "message": "off"}).history_key is None


@pytest.mark.parametrize("most", ["65535", "1", "64KB"])
def test_the_largest_frame_of_0_1_has_room_for_a_result(most: str) -> None:
    options = {"adapter": "huma-0.1", "url": "http://h", "api_key": "k", "agent_id": "a"}
    assert HUMA_0_1.options.model_validate({**options, "max_frame": "65536"})
    with pytest.raises(ValidationError, match="max_frame"):
        HUMA_0_1.options.model_validate({**options, "max_frame": most})


OPTIONS = {"adapter": "huma-0.2", "url": "http://h", "api_key": "k", "agent_id": "a"}
CARRIED = ContextUpdated(name="n", context={"chat": "mine"}, message=MessagePosted(content=(Text(text="Hi"),)))


@pytest.mark.parametrize(
    ("key", "how", "context"),
    [
        ("message", "invented", {"chat", "message"}),
        ("said", "invented", {"chat", "said"}),
        ("chat", "dropped", {"chat"}),
    ],
)
def test_a_context_carries_a_message_under_the_configured_key(key: str, how: str, context: set[str]) -> None:
    codec = ADAPTER.codec(ADAPTER.options.model_validate({**OPTIONS, "message": key}))
    encoded = codec.encode(Draft(CARRIED))
    assert set(encoded.frames[0].payload["context"]) == context
    assert encoded.frames[0].payload["context"][key]["content"] == "Hi"
    assert (how, f"/context/{key}") in {(loss.how, loss.path) for loss in encoded.losses}
    (draft,) = codec.decode(encoded.frames[0])
    assert isinstance(draft.event, ContextUpdated)
    assert draft.event.message is not None


def test_a_message_without_a_key_is_a_loss_and_none_is_read() -> None:
    codec = ADAPTER.codec(ADAPTER.options.model_validate({**OPTIONS, "message": "off"}))
    encoded = codec.encode(Draft(CARRIED))
    assert encoded.frames[0].payload["context"] == {"chat": "mine"}
    assert [(loss.how, loss.path) for loss in encoded.losses] == [("dropped", "/message")]
    (draft,) = codec.decode(CODEC.encode(Draft(CARRIED)).frames[0])
    assert isinstance(draft.event, ContextUpdated)
    assert "message" in draft.event.context


def test_history_and_message_have_keys_of_their_own() -> None:
    with pytest.raises(ValidationError, match="have the same key 'message'"):
        ADAPTER.options.model_validate({**OPTIONS, "history": "message"})
    assert ADAPTER.options.model_validate({**OPTIONS, "history": "message", "message": "said"}).history_key == "message"


def test_messages_are_expected_only_of_an_agent_that_can_send_them() -> None:
    def rule(agent: dict[str, Any], **more: Any) -> Any:
        about = {"name": "F", "class_name": "F", "personality": "p", "instructions": "i", **agent}
        given = {name: value for name, value in OPTIONS.items() if name != "agent_id"}
        return ADAPTER.options.model_validate({**given, "agent": about, **more}).confirmation

    assert not rule({}).expected
    assert not rule({"addons": {"enabled": "messaging"}}).expected
    assert not rule({"addons": {"enabled": ["voice"]}}).expected
    assert rule({"addons": {"enabled": ["messaging"]}}).expected
    assert rule({}, confirm="client").by == "client"
    assert rule({}, confirm="client").expected
    assert ADAPTER.options.model_validate(OPTIONS).confirmation.expected
    with pytest.raises(ValidationError, match="confirm_by applies only to"):
        rule({}, confirm="client", confirm_by="chat")


@pytest.mark.requirement("A12")
def test_an_id_without_end_is_refused_in_both_directions() -> None:
    with pytest.raises(MalformedFrame):
        CODEC.decode(Frame("event", {"type": "tool-call", "toolCallId": "c" * 1025, "toolName": "t"}))
    with pytest.raises(CannotExpress):
        CODEC.encode(Draft(ToolFinished(native_call_id="c" * 1025, tool="t", outcome="success")))


IDS = st.text(max_size=5) | st.sampled_from(["a" * 255, "a" * 256, "a" * 257, "\ud800", "a\x00b", " "])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | IDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(IDS | st.just("__proto__"), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(IDS, VALUES, max_size=3) | VALUES, IDS, IDS)
def test_a_call_of_just_its_members_is_read_as_one_with_a_member_more(arguments: Any, call_id: str, tool: str) -> None:
    payload = {"type": "tool-call", "toolCallId": call_id, "toolName": tool, "arguments": arguments}

    def read(more: dict[str, Any]) -> Any:
        try:
            (draft,) = CODEC.decode(Frame("event", payload | more))
        except MalformedFrame as exc:
            return exc.path
        return repr(draft.event), [loss for loss in draft.losses if loss.path != "/more"]

    assert read({}) == read({"more": 1})
