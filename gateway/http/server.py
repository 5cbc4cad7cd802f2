"""The uvicorn server of the API: its limits, and streams that end when it stops."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI

from gateway.http.app import followers_of
from gateway.http.plain_http import PlainHttp
from gateway.http.sse import Followers
from gateway.http.starting import StartingApp
from gateway.settings.model import HttpSpec, Limits, Settings

_UNREAD = timedelta(seconds=30)
"""The time for which a client may leave bytes of a response unread."""
_LEAST_SECONDS = 2
"""The minimum number of seconds for requests to end when the server stops."""
_MOST_CONNECTIONS = 8_192
_BESIDE_FOLLOWERS = 3_192
"""Connections reserved for requests if followers could use all others."""


class Server(uvicorn.Server):
    """A uvicorn server that first ends the open streams when it stops, because they would delay it."""

    def __init__(self, config: uvicorn.Config, app: FastAPI | StartingApp) -> None:
        super().__init__(config)
        self._app = app

    @property
    def followers(self) -> Followers:
        """The open streams."""
        app = self._app.app if isinstance(self._app, StartingApp) else self._app
        return Followers() if app is None else followers_of(app)

    def fit(self, settings: Settings) -> None:
        """Apply the limits of a configuration to new connections."""
        self.config.timeout_keep_alive = _seconds(settings.http.keep_alive)
        self.config.limit_concurrency = most_connections(settings.limits)

    def stop(self, within: timedelta) -> None:
        """Close the port and end idle connections and streams; requests have the given time to end."""
        self.config.timeout_graceful_shutdown = max(_LEAST_SECONDS, _seconds(within))
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process, which drains before it stops the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            _end_unread(listener)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.followers.end_all()
        await super().shutdown(sockets)


def most_connections(limits: Limits) -> int:
    """Compute the limit of connections from the limit of event streams."""
    return max(_MOST_CONNECTIONS, limits.followers + _BESIDE_FOLLOWERS)


def make_server(app: FastAPI | StartingApp, limits: Limits, http: HttpSpec | None = None) -> Server:
    """Make the server for bound sockets."""
    connections = most_connections(limits)
    options: dict[str, Any] = {
        "http": PlainHttp,
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


def _end_unread(listener: socket.socket) -> None:
    """Let the system drop a listener's connections whose clients read nothing; Linux only.

    A server cannot drop them through ASGI, and closing them would wait for the client.
    """
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and listener.family in {socket.AF_INET, socket.AF_INET6}:
        listener.setsockopt(socket.IPPROTO_TCP, option, _UNREAD // timedelta(milliseconds=1))


def _seconds(span: timedelta) -> int:
    """Round to whole seconds, at least one, as uvicorn requires."""
    return max(1, round(span.total_seconds()))
