"""The reader of server-sent events against every way to write and to cut them."""

import asyncio
import json
from contextlib import aclosing
from datetime import timedelta

import pytest

from adapters.herm.tuning import HermTuning
from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestClient
from gateway.links.sse import open_events
from gateway.strict_json import Malformed
from gateway.testing.conformance.link import within
from tests.adapters.herm.links import TITLE, RecordingBackend, linked, name_of, text
from tests.adapters.herm.raw_herm import KEY, SESSION, RawHerm
from tests.pace import PATIENCE

pytestmark = pytest.mark.requirement("H-h")


async def told(*chunks: bytes, most: int) -> list[object]:
    """Send some bytes and wait in silence for `most` frames; return the frames before another event."""
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        await within(server.connected())
        await server.raw(*chunks)
        await record.wait_for(most)
        await server.raw(b'\n\ndata: "last"\n\n')
        async with asyncio.timeout(PATIENCE):
            while not record.frames or record.frames[-1].payload != "last":
                await record.wait_for(len(record.frames) + 1)
        return [frame.payload for frame in record.frames[:-1]]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b'data: {"a":1}\n\n', [{"a": 1}]),
        (b'data:{"a":1}\n\n', [{"a": 1}]),
        (b'data: {"a":1}\r\n\r\n', [{"a": 1}]),
        (b'data: {"a":1}\r\r', [{"a": 1}]),
        (b'\xef\xbb\xbfdata: {"a":1}\n\n', [{"a": 1}]),
        (b'data: {"a":\ndata: 1}\n\n', [{"a": 1}]),
        (b': open\n\nretry: 10\n\nid: 7\n\nevent: x\n\n: keepalive\n\ndata: {"a":1}\n\n', [{"a": 1}]),
        (b'event: agent.unknown\nid: evt_1\nretry: no\nodd: x\ndata: {"a":1}\n\n', [{"a": 1}]),
        (b"data: [DONE]\n\ndata: {}\n\ndata\n\ndata:\n\n", []),
        ('data: {"a":"\u2028\x85é🂡"}\n\n'.encode(), [{"a": "\u2028\x85é🂡"}]),
        (b"\n\n\n", []),
    ],
)
async def test_every_form_of_an_event_is_understood(said: bytes, heard: list[object]) -> None:
    assert await told(said, most=len(heard)) == heard


async def test_events_arrive_whole_when_the_stream_is_cut_at_every_byte() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        server.event_lines = False
        whole = b"\xef\xbb\xbf"
        for number in range(5):
            whole += b": open\r\n\r\n" if number else b""
            whole += server.sse(server.wrap(text(f"é🂡 {number}"))).replace(b"\n", b"\r\n" if number % 2 else b"\n")
        await server.raw(*(whole[place : place + 1] for place in range(len(whole))))
        frames = await record.wait_for(5)
        assert [frame.payload["payload"]["content"][0]["text"] for frame in frames] == [f"é🂡 {n}" for n in range(5)]


async def test_an_event_arrives_whole_wherever_it_is_cut_in_two() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        size = len(server.sse({**server.wrap(text("é🂡")), "id": "evt_0001"}))
        for place in range(1, size):
            said = server.sse({**server.wrap(text("é🂡")), "id": f"evt_{place:04}", "sequence": 1})
            await server.raw(said[:place], said[place:])
        frames = await record.wait_for(size - 1)
        assert [name_of(frame) for frame in frames] == [f"evt_{place:04}" for place in range(1, size)]


@pytest.mark.parametrize("said", [b"{", b'{"a":1', b"not json", b'{"a":"\\ud800', b"\xff\xfe"])
async def test_what_cannot_be_read_is_malformed_and_the_stream_lives_on(said: bytes) -> None:
    (payload,) = await told(b"data: " + said + b"\n\n", most=1)
    assert isinstance(payload, Malformed)
    assert len(payload.excerpt) <= 1_024


