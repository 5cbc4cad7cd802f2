"""Server-sent events are read in whatever pieces they come, and within a limit."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from itertools import pairwise

import pytest
from httpx import AsyncByteStream, Response
from hypothesis import example, given, strategies as st

from dragoman.sse import SseReader
from tests.pace import PATIENCE

RAW = "".join(
    line + "\n"
    for line in (
        ": heartbeat", "retry: 1500", "", "event: turn.steered", "id: 7", "data: {\u2028é", "data:  }", "",
        "id: 8", "", "data: last", "",
    )
).encode()  # fmt: skip
EVENTS = [("turn.steered", "7", "{\u2028é\n }"), ("message", "8", "last")]


class Pieces(AsyncByteStream):
    """A body that comes in given pieces, and then ends or, if it is `quiet`, stays open in silence."""

    def __init__(self, pieces: Iterable[bytes], *, quiet: bool = False) -> None:
        self._pieces = pieces
        self._quiet = quiet

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._quiet:
            await asyncio.Event().wait()


def reader(*pieces: bytes, largest: int = 10_000, limit: int | None = None) -> SseReader:
    return SseReader(Response(200, stream=Pieces(pieces)), largest=largest, limit=limit)


@given(end=st.sampled_from([b"\n", b"\r\n", b"\r"]), bom=st.booleans(), cuts=st.lists(st.integers(0, 200), max_size=12))
@example(end=b"\r\n", bom=True, cuts=[1])
async def test_events_are_whole_however_they_are_cut(*, end: bytes, bom: bool, cuts: list[int]) -> None:
    raw = (b"\xef\xbb\xbf" if bom else b"") + RAW.replace(b"\n", end)
    places = [0, *sorted({min(cut, len(raw)) for cut in cuts}), len(raw)]
    stream = reader(*(raw[start:stop] for start, stop in pairwise(places)))
    assert [(one.event, one.id, one.data) async for one in stream.events()] == EVENTS
    assert (stream.retry, stream.has_data, stream.is_cut) == (1.5, True, False)
    assert stream.received_at is not None


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("cut", range(12))
async def test_an_event_is_delivered_when_its_blank_line_is_complete(end: str, cut: int) -> None:
    raw = f"data: last{end}{end}".encode()
    raw, late = (raw[:-1], raw[-1:]) if end == "\r\n" else (raw, b"")
    stream = SseReader(Response(200, stream=Pieces((raw[:cut], raw[cut:]), quiet=True)), largest=100)
    async with asyncio.timeout(PATIENCE), aclosing(stream.events()) as events:
        assert (await anext(events)).data == "last"
    # The LF of a pair of which only the CR has arrived ends no further line.
    stream = reader(raw, late, b"data: 1", end.encode(), b"data: 2\n\n")
    assert [one.data async for one in stream.events()] == ["last", "1\n2"]


@pytest.mark.parametrize(
    "between",
    [b":\n\n", b": " + b"x" * 90 + b"\n", b": x\r\r", b"\n", b"\r\n", b": " + b"x" * 9, b"id: 7\n\n", b"odd: x\n\n"],
)
async def test_nothing_between_events_counts_towards_their_size(between: bytes) -> None:
    pieces = [b"data: first\n\n", *([between] * 1_000), b"\n\ndata: last\n\n"]
    stream = reader(*pieces, largest=100, limit=800)
    assert [(one.data, stream.is_cut) async for one in stream.events()] == [("first", False), ("last", False)]
    stream = SseReader(Response(200, stream=Pieces([b"".join(pieces)])), largest=100)
    assert [one.data async for one in stream.events()] == ["first", "last"]


async def test_comments_inside_an_event_do_not_count_towards_its_size() -> None:
    stream = reader(b"data: 1\n", *([b": " + b"x" * 90 + b"\n"] * 10), b"data: 2\n\n", largest=100)
    assert [one.data async for one in stream.events()] == ["1\n2"]


@pytest.mark.parametrize("step", [1, 2, 3, 8, 100])
async def test_a_byte_order_mark_and_the_ends_of_lines_may_arrive_in_pieces(step: int) -> None:
    raw = b"\xef\xbb\xbfdata: 1\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n"
    stream = reader(*(raw[at : at + step] for at in range(0, len(raw), step)))
    assert [one.data async for one in stream.events()] == ["1\n2", "3"]


async def test_before_its_first_bytes_a_stream_was_not_heard() -> None:
    stream = reader()
    assert [one async for one in stream.events()] == []
    assert (stream.received_at, stream.has_data, stream.retry) == (None, False, None)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 95, b"data: x\n", b"data\n", b"x" * 10, b"event: " + b"x" * 100])
async def test_an_event_is_limited_in_lines_and_length(piece: bytes) -> None:
    with pytest.raises(ValueError, match="more than 100 bytes"):
        [one async for one in reader(*([piece] * 200), largest=100).events()]


async def test_an_event_over_the_largest_size_is_cut_and_the_next_one_is_whole() -> None:
    stream = reader(b"data: " + b"x" * 60, b"x" * 60, b"x\n\nda", b"ta: next\n\n", largest=100, limit=1_000)
    found = [(len(one.data), stream.is_cut) async for one in stream.events()]
    assert found == [(94, True), (4, False)]


async def test_an_event_of_the_largest_size_is_whole_and_bytes_that_are_no_text_stay_visible() -> None:
    stream = reader(b"data: " + b"x" * 93 + b"\n\n", largest=100, limit=1_000)
    assert [(len(one.data), stream.is_cut) async for one in stream.events()] == [(93, False)]
    assert [one.data async for one in reader(b"data: a\xffb\n\n").events()] == ["a\ufffdb"]


async def test_an_event_that_is_cut_before_its_data_is_still_yielded() -> None:
    stream = reader(b"event: " + b"x" * 120 + b"\ndata: late\n\ndata: next\n\n", largest=100, limit=1_000)
    assert [(one.data, stream.is_cut) async for one in stream.events()] == [("", True), ("next", False)]


async def test_an_event_over_the_limit_is_yielded_in_part_before_the_stream_ends() -> None:
    stream = reader(*([b"data: " + b"x" * 95] * 200), largest=100, limit=1_000)
    async with aclosing(stream.events()) as events:
        assert (len((await anext(events)).data), stream.is_cut) == (94, True)
        with pytest.raises(ValueError, match="more than 1000 bytes"):
            await anext(events)


async def test_many_small_events_are_not_counted_together() -> None:
    pieces = (b": heartbeat\ndata: %d\n\n" % number for number in range(1_000))
    assert [one.data async for one in reader(*pieces, largest=100).events()] == [str(n) for n in range(1_000)]
