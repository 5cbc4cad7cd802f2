"""HTTP/1.1 with bounded heads, half-open connections, and no upgrades (RFC 9110, 7.8; RFC 9112, 9.6)."""

import asyncio
import logging
from itertools import chain
from math import inf
from typing import cast

import structlog
from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.guard import guard_call
from gateway.log_limit import limited

MAX_HEAD = 64 * 1024
"""Maximum bytes of a request head, and of everything else around a body; the parser copies them with each segment."""
HEAD_DEADLINE = 30.0
"""Seconds from the first byte of a request, or from the connection, until its head is complete."""
WATCH = "dragoman.watch"
"""An extension of the scope: a function that a request calls to end with the sending side of its client."""


class _Parser(HttpRequestParser):
    """A parser that keeps the bytes after a request head with an `Upgrade` header, where httptools reads no body."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        super().__init__(protocol)
        # As uvicorn sets it up.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self.rest: memoryview | None = None

    def feed_data(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except HttpParserUpgrade as exc:
            self.rest = memoryview(data)[exc.args[0] :]


class _Logger(logging.Logger):
    """Uvicorn's logger with its warnings limited, because every stranger can cause them."""

    def warning(self, msg: object, *args: object, **kwargs: object) -> None:
        del args, kwargs
        limited(_log.warning, str(msg), per=None)


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_LOGGER = _Logger("uvicorn.error")
_LOGGER.parent = logging.getLogger("uvicorn.error")


class PlainHttp(HttpToolsProtocol):
    """Uvicorn's protocol over httptools; it limits heads, and answers a client that has closed its sending side.

    It parses a head with an `Upgrade` header again without that header.

    The JDK's HttpClient offers `h2c` with each request. httptools treats such a request as complete after its head, so
    it would parse the body as the next request on the connection.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.logger = _LOGGER
        self.parser = _Parser(self)
        self._unread: float = -inf
        """Bytes since the last part of the message that the parser has passed on; not counted between messages."""
        self._is_watched = self._has_ended = self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _limit_head(self) -> None:
        """Start the time limit of a head that is not complete, and end that of one that is."""
        if not self._in_head and self._responds():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_DEADLINE, guard_call("server", self._end_head))

    def _responds(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _end_head(self) -> None:
        self._head_timer = None
        if self._responds():
            # A client sends the next head slowly: the response comes first.
            self._limit_head()
        else:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection until the response of a whole request, unless that request ends with its client."""
        if not self._responds() or self.cycle.more_body or self._is_watched:
            return False
        self._has_ended, self.cycle.keep_alive = True, False
        return True

    def _watch(self) -> None:
        self._is_watched = True
        if self._has_ended:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        self._limit_head()
        if self._unread > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The request head is over {MAX_HEAD} bytes.")
            return
        # A loop: a segment may hold many requests with offers. Without a parser the connection is lost.
        while (parser := cast("_Parser | None", self.parser)) is not None and parser.rest is not None:
            head = self._head_without_offer()
            self.parser = _Parser(self)
            for piece in (head, parser.rest):
                super().data_received(cast("bytes", piece))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unread, self._is_watched, self._in_head = 0, False, True
        self.scope["extensions"] = {WATCH: cast("dict[object, object]", self._watch)}

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._unread, self._in_head = 0, False
        if len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > MAX_HEAD:
            raise ValueError("the request head is too large")
        if not self.parser.should_upgrade():
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            # It makes a tunnel of the connection, offer or not.
            raise ValueError("CONNECT is not supported")

    def on_message_complete(self) -> None:
        self._unread = -inf
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
