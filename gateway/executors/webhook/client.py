"""POSTs bytes to one URL over kept-alive connections and says exactly how far each attempt got.

An attempt ends in one of four values, never in an exception. `NotSent` is a proof, not a guess: nothing is
written before a connection stands, TLS included. Everything after that moment is `ConnectionBroken`
until an answer's status is read.

A general HTTP client spent a quarter of a tool call's CPU on redirects, cookies, proxies and streams, none of
which belongs to this exchange; so only its parts are used: the race between the addresses of a name
(aiohappyeyeballs), TLS and the sockets (asyncio), and the parser (httptools).
"""

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from math import inf
from typing import Any, TypeVar, cast

import aiohappyeyeballs
import structlog
from yarl import URL

from gateway.executors.webhook.reader import AddressForbidden, ConnectionBroken, Exchange, HttpReader, NotHttp, NotSent
from gateway.guard import guard_call
from gateway.links.addresses import AddressRefused, check_url, guarded_socket
from gateway.links.keep_alive import IDLE_SECONDS, reuse_seconds
from gateway.links.names import look_up
from gateway.log_limit import limited

_log = structlog.get_logger(__name__)

CONNECT_TIMEOUT = timedelta(seconds=10)
CLOSE_TIMEOUT = timedelta(seconds=5)

_SWEEP_EARLY = 0.05
"""Idle connections that expire within so many seconds are closed together."""
# Loops keep time in milliseconds, so that an alarm may go off a little early.
_TICK = 0.001
# RFC 8305, 5: how long an address of a name may take before the next is tried beside it.
_NEXT_ADDRESS = 0.25


T = TypeVar("T")


class _Closed(OSError):
    """The client was not entered, or left."""


