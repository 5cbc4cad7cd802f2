"""JSON, packets and masks of the socket links: nothing a peer writes raises, nothing secret shows."""

import re
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, strategies as st

from gateway.adapter.port import Frame
from gateway.errors import CannotExpress
from gateway.json_values import (
    Fault,
    Malformed,
    find_fault,
    json_length,
    json_type,
    pointer,
    utf16_length,
)
from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.links.masking import Mask
from gateway.links.socketio.packet import read_event


@pytest.mark.requirement("A37")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "1e999",
        '"\\ud800"',
        "18446744073709551616",
        '{"n": -9223372036854775809}',
        "1" + "0" * 5_000,
        "[" * 300 + "]" * 300,
        "[" * 100_000,
        '{"a":' * 2_000 + "1" + "}" * 2_000,
    ],
)
def test_json_that_cannot_be_handed_on_is_a_value_and_no_exception(text: str) -> None:
    read = json.loads(text)
    assert isinstance(read, Malformed)
    assert len(read.excerpt) <= json.EXCERPT
    orjson.dumps([read.reason, read.excerpt])


@given(st.integers(), st.text(max_size=12), st.integers(min_value=0, max_value=20))
def test_an_integer_beyond_64_bits_is_found_wherever_it_stands(number: int, before: str, spaces: int) -> None:
    number += 2**64 if number > 0 else -(2**63)
    text = orjson.dumps([before]).decode()[:-1] + "," + " " * spaces + f"{number}]"
    is_huge = not -(2**63) <= number < 2**64
    assert isinstance(json.loads(text), Malformed) == is_huge


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551615",
        "-9223372036854775808",
        '"123456789012345678901234567890"',
        "1.5e300",
        "[" * 256 + "]" * 256,
    ],
)
def test_json_at_its_limits_is_read_exactly(text: str) -> None:
    assert json.loads(text) == orjson.loads(text)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert json.loads("[" + ",".join(["[]"] * 500) + "]") == [[]] * 500


def test_salvage_reads_what_only_the_codec_can_judge_and_never_raises() -> None:
    assert json.salvage('{"a":"\\ud800","b":1' + "0" * 30 + "}") == {"a": "\ud800", "b": 10**30}
    for hopeless in ("{", "1" + "0" * 5_000, "[" * 100_000, "[" * 50_000, '"\\' * 30_000):
        assert isinstance(json.salvage(hopeless), Malformed)


@pytest.mark.parametrize("depth", [257, 1_000, 20_000])
def test_salvage_leaves_out_what_is_too_deep_so_that_the_rest_can_be_judged(depth: int) -> None:
    deep = "[" * depth + '"]} \\" {["' + "]" * depth
    value = json.salvage('{"id": "c", "arguments": {"a": ' + deep + '}, "behind": [1]}')
    assert (value["id"], value["behind"]) == ("c", [1])
    assert find_fault(value["arguments"]) is not None
    levels, inner = 0, value["arguments"]["a"]
    while inner:
        (inner,) = inner
        levels += 1
    assert levels < json.MAX_DEPTH


def test_of_a_long_text_no_depths_are_left_out() -> None:
    deep = "[" * 300 + "]" * 300
    assert isinstance(json.salvage(f'{{"a": {deep}, "b": "{"x" * json.CUT_LENGTH}"}}'), Malformed)


def event_of(packet: str) -> bytes:
    """Write a Socket.IO packet as Engine.IO carries it."""
    return f"4{packet}".encode("utf-8", "surrogatepass")


def test_bytes_that_are_not_utf_8_are_a_malformed_frame() -> None:
    (frame,) = read_event(b'42["event",{"a":"\xff"}]').frames
    assert (frame.channel, frame.payload) == ("event", Malformed("not UTF-8", '["event",{"a":"\\xff"}]'))


def test_a_frame_over_the_limit_is_not_parsed_and_keeps_its_channel() -> None:
    text = b'427["event",{"a":"' + b"x" * FRAMES.largest + b'"}]'
    arrival = read_event(text)
    (frame,) = arrival.frames
    assert (frame.channel, arrival.ack) == ("event", "7")
    assert isinstance(frame.payload, Malformed)
    assert frame.payload.reason == f"the frame has {len(text):,} bytes; limits.frame allows 4,194,304"
    assert len(frame.payload.excerpt) == json.EXCERPT


@given(st.text())
def test_no_text_at_all_makes_reading_raise(text: str) -> None:
    json.loads(text)
    json.salvage(text)
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


def test_a_value_without_end_is_a_fault_and_no_endless_walk() -> None:
    endless: list[object] = []
    endless.extend([endless, endless])
    fault = find_fault(endless)
    assert fault is not None


finite = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.recursive(
        finite | st.just("null"),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4),
    ),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
def test_what_is_not_finite_is_found_beside_any_number_of_nulls(value: Any, odd: float) -> None:
    assert find_fault([value, None]) is None
    assert find_fault([value, None, {"a": [odd]}]) == Fault("is NaN or infinite", "/2/a/0")


@pytest.mark.parametrize("odd", [UUID(int=1), b"", {1: 2}, {1}, 2**64, "\ud800"])
def test_what_is_no_json_is_found_beside_null_and_in_wide_values(odd: Any) -> None:
    wide: list[list[int]] = [[]] * 100
    for beside in (None, wide):
        fault = find_fault([beside, odd])
        assert fault is not None
        assert fault.path == "/1"


@pytest.mark.parametrize("levels", [63, 64, 65])
def test_depth_is_counted_also_where_there_are_many_values_side_by_side(levels: int) -> None:
    wide: list[list[int]] = [[] for _ in range(100)]
    value: Any = {"wide": wide}
    for _ in range(levels - 3):
        value = [value]
    assert find_fault(value) is None if levels <= 64 else find_fault(value) is not None


def test_json_types_have_their_names() -> None:
    values: tuple[object, ...] = (None, True, 1, 1.5, "x", [], {}, b"")
    named = [json_type(value) for value in values]
    assert named == ["null", "a boolean", "a number", "a number", "a string", "an array", "an object", "a bytes"]


@pytest.mark.requirement("A40")
def test_a_mask_hides_a_secret_in_every_spelling_and_whatever_a_query_calls_a_key() -> None:
    mask = Mask(("ak+one/two", ""))
    text = mask("GET /?agentId=a&apiKey=ak%2Bone%2Ftwo&x=1 ak+one/two session_api_key=other' token=t1&u")
    assert "one" not in text
    assert "other" not in text
    assert "t1" not in text
    assert "agentId=a" in text
    assert "x=1" in text


@pytest.mark.parametrize(
    "quoted",
    [
        "GET /?agentId=a&x=ak%2bone%2ftwo%22three",
        "GET /?agentId=a&x=ak%2bone%2Ftwo%22three",
        r'{"x": "ak+one\/two\"three"}',
        r'"{\"x\": \"ak+one/two\\\"three\"}"',
    ],
)
def test_a_mask_hides_a_secret_in_small_hex_and_as_json(quoted: str) -> None:
    assert not re.search("one|two|three", Mask(('ak+one/two"three',))(quoted))
