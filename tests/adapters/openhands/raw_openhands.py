"""An OpenHands server in raw JSON that behaves as its rules say: plain python-socketio and REST under uvicorn."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from gateway.adapter.port import Frame
from gateway.testing.conformance.link import Failure
from gateway.testing.serving import Served, abort, freeze

# Untyped library.
socketio: Any = import_module("socketio")

CONVERSATION = "42ecbe9af07a4b3f925f0223b213814c"
KEY = "oh-key+secret/1"
MOST = 4 * 1024 * 1024
LIVE_OF_ENVIRONMENT = {"run", "agent_state_changed", "recall", "error"}


class RawOpenHands:
    """One server with one conversation: a store of events, a replay, live events, and what clients sent."""

    def __init__(self, *, key: str | None = None, max_message: int = MOST) -> None:
        self.io = socketio.AsyncServer(async_mode="asgi", async_handlers=False, max_http_buffer_size=max_message)
        self.key = key
        self.store: list[dict[str, Any]] = []
        self.queries: list[dict[str, list[str]]] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.refusal: BaseException | None = None
        self.silent = asyncio.Event()
        """Set: refuse without an answer, as the real server does on an exception of its own."""
        self.before_join: Callable[[], Any] | None = None
        """What happens between the replay and the join of the room (OH3)."""
        self.answers: dict[str, tuple[int, Any]] = {}
        """REST answers by path that stand in for the usual ones."""
        self.answers_once: dict[str, tuple[int, Any]] = {}
        """The same, but each for one request."""
        self.acknowledges = True
        self._rejects_next = self._breaks_next = False
        self._silence = asyncio.Event()
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._sid: str | None = None
        self._changed = asyncio.Condition()
        self._served = Served(self, biggest_frame=4 * MOST)
        self.io.on("connect", self._connect)
        self.io.on("disconnect", self._disconnect)
        self.io.on("*", self._hear)

    # The socket ------------------------------------------------------------------------------------------

    async def _connect(self, sid: str, environ: dict[str, Any]) -> None:
        query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        self.queries.append(query)
        if self.silent.is_set():
            await self._silence.wait()
        for event in self.replay(query):
            await self.io.emit("oh_event", event, to=sid)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if self.key is not None and query.get("session_api_key", [""])[0] != self.key:
            raise socketio.exceptions.ConnectionRefusedError("invalid_session_api_key")
        if self.before_join is not None:
            self.before_join()
        async with self._changed:
            self._sid = sid
            self._changed.notify_all()

    def replay(self, query: dict[str, list[str]]) -> Iterable[dict[str, Any]]:
        """Pick what a client is told again: withheld states but the last, and that one at the end (OH14, OH15)."""
        try:
            latest = int(query.get("latest_event_id", ["-1"])[0])
        except ValueError:
            latest = -1
        latest = max(latest, -1)
        told = [event for event in self.store if event["id"] > latest]
        states = [event for event in told if event.get("observation") == "agent_state_changed"]
        for event in told:
            if event in states or event.get("action") in {"null", "recall"} or event.get("observation") == "null":
                continue
            yield event
        yield from states[-1:]

    async def _disconnect(self, sid: str, *_reason: Any) -> None:
        if sid == self._sid:
            async with self._changed:
                self._sid = None
                self._changed.notify_all()

    async def _hear(self, event: str, _sid: str, *arguments: Any) -> Any:
        payload = arguments[0] if arguments else None
        if self._breaks_next:
            self._breaks_next = False
            abort(self._receive)
        if self._rejects_next:
            self._rejects_next = False
            return self.io.not_handled
        self._heard.put_nowait(Frame(event, payload))
        # The library's own sign for "no answer": what the real server does when its handler raises (OH8).
        return None if self.acknowledges else self.io.not_handled

    def keep(self, event: dict[str, Any]) -> dict[str, Any]:
        """Put an event into the store without telling anybody."""
        self.store.append(event)
        return event

    async def happen(self, event: dict[str, Any]) -> None:
        """Store an event and tell it live: only some of the environment's, and those as the agent's (OH16)."""
        self.keep(event)
        kind = event.get("action") or event.get("observation")
        if kind == "null" or (event["source"] == "environment" and kind not in LIVE_OF_ENVIRONMENT):
            return
        source = "agent" if event["source"] == "environment" else event["source"]
        await self.say(Frame("oh_event", {**event, "source": source}))

    async def say(self, frame: Frame) -> None:
        await self.io.emit(frame.channel, frame.payload, to=self._sid)

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
        # The server quotes no key, and a proxy in front of it may.
        self.refusal = socketio.exceptions.ConnectionRefusedError(f"Settings not found for {KEY}")

    # What only the suite for links calls: see `gateway.testing.conformance.link.Peer`.

    def add_to_history(self, frame: Frame) -> None:
        self.keep(frame.payload)

    async def echo(self, frame: Frame) -> None:
        number = max((event["id"] for event in self.store), default=-1) + 1
        said = {"action": "message", "args": frame.payload["args"], "message": frame.payload["args"]["content"]}
        await self.happen({"id": number, "timestamp": at(number), "source": "user", **said})

    def reject_next_send(self, *, busy: bool = False) -> None:
        assert not busy, "OpenHands takes messages during a turn"
        self._rejects_next = True

    def fail_next_send(self, how: Failure) -> None:
        if how == "hang":
            freeze(self._receive)
        else:
            assert how == "break", "OpenHands checks the key once, when the client connects"
            self._breaks_next = True

    @property
    def _receive(self) -> Any:
        return self.io.get_environ(self._sid)["asgi.receive"]

    # REST ------------------------------------------------------------------------------------------------

    def _rest(self, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str]) -> tuple[int, Any]:
        if path in self.answers_once:
            return self.answers_once.pop(path)
        if path in self.answers:
            return self.answers[path]
        if self.key is not None and headers.get("x-session-api-key") != self.key:
            return 401, {"detail": "Unauthorized"}
        if method == "POST" and path == "/api/conversations":
            return 200, {"status": "ok", "conversation_id": CONVERSATION, "message": None}
        if path.endswith("/events"):
            start, limit = int(query.get("start_id", ["0"])[0]), int(query.get("limit", ["20"])[0])
            assert 0 < limit <= 100
            backwards = query.get("reverse") == ["true"]
            stored = (event for event in self.store if event["id"] >= start)
            found = sorted(stored, key=lambda event: event["id"], reverse=backwards)
            return 200, {"events": found[:limit], "has_more": len(found) > limit}
        return 404, {"error": "Not Found"}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._socketio_app(scope, receive, send)
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        self.requests.append((scope["method"], f"{scope['path']}?{query}", headers, body))
        status, answer = self._rest(scope["method"], scope["path"], parse_qs(query), headers)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        await send(start)
        await send({"type": "http.response.body", "body": content})
        return None

    # The process -----------------------------------------------------------------------------------------

    async def stop(self) -> None:
        await self._served.stop()

    @asynccontextmanager
    async def serve(self, path: str = "socket.io") -> AsyncGenerator["RawOpenHands"]:
        """Listen on a free port of loopback."""
        self._socketio_app = socketio.ASGIApp(self.io, socketio_path=path)
        async with self._served:
            try:
                yield self
            finally:
                self._silence.set()
                await self.io.shutdown()

    @property
    def url(self) -> str:
        return self._served.url


def at(number: int) -> str:
    """Make the time of an event as the server writes it."""
    return f"2026-11-20T19:52:{number // 1000 % 60:02}.{number % 1000:03}000"


def thought(number: int, text: str = "") -> dict[str, Any]:
    """Make an event of the agent."""
    return {
        "id": number,
        "timestamp": at(number),
        "source": "agent",
        "message": "",
        "action": "think",
        "args": {"thought": text or f"thought {number}"},
    }


def state(number: int, word: str) -> dict[str, Any]:
    """Make a change of the agent's state, as it is stored."""
    return {
        "id": number,
        "timestamp": at(number),
        "source": "environment",
        "message": "",
        "observation": "agent_state_changed",
        "content": "",
        "extras": {"agent_state": word, "reason": ""},
    }


def null(number: int) -> dict[str, Any]:
    """Make an event that no socket ever tells."""
    return {
        "id": number,
        "timestamp": at(number),
        "source": "environment",
        "message": "",
        "observation": "null",
        "content": "",
        "extras": {},
    }
