"""POSTs bytes to one URL over kept-alive connections and says exactly how far each attempt got.

An attempt ends in one of four values, never in an exception. `NotSent` is a proof, not a guess: nothing is
written before a connection stands, TLS included. Everything after that moment is `Lost` until an answer's
status is read.

A general HTTP client spent a quarter of a tool call's CPU on redirects, cookies, proxies and streams, none of
which belongs to this exchange; so only its parts are used: the race between the addresses of a name
(aiohappyeyeballs), TLS and the sockets (asyncio), and the parser (httptools).
"""

import asyncio
import os
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import cast

import aiohappyeyeballs
import structlog
from yarl import URL

from gateway.executors.webhook.reader import HttpReader, NotHttp, Unread
from gateway.guard import guard_call
from gateway.links.addresses import AddressRefused, check_url, guarded_socket

_log = structlog.get_logger(__name__)

CONNECT_TIMEOUT = timedelta(seconds=10)
CLOSE_TIMEOUT = timedelta(seconds=5)

# uvicorn and Node close an idle connection after 5 s. Letting go first avoids the race in which our
# request crosses their close and its fate is unknown.
IDLE_SECONDS = 4.0
# RFC 8305, 5: how long an address of a name may take before the next is tried beside it.
_NEXT_ADDRESS = 0.25


