"""A V1 agent-server in raw JSON over real sockets, which knows nothing of our codec and misbehaves on demand.

It has one conversation. A session socket numbers what is stored, an events socket does not; both stay silent while a
tool runs (OV13).
"""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from gateway.adapter.port import Frame
from gateway.testing.conformance.link import Failure
from gateway.testing.serving import Served, abort, freeze

KEY = "oh_test-canary-key-0123456789"
CONVERSATION = "c70b4d45-e97b-43d6-84f7-8ff27032d0d5"
_PREFIX = f"/api/conversations/{CONVERSATION}"
_SERVER_INFO = {"usable_tools": ["terminal"], "capabilities": [], "uptime": 3.5, "idle_time": 1.0}


@dataclass(frozen=True)
class RestAnswer:
    """What one request is answered with, in place of the usual."""

    status: int
    body: Any = None
    after: "asyncio.Event | None" = None
    """What the answer waits for."""
    shows: "list[dict[str, Any]] | None" = None
    """The events that follow it."""


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None


@dataclass
class Socket:
    """One connected client; None in the queue ends the connection."""

    channel: str
    receive: Any
    queue: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue[Any])


class Closing(Exception):
    """Closes a socket with a code."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class RawAgentServer:
    """One conversation of one server."""

    def __init__(self, version: str = "1.58.2", *, key: str = KEY) -> None:
        self.version = version
        self.key = key
        self.stored: list[dict[str, Any]] = []
        self.first_state: dict[str, Any] | None = None
        """The snapshot that each new socket gets."""
        self.requests: list[Request] = []
        self.opened: list[Request] = []
        self.first_frames: list[Any] = []
        self.answers: defaultdict[str, deque[RestAnswer]] = defaultdict(deque)
        """By the last steps of the path, such as `events` or `events/search`."""
        self.closes: deque[Closing | int] = deque()
        """How the next sockets end at once: after the authentication, or with an HTTP status before it."""
        self.largest = 4 * 1024**2
        """Bytes of an event that a session socket sends."""
        self.missing: int | None = None
        """The index of an event whose file the server cannot read; no listing has it."""
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.on_search: Callable[[Request], Awaitable[None]] | None = None
        self.on_post: Callable[[str, Any], Awaitable[None]] | None = None
        """Called with the channel and the body of each accepted command."""
        self.info: Any = None
        self.info_status = 200
        self.break_creation = False
        """Whether a creation breaks the connection."""
        self.found: RestAnswer | None = None
        """What asking for any other conversation is answered with."""
        self._failure: Failure | None = None
        self._sockets: dict[int, Socket] = {}
        self._times_connected = 0
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._served = Served(self)

    @property
    def url(self) -> str:
        return self._served.url

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["RawAgentServer"]:
        """Listen on a free port of loopback."""
        async with self._served:
            yield self

    # What tests do -----------------------------------------------------------------------------------------

    def store(self, *events: dict[str, Any]) -> None:
        """Store events and send them to the connected clients, as the server does."""
        for event in events:
            self.stored.append(event)
            self._send_stored(event)

    def show(self, event: dict[str, Any]) -> None:
        """Send an event that is not stored."""
        for socket in self._sockets.values():
            socket.queue.put_nowait({"type": "transient", "event": event} if socket.channel == "session" else event)

    def send(self, payload: Any) -> None:
        """Send something as it is: text or JSON."""
        for socket in self._sockets.values():
            socket.queue.put_nowait(payload)

    def close_all(self, code: int, reason: str = "") -> None:
        """Close the connections with a code."""
        self.send(Closing(code, reason))

    def _send_stored(self, event: dict[str, Any]) -> None:
        number = self._number(self.stored.index(event))
        for socket in self._sockets.values():
            is_session = socket.channel == "session"
            socket.queue.put_nowait({"type": "durable", "seq": number, "event": event} if is_session else event)

    def _number(self, position: int) -> int:
        """Return the index in the store of the event at a position of a full listing."""
        return position + (self.missing is not None and position >= self.missing)

    def bodies(self, channel: str) -> list[Any]:
        """Return the bodies of the commands that came, in their order."""
        path = f"{_PREFIX}{_path_of(channel)}"
        return [one.body for one in self.requests if one.method == "POST" and one.path == path]

    def paths(self, method: str) -> list[str]:
        """Return the paths of the requests below the conversation, in their order."""
        return [one.path.removeprefix(_PREFIX) for one in self.requests if one.method == method]

    async def asked(self, path: str, *, times: int = 1) -> None:
        """Wait until a path below the conversation was requested so many times."""
        whole = f"{_PREFIX}{path}"
        async with self._changed:
            await self._changed.wait_for(lambda: sum(one.path == whole for one in self.requests) >= times)

    async def say(self, frame: Frame) -> None:
        event = frame.payload["event"] if frame.channel == "session" else frame.payload
        if event not in self.stored:
            self.stored.append(event)
        self.send(frame.payload)

    def freeze(self) -> None:
        """Read nothing more from the connected clients."""
        for socket in self._sockets.values():
            freeze(socket.receive)

    async def hear(self) -> Frame:
        return await self._heard.get()

    async def connected(self, *, times: int = 1) -> None:
        """Wait until a client is connected that is at least the `times`-th one."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._sockets) > 0 and self._times_connected >= times)

    async def disconnected(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._sockets)

    async def drop(self) -> None:
        self.close_all(1012)

    def add_to_history(self, frame: Frame) -> None:
        self.stored.append(frame.payload["event"] if frame.channel == "session" else frame.payload)

    async def echo(self, frame: Frame) -> None:
        self.store(user_message(f"echo-{len(self.stored)}", frame.payload["content"]))

    def reject_next_send(self, *, busy: bool = False) -> None:
        assert not busy
        error = {"detail": [{"type": "missing", "loc": ["body", "role"], "msg": "Field required", "input": self.key}]}
        self.answers["events"].append(RestAnswer(422, error))

    def fail_next_send(self, how: Failure) -> None:
        self._failure = how

    def refuse_next(self) -> None:
        self.answers["events/search"].append(RestAnswer(401, {"detail": "Unauthorized"}))

    async def stop(self) -> None:
        await self._served.stop()

    # What the server does ----------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        request = await _read(scope, receive)
        self.requests.append(request)
        async with self._changed:
            self._changed.notify_all()
        if request.path == "/server_info":
            info = {"version": self.version, "sdk_version": self.version, **_SERVER_INFO}
            await _reply(send, RestAnswer(self.info_status, info if self.info is None else self.info))
        elif request.path == "/openapi.json":
            given = RestAnswer(200, {"info": {"title": "OpenHands Agent Server", "version": self.version}, "paths": {}})
            await _reply(send, self._given("openapi.json") or given)
        elif self.key and request.headers.get("x-session-api-key") != self.key:
            await _reply(send, RestAnswer(401, {"detail": "Unauthorized"}))
        else:
            await self._serve_request(request, receive, send)

    async def _serve_request(self, request: Request, receive: Any, send: Any) -> None:
        steps = request.path.removeprefix(_PREFIX).removeprefix("/api").strip("/")
        if steps == "conversations" and self.break_creation:
            abort(receive)
            return
        if steps.startswith("conversations/") and self.found is not None:
            await _reply(send, self.found)
            return
        if request.method == "POST" and steps == "events" and self._failure is not None:
            failure, self._failure = self._failure, None
            if failure == "unauthorized":
                await _reply(send, RestAnswer(401, {"detail": "Unauthorized"}))
                return
            if failure == "break":
                abort(receive)
            await _wait_for_leaving(receive)
            return
        if (given := self._given(steps)) is not None:
            await self._give(given, request, steps, send)
            return
        if request.method == "GET" and steps == "events/search":
            if self.on_search is not None:
                await self.on_search(request)
            await _reply(send, RestAnswer(200, self._page(request.query)))
        elif request.method == "GET" and not steps:
            await _reply(send, RestAnswer(200, {"id": CONVERSATION}))
        elif request.method == "GET" and steps == "events/count":
            await _reply(send, RestAnswer(200, len(self.stored)))
        elif request.method == "POST" and request.path.startswith(_PREFIX):
            channel = "POST " + steps.removeprefix("events/")
            if self.on_post is not None:
                await self.on_post(channel, request.body)
            self._heard.put_nowait(Frame(channel, request.body))
            await _reply(send, RestAnswer(200, {"success": True}))
        else:
            await _reply(send, RestAnswer(404, {"detail": "Not Found"}))

    async def _give(self, given: RestAnswer, request: Request, steps: str, send: Any) -> None:
        if given.after is not None:
            await given.after.wait()
        await _reply(send, given)
        for event in given.shows or []:
            (self.show if event.get("key") == "full_state" else self.store)(event)
        if given.status == 200 and self.on_post is not None and request.method == "POST":
            await self.on_post("POST " + steps.removeprefix("events/"), request.body)

    def _given(self, steps: str) -> RestAnswer | None:
        return self.answers[steps].popleft() if self.answers.get(steps) else None

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        events = self.stored[::-1] if query.get("sort_order") == "TIMESTAMP_DESC" else self.stored
        ids = [event["id"] for event in events]
        wanted = query.get("page_id")
        # An unknown id gives the first page (OV21).
        start = ids.index(wanted) if wanted in ids else 0
        end = start + int(query["limit"])
        return {"items": events[start:end], "next_page_id": ids[end] if end < len(ids) else None}

    async def _serve_socket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.opened.append(Request("WS", scope["path"], query, headers))
        channel = scope["path"].split("/")[2]
        has_session = tuple(map(int, self.version.split(".")[:2])) >= (1, 45)
        closing = self.closes.popleft() if self.closes else None
        if isinstance(closing, int) or (channel == "session" and not has_session):
            # uvicorn writes a refused upgrade as HTTP 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        first = json.loads((await receive())["text"])
        self.first_frames.append(first)
        if self.key and first != {"type": "auth", "session_api_key": self.key}:
            closing = Closing(4001, "Authentication failed")
        if closing is not None:
            await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
            return
        socket = Socket(channel, receive)
        async with self._changed:
            self._sockets[id(socket)] = socket
            self._times_connected += 1
            self._changed.notify_all()
        leaving = asyncio.ensure_future(_wait_for_leaving(receive))
        try:
            await self._pour(socket, query, leaving, send)
        finally:
            leaving.cancel()
            async with self._changed:
                del self._sockets[id(socket)]
                self._changed.notify_all()

    async def _pour(self, socket: Socket, query: dict[str, str], leaving: "asyncio.Future[None]", send: Any) -> None:
        freed = asyncio.ensure_future(self.is_free.wait())
        await asyncio.wait([freed, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not freed.done():
            freed.cancel()
            return
        try:
            for payload in self._replay(socket, query):
                await self._write(payload, socket.channel, send)
            while True:
                getting = asyncio.ensure_future(socket.queue.get())
                await asyncio.wait([getting, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    return
                await self._write(getting.result(), socket.channel, send)
        except Closing as closing:
            await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})

    def _replay(self, socket: Socket, query: dict[str, str]) -> list[Any]:
        if socket.channel == "events":
            return [] if self.first_state is None else [self.first_state]
        after = int(query["after_seq"])
        # What was stored before is part of the replay.
        waiting = [socket.queue.get_nowait() for _ in range(socket.queue.qsize())]
        for payload in waiting:
            match payload:
                case {"seq": int()}:
                    pass
                case _:
                    socket.queue.put_nowait(payload)
        sync: dict[str, Any] = {"type": "sync", "from_seq": after}
        if self.stored:
            sync["through_seq"] = self._number(len(self.stored) - 1)
        numbered = [(self._number(position), event) for position, event in enumerate(self.stored)]
        found = [{"type": "durable", "seq": number, "event": event} for number, event in numbered if number > after]
        state = [] if self.first_state is None else [{"type": "transient", "event": self.first_state}]
        return [sync, *found, *state]

    async def _write(self, payload: Any, channel: str, send: Any) -> None:
        if isinstance(payload, Closing):
            raise payload
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        if channel == "session" and len(text.encode()) > self.largest:
            raise Closing(1013, "frame_too_large")
        await send({"type": "websocket.send", "text": text})


def _path_of(channel: str) -> str:
    name = channel.removeprefix("POST ")
    return "/events/respond_to_confirmation" if name == "respond_to_confirmation" else f"/{name}"


async def _wait_for_leaving(receive: Any) -> None:
    while (await receive())["type"] not in {"http.disconnect", "websocket.disconnect"}:
        pass


async def _read(scope: Any, receive: Any) -> Request:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return Request(
        method=scope["method"],
        path=scope["path"],
        query={name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()},
        headers={name.decode(): value.decode() for name, value in scope["headers"]},
        body=json.loads(body) if body else None,
    )


async def _reply(send: Any, answer: RestAnswer) -> None:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def user_message(name: str, content: list[Any], **more: Any) -> dict[str, Any]:
    """A stored message of a user."""
    message = {"role": "user", "content": [{"cache_prompt": False, **block} for block in content]}
    return {"kind": "MessageEvent", "id": name, "timestamp": "2026-11-22T07:10:37.04", "source": "user", **more} | {
        "llm_message": message
    }


def agent_message(name: str, text: str) -> dict[str, Any]:
    """A stored message of the agent."""
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {
        "kind": "MessageEvent",
        "id": name,
        "timestamp": "2026-11-22T07:10:38.00",
        "source": "agent",
        "llm_message": message,
    }


def status(name: str, value: str) -> dict[str, Any]:
    """A stored execution status."""
    return {
        "kind": "ConversationStateUpdateEvent",
        "id": name,
        "timestamp": "2026-11-22T07:10:39.00",
        "source": "environment",
        "key": "execution_status",
        "value": value,
    }


def snapshot(value: str, *, policy: str = "NeverConfirm", agent: str = "Agent") -> dict[str, Any]:
    """A snapshot of the state, which is not stored and has a new id each time."""
    state = {"execution_status": value, "confirmation_policy": {"kind": policy}, "agent": {"kind": agent}}
    return {
        "kind": "ConversationStateUpdateEvent",
        "id": f"snapshot-{value}",
        "timestamp": "2026-11-22T07:10:39.50",
        "source": "environment",
        "key": "full_state",
        "value": state,
    }
