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
from gateway.settings.model import HttpSpec, Limits, Settings

_UNREAD = timedelta(seconds=30)
"""How long a client may leave bytes of a response unread."""
_LEAST_SECONDS = 2
"""Seconds that requests have to end when the server stops, at least."""
_MOST_CONNECTIONS = 8_192
_BESIDE_FOLLOWERS = 3_192
"""Connections for requests where more followers are allowed than those leave room for."""


class Server(uvicorn.Server):
    """Ends the open streams first when it stops; they would delay it otherwise."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self.followers = followers_of(app)

    def fit(self, settings: Settings) -> None:
        """Apply the limits of a configuration to the connections that are made from now on."""
        self.config.timeout_keep_alive = _seconds(settings.http.keep_alive)
        self.config.limit_concurrency = most_connections(settings.limits)

    def stop(self, within: timedelta) -> None:
        """Close the port and end idle connections and streams; requests have so much time to end."""
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
    """Compute how many connections are accepted where so many event streams are allowed."""
    return max(_MOST_CONNECTIONS, limits.followers + _BESIDE_FOLLOWERS)


def make_server(app: FastAPI, limits: Limits, http: HttpSpec | None = None) -> Server:
    """Make the server, for sockets that are bound already."""
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
    """Let the system drop the connections of a listener whose clients read nothing for a while; Linux only.

    A server cannot drop them through ASGI, and closing them would wait for the client.
    """
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and listener.family in {socket.AF_INET, socket.AF_INET6}:
        listener.setsockopt(socket.IPPROTO_TCP, option, _UNREAD // timedelta(milliseconds=1))


def _seconds(span: timedelta) -> int:
    """Round to whole seconds, at least one, as uvicorn takes them."""
    return max(1, round(span.total_seconds()))