@pytest.mark.slow
async def test_keepalives_alone_keep_the_link_and_silence_ends_it() -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend(), idle_timeout="2s") as link:
        await within(server.connected())
        closing = asyncio.ensure_future(link.wait_closed())
        for _ in range(5):
            done, _pending = await asyncio.wait([closing], timeout=0.5)
            assert not done
            await server.raw(b": keepalive\n\n")
        assert await within(closing) == "no data for 2 s"


async def test_whoever_takes_long_over_an_event_has_not_waited_for_the_next_one() -> None:
    longest = timedelta(seconds=0.2)
    path, headers = f"/v1/sessions/{SESSION}/events/stream", {"Authorization": f"Bearer {KEY}"}
    async with (
        RawHerm().serve() as server,
        RestClient(server.url, headers=headers, mask=Mask([KEY])) as client,
        open_events(client, path, headers={}, within=timedelta(seconds=5), idle=longest, largest=100) as stream,
        aclosing(stream.texts()) as texts,
    ):
        await server.raw(b"data: first\n\n")
        assert await within(anext(texts)) == "first"
        # Longer than the server may be silent.
        await asyncio.sleep(3 * longest.total_seconds())
        await server.raw(b"data: second\n\n")
        assert await within(anext(texts)) == "second"
        with pytest.raises(LinkLost, match=r"no data for 0\.2 s"):
            await within(anext(texts))


async def test_an_event_without_end_ends_the_link() -> None:
    record, tuning = RecordingBackend(), HermTuning(event_bytes=10_000)
    async with RawHerm().serve() as server, linked(server, record, tuning=tuning) as link:
        for number in range(50):
            await server.raw(b"data: " + json.dumps({"id": f"e{number}", "x": "y" * 1_000}).encode() + b"\n\n")
        await record.wait_for(50)
        await server.raw(b"data: " + b"x" * 80_001)
        assert "more than 80000 bytes" in await within(link.wait_closed())
        assert isinstance(record.frames[-1].payload, Malformed)
        assert "limits.frame" in record.frames[-1].payload.reason


async def test_an_event_after_comments_of_any_length_arrives() -> None:
    record, tuning = RecordingBackend(), HermTuning(event_bytes=10_000)
    async with RawHerm().serve() as server, linked(server, record, tuning=tuning):
        await within(server.connected())
        for _ in range(100):
            await server.raw(b": " + b"x" * 2_000 + b"\n\n")
        await server.raw(server.sse({**server.wrap(text("Still here")), "id": "evt_last"}))
        (frame,) = await record.wait_for(1)
        assert name_of(frame) == "evt_last"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_an_event_over_the_limit_is_rejected_and_the_next_one_arrives(end: bytes) -> None:
    record, tuning = RecordingBackend(), HermTuning(event_bytes=10_000)
    async with RawHerm().serve() as server, linked(server, record, tuning=tuning):
        for size in (9_000, 10_001, 70_000):
            # In pieces, so that the end comes apart too; the second one has its data after the cut.
            text = (
                (b"event: " + b"x" * 11_000 + b"\n" if size == 10_001 else b"")
                + b"data: "
                + json.dumps({"id": f"e{size}", "x": "y" * size}).encode()
                + end
            )
            for start in range(0, len(text), 4_999):
                await server.raw(text[start : start + 4_999])
            await server.raw(b"data: " + json.dumps({"id": f"after{size}"}).encode() + end)
        frames = await record.wait_for(6)
        assert [isinstance(frame.payload, Malformed) for frame in frames] == [False, False, True, False, True, False]
        assert "limits.frame" in frames[2].payload.reason
        assert [frames[at].payload["id"] for at in (0, 1, 3, 5)] == ["e9000", "after9000", "after10001", "after70000"]


@pytest.mark.requirement("H-gg", "H38")
async def test_a_title_after_the_end_of_a_turn_still_arrives() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        await server.happen({"type": "session.status_idle", "stop_reason": {"type": "end_turn"}})
        await server.happen(TITLE)
        frames = await record.wait_for(2)
        assert frames[-1].payload["payload"] == TITLE
