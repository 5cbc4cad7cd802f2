"""Streams are taken apart as the makers of httpx-sse do, in whatever pieces they come, and within a bound."""

from itertools import pairwise

import pytest
from httpx import Response
from httpx_sse import EventSource
from hypothesis import example, given, strategies as st

from gateway.client.blocks import Block, BlockReader

LINES = st.sampled_from(
    [b"", b"data: a", b"data:b", b"data", b"data:  c\xc3\xa4", "data: \u2028x".encode(), b"event: turn.steered",
     b"event", b"id: 7", b"id", b": heartbeat", b"retry: 1000", b"retry: soon", b"other: x", b"data: \xff"]
)  # fmt: skip


@given(
    lines=st.lists(LINES, max_size=30),
    end=st.sampled_from([b"\n", b"\r\n"]),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
@example(lines=[b"data: a", b""], end=b"\n", bom=True, cuts=[1])
def test_it_reads_what_httpx_sse_reads(lines: list[bytes], end: bytes, bom: bool, cuts: list[int]) -> None:
    raw = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line in lines)
    places = [0, *sorted({min(cut, len(raw)) for cut in cuts}), len(raw)]
    reader, found = BlockReader(10_000), list[Block]()
    for start, stop in pairwise(places):
        found += reader.feed(raw[start:stop])
    # It knows of no byte order mark.
    answer = Response(200, headers={"content-type": "text/event-stream"}, content=raw.removeprefix(b"\xef\xbb\xbf"))
    shown = [one for one in EventSource(answer).iter_sse() if one.data or one.event or one.id or one.retry]
    told = [(one.event, one.data) for one in shown if one.data]
    # Blocks whose only data is empty are not told apart there from those without any.
    assert [(one.event, one.data.decode(errors="replace")) for one in found if one.data] == told
    waits = [one.retry for one in shown if one.retry is not None]
    assert reader.retry == (waits[-1] / 1000 if waits else reader.retry)


def test_an_id_is_told_with_its_own_event_only() -> None:
    reader = BlockReader(1_000)
    assert reader.feed(b"id: 7\ndata: a\n\ndata: b\n\nid: \0\ndata: c\n\nid: 8\nda") == [
        Block("message", b"a", "7"),
        Block("message", b"b", None),
        Block("message", b"c", None),
    ]
    assert reader.feed(b"ta: d\n\n") == [Block("message", b"d", "8")]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 95, b"data: x\n", b"data\n", b"x" * 10, b"event: " + b"x" * 100])
def test_a_block_is_bounded_in_lines_and_length(piece: bytes) -> None:
    reader = BlockReader(100)
    with pytest.raises(ValueError, match="over 100 bytes"):
        [reader.feed(piece) for _ in range(200)]


def test_heartbeats_and_many_small_blocks_are_not_counted_together() -> None:
    reader = BlockReader(100)
    for number in range(1_000):
        assert reader.feed(b": heartbeat\n" * 20) == []
        assert reader.feed(b"data: %d\n\n" % number) == [Block("message", b"%d" % number, None)]
