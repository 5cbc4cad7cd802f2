"""Serves an ASGI application in this process, by default on loopback."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any, Self
from urllib.parse import parse_qs

import uvicorn

from gateway.testing.change import PATIENCE
from gateway.testing.wire import Wire

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 -- only on request

_TASK_LIMIT = 1.0


def abort(receive: Any) -> None:
    """Close the connection of a request without a response, from inside the application."""
    receive.__self__.transport.abort()


def freeze(receive: Any) -> None:
    """Read nothing more from the connection of a request, from inside the application."""
    receive.__self__.transport.pause_reading()


class _QuietServer(uvicorn.Server):
    """A server that ignores signals, signals `listening`, and stops at once when `leaving` is set."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=_TASK_LIMIT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class Served:
    """An application on `http://127.0.0.1:PORT`, or on another `host`; a restart keeps the port."""

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        biggest_frame: int = 32 * 1024**2,
        wire: Wire | None = None,
    ) -> None:
        self._app = app if wire is None else wire.around(app)
        self._host = host
        self._port = port
        self._biggest_frame = biggest_frame
        self._server: _QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._reserved: socket.socket | None = None
        """Bound but not listening: keeps the port of a paused server from being given to a connection."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self._host if self._host != EVERYWHERE else LOOPBACK}:{self._port}"

    async def start(self) -> None:
        """Start to listen; return when connections are accepted."""
        if self._server is not None:
            return
        self._release_port()
        listener = _bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=self._biggest_frame,
            date_header=False,
        )
        self._server = _QuietServer(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        async with asyncio.timeout(PATIENCE):
            await self._server.listening.wait()

    async def stop(self) -> None:
        """Abort all connections and free the port; do nothing if it is not running."""
        await self._end()
        self._release_port()

    async def pause(self) -> None:
        """Abort all connections and refuse new ones, but keep the port; do nothing if it is not running."""
        if self._server is not None:
            await self._end()
            self._reserved = _bind(self._host, self._port)

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _end(self) -> None:
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        self._server = self._serving = None
        server.leaving.set()
        async with asyncio.timeout(PATIENCE):
            await serving

    def cut(self, matches: Callable[[dict[str, list[str]]], bool]) -> int:
        """Reset the WebSocket connections with a matching query, without a close frame; return their number."""
        return self.reset(
            lambda scope: scope["type"] == "websocket" and matches(parse_qs(scope["query_string"].decode()))
        )

    def reset(self, matches: Callable[[dict[str, Any]], bool]) -> int:
        """Reset the connections with a matching ASGI scope of their last request; return their number."""
        if self._server is None:
            return 0
        count = 0
        for connection in list(self._server.server_state.connections):
            # A connection has a scope after its first request.
            scope: Any = getattr(connection, "scope", None)
            if scope and matches(scope):
                connection.transport.abort()
                count += 1
        return count

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


def _bind(host: str, port: int) -> socket.socket:
    # asyncio disables Nagle's algorithm only if the protocol is given.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