@dataclass(frozen=True, slots=True)
class HttpAnswer:
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
class AddressForbidden:
    """Not one byte of the request left, and none ever will: the address is refused."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """The request, or a part of it, left; no status came back."""

    reason: str


Exchange = HttpAnswer | NotSent | AddressForbidden | ConnectionBroken


class HttpClient:
    """The connections to one URL; an async context manager.

    Redirects are not followed, cookies not kept, proxy variables of the environment not obeyed.
    """

    def __init__(self, url: str, *, concurrency: int, max_response: int, idle: float = IDLE_SECONDS) -> None:
        """Prepare without connecting; one that nobody has used for `idle` seconds is let go.

        Raises:
            OperatorError: the URL can never be used.
        """
        self._url = URL(url, encoded=True)
        check_url(url, self._url.host)
        self._max_response = max_response
        self._idle_seconds = idle
        self._room = asyncio.Semaphore(concurrency)
        self._first_line = f"POST {self._url.raw_path_qs} HTTP/1.1\r\n"
        self._own_headers = {"host": self._url.host_port_subcomponent or ""}
        if self._url.user is not None:
            pair = f"{self._url.user}:{self._url.password or ''}"
            self._own_headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        self._idle: deque[_Wire] = deque()
        self._wires: set[_Wire] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._open = False

    @property
    def host(self) -> str:
        """The host alone, for logs: the rest of a URL may carry secrets."""
        return self._url.host or ""

    async def __aenter__(self) -> "HttpClient":
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._idle.clear()
        if not self._wires:
            return
        for wire in self._wires:
            wire.transport.close()
        _, slow = await asyncio.wait([wire.closed for wire in self._wires], timeout=CLOSE_TIMEOUT.total_seconds())
        if slow:
            _log.warning("connections did not close in time", host=self.host)
            for wire in self._wires:
                wire.transport.abort()

    async def post(self, body: bytes, headers: Mapping[str, str], *, within: timedelta) -> Exchange:
        """Send one request and read its answer before time is up; a canceled one closes its connection.

        Raises:
            ValueError: a header would break the request apart.
        """
        if not self._open:
            return NotSent("the client is closed")
        until = asyncio.get_running_loop().time() + within.total_seconds()
        request = self._write(body, headers)
        try:
            if self._room.locked():
                async with asyncio.timeout_at(until):
                    await self._room.acquire()
            else:
                await self._room.acquire()
        except TimeoutError as exc:
            return self._explain_unsent(exc, within)
        wire: _Wire | None = None
        try:
            try:
                wire = self._take() or await self._connect(until)
            # uvloop reports some failed connections as a RuntimeError; a label of over 63 letters is a UnicodeError.
            except (OSError, RuntimeError, UnicodeError) as exc:
                return self._explain_unsent(exc, within)
            await wire.ask(request, until)
            return wire.tell(within)
        finally:
            self._room.release()
            if wire is not None:
                self._put_back(wire)

    def _write(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [self._first_line]
        lines += [f"{name}: {value}\r\n" for name, value in self._own_headers.items() if name not in headers]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = "".join(lines)
        if head.count("\r") != len(lines) or head.count("\n") != len(lines) or "\0" in head:
            raise ValueError("a line break or a NUL in a header")
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    def _take(self) -> "_Wire | None":
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        while self._idle:
            # The one used last: the others grow old, so that no more stay open than are needed.
            wire = self._idle.pop()
            if wire.idle_since >= oldest and wire.usable:
                return wire
            wire.transport.close()
        return None

    def _put_back(self, wire: "_Wire") -> None:
        if not self._open or not wire.usable:
            wire.transport.abort()
            return
        loop = asyncio.get_running_loop()
        wire.idle_since = loop.time()
        self._idle.append(wire)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._idle_seconds, guard_call("http client", self._sweep))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_seconds
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().transport.close()
        self._sweeper = None
        if self._idle:
            next_at = self._idle[0].idle_since + self._idle_seconds
            self._sweeper = loop.call_at(next_at, guard_call("http client", self._sweep))

    async def _connect(self, until: float) -> "_Wire":
        """Find the host, connect, agree on TLS.

        Raises:
            OSError, RuntimeError, UnicodeError: whatever went wrong; TimeoutError is an OSError.
        """
        loop = asyncio.get_running_loop()
        host = self._url.host or ""
        secure = self._url.scheme == "https"
        async with asyncio.timeout_at(min(until, loop.time() + CONNECT_TIMEOUT.total_seconds())):
            addresses = await loop.getaddrinfo(host, self._url.port, type=socket.SOCK_STREAM)
            # Its annotations say `tuple` and no more.
            connection = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType]
                addresses, happy_eyeballs_delay=_NEXT_ADDRESS, socket_factory=guarded_socket
            )
            try:
                _, wire = await loop.create_connection(
                    lambda: _Wire(self._wires, limit=self._max_response),
                    sock=connection,
                    ssl=system_trust() if secure else None,
                    server_hostname=host if secure else None,
                )
            except BaseException:
                connection.close()
                raise
        return wire

    def _explain_unsent(self, exc: Exception, within: timedelta) -> NotSent | AddressForbidden:
        match exc:
            case AddressRefused():
                _log.error("address refused", host=self.host)
                return AddressForbidden("its address is link-local, a metadata service or otherwise never connected to")
            case ssl.SSLCertVerificationError():
                reason = f"TLS certificate not accepted: {exc.verify_message[:200]}"
            case ssl.SSLError():
                reason = "TLS handshake failed"
            case socket.gaierror() | UnicodeError():
                reason = "host name cannot be resolved"
            case TimeoutError(errno=None):
                reason = f"no connection within {min(within, CONNECT_TIMEOUT).total_seconds():g} s"
            case OSError(errno=int() as number) if number > 0:
                reason = f"no connection: {os.strerror(number)}"
            case _:
                reason = "no connection"
        return NotSent(reason)


class _Wire(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, wires: set["_Wire"], *, limit: int) -> None:
        self._wires = wires
        self._reader = HttpReader(limit=limit)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._late = self._garbled = False
        self.transport: asyncio.Transport
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self.transport = cast("asyncio.Transport", transport)
        self._wires.add(self)

    async def ask(self, request: bytes, until: float) -> None:
        """Send a request and wait for the answer, for the end of the connection, or until time is up."""
        self._reader.begin()
        self._waiter = self._loop.create_future()
        alarm = self._loop.call_at(until, guard_call("http client", self._expire))
        try:
            self.transport.write(request)
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None

    def tell(self, within: timedelta) -> Exchange:
        """Say what the exchange came to."""
        reader = self._reader
        if reader.status:
            return HttpAnswer(reader.status, reader.content_type, reader.retry_after, reader.body())
        if self._late:
            return ConnectionBroken(f"no answer within {within.total_seconds():g} s")
        return ConnectionBroken(
            "the answer is not HTTP" if self._garbled else "the connection was lost before an answer came"
        )

    @property
    def usable(self) -> bool:
        """Whether another exchange can follow: this one is whole, both ways, and the peer has not hung up."""
        return self._reader.reusable and not self.transport.is_closing() and self.transport.get_write_buffer_size() == 0

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            # Nobody asked.
            self.transport.abort()
            return
        try:
            self._reader.feed(data)
        except NotHttp:
            self._garbled = True
            self._wake()
            return
        if self._reader.over:
            self._wake()

    def eof_received(self) -> None:
        self._reader.end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._wires.discard(self)
        self.closed.set_result(None)
        self._wake()

    def _expire(self) -> None:
        self._late = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@cache
def system_trust() -> ssl.SSLContext:
    """Trust whom the system trusts; made once, as reading the certificates takes milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
