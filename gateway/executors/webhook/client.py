"""POSTs bytes to one URL over keep-alive connections and reports exactly how far each attempt got.

An attempt ends in one of four values, never in an exception. `NotSent` is certain, because nothing is written before
the connection and TLS are established. From then until the status is read, every failure is `ConnectionBroken`.

A general HTTP client spent a quarter of a tool call's CPU on redirects, cookies, proxies and streams, which are not
needed here. This client combines aiohappyeyeballs (the race between addresses), asyncio (TLS and sockets) and httptools
(the parser).
"""

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from math import inf
from typing import Any, TypeVar, cast

import aiohappyeyeballs
import structlog
from yarl import URL

from gateway.clock import describe_stall
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
"""Idle connections that expire within this many seconds are closed together."""
# Event loops keep time in milliseconds, so a timer may fire slightly early.
_TICK = 0.001
# RFC 8305, 5: the delay before the next address of a name is tried in parallel.
_NEXT_ADDRESS = 0.25
_LOOK_AGAIN = 0.2
"""Seconds between two looks whether a request that waits for a connection may still start."""


T = TypeVar("T")


class _Closed(OSError):
    """The client's context is not open."""


class _Withheld(OSError):
    """The request may not start any more."""


@asynccontextmanager
async def _while_allowed(until: float, may_start: Callable[[], bool] | None) -> AsyncGenerator[None]:
    """Limit the time in which a request waits for a connection.

    Raises:
        TimeoutError: `until` has passed; _Withheld: the request may not start any more.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if may_start is not None:
            timer = loop.call_later(_LOOK_AGAIN, guard_call("http client", look))
            if not may_start():
                limit.reschedule(loop.time())

    try:
        async with asyncio.timeout_at(until) as limit:
            look()
            yield
    except TimeoutError:
        if may_start is not None and not may_start():
            raise _Withheld from None
        raise
    finally:
        if timer is not None:
            timer.cancel()


class HttpClient:
    """The connections to one URL; an async context manager.

    It does not follow redirects, store cookies or use the proxy variables of the environment.
    """

    def __init__(self, url: str, *, concurrency: int, max_response: int, idle: float = IDLE_SECONDS) -> None:
        """Prepare without connecting; a connection is reused for at most `idle` seconds after its last exchange.

        A `Keep-Alive` header of the server shortens that.

        Raises:
            OperatorError: the URL is invalid or its address is forbidden.
        """
        self._url = URL(url, encoded=True)
        check_url(url, self._url.host)
        self._max_response = max_response
        self._idle_seconds = idle
        self._free_slots = concurrency
        """The number of exchanges that may start now."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Exchanges that wait for a slot."""
        self._idle: deque[_Wire] = deque()
        self._wires: dict[_Wire, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_moment = inf
        self._alarm: asyncio.TimerHandle | None = None
        self.alarm_at = inf
        """The earliest deadline of the running exchanges; one timer serves all of them."""
        self._open = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def host(self) -> str:
        """The host alone, for logs, since the rest of a URL may contain secrets."""
        return self._url.host or ""

    @property
    def port(self) -> int | None:
        return self._url.port

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

    def post(
        self,
        request: bytes,
        *,
        within: timedelta,
        read: Callable[[Exchange], T],
        may_start: Callable[[], bool] | None = None,
    ) -> Awaitable[T]:
        """Send one request and `read` its result within the time limit; canceling it closes its connection.

        With an idle connection, the request is sent before this returns, and the result is a future. A request that
        waits for a connection is withheld as soon as it no longer `may_start`.
        """
        if self._free_slots and self._idle:
            now = self._loop.time()
            if (wire := self._take(now)) is not None:
                pending = wire.ask(request, within, now + within.total_seconds(), read)
                self._free_slots -= 1
                return pending
        return self._connect_and_post(request, within, read, may_start)

    async def _connect_and_post(
        self, request: bytes, within: timedelta, read: Callable[[Exchange], T], may_start: Callable[[], bool] | None
    ) -> T:
        until = asyncio.get_running_loop().time() + within.total_seconds()
        try:
            async with _while_allowed(until, may_start):
                await self._take_slot()
        except OSError as exc:
            return read(self._explain_unsent(exc, within))
        try:
            if not self._open:
                raise _Closed
            async with _while_allowed(until, may_start):
                wire = self._take(self._loop.time()) or await self._connect(until)
            if may_start is not None and not may_start():
                self.put_back(wire)
                return read(self._explain_unsent(_Withheld(), within))
            pending = wire.ask(request, within, until, read)
        # uvloop reports some failed connections as a RuntimeError; a host label of over 63 letters is a UnicodeError.
        except (OSError, RuntimeError, UnicodeError) as exc:
            # Cycles of the library keep the exception until the next collection of garbage, and would keep the request.
            exc.__traceback__ = None
            self._release_slot()
            return read(self._explain_unsent(exc, within))
        except BaseException:
            self._release_slot()
            raise
        # The end of the exchange releases the slot.
        return await pending

    async def _take_slot(self) -> None:
        """Wait for a slot."""
        if self._free_slots:
            self._free_slots -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        """Give a slot to the next waiting exchange."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free_slots += 1

    def _take(self, now: float) -> "_Wire | None":
        while self._idle:
            # The most recently used one; the others expire, so that only as many as needed stay open.
            wire = self._idle.pop()
            if wire.idle_until >= now and wire.reader.reusable and not wire.has_news():
                return wire
            wire.transport.close()
        return None

    def put_back(self, wire: "_Wire") -> None:
        """Reuse or close a connection whose exchange has ended."""
        if self._waiting:
            self._release_slot()
        else:
            self._free_slots += 1
        transport = wire.transport
        # The connection is reusable if this exchange is complete in both directions and the peer has not closed it.
        whole = wire.reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()
        if not whole or not self._open:
            transport.abort()
            return
        seconds, hints = self._idle_seconds, wire.reader.keep_alive
        if hints:
            seconds = min(seconds, reuse_seconds(hints))
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
        remaining = [wire for wire in self._idle if wire.idle_until > soon]
        for wire in self._idle:
            if wire.idle_until <= soon:
                wire.transport.close()
        self._idle = deque(remaining)
        if remaining:
            self._sweep_at(min(wire.idle_until for wire in remaining))

    def watch(self, until: float) -> None:
        """Set the timer for an exchange that must end by `until`."""
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
        """Resolve the host, connect and negotiate TLS.

        Raises:
            OSError, RuntimeError, UnicodeError: any step failed; TimeoutError is an OSError.
        """
        loop = asyncio.get_running_loop()
        host = self._url.host or ""
        secure = self._url.scheme == "https"
        if until <= loop.time():
            # A timeout in the past would only take effect once a connection is being made.
            raise TimeoutError
        async with asyncio.timeout_at(min(until, loop.time() + CONNECT_TIMEOUT.total_seconds())):
            addresses = await look_up(host, self._url.port or 0)
            # Its annotations are incomplete.
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
                return NotSent("the client is closed", withheld=True)
            case _Withheld():
                return NotSent("the request may not start any more", withheld=True)
            case AddressRefused():
                limited(_log.error, "address refused", per=self.host, host=self.host)
                return AddressForbidden("its address is forbidden (link-local, a metadata service or similar)")
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


class _PendingExchange(asyncio.Future[T]):
    """The future result of a running exchange; canceling it closes the connection at once."""

    __slots__ = ("wire",)
    wire: "_Wire"

    def cancel(self, msg: Any | None = None) -> bool:
        canceled = super().cancel(msg)
        if canceled:
            self.wire.give_up()
        return canceled


class _Wire(asyncio.Protocol):
    """One connection; it has at most one exchange at a time."""

    def __init__(self, client: HttpClient, wires: dict["_Wire", None], *, limit: int) -> None:
        self._client = client
        self._wires = wires
        self.reader = HttpReader(limit=limit)
        self._loop = asyncio.get_running_loop()
        self._pending: _PendingExchange[Any] | None = None
        self._read: Callable[[Exchange], Any]
        self._within: timedelta
        self.until = inf
        """The deadline of the exchange."""
        self.transport: asyncio.Transport
        self._poll = select.poll()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.idle_until = 0.0
        """The time until which another exchange may start."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._wires[self] = None

    def ask(
        self, request: bytes, within: timedelta, until: float, read: Callable[[Exchange], T]
    ) -> "_PendingExchange[T]":
        """Send a request; the response, the end of the connection or `until` ends the exchange."""
        self.transport.write(request)
        self.reader.begin()
        self._read, self._within, self.until = read, within, until
        pending: _PendingExchange[T] = _PendingExchange(loop=self._loop)
        pending.wire = self
        self._pending = pending
        if until < self._client.alarm_at:
            self._client.watch(until)
        return pending

    def has_news(self) -> bool:
        """Check whether the idle peer has closed or sent anything, even if the loop has not read it yet."""
        return self.transport.is_closing() or bool(self._poll.poll(0))

    @property
    def busy(self) -> bool:
        """Whether an exchange is running."""
        return self._pending is not None

    def data_received(self, data: bytes) -> None:
        if self._pending is None:
            self.transport.abort()
            return
        try:
            self.reader.feed(data)
        except NotHttp:
            self._end("the response is not HTTP")
            return
        if self.reader.over:
            self._end()

    def eof_received(self) -> None:
        self.reader.end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._wires.pop(self, None)
        self.closed.set_result(None)
        self._end("the connection was lost before a response arrived")

    def expire(self) -> None:
        """End the exchange at its deadline."""
        silence = f"no answer within {round(self._within.total_seconds(), 2):g} s"
        self._end(describe_stall(self._loop.time() - self.until) or silence)

    def give_up(self) -> None:
        """Abandon the exchange, since its response is no longer needed."""
        self._pending = None
        self._client.put_back(self)

    def _end(self, missing: str = "") -> None:
        """Set the result of the exchange: the response so far, or the reason why there is none."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        exchange = self.reader.answer() if self.reader.status else ConnectionBroken(missing)
        self._client.put_back(self)
        try:
            pending.set_result(self._read(exchange))
        # An error of the reader is raised to the caller; the connection and its client continue.
        except Exception as exc:  # noqa: BLE001
            pending.set_exception(exc)


@cache
def system_trust() -> ssl.SSLContext:
    """Return a context with the system's CA certificates; cached, since loading them takes milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
