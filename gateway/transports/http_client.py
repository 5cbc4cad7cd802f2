"""POSTs bytes to one URL over kept-alive connections and says exactly how far each attempt got.

An attempt ends in one of four values, never in an exception. `NotSent` is a proof, not a guess:
aiohttp asks the body for its bytes only once a connection stands, so a body that was never asked
cannot have arrived. Everything after that moment is `Lost` until an answer's status is read.
"""

import asyncio
import os
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import lru_cache

import structlog
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    hdrs,
)
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from gateway.transports.addresses import AddressRefused, check_url, guarded_socket

_log = structlog.get_logger(__name__)

CONNECT_TIMEOUT = timedelta(seconds=10)
CLOSE_TIMEOUT = timedelta(seconds=5)

# uvicorn and Node close an idle connection after 5 s. Letting go first avoids the race in which our
# request crosses their close and its fate is unknown.
_IDLE_SECONDS = 4.0

_CONNECT = CONNECT_TIMEOUT.total_seconds()
# aiohttp rounds long deadlines up to whole seconds; ours mean what they say.
_NEVER = float("inf")
# And none at all is its word for no deadline.
_LEAST = 0.001

_GZIP = 16 + zlib.MAX_WBITS


class Unread(Enum):
    """Why the body of an answer is missing; the value completes "executor answered 200 OK with ..."."""

    TOO_LARGE = "a body over the size limit"
    UNDECODABLE = "a body in an encoding that cannot be read"
    LOST = "a body that broke off"


@dataclass(frozen=True, slots=True)
class Received:
    """An answer's status was read, and its body unless `Unread` says why not."""

    status: int
    content_type: str
    """The media type in lower case, without parameters."""
    retry_after: str | None
    body: bytes | Unread


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of the request left, and another try may do better."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Not one byte of the request left, and none ever will: the address is refused."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The request, or a part of it, left; no status came back."""

    reason: str


Exchange = Received | NotSent | Forbidden | Lost


class HttpClient:
    """The connections to one URL; an async context manager.

    Redirects are not followed, cookies not kept, proxy variables of the environment not obeyed.
    """

    def __init__(self, url: str, *, concurrency: int, max_response: int) -> None:
        """Prepare without connecting.

        Raises:
            OperatorError: the URL can never be used.
        """
        self._url = URL(url, encoded=True)
        check_url(url, self._url.host)
        self._concurrency = concurrency
        self._max_response = max_response
        self._session: ClientSession | None = None

    @property
    def host(self) -> str:
        """The host alone, for logs: the rest of a URL may carry secrets."""
        return self._url.host or ""

    async def __aenter__(self) -> "HttpClient":
        connector = TCPConnector(
            limit=self._concurrency, keepalive_timeout=_IDLE_SECONDS, socket_factory=guarded_socket
        )
        self._session = ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT.total_seconds()),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT.total_seconds()):
                await session.close()
        except TimeoutError:
            _log.warning("connections did not close in time", host=self.host)

    async def post(self, body: bytes, headers: Mapping[str, str], *, within: timedelta) -> Exchange:
        """Send one request and read its answer before time is up; a canceled one closes its connection."""
        if self._session is None:
            return NotSent("the client is closed")
        sent = _Body(body)
        response: ClientResponse | None = None
        content: bytes | Unread = Unread.LOST
        try:
            response = await self._session.post(
                self._url, data=sent, headers=headers, allow_redirects=False, timeout=_limit(within)
            )
            content = await _read(response, limit=self._max_response)
        # uvloop reports some failed connections as a RuntimeError; a label of over 63 letters is a UnicodeError.
        except (ClientError, OSError, RuntimeError, UnicodeError) as exc:
            if response is None:
                return _explain_lost(exc, within) if sent.begun else self._explain_unsent(exc, within)
        finally:
            # One that was read to its end has given its connection back.
            if response is not None and response.connection is not None:
                response.close()
        assert response is not None, "a deadline raises, it never swallows"
        given = response.headers
        return Received(
            status=response.status,
            content_type=response.content_type.lower() if hdrs.CONTENT_TYPE in given else "",
            retry_after=given.get(hdrs.RETRY_AFTER),
            body=content,
        )

    def _explain_unsent(self, exc: Exception, within: timedelta) -> NotSent | Forbidden:
        match exc:
            case ClientConnectorError(os_error=AddressRefused()):
                _log.error("address refused", host=self.host)
                return Forbidden("its address is link-local, a metadata service or otherwise never connected to")
            case ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as fault):
                reason = f"TLS certificate not accepted: {fault.verify_message[:200]}"
            case ClientConnectorCertificateError() | ClientConnectorSSLError():
                reason = "TLS handshake failed"
            case ClientConnectorDNSError() | UnicodeError():
                reason = "host name cannot be resolved"
            case ClientConnectorError(os_error=OSError(errno=int() as number)) if number > 0:
                reason = f"no connection: {os.strerror(number)}"
            case TimeoutError():
                reason = f"no connection within {min(within, CONNECT_TIMEOUT).total_seconds():g} s"
            case _:
                reason = "no connection"
        return NotSent(reason)


class _Body(Payload):
    """The bytes of a request, which remember whether anybody asked for them."""

    _value: bytes

    def __init__(self, value: bytes) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self.begun = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self.begun = True
        await writer.write(self._value[:content_length])


@lru_cache(maxsize=16)
def _limit(within: timedelta) -> ClientTimeout:
    """Set aiohttp's own deadline: it covers the body as well, at a third of what a context of ours costs."""
    return ClientTimeout(total=max(_LEAST, within.total_seconds()), sock_connect=_CONNECT, ceil_threshold=_NEVER)


def _explain_lost(exc: Exception, within: timedelta) -> Lost:
    match exc:
        case TimeoutError():
            return Lost(f"no answer within {within.total_seconds():g} s")
        case ClientResponseError():
            return Lost("the answer is not HTTP")
        case _:
            return Lost("the connection was lost before an answer came")


async def _read(response: ClientResponse, *, limit: int) -> bytes | Unread:
    length = response.content_length
    if length is not None and length > limit:
        return Unread.TOO_LARGE
    stream = response.content
    chunks: list[bytes] = []
    size = 0
    try:
        # At the end there is nothing to wait for; only a fault has still to be raised.
        while not stream.at_eof() or stream.exception() is not None:
            chunk = await stream.readany()
            size += len(chunk)
            if size > limit:
                return Unread.TOO_LARGE
            chunks.append(chunk)
    except ClientPayloadError:
        return Unread.LOST
    body = b"".join(chunks)
    match response.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _inflate(body, limit=limit) if body else body
        case _:
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
