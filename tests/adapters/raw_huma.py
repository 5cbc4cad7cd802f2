"""A HUMA server in raw JSON: a plain python-socketio server under uvicorn, which knows nothing of our codecs."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from gateway.adapter.port import Frame
from gateway.testing.serving import Served, freeze

# Untyped library.
socketio: Any = import_module("socketio")

KEY = "ak_test+secret/key"
AGENT = "agent-1"
LARGE = 16 * 1024 * 1024

Request = Callable[[dict[str, Any], bytes], Awaitable[tuple[int, Any]]]


class RawHuma:
    """One server with at most one client at a time."""

    def __init__(self, *, max_message: int = LARGE, always_connect: bool = False) -> None:
        self.io = socketio.AsyncServer(
            async_mode="asgi", async_handlers=False, max_http_buffer_size=max_message, always_connect=always_connect
        )
        self.queries: list[dict[str, list[str]]] = []
        self.paths: list[str] = []
        self.transports: list[str] = []
        self.greeting: Callable[[str], Awaitable[None]] | None = None
        """What the server does as soon as a client has come in."""
        self.refusal: BaseException | None = None
        self.rest: Request | None = None
        self._rejects_next = False
        self.acknowledged = asyncio.Event()
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._sid: str | None = None
        self._changed = asyncio.Condition()
        self._served = Served(self, biggest_frame=LARGE)
        self.io.on("connect", self._connect)
        self.io.on("disconnect", self._disconnect)
        self.io.on("*", self._hear)

    async def _connect(self, sid: str, environ: dict[str, Any]) -> None:
        self.queries.append(parse_qs(environ["QUERY_STRING"]))
        self.paths.append(environ["PATH_INFO"])
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if self.greeting is not None:
            await self.greeting(sid)
        await self._set(sid)

    async def _disconnect(self, sid: str, *_reason: Any) -> None:
        if sid == self._sid:
            await self._set(None)

    async def _set(self, sid: str | None) -> None:
        async with self._changed:
            self._sid = sid
            self._changed.notify_all()

    async def _hear(self, event: str, sid: str, *arguments: Any) -> None:
        if self._rejects_next:
            self._rejects_next = False
            error = {"type": "error", "code": "INVALID_EVENT", "message": "not accepted"}
            await self.io.emit("event", error, to=sid)
            return
        self._heard.put_nowait(Frame(event, arguments[0] if arguments else None))

    async def say(self, frame: Frame) -> None:
        await self.io.emit(frame.channel, frame.payload, to=self._sid)

    async def say_raw(self, *packets: str | bytes) -> None:
        """Put packets on the wire as they are, without the Engine.IO digit."""
        eio_sid = self.io.manager.eio_sid_from_sid(self._sid, "/")
        for packet in packets:
            await self.io.eio.send(eio_sid, packet)

    async def ask(self, frame: Frame) -> None:
        """Send a frame that wants an acknowledgement."""
        await self.io.emit(frame.channel, frame.payload, to=self._sid, callback=self._acknowledge)

    def _acknowledge(self, *_said: Any) -> None:
        self.acknowledged.set()

    async def hear(self) -> Frame:
        return await self._heard.get()

    async def connected(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._sid is not None)

    async def disconnected(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._sid is None)

    async def drop(self) -> None:
        sid, self._sid = self._sid, None
        await self.io.disconnect(sid)

    def refuse_next(self) -> None:
        self.refusal = socketio.exceptions.ConnectionRefusedError(f"UNAUTHORIZED: unknown key {KEY}")

    def reject_next_send(self, *, busy: bool = False) -> None:
        assert not busy, "HUMA has no busy runtimes"
        self._rejects_next = True

    def fail_next_send(self, how: str) -> None:
        assert how == "hang", "HUMA answers no frame"
        freeze(self.io.get_environ(self._sid)["asgi.receive"])

    def add_to_history(self, frame: Frame) -> None:
        raise NotImplementedError(f"HUMA has no history to store {frame} in")

    async def echo(self, frame: Frame) -> None:
        raise NotImplementedError(f"HUMA has no echo of {frame}")

    async def stop(self) -> None:
        await self._served.stop()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.rest is None:
            return await self._socketio_app(scope, receive, send)
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        status, answer = await self.rest(scope, body)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"location", b"http://127.0.0.1:1/elsewhere")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        return None

    @asynccontextmanager
    async def serve(self, path: str = "socket.io") -> AsyncGenerator["RawHuma"]:
        """Listen on a free port of loopback."""
        self._socketio_app = socketio.ASGIApp(self.io, socketio_path=path)
        async with self._served:
            try:
                yield self
            finally:
                await self.io.shutdown()

    @property
    def url(self) -> str:
        return self._served.url
