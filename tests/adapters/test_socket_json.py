"""JSON, packets and masks of the socket links: nothing a peer writes raises, nothing secret shows."""

import orjson
import pytest
from hypothesis import given, strategies as st

from gateway.adapter.port import Frame
from gateway.errors import CannotExpress
from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.links.socketio.packet import read_event
from gateway.strict_json import (
    Malformed,
    json_length,
    json_type,
    pointer,
    utf16_length,
)


def event_of(packet: str) -> bytes:
    """Write a Socket.IO packet as Engine.IO carries it."""
    return f"4{packet}".encode("utf-8", "surrogatepass")


def test_bytes_that_are_not_utf_8_are_a_malformed_frame() -> None:
    (frame,) = read_event(b'42["event",{"a":"\xff"}]').frames
    assert isinstance(frame.payload, Malformed)
    assert (frame.channel, frame.payload.excerpt) == ("event", '["event",{"a":"\\xff"}]')


def test_a_frame_over_the_limit_is_not_parsed_and_keeps_its_channel() -> None:
    text = b'427["event",{"a":"' + b"x" * FRAMES.get().largest + b'"}]'
    arrival = read_event(text)
    (frame,) = arrival.frames
    assert (frame.channel, arrival.ack) == ("event", "7")
    assert isinstance(frame.payload, Malformed)
    assert frame.payload.reason == f"the frame has {len(text):,} bytes; limits.frame allows 4,194,304"
    assert len(frame.payload.excerpt) == json.EXCERPT


@given(st.text())
def test_no_text_at_all_makes_reading_raise(text: str) -> None:
    json.loads(text)
    for packet in (text, "2" + text, "51-" + text):
        assert read_event(event_of(packet)).frames


@given(st.text(alphabet='0123456789/-,[]{}":ab', max_size=30))
def test_no_packet_at_all_makes_reading_raise(text: str) -> None:
    assert read_event(event_of(text)).frames


def test_writing_is_compact_and_refuses_what_is_not_json() -> None:
    assert json.dumps({"a": [1, "é"]}, separators=(", ", ": ")) == '{"a":[1,"é"]}'
    for value in (b"bytes", {"x": object()}, "\ud800", 2**64):
        with pytest.raises(CannotExpress):
            json.dumps(value)


def test_a_plain_event_is_read_like_the_same_event_with_a_namespace_written_out() -> None:
    for body in (
        '["event",{"a":1}]',
        '["event"]',
        '["event",1,2]',
        '["event",',
        "[1]",
        '["event",18446744073709551616]',
    ):
        plain, spelled = read_event(event_of("2" + body)), read_event(event_of("2/," + body))
        assert plain.ack is None
        assert [frame.channel for frame in plain.frames] == [frame.channel for frame in spelled.frames]
        if not isinstance(plain.frames[0].payload, Malformed):
            assert plain == spelled


def test_an_event_packet_keeps_its_channel_even_where_its_body_is_broken() -> None:
    (frame,) = read_event(b'425["event",{').frames
    assert frame.channel == "event"
    assert isinstance(frame.payload, Malformed)
    assert read_event(b'427["event",{"a":1}]').ack == "7"
    assert read_event(b'42["event",{"a":1}]').frames == (Frame("event", {"a": 1}),)


@pytest.mark.requirement("A10")
def test_lengths_are_those_of_javascript() -> None:
    assert [utf16_length(text) for text in ("", "abc", "é", "🎴", "\ud800")] == [0, 3, 1, 2, 1]
    assert json_length({"a": "🎴", "b": [1, 2]}) == len('{"a":"xx","b":[1,2]}')


def test_pointers_are_escaped_bounded_and_always_sayable() -> None:
    assert pointer("/a", "b/c~d", 0) == "/a/b~1c~0d/0"
    assert len(pointer("", "x" * 10_000)) < 300
    orjson.dumps(pointer("", "\ud800"))


def test_json_types_have_their_names() -> None:
    values: tuple[object, ...] = (None, True, 1, 1.5, "x", [], {}, b"")
    named = [json_type(value) for value in values]
    assert named == ["null", "a boolean", "a number", "a number", "a string", "an array", "an object", "a bytes"]
