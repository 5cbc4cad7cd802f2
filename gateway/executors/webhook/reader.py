"""Reads consecutive HTTP/1.1 responses from the bytes of one connection. Pure.

httptools parses the messages; this module selects the headers and limits the sizes.
"""

import zlib
from collections.abc import Mapping
from enum import Enum

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.events.frozen import frozen

MAX_HEAD = 64 * 1024
"""Maximum bytes of a head, and of a head with its trailers; each interim response has its own."""

_HEADERS = frozenset(
    {b"content-encoding", b"content-length", b"content-type", b"date", b"retry-after", b"transfer-encoding"}
)
_SWITCHING = 101
_GZIP = 16 + zlib.MAX_WBITS


class Unread(Enum):
    """The reason why a body is missing; the value completes "executor answered 200 OK with ..."."""

    TOO_LARGE = "a body over the size limit"
    UNDECODABLE = "a body in an encoding that cannot be read"
    LOST = "a body that broke off"


@frozen
class HttpAnswer:
    """A response with its status, and its body or the reason why the body is missing."""

    status: int
    body: bytes | Unread
    headers: Mapping[bytes, bytes]
    """The headers in `_HEADERS`, by lower-case name."""

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty if there is none."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def retry_after(self) -> str | None:
        """The `Retry-After` header."""
        given = self.headers.get(b"retry-after")
        return None if given is None else given.decode("latin-1")


@frozen
class NotSent:
    """No byte of the request was sent; a retry may succeed."""

    reason: str
    withheld: bool = False
    """Whether this side kept it back, which says nothing about the peer."""


@frozen
class AddressForbidden:
    """No byte of the request was sent, and a retry cannot succeed: the address is forbidden."""

    reason: str


@frozen
class ConnectionBroken:
    """The request may have been sent, wholly or in part; no status arrived."""

    reason: str


Exchange = HttpAnswer | NotSent | AddressForbidden | ConnectionBroken


class NotHttp(Exception):
    """The received bytes are not an HTTP response, or its head is too large."""


class HttpReader:
    """Reads the responses of one connection: call `begin`, then `feed` until `over`."""

    def __init__(self, *, limit: int) -> None:
        """Read bodies of at most `limit` bytes, before and after decompression."""
        self._limit = limit
        # As lenient as common clients: lines that end in LF alone, a space after a chunk size.
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._spoilt = False
        """Whether the connection cannot be reused, however this response ends."""
        self.begin()

    def begin(self) -> None:
        """Forget the previous response."""
        self.status = 0
        """The HTTP status; 0 until the head of a final response has been read."""
        self.over = False
        """Whether reading can stop: the response is complete or too large."""
        self._whole = self.reusable = False
        """Whether the response is complete, and whether the connection can be reused."""
        self._fed = self._head = self._size = 0
        self._headers: dict[bytes, bytes] = {}
        self.keep_alive: list[str] = []
        """The values of all `Keep-Alive` headers of the response."""
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Parse received bytes.

        Raises:
            NotHttp: the connection is unusable.
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
        """Note that the peer closed the connection, which ends a body without a length."""
        self._spoil()
        if self.status and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self._whole = self.over = True

    def answer(self) -> HttpAnswer:
        """Return the response so far; its status must have been read."""
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

    # Callbacks of the parser -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.over:
            self._spoil()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > MAX_HEAD:
            # The parser passes it to `feed` as its own error.
            raise NotHttp
        # Headers after the body are trailers, and headers after the response belong to nothing.
        if self.status:
            return
        name = name.lower()
        if name in _HEADERS:
            self._headers.setdefault(name, value)
        elif name == b"keep-alive":
            self.keep_alive.append(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        if self.over:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != _SWITCHING:
            self._fed = self._head = 0
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
        # One byte over the limit proves the excess without inflating a zip bomb.
        plain = gzip.decompress(body, limit + 1)
    except zlib.error:
        return Unread.UNDECODABLE
    if len(plain) > limit:
        return Unread.TOO_LARGE
    return plain if gzip.eof and not gzip.unused_data else Unread.UNDECODABLE
