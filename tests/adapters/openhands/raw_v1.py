"""V1 servers as far as a V0 client sees them: no Socket.IO, other paths, and `/server_info` open to everybody."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from gateway.testing.serving import Served

V1_INFO = {
    "version": "1.58.0",
    "sdk_version": "1.58.0",
    "usable_tools": ["terminal"],
    "capabilities": [],
    "uptime": 3.5,
    "idle_time": 1.0,
}
V0_INFO = {"uptime": 3.5, "idle_time": 1.0, "resources": {"cpu_percent": 0.0}}


class RawV1:
    """Answers every API path with 401 (422 where its key is right), every websocket with 403."""

    def __init__(self, info: object = None, *, key: str = "v1-key", status: int = 200) -> None:
        self.info: object = V1_INFO if info is None else info
        """What `/server_info` answers: JSON, or bytes as they are; an event is waited for in vain."""
        self.headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
        self.status = status
        self.key = key
        self.asked: list[str] = []
        self._over = asyncio.Event()
        self._served = Served(self)

    @property
    def url(self) -> str:
        return self._served.url

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"]
        self.asked.append(path)
        if scope["type"] == "websocket":
            await receive()
            # uvicorn writes a refused upgrade as HTTP 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        while (await receive()).get("more_body"):
            pass
        if path == "/server_info":
            await self._tell_info(send)
            return
        keys = [value.decode() for name, value in scope["headers"] if name == b"x-session-api-key"]
        status, detail = (422, [{"type": "uuid_parsing"}]) if keys == [self.key] else (401, "Unauthorized")
        await _answer(send, status, json.dumps({"detail": detail}).encode())

    async def _tell_info(self, send: Any) -> None:
        if isinstance(self.info, asyncio.Event):
            await self._over.wait()
            return
        body = self.info if isinstance(self.info, bytes) else json.dumps(self.info).encode()
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": body})

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RawV1"]:
        """Listen on a free port of loopback."""
        async with self._served:
            try:
                yield self
            finally:
                self._over.set()


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RawAppServer:
    """The V1 app server (OV72): its API below `/api/v1`, and a web page at every other path, or 404 without pages."""

    def __init__(self, *, pages: bool = True, document: bool = True, both: bool = False, count: int = 200) -> None:
        self.pages, self.document, self.both, self.count = pages, document, both, count
        """Whether there are web pages and an OpenAPI document; whether V0 is spoken, too; the status of the count."""
        self._served = Served(self)

    @property
    def url(self) -> str:
        return self._served.url

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        while (await receive()).get("more_body"):
            pass
        known = ["/api/v1/app-conversations/count", *(["/api/conversations"] if self.both else [])]
        paths: dict[str, Any] = dict.fromkeys(known)
        document = {"openapi": "3.1.0", "info": {"title": "OpenHands", "version": "1.11.0"}, "paths": paths}
        match scope["path"]:
            case "/server_info":
                await _answer(send, 200, json.dumps(V0_INFO).encode())
            case "/openapi.json" if self.document:
                await _answer(send, 200, json.dumps(document).encode())
            case "/api/v1/app-conversations/count":
                await _answer(send, self.count, b"3" if self.count == 200 else b'{"detail":"Unauthorized"}')
            case str(path) if path.startswith("/api/") and self.both:
                await _answer(send, 401, b'{"detail":"Unauthorized"}')
            case _ if self.pages and scope["method"] == "GET":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
                await send({"type": "http.response.body", "body": b"<!doctype html><title>OpenHands</title>"})
            case _:
                await _answer(send, 405 if self.pages else 404, b'{"detail":"Not Found"}')

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RawAppServer"]:
        """Listen on a free port of loopback."""
        async with self._served:
            yield self
