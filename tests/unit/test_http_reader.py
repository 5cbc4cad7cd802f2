"""Answers as bytes in, cut at any place: what is read does not depend on how the bytes came."""

import gzip
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gateway.executors.webhook.reader import MAX_HEAD, HttpReader, NotHttp, Unread

LIMIT = 1_000
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n4\r\n two\r\n0\r\nretry-after: 9\r\n\r\n"


def read(*pieces: bytes, closed: bool = False) -> HttpReader:
    reader = HttpReader(limit=LIMIT)
    for piece in pieces:
        reader.feed(piece)
    if closed:
        reader.end()
    return reader


@pytest.mark.parametrize(
    ("answer", "closed", "status", "body", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody", False, 200, b"body", True),
        (b"HTTP/1.1 200 OK\ncontent-length: 4\n\nbody", False, 200, b"body", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody", False, 200, b"body", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nbody", False, 200, b"body", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\n", False, 304, b"", True),
        (CHUNKED, False, 200, b"body two", True),
        (b"HTTP/1.1 200 OK\r\n\r\nbody", True, 200, b"body", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nbody", True, 200, Unread.LOST, False),
        (CHUNKED[:-20], True, 200, Unread.LOST, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n", True, 0, Unread.LOST, False),
        (b"HTTP/1.1 103 x\r\nretry-after: 7\r\n\r\nHTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n", False, 500, b"", True),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nanything", False, 101, b"", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n", False, 200, Unread.TOO_LARGE, False),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, False, 200, Unread.TOO_LARGE, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbodyHTTP/1.1 200 OK\r\n", False, 200, b"body", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbodygarbage", False, 200, b"body", False),
        (OK + b"content-encoding: br\r\ncontent-length: 4\r\n\r\nbody", False, 200, Unread.UNDECODABLE, True),
    ],
)  # fmt: skip
def test_an_answer_is_read_whole_and_byte_by_byte(
    answer: bytes, body: bytes | Unread, *, closed: bool, status: int, reusable: bool
) -> None:
    for reader in (read(answer, closed=closed), read(*[bytes([byte]) for byte in answer], closed=closed)):
        assert (reader.status, reader.answer().body, reader.reusable) == (status, body, reusable)
        assert reader.over == (body is not Unread.LOST)
        assert reader.answer().retry_after is None


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=6))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    pieces = [CHUNKED[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(CHUNKED)])]
    reader = read(*[piece for piece in pieces if piece])
    assert (reader.status, reader.answer().body, reader.reusable) == (200, b"body two", True)


def test_one_answer_follows_another_and_keeps_nothing_of_it() -> None:
    reader = read(
        b"HTTP/1.1 429 x\r\nretry-after: 3\r\ncontent-type: Text/Plain; charset=x\r\ncontent-length: 1\r\n\r\nx"
    )
    assert (reader.answer().retry_after, reader.answer().content_type) == ("3", "text/plain")
    reader.begin()
    assert (reader.status, reader.over, reader.reusable) == (0, False, False)
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    answer = reader.answer()
    assert (answer.status, answer.body, answer.retry_after, answer.content_type) == (200, b"ok", None, "")
    assert reader.reusable


def test_gzip_is_unfolded_up_to_the_limit() -> None:
    for plain, body in [(b"x" * LIMIT, b"x" * LIMIT), (b"x" * (LIMIT + 1), Unread.TOO_LARGE)]:
        packed = gzip.compress(plain)
        reader = read(b"HTTP/1.1 200 OK\r\ncontent-encoding: GZIP\r\ncontent-length: %d\r\n\r\n" % len(packed), packed)
        assert reader.answer().body == body


def test_interim_responses_and_chunk_extensions_do_not_count_towards_a_head() -> None:
    interim = b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\n" * (MAX_HEAD // 20)
    chunks = b"1;" + b"x" * 1_000 + b"\r\n.\r\n"
    answer = interim + OK + b"transfer-encoding: chunked\r\n\r\n" + chunks * 200 + b"0\r\n\r\n"
    for size in (1_000, len(answer)):
        reader = read(*[answer[at : at + size] for at in range(0, len(answer), size)])
        assert (reader.status, reader.answer().body, reader.reusable) == (200, b"." * 200, True)


@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (MAX_HEAD // 2) + b"\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nx: " + b"y" * 2 * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * (MAX_HEAD // 2),
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SMTP ready\r\n",
    ],
)
def test_a_head_without_end_and_what_is_not_http_are_refused(flood: bytes) -> None:
    with pytest.raises(NotHttp):
        read(*[flood[at : at + 1_000] for at in range(0, len(flood), 1_000)])
