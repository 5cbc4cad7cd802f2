"""Reads the answers that come over one HTTP/1.1 connection, one after the other. Pure: bytes in, an answer out.

httptools finds where things begin and end; what is kept, and how much of it, is decided here.
"""

import zlib
from collections.abc import Mapping
from enum import Enum

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.events.frozen import frozen

MAX_HEAD = 64 * 1024
"""Bytes that may come before the body, interim answers included."""

_KEPT = frozenset({b"content-encoding", b"content-length", b"content-type", b"retry-after", b"transfer-encoding"})
_SWITCHING = 101
_GZIP = 16 + zlib.MAX_WBITS


class Unread(Enum):
    """Why the body of an answer is missing; the value completes "executor answered 200 OK with ..."."""

    TOO_LARGE = "a body over the size limit"
    UNDECODABLE = "a body in an encoding that cannot be read"
    LOST = "a body that broke off"


@frozen
class HttpAnswer:
    """An answer's status was read, and its body unless `Unread` says why not."""

    status: int
    body: bytes | Unread
    headers: Mapping[bytes, bytes]
    """Those that matter here, by their names in lower case."""

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty where none was given."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def retry_after(self) -> str | None:
        """The header of that name."""
        given = self.headers.get(b"retry-after")
        return None if given is None else given.decode("latin-1")


@frozen
class NotSent:
    """Not one byte of the request left, and another try may do better."""

    reason: str


@frozen
class AddressForbidden:
    """Not one byte of the request left, and none ever will: the address is refused."""

    reason: str


@frozen
class ConnectionBroken:
    """The request, or a part of it, left; no status came back."""

    reason: str


Exchange = HttpAnswer | NotSent | AddressForbidden | ConnectionBroken


class NotHttp(Exception):
    """What came is no answer, or one with a head without end."""


class HttpReader:
    """The answers of one connection; `begin`, then `feed` until `over`."""

    def __init__(self, *, limit: int) -> None:
        """Read bodies of at most `limit` bytes, before and after decompression."""
        self._limit = limit
        # As tolerant as the field's clients: a head whose lines end in LF alone, a space behind the size of a chunk.
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._spoilt = False
        """Whether the connection is of no use for what follows, however its answer ends."""
        self.begin()

    def begin(self) -> None:
        """Forget the answer before."""
        self.status = 0
        """HTTP status; 0 until the head of an answer, that is no interim one, has been read."""
        self.over = False
        """Whether nothing more has to be read: the answer is whole, or too large."""
        self._whole = self.reusable = False
        """Whether all of the answer has come, and whether the connection can carry another exchange."""
        self._fed = self._head = self._size = 0
        self._headers: dict[bytes, bytes] = {}
        self.keep_alive: list[str] = []
        """The values of all `Keep-Alive` headers of the answer."""
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take what came.

        Raises:
            NotHttp: the connection is of no more use.
        """
        if not self.status:
            self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.over = True
            self._spoil()
        except HttpParserError as exc:
            self._spoil()
            if not self.over:
                raise NotHttp from exc
        if not self.status and self._fed > MAX_HEAD:
            raise NotHttp

    def end(self) -> None:
        """Take note that the peer closed, which is how a body without a length ends."""
        self._spoil()
        if self.status and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self._whole = self.over = True

    def answer(self) -> HttpAnswer:
        """Give what there is of an answer whose status has been read."""
        if self._size > self._limit:
            body = Unread.TOO_LARGE
        elif not self._whole:
            body = Unread.LOST
        else:
            body = b"".join(self._chunks)
            if (encoding := self._headers.get(b"content-encoding")) is not None:
                body = _decode(body, encoding.strip().lower(), limit=self._limit)
        return HttpAnswer(self.status, body, self._headers)

    def _spoil(self) -> None:
        self._spoilt, self.reusable = True, False

    # What the parser calls -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.over:
            self._spoil()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > MAX_HEAD:
            # Reaches `feed` as an error of the parser.
            raise NotHttp
        # Behind a body these are trailers, and behind an answer they belong to nothing.
        if self.status:
            return
        name = name.lower()
        if name in _KEPT:
            self._headers.setdefault(name, value)
        elif name == b"keep-alive":
            self.keep_alive.append(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        if self.over:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != _SWITCHING:
            self._headers.clear()
            self.keep_alive.clear()
            return
        self.status = status
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limit:
            self._size, self.over = int(length), True

    def on_body(self, body: bytes) -> None:
        if self.over:
            return
        self._size += len(body)
        self._chunks.append(body)
        self.over = self._size > self._limit

    def on_message_complete(self) -> None:
        if self.status and not self.over:
            self._whole = self.over = True
            self.reusable = not self._spoilt and self._parser.should_keep_alive()


def _decode(body: bytes, encoding: bytes, *, limit: int) -> bytes | Unread:
    if encoding in {b"", b"identity"}:
        return body
    if encoding in {b"gzip", b"x-gzip"}:
        return _inflate(body, limit=limit) if body else body
    return Unread.UNDECODABLE


def _inflate(body: bytes, *, limit: int) -> bytes | Unread:
    gzip = zlib.decompressobj(wbits=_GZIP)
    try:
        # One byte over the limit shows that it is passed, and keeps a bomb from unfolding further.
        plain = gzip.decompress(body, limit + 1)
    except zlib.error:
        return Unread.UNDECODABLE
    if len(plain) > limit:
        return Unread.TOO_LARGE
    return plain if gzip.eof and not gzip.unused_data else Unread.UNDECODABLE
