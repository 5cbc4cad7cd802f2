"""A frame whose link has found nothing odd in it is read as one that everybody looks at again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Codec, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, ToolFinished, ToolRequested
from gateway.links.json import read_frame
from gateway.links.socketio.packet import read_event, write_event
from gateway.strict_json import Unreadable, read_and_write

VECTORS = Path(__file__).parents[1] / "vectors"
CODECS: dict[str, Codec] = {
    "huma_v0_1": HUMA_0_1.codec(),
    "huma_v0_2": HUMA_0_2.codec(),
    "openhands": OPENHANDS.codec(),
    "herm": HERM.codec(),
}
ODD: list[Any] = ["\ud800", json.loads("[" * 70 + "]" * 70)]
LONG = 2_000
"""Bytes of a documented frame that is spoilt in each of its places."""


def known_frames(folder: str) -> list[tuple[str, Any]]:
    vectors: list[Any] = []
    for file in sorted((VECTORS / folder).glob("*.json")):
        read = json.loads(file.read_text())
        vectors += read if isinstance(read, list) else [read]
    return [(vector["frame"]["channel"], vector["frame"]["payload"]) for vector in vectors if "frame" in vector]


FRAMES = {folder: known_frames(folder) for folder in CODECS}


def spoilt(payload: Any) -> Iterator[Any]:
    """Put something odd into each place of what a protocol documents."""
    yield from ODD
    match payload:
        case dict():
            members = cast("dict[str, Any]", payload)
            for name in ("x", "\ud800"):
                yield {**members, name: 1}
            for name in members:
                yield from ({**members, name: inner} for inner in spoilt(members[name]))
        case list():
            items = cast("list[Any]", payload)
            for place in range(min(len(items), 2)):
                yield from ([*items[:place], inner, *items[place + 1 :]] for inner in spoilt(items[place]))
        case _:
            pass


def told(codec: Codec, frame: Frame) -> Any:
    try:
        drafts = codec.decode(frame)
        for draft in drafts:
            if draft.written is not None:
                assert isinstance(draft.event, ToolRequested)
                assert draft.written == orjson.dumps(draft.event.arguments)
        return repr(drafts)
    except MalformedFrame as exc:
        return (exc.reason, exc.path)


@pytest.mark.parametrize("folder", CODECS)
def test_what_a_link_has_looked_at_reads_the_same(folder: str) -> None:
    codec = CODECS[folder]
    for channel, documented in FRAMES[folder]:
        short = len(json.dumps(documented)) < LONG
        for payload in (documented, *(spoilt(documented) if short else ())):
            text = json.dumps(payload, ensure_ascii=False)
            given, written = read_frame(text)
            assert written is None or written == orjson.dumps(given)
            assert told(codec, Frame(channel, given, len(text), written)) == told(codec, Frame(channel, given)), text


def said(codec: Codec, result: Any, written: bytes | None) -> Any:
    finished = ToolFinished(native_call_id="tc-1", tool="ask", outcome="success", result=result)
    try:
        frames = codec.encode(Draft(finished, written=written)).frames
    except CannotExpress as exc:
        return exc.reason, exc.path
    assert all(frame.written in {None, orjson.dumps(frame.payload)} for frame in frames)
    return frames


@pytest.mark.parametrize("folder", CODECS)
def test_what_a_strict_reader_has_looked_at_is_said_the_same(folder: str) -> None:
    codec = CODECS[folder]
    results = [{"cards": [{"id": 1, "seen_by": None}]}, "x" * 70_000, None, *spoilt({"a": [1.5, {"b": None}]})]
    count = 0
    for result in results:
        body = json.dumps({"outcome": "success", "result": result}, ensure_ascii=False)
        try:
            read, _ = read_and_write(body)
        except Unreadable:
            continue
        count += 1
        assert said(codec, read["result"], orjson.dumps(read["result"])) == said(codec, read["result"], None), body
    assert count


@pytest.mark.parametrize("folder", CODECS)
def test_nearly_all_that_protocols_document_is_plain(folder: str) -> None:
    looks = [read_frame(json.dumps(payload))[1] is not None for _, payload in FRAMES[folder]]
    assert sum(looks) > 0.9 * len(looks)


def test_a_frame_knows_the_bytes_it_came_in() -> None:
    body = '["e\\"vent", {"type":"tool-call","text":"Grüße"}]'
    (frame,) = read_event(f"42{body}".encode()).frames
    assert (frame.channel, frame.size) == ('e"vent', len(body.encode()))
    assert frame.written == '{"type":"tool-call","text":"Grüße"}'.encode()
    assert write_event(frame) == write_event(Frame(frame.channel, frame.payload)) != b""
    (odd,) = read_event(b'42["event",{"a":"\\ud800"}]').frames
    assert odd.written is None


def test_a_frame_with_letters_written_as_escapes_leaves_its_size_to_whoever_asks() -> None:
    (frame,) = read_event(b'42["event",{"text":"\\u00fc\\n"}]').frames
    assert (frame.size, frame.payload) == (0, {"text": "ü\n"})
