"""A runtime that speaks the Pigeon protocol in raw JSON, for tests and for trying out a gateway.

`python tests/peer.py [PORT]` listens on port 9100, calls a tool when a gateway connects, and prints each message.
"""

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from gateway.adapter.port import Frame
from gateway.testing.serving import Served, abort
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

KEY = "pigeon-key-for-tests"
SESSION = "session-1"


class PigeonPeer:
    """One session; implements `gateway.testing.conformance.link.Peer`."""

    def __init__(self, port: int = 0) -> None:
        self._history: list[dict[str, Any]] = []
        self._streams: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._refuses_next = False
        self._rejections: deque[Response] = deque()
        self._failure = ""
        self._changed = asyncio.Event()
        app = Starlette(
            routes=[
                Route("/sessions/{session}/events", self._open_stream),
                Route("/sessions/{session}/messages", self._take_message, methods=["POST"]),
            ]
        )
        self._served = Served(app, port=port)

    @property
    def url(self) -> str:
        return self._served.url

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["PigeonPeer"]:
        async with self._served:
            yield self

    # Called by the suite ---------------------------------------------------------------------

    async def say(self, frame: Frame) -> None:
        for stream in self._streams:
            stream.put_nowait(frame.payload)

    async def hear(self) -> Frame:
        return await self._heard.get()

    def add_to_history(self, frame: Frame) -> None:
        self._history.append(frame.payload)

    async def echo(self, frame: Frame) -> None:
        number = self._history[-1]["number"] + 1 if self._history else 1
        shown = Frame("events", {"number": number, "type": "message", "from": "user", "text": frame.payload["text"]})
        self.add_to_history(shown)
        await self.say(shown)

    def reject_next_send(self, *, busy: bool = False) -> None:
        error = {"error": "turn_running"} if busy else {"error": "not_accepted"}
        self._rejections.append(JSONResponse(error, status_code=409 if busy else 422))

    def fail_next_send(self, how: str) -> None:
        self._failure = how

    async def connected(self) -> None:
        await self._until(has_streams=True)

    async def disconnected(self) -> None:
        await self._until(has_streams=False)

    async def drop(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    def refuse_next(self) -> None:
        self._refuses_next = True

    async def stop(self) -> None:
        await self._served.stop()

    # The HTTP server -------------------------------------------------------------------------

    async def _open_stream(self, request: Request) -> Response:
        if self._refuses_next or request.headers.get("authorization") != f"Bearer {KEY}":
            self._refuses_next = False
            return JSONResponse({"error": "unauthorized"}, status_code=401)
        after = int(request.headers.get("last-event-id", "0"))
        return StreamingResponse(self._pour(after), media_type="text/event-stream")

    async def _pour(self, after: int) -> AsyncGenerator[str]:
        stream: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for event in self._history:
            if event["number"] > after:
                stream.put_nowait(event)
        stream.put_nowait({"type": "caught_up"})
        self._streams.add(stream)
        self._changed.set()
        try:
            while (event := await stream.get()) is not None:
                yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        finally:
            self._streams.discard(stream)
            self._changed.set()

    async def _take_message(self, request: Request) -> Response:
        body = await request.json()
        failure, self._failure = self._failure, ""
        if failure == "break":
            abort(request.receive)
        if failure == "unauthorized":
            return JSONResponse({"error": "unauthorized"}, status_code=401)
        if failure:
            # Reports the end of the connection.
            await request.receive()
            return Response()
        if self._rejections:
            return self._rejections.popleft()
        self._heard.put_nowait(Frame("messages", body))
        return JSONResponse({}, status_code=202)

    async def _until(self, *, has_streams: bool) -> None:
        while bool(self._streams) is not has_streams:
            self._changed.clear()
            await self._changed.wait()


async def main(port: int) -> None:
    """Simulate a runtime with one agent that calls a tool once."""
    async with PigeonPeer(port).serve() as peer:
        print(f"listening on {peer.url}", flush=True)
        await peer.connected()
        call = {"number": 1, "type": "call", "id": "c1", "tool": "ask_for_cards", "arguments": {"rank": "7"}}
        peer.add_to_history(Frame("events", call))
        await peer.say(Frame("events", call))
        print(f"called {call['tool']}", flush=True)
        while True:
            print(f"received {json.dumps((await peer.hear()).payload)}", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9100))