class HttpClient:
    """The connections to one URL; an async context manager.

    Redirects are not followed, cookies not kept, proxy variables of the environment not obeyed.
    """

    def __init__(self, url: str, *, concurrency: int, max_response: int, idle: float = IDLE_SECONDS) -> None:
        """Prepare without connecting; a connection is reused for at most `idle` seconds after its last exchange.

        A `Keep-Alive` header of the server shortens that.

        Raises:
            OperatorError: the URL can never be used.
        """
        self._url = URL(url, encoded=True)
        check_url(url, self._url.host)
        self._max_response = max_response
        self._idle_seconds = idle
        self._room = concurrency
        """How many exchanges more may begin at once."""
        self._in_line: deque[asyncio.Future[None]] = deque()
        """Who waits for room."""
        self._idle: deque[_Wire] = deque()
        self._wires: set[_Wire] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_moment = inf
        self._alarm: asyncio.TimerHandle | None = None
        self.alarm_at = inf
        """When the first of the exchanges under way may be late: one timer is for all of them."""
        self._open = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def host(self) -> str:
        """The host alone, for logs: the rest of a URL may carry secrets."""
        return self._url.host or ""

    async def __aenter__(self) -> "HttpClient":
        self._open = True
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self._sweeper = self._alarm = None
        self._sweep_moment = self.alarm_at = inf
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

    def post(self, request: bytes, *, within: timedelta, read: Callable[[Exchange], T]) -> Awaitable[T]:
        """Send one request and `read` what came of it before time is up; a canceled one closes its connection.

        Where a connection is free, the request has left when this returns, and what is returned is a future.
        """
        if self._room and self._idle:
            now = self._loop.time()
            if (wire := self._take(now)) is not None:
                asked = wire.ask(request, within, now + within.total_seconds(), read)
                self._room -= 1
                return asked
        return self._connect_and_post(request, within, read)

    async def _connect_and_post(self, request: bytes, within: timedelta, read: Callable[[Exchange], T]) -> T:
        until = asyncio.get_running_loop().time() + within.total_seconds()
        try:
            await self._enter(until)
        except TimeoutError as exc:
            return read(self._explain_unsent(exc, within))
        try:
            if not self._open:
                raise _Closed
            wire = self._take(self._loop.time()) or await self._connect(until)
            asked = wire.ask(request, within, until, read)
        # uvloop reports some failed connections as a RuntimeError; a label of over 63 letters is a UnicodeError.
        except (OSError, RuntimeError, UnicodeError) as exc:
            self._leave()
            return read(self._explain_unsent(exc, within))
        except BaseException:
            self._leave()
            raise
        # The connection gives the room back.
        return await asked

    async def _enter(self, until: float) -> None:
        """Wait for room.

        Raises:
            TimeoutError: there was none in time.
        """
        if self._room:
            self._room -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._in_line.append(turn)
        try:
            async with asyncio.timeout_at(until):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        """Give room to the next in line."""
        while self._in_line:
            turn = self._in_line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._room += 1

    def _take(self, now: float) -> "_Wire | None":
        while self._idle:
            # The one used last: the others grow old, so that no more stay open than are needed.
            wire = self._idle.pop()
            if wire.idle_until >= now and wire.reader.reusable and not wire.has_news():
                return wire
            wire.transport.close()
        return None

    def put_back(self, wire: "_Wire") -> None:
        """Take a connection back whose exchange is over."""
        if self._in_line:
            self._leave()
        else:
            self._room += 1
        transport = wire.transport
        # Another exchange can follow where this one is whole, both ways, and the peer has not hung up.
        whole = wire.reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()
        if not whole or not self._open:
            transport.abort()
            return
        seconds = min(self._idle_seconds, reuse_seconds(wire.reader.keep_alive))
        if not seconds:
            transport.close()
            return
        wire.idle_until = self._loop.time() + seconds
        self._idle.append(wire)
        if wire.idle_until < self._sweep_moment:
            self._sweep_at(wire.idle_until)

    def _sweep_at(self, moment: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_moment = moment
        self._sweeper = self._loop.call_at(moment, guard_call("http client", self._sweep))

    def _sweep(self) -> None:
        self._sweeper, self._sweep_moment = None, inf
        soon = self._loop.time() + _SWEEP_EARLY
        kept = [wire for wire in self._idle if wire.idle_until > soon]
        for wire in self._idle:
            if wire.idle_until <= soon:
                wire.transport.close()
        self._idle = deque(kept)
        if kept:
            self._sweep_at(min(wire.idle_until for wire in kept))

    def watch(self, until: float) -> None:
        """Have an exchange end when its time is up, unless something ends it before."""
        if until >= self.alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self.alarm_at = until
        self._alarm = self._loop.call_at(until, guard_call("http client", self._ring))

    def _ring(self) -> None:
        now = self._loop.time() + _TICK
        self._alarm, self.alarm_at = None, inf
        busy = [wire for wire in self._wires if wire.busy]
        self.watch(min((wire.until for wire in busy if wire.until > now), default=inf))
        for wire in busy:
            if wire.until <= now:
                wire.expire()

    async def _connect(self, until: float) -> "_Wire":
        """Find the host, connect, agree on TLS.

        Raises:
            OSError, RuntimeError, UnicodeError: whatever went wrong; TimeoutError is an OSError.
        """
        loop = asyncio.get_running_loop()
        host = self._url.host or ""
        secure = self._url.scheme == "https"
        if until <= loop.time():
            # A deadline that is over would only be noticed once a connection is under way.
            raise TimeoutError
        async with asyncio.timeout_at(min(until, loop.time() + CONNECT_TIMEOUT.total_seconds())):
            addresses = await look_up(host, self._url.port or 0)
            # Its annotations say `tuple` and no more.
            connection = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType]
                addresses, happy_eyeballs_delay=_NEXT_ADDRESS, socket_factory=guarded_socket
            )
            try:
                _, wire = await loop.create_connection(
                    lambda: _Wire(self, self._wires, limit=self._max_response),
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
            case _Closed():
                return NotSent("the client is closed")
            case AddressRefused():
                limited(_log.error, "address refused", per=self.host, host=self.host)
                return AddressForbidden("its address is link-local, a metadata service or otherwise never connected to")
            case ssl.SSLCertVerificationError():
                reason = f"TLS certificate not accepted: {exc.verify_message[:200]}"
            case ssl.SSLError():
                reason = "TLS handshake failed"
            case socket.gaierror() | UnicodeError():
                reason = "host name cannot be resolved"
            case TimeoutError(errno=None):
                reason = f"no connection within {round(min(within, CONNECT_TIMEOUT).total_seconds(), 2):g} s"
            case OSError(errno=int() as number) if number > 0:
                reason = f"no connection: {os.strerror(number)}"
            case _:
                reason = "no connection"
        return NotSent(reason)


class _Asked(asyncio.Future[T]):
    """What will come of an exchange under way; canceled, it closes the connection at once."""

    __slots__ = ("wire",)
    wire: "_Wire"

    def cancel(self, msg: Any | None = None) -> bool:
        canceled = super().cancel(msg)
        if canceled:
            self.wire.give_up()
        return canceled


class _Wire(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, client: HttpClient, wires: set["_Wire"], *, limit: int) -> None:
        self._client = client
        self._wires = wires
        self.reader = HttpReader(limit=limit)
        self._loop = asyncio.get_running_loop()
        self._asked: _Asked[Any] | None = None
        self._read: Callable[[Exchange], Any]
        self._within: timedelta
        self.until = inf
        """When the time of the exchange is up."""
        self.transport: asyncio.Transport
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.idle_until = 0.0
        """Until when another exchange may begin."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self.transport = cast("asyncio.Transport", transport)
        self._wires.add(self)

    def ask(self, request: bytes, within: timedelta, until: float, read: Callable[[Exchange], T]) -> "_Asked[T]":
        """Send a request; the answer, the end of the connection or `until` ends the exchange."""
        self.transport.write(request)
        self.reader.begin()
        self._read, self._within, self.until = read, within, until
        asked: _Asked[T] = _Asked(loop=self._loop)
        asked.wire = self
        self._asked = asked
        if until < self._client.alarm_at:
            self._client.watch(until)
        return asked

    def has_news(self) -> bool:
        """Look whether the idle peer has closed or sent anything, even if the loop has not come to read it yet."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    @property
    def busy(self) -> bool:
        """Whether an exchange is under way."""
        return self._asked is not None

    def data_received(self, data: bytes) -> None:
        if self._asked is None:
            # Nobody asked.
            self.transport.abort()
            return
        try:
            self.reader.feed(data)
        except NotHttp:
            self._end("the answer is not HTTP")
            return
        if self.reader.over:
            self._end()

    def eof_received(self) -> None:
        self.reader.end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._wires.discard(self)
        self.closed.set_result(None)
        self._end("the connection was lost before an answer came")

    def expire(self) -> None:
        """Time is up."""
        self._end(f"no answer within {round(self._within.total_seconds(), 2):g} s")

    def give_up(self) -> None:
        """Nobody wants the answer any more."""
        self._asked = None
        self._client.put_back(self)

    def _end(self, missing: str = "") -> None:
        """Say what the exchange came to: an answer as far as it came, or why there is none."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        exchange = self.reader.answer() if self.reader.status else ConnectionBroken(missing)
        self._client.put_back(self)
        try:
            asked.set_result(self._read(exchange))
        # Whoever waits gets what reading raised; this connection and its client go on.
        except Exception as exc:  # noqa: BLE001
            asked.set_exception(exc)


@cache
def system_trust() -> ssl.SSLContext:
    """Trust whom the system trusts; made once, as reading the certificates takes milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
