"""Server-sent events are read in whatever pieces they come, and within a limit."""

from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import pytest
from httpx import AsyncByteStream, Response
from hypothesis import example, given, strategies as st

from dragoman.sse import SseReader

RAW = "".join(
    line + "\n"
    for line in (
        ": heartbeat", "retry: 1500", "", "event: turn.steered", "id: 7", "data: {\u2028é", "data:  }", "",
        "id: 8", "", "data: last", "",
    )
).encode()  # fmt: skip
EVENTS = [("turn.steered", "7", "{\u2028é\n }"), ("message", "8", "last")]


class Pieces(AsyncByteStream):
    """A body that comes in given pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


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
    assert found == [(60, True), (4, False)]


async def test_many_small_events_are_not_counted_together() -> None:
    pieces = (b": heartbeat\ndata: %d\n\n" % number for number in range(1_000))
    assert [one.data async for one in reader(*pieces, largest=100).events()] == [str(n) for n in range(1_000)]
