"""The uvicorn server of the HTTP face: bounded request heads, and streams that end when it stops."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any, cast

import structlog
import uvicorn
from fastapi import FastAPI

from gateway.guard import guard_call
from gateway.http.app import followers_of
from gateway.http.edge import HEADERS, NO_STORE
from gateway.http.errors import Refused, problem_reply
from gateway.http.plain_http import PlainHttp
from gateway.http.reply import Reply
from gateway.http.sse import WIRE, Wire
from gateway.log_limit import limited
from gateway.settings.model import HttpSpec, Limits, Settings

log = structlog.get_logger(__name__)

_HEAD_BYTES = 64 * 1024
_UNSENT_BYTES = 16 * 1024
"""What a connection keeps of what was written and the kernel does not take, before it counts as full."""
_HEAD_DEADLINE = timedelta(seconds=30)
_AROUND_A_HEADER = len(": \r\n")
_LEAST_SECONDS = 2
"""Seconds that requests have to end when the server stops, at least."""
_MOST_CONNECTIONS = 8_192
_BESIDE_FOLLOWERS = 3_192
"""Connections for requests, where more followers are allowed than those leave room for."""


def _refusal(problem: str, detail: str) -> Reply:
    """Make an answer of the server's own, which no application is asked about."""
    reply = problem_reply(Refused(problem, detail))
    reply.raw_headers += [*HEADERS, NO_STORE, (b"connection", b"close")]
    return reply


def _written(reply: Reply) -> bytes:
    """Write an answer to what is no request."""
    lines = [b"HTTP/1.1 %d %b" % (reply.status_code, HTTPStatus(reply.status_code).phrase.encode())]
    lines += [b"%b: %b" % header for header in reply.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(reply.body)])


_HEAD_TOO_LARGE = _written(_refusal("head-too-large", "the request line and the headers have over 64 KiB"))
_UNREADABLE = _written(
    _refusal("invalid-request", "this is no HTTP/1.1 request; its line, its headers or its chunks are wrong")
)
_CROWDED = _refusal("overloaded", "too many connections are open; try again later")


class BoundedHttp(PlainHttp):
    """HTTP/1.1 whose request line and headers are bounded in size and time, which the parser alone is not."""

    _head_bytes = 0
    _head_seen = 0
    """Bytes of the head that have been read, for one that comes in few pieces."""
    _heads = 0
    _head_timer: asyncio.TimerHandle | None = None
    _most: int | None = None
    """Connections from which on requests are turned away."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wire = Wire(self._write, self._is_full, self.flow.drain, transport.abort)
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        # Uvicorn writes its own line, query string and all, as soon as the root logger has a handler.
        self.access_log = False
        # Past its bound uvicorn answers in a form of its own.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)
        # Each of these leads back here: who connects anew for each request would leave it all to the collector.
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self.scope = cast("Any", None)
        self.cycle = cast("Any", None)
        del self._wire

    def data_received(self, data: bytes) -> None:
        heads = self._heads
        super().data_received(data)
        # A head that began within this chunk may follow pipelined requests; it is counted from the next chunk on.
        if self._head_timer is not None and heads == self._heads:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        del msg
        if self.transport.is_closing():
            return
        # Behind the beginning of an answer, another one would be taken for its rest.
        if not self.cycle or self.cycle.response_complete or not self.cycle.response_started:
            is_large = self._head_seen > _HEAD_BYTES or self._head_bytes > _HEAD_BYTES
            self.transport.write(_HEAD_TOO_LARGE if is_large else _UNREADABLE)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {WIRE: self._wire}
        self._heads += 1
        self._head_seen = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + _AROUND_A_HEADER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_there()
        if self._most is not None and max(len(self.connections), len(self.tasks)) >= self._most:
            facts = {"connections": len(self.connections), "most": self._most}
            limited(log.warning, "a request is turned away", per=None, **facts)
            self.app = _CROWDED
        super().on_headers_complete()

    def _write(self, chunks: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(chunks)

    def _is_full(self) -> bool:
        return self.flow.write_paused

    def _count_head(self, size: int) -> None:
        self._head_seen += size
        if self._head_seen > _HEAD_BYTES:
            # What the parser makes of it is a request that cannot be read, and refused as such.
            raise ValueError("the request head is too large")

    def _expect_head(self) -> None:
        self._head_is_there()
        give_up = guard_call("http", self._give_up)
        self._head_timer = self.loop.call_later(_HEAD_DEADLINE.total_seconds(), give_up)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None
        self._head_bytes = 0

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Ends the open streams first when it stops; they would hold it up otherwise."""

    def fit(self, settings: Settings) -> None:
        """Keep to the limits of a configuration from the next connection on."""
        self.config.timeout_keep_alive = _seconds(settings.http.keep_alive)
        self.config.limit_concurrency = most_connections(settings.limits)

    def stop(self, within: timedelta) -> None:
        """Close the port and end idle connections and streams; requests have so much time to end."""
        self.config.timeout_graceful_shutdown = max(_LEAST_SECONDS, _seconds(within))
        self.should_exit = True

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self.followers = followers_of(app)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process, which drains before it stops the server."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.followers.end_all()
        await super().shutdown(sockets)


def most_connections(limits: Limits) -> int:
    """Say how many connections are taken where so many event streams are allowed."""
    return max(_MOST_CONNECTIONS, limits.followers + _BESIDE_FOLLOWERS)


def _seconds(span: timedelta) -> int:
    """Round to whole seconds, at least one, as uvicorn takes them."""
    return max(1, round(span.total_seconds()))


def make_server(app: FastAPI, limits: Limits, http: HttpSpec | None = None) -> Server:
    """Make the server, for sockets that are bound already."""
    connections = most_connections(limits)
    options: dict[str, Any] = {
        "http": BoundedHttp,
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "limit_concurrency": connections,
        "backlog": connections,
        "timeout_graceful_shutdown": _LEAST_SECONDS,
        "timeout_keep_alive": _seconds((http or HttpSpec()).keep_alive),
    }
    return Server(uvicorn.Config(app, **options), app)
