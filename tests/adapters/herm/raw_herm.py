"""A Herm server in raw JSON over real sockets, which knows nothing of our codec and misbehaves on demand.

It keeps to the reading of the rules that is hardest for a client: the stream is live only, lists come in pages,
live-only events are numbered and never stored, a message during a turn is a conflict.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qs

from gateway.adapter.port import Frame
from gateway.testing.conformance.link import Failure
from gateway.testing.serving import Served, abort

KEY = "hk_test-canary-key-0123456789"
SESSION = "session_1"
AGENT = "agent_1"
ABORT = b"\x00abort"
LIVE = frozenset({"session.title_updated"})


@dataclass(frozen=True)
class RestAnswer:
    """What one request is answered with, in place of the usual."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Aborted(Exception):
    """Ends a response without the end that HTTP asks for."""


class RawHerm:
    """One session of one server."""

    def __init__(self, *, most: int = 100) -> None:
        self.most = most
        self.stored: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.posts: deque[RestAnswer] = deque()
        self.lists: deque[RestAnswer] = deque()
        self.opens: deque[RestAnswer] = deque()
        self.creates: deque[RestAnswer] = deque()
        self.on_list: Callable[[int], Awaitable[None]] | None = None
        """Called before each page is made, with the page's number within this list."""
        self.newest_first = False
        self.page_form: Callable[[list[Any], str | None], Any] = lambda found, cursor: {
            "data": found,
            "nextCursor": cursor,
        }
        self.replays = False
        """Whether the stream begins with everything that is stored."""
        self.running = False
        self.event_lines = True
        self._number = 0
        self._failure: Failure | None = None
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._served = Served(self)

    @property
    def url(self) -> str:
        return self._served.url

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RawHerm"]:
        async with self._served:
            yield self

    # What tests do -----------------------------------------------------------------------------------------

    def wrap(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Number an event and put the wrapper around it."""
        self._number += 1
        number = self._number
        return {
            "id": f"evt_{number}",
            "type": payload["type"],
            "sessionId": SESSION,
            "sequence": number,
            "status": "complete",
            "payload": payload,
            "processedAt": "2026-06-20T23:28:02.772Z",
            "createdAt": "2026-06-20T23:28:02.773Z",
        }

    async def happen(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Let an event happen: stored unless it is only live, streamed to whoever listens."""
        envelope = self.wrap(payload)
        if not is_live(payload):
            self.stored.append(envelope)
        await self.stream(envelope)
        return envelope

    async def stream(self, envelope: Any) -> None:
        """Stream something without storing it."""
        await self.raw(self.sse(envelope))

    async def raw(self, *chunks: bytes) -> None:
        """Put bytes on every open stream, each in a chunk of its own."""
        for chunk in chunks:
            for queue in self._streams:
                queue.put_nowait(chunk)

    def sse(self, envelope: Any) -> bytes:
        match envelope:
            case {"type": str(kind), "id": str(event_id)} if self.event_lines:
                head = f"event: {kind}\nid: {event_id}\n"
            case _:
                head = ""
        return f"{head}data: {json.dumps(envelope, ensure_ascii=False)}\n\n".encode()

    async def say(self, frame: Frame) -> None:
        await self.stream(frame.payload)

    async def hear(self) -> Frame:
        return await self._heard.get()

    async def connected(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._streams) > 0)

    async def disconnected(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._streams)

    async def drop(self) -> None:
        """End every stream as a server does that goes away politely."""
        for queue in self._streams:
            queue.put_nowait(None)

    def add_to_history(self, frame: Frame) -> None:
        self.stored.append(frame.payload)
        self._number = max(self._number, frame.payload["sequence"])

    async def echo(self, frame: Frame) -> None:
        await self.happen(frame.payload)

    def reject_next_send(self, *, busy: bool = False) -> None:
        error = {"error": "turn_in_progress" if busy else "invalid_event", "message": "Not accepted."}
        self.posts.append(RestAnswer(409 if busy else 422, error))

    def fail_next_send(self, how: Failure) -> None:
        self._failure = how

    def refuse_next(self) -> None:
        self.opens.append(RestAnswer(401, {"error": "unauthorized", "message": "Unknown key."}))

    async def stop(self) -> None:
        await self._served.stop()

    # What the server does ----------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        request = await _read(scope, receive)
        self.requests.append(request)
        path = request.path
        if request.headers.get("authorization") != f"Bearer {KEY}" and "x-key" not in request.headers:
            await _reply(send, RestAnswer(401, {"error": "unauthorized", "message": "No key."}))
        elif path.endswith("/sessions") and request.method == "POST":
            fallback = RestAnswer(201, {"id": SESSION, "agentId": AGENT, "status": "idle"})
            await _reply(send, self.creates.popleft() if self.creates else fallback)
        elif path.endswith("/stream"):
            await self._stream(receive, send)
        elif request.method == "GET":
            await _reply(send, await self._list(request))
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            if failure == "unauthorized":
                await _reply(send, RestAnswer(401, {"error": "unauthorized", "message": f"Unknown key {KEY}."}))
                return
            if failure == "break":
                abort(receive)
            await _wait_for_leaving(receive)
        else:
            await _reply(send, self._post(request))

    async def _list(self, request: Request) -> RestAnswer:
        if self.on_list is not None:
            await self.on_list(int(request.query.get("cursor", "0")) // min(int(request.query["limit"]), self.most))
        if self.lists:
            return self.lists.popleft()
        found = [one for one in self.stored if one["sequence"] > int(request.query.get("after", "-1"))]
        if self.newest_first:
            found.reverse()
        start, size = int(request.query.get("cursor", "0")), min(int(request.query.get("limit", "20")), self.most)
        end = start + size
        return RestAnswer(200, self.page_form(found[start:end], str(end) if end < len(found) else None))

    def _post(self, request: Request) -> RestAnswer:
        if self.posts:
            answer = self.posts.popleft()
            if answer.status >= 300:
                return answer
        else:
            answer = RestAnswer(202, {"data": []})
        body: Any = request.body
        events = cast("list[Any]", body) if isinstance(body, list) else body.get("events", [body])
        if self.running and any(event["type"] == "user.message" for event in events):
            return RestAnswer(
                409, {"error": "turn_in_progress", "message": "A turn is running."}, {"x-should-retry": "false"}
            )
        for event in events:
            self._heard.put_nowait(Frame("events", event))
        return answer

    async def _stream(self, receive: Any, send: Any) -> None:
        if self.opens:
            await _reply(send, self.opens.popleft())
            return
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        async with self._changed:
            self._streams.add(queue)
            self._changed.notify_all()
        if self.replays:
            for envelope in self.stored:
                queue.put_nowait(self.sse(envelope))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.ensure_future(_wait_for_leaving(receive))
        try:
            await self._pour(queue, leaving, send)
        finally:
            leaving.cancel()
            async with self._changed:
                self._streams.discard(queue)
                self._changed.notify_all()

    async def _pour(self, queue: "asyncio.Queue[bytes | None]", leaving: "asyncio.Future[None]", send: Any) -> None:
        while True:
            getting = asyncio.ensure_future(queue.get())
            await asyncio.wait([getting, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                return
            match getting.result():
                case None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                case chunk if chunk == ABORT:
                    raise Aborted
                case chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _wait_for_leaving(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(scope: Any, receive: Any) -> Request:
    body = b""
    if scope["method"] == "POST":
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    return Request(
        method=scope["method"],
        path=scope["raw_path"].decode(),
        query={name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()},
        headers={name.decode(): value.decode() for name, value in scope["headers"]},
        body=json.loads(body) if body else None,
    )


async def _reply(send: Any, answer: RestAnswer) -> None:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


def is_live(payload: dict[str, Any]) -> bool:
    """Whether an event is never stored."""
    return payload["type"] in LIVE or payload.get("delta") is True
