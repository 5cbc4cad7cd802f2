"""A simulated OpenHands server of the V0 protocol, on a real socket, speaking raw JSON; run it with `python -m`.

async with OpenHandsServer() as server:
    work = server.conversation("c0ffee")
    await work.wait_connections()
    await work.agent_runs("ls", "a.txt")
    await work.agent_runs("rm a.txt", "", gated=True)
    await work.finish("Done.")
"""

import asyncio
import hmac
import logging
from collections.abc import Coroutine
from typing import Any, Self, cast
from urllib.parse import parse_qs
from uuid import uuid4

# python-socketio has no type stubs; `socket_server` declares the used parts.
import socketio  # pyright: ignore[reportMissingTypeStubs]
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel

# Likewise.
from socketio.exceptions import ConnectionRefusedError as Refused  # pyright: ignore[reportMissingTypeStubs]

from gateway.testing.change import PATIENCE
from gateway.testing.runtimes.openhands.conversation import Manners as Manners, SimConversation as SimConversation
from gateway.testing.runtimes.openhands.events import live_of
from gateway.testing.runtimes.openhands.mcp import McpServer, read_servers
from gateway.testing.runtimes.openhands.questions import questions
from gateway.testing.runtimes.openhands.rules import (
    DEFAULT_PAGE,
    EVENT_PAGE,
    PROVIDERS,
    Frame,
    Violation,
    is_conversation_id,
    read_creation,
    read_latest,
)
from gateway.testing.runtimes.openhands.settings import SimSettings
from gateway.testing.runtimes.socket_server import SocketServer
from gateway.testing.serving import LOOPBACK, Served
from gateway.testing.wire import Wire

MESSAGE_LIMIT = 4 * 1024**2
CONVERSATION_LIMIT = 1_000
SETTINGS_MISSING = "CONFIGURATION$SETTINGS_NOT_FOUND"


class RunOrder(BaseModel):
    """The command to run."""

    command: str
    output: str = ""
    gated: bool = False


class SayOrder(BaseModel):
    """The message to send."""

    text: str


class CallOrder(BaseModel):
    """The MCP tool to call."""

    tool: str
    arguments: dict[str, Any] = {}


class Silence(Exception):
    """The server failed internally, so the client gets neither a refusal nor an acknowledgement."""


class OpenHandsServer:
    """Serves conversations; like the real server, it creates one for any id that a socket joins."""

    def __init__(
        self,
        *,
        session_api_key: str | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        manners: Manners | None = None,
        max_concurrent_conversations: int = 3,
        wire: Wire | None = None,
    ) -> None:
        self.session_api_key = session_api_key
        self.max_concurrent_conversations = max_concurrent_conversations
        """The maximum number of running agent loops; the next one ends the oldest."""
        self.evicted: list[str] = []
        """The conversations that were ended for another one, in order."""
        self.conversations: dict[str, SimConversation] = {}
        self.settings = SimSettings()
        self.has_settings = True
        """Whether a model and its key are stored; without them no agent loop can start."""
        self.refused: list[str] = []
        """The reasons of refused and unanswered connections, in order."""
        self.violations: list[str] = []
        """Protocol violations by clients that belong to no conversation."""
        self._manners = manners or Manners()
        self._wire = wire
        self._conversation_of: dict[str, str] = {}
        self._running: list[SimConversation] = []
        """The conversations with started agent loops, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.asking = questions(self)
        """Lets a conversation's agent ask a human."""
        # The real server only logs internal errors; tests do not need this log.
        # Any, because the library's type hint for `logger` lacks loggers.
        quiet: Any = logging.getLogger("gateway.testing.runtimes.openhands.server.sockets")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        self._sockets = cast(
            "SocketServer",
            socketio.AsyncServer(
                async_mode="asgi",
                async_handlers=False,
                max_http_buffer_size=MESSAGE_LIMIT,
                cors_allowed_origins="*",
                ping_interval=self._manners.heartbeat.total_seconds(),
                ping_timeout=self._manners.heartbeat.total_seconds() * 0.8,
                logger=quiet,
                engineio_logger=quiet,
            ),
        )
        self._sockets.on("connect", self._connect)
        for channel in self._manners.listens:
            self._sockets.on(channel, self._accept)
        self._sockets.on("disconnect", self._disconnect)
        self._sockets.on("*", self._accept_other)
        app = socketio.ASGIApp(self._sockets, other_asgi_app=self._pages())
        self._served = Served(app, host=host, port=port, biggest_frame=MESSAGE_LIMIT, wire=wire)

    @property
    def url(self) -> str:
        return self._served.url

    def conversation(self, conversation_id: str) -> SimConversation:
        """Return a conversation; create it if it does not exist."""
        if conversation_id not in self.conversations:
            self.conversations[conversation_id] = SimConversation(conversation_id, self, self._manners, self._wire)
            while len(self.conversations) > CONVERSATION_LIMIT:
                del self.conversations[next(iter(self.conversations))]
        return self.conversations[conversation_id]

    async def start(self) -> None:
        """Start listening; a restart keeps the port and all events; agents start again when joined."""
        await self._served.start()

    async def stop(self) -> None:
        """Abort all connections and refuse new ones until the next start, as in a crash."""
        for task in self._tasks:
            task.cancel()
        self.asking.stop()
        await self._served.pause()
        for conversation in self.conversations.values():
            conversation.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._served.stop()
        async with asyncio.timeout(PATIENCE):
            await self._sockets.shutdown()

    # Used by conversations

    async def broadcast(self, conversation_id: str, payload: Any) -> None:
        """Send an event to all sockets of a conversation."""
        await self._sockets.emit("oh_event", payload, to=f"room:{conversation_id}")

    async def broadcast_text(self, conversation_id: str, packet: str) -> None:
        """Send the text of a Socket.IO packet to all sockets of a conversation."""
        for sid in list(self.conversation(conversation_id).sockets):
            connection = self._sockets.manager.eio_sid_from_sid(sid, "/")
            if connection is not None:
                await self._sockets.eio.send(connection, packet)

    async def disconnect(self, sid: str) -> None:
        """Close one socket with a Socket.IO DISCONNECT."""
        await self._sockets.disconnect(sid)

    def cut(self, conversation_id: str) -> int:
        """Reset the connections of a conversation; return their number."""
        return self._served.cut(lambda query: query.get("conversation_id") == [conversation_id])

    # Socket.IO handlers

    async def _connect(self, sid: str, environ: dict[str, Any], _auth: object = None) -> None:
        query = parse_qs(str(environ.get("QUERY_STRING", "")), keep_blank_values=True)
        handshake = {key: values[0] for key, values in query.items()}
        conversation_id = handshake.get("conversation_id", "")
        if not conversation_id:
            self._turn_away("No conversation_id in query params")
        self._check_handshake(handshake)
        if not is_conversation_id(conversation_id):
            # With such an id the real server writes outside its folder, so a client must not use it.
            self.violations.append(f"{conversation_id[:100]!r} is not a conversation id")
            raise Silence
        conversation = self.conversation(conversation_id)
        is_new = not conversation.events
        begun = self.has_settings and is_new and await self._begin(conversation)
        # All of this is sent before the packet that confirms the connection.
        for event in conversation.store.history(read_latest(handshake.get("latest_event_id", ""))):
            await self._sockets.emit("oh_event", event, to=sid)
        if not self.has_settings:
            self._turn_away("Settings not found", {"msg_id": SETTINGS_MISSING})
        self._conversation_of[sid] = conversation_id
        await self._sockets.enter_room(sid, f"room:{conversation_id}")
        conversation.join(sid, handshake)
        # An existing conversation is replayed first; its agent loop starts afterwards.
        begun = begun or await self._begin(conversation)
        if begun:
            await self._warm_up(conversation)
        elif self._manners.stale_state is not None:
            self._start(self._say_first_state(sid, conversation, self._manners.stale_state.total_seconds()))

    async def _begin(self, conversation: SimConversation, named: tuple[McpServer, ...] | None = None) -> bool:
        """Start an agent loop if it is not running; end the oldest if there are too many.

        The MCP servers that a creation `named` last until the agent loop ends.
        """
        if conversation.runs:
            return False
        self._running = [one for one in self._running if one.runs]
        while len(self._running) >= self.max_concurrent_conversations:
            oldest = self._running.pop(0)
            self.evicted.append(oldest.conversation_id)
            await oldest.evict()
        self._running.append(conversation)
        return conversation.begin(self.settings.servers(named))

    async def _warm_up(self, conversation: SimConversation, first: str | None = None) -> None:
        """Load an agent loop; a slow one does not block others."""
        if self._manners.loading is not None and not self._manners.loading:
            await conversation.warm_up(first)
        else:
            self._start(conversation.warm_up(first))

    async def _say_first_state(self, sid: str, conversation: SimConversation, late: float) -> None:
        await asyncio.sleep(late)
        states = [event for event in conversation.events if event.get("observation") == "agent_state_changed"]
        if states:
            await self._sockets.emit("oh_event", live_of(states[0]), to=sid)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_handshake(self, handshake: dict[str, str]) -> None:
        if unknown := set(filter(None, handshake.get("providers_set", "").split(","))) - PROVIDERS:
            self.refused.append(f"unknown provider {min(unknown)[:64]!r}")
            raise Silence
        if self.session_api_key is None:
            return
        given = handshake.get("session_api_key", "")
        if not given:
            self.refused.append("no session_api_key")
            raise Silence
        if not self._is_key(given):
            self._turn_away("invalid_session_api_key")

    def _turn_away(self, message: str, more: dict[str, str] | None = None) -> None:
        self.refused.append(message)
        raise Refused(message, more) if more else Refused(message)

    async def _accept(self, sid: str, *payloads: object) -> None:
        """Process an action; returning acknowledges it, an exception sends nothing."""
        conversation = self._joined(sid)
        if len(payloads) != 1:
            conversation.object_to("an action is exactly one object")
            raise Silence
        await conversation.accept(payloads[0])

    async def _accept_other(self, channel: str, sid: str, *_payloads: object) -> object:
        self._joined(sid).object_to(f"this server does not listen for {channel[:64]!r}")
        # Without a handler the library sends no acknowledgement; a catch-all handler must return `not_handled`.
        return self._sockets.not_handled

    async def _disconnect(self, sid: str, _reason: object = None) -> None:
        conversation_id = self._conversation_of.pop(sid, None)
        if conversation_id is not None:
            self.conversation(conversation_id).leave(sid)

    def _joined(self, sid: str) -> SimConversation:
        if sid not in self._conversation_of:
            self.violations.append("a refused socket has emitted an event")
            raise Silence
        return self.conversation(self._conversation_of[sid])

    def _is_key(self, given: str) -> bool:
        key = self.session_api_key
        return key is None or hmac.compare_digest(given.encode("utf-8", "surrogatepass"), key.encode())

    # REST routes

    def _pages(self) -> FastAPI:
        app = FastAPI(title="Simulated OpenHands server", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/alive", self._say_alive, methods=["GET"])
        app.add_api_route("/server_info", self._say_info, methods=["GET"])
        app.add_api_route("/api/settings", self._show_settings, methods=["GET"])
        app.add_api_route("/api/settings", self._store_settings, methods=["POST"])
        app.add_api_route("/api/conversations", self._create, methods=["POST"])
        app.add_api_route("/api/conversations/{conversation_id}", self._describe, methods=["GET"])
        app.add_api_route("/api/conversations/{conversation_id}/events", self._list_events, methods=["GET"])
        app.add_api_route("/api/conversations/{conversation_id}/events", self._take_event, methods=["POST"])
        app.add_api_route("/api/conversations/{conversation_id}/start", self._start_again, methods=["POST"])
        app.add_api_route("/api/conversations/{conversation_id}/stop", self._stop, methods=["POST"])
        app.add_api_route("/simulator/conversations/{conversation_id}/run", self._order_run, methods=["POST"])
        app.add_api_route("/simulator/conversations/{conversation_id}/call", self._order_call, methods=["POST"])
        app.add_api_route("/simulator/conversations/{conversation_id}/say", self._order_words, methods=["POST"])
        self.asking.add_page(app)
        app.middleware("http")(self._check_key)
        return app

    async def _check_key(self, request: Request, call_next: Any) -> Response:
        if self._manners.rest_status is not None and not request.url.path.startswith("/simulator/"):
            return PlainTextResponse("Not Found", self._manners.rest_status)
        free = request.url.path in {"/alive", "/server_info"} or request.url.path.startswith("/simulator/ask/")
        if not free and not self._is_key(request.headers.get("x-session-api-key", "")):
            return JSONResponse({"detail": "Unauthorized"}, 401)
        return await call_next(request)

    async def _say_alive(self) -> dict[str, str]:
        return {"status": "ok"}

    async def _say_info(self) -> Frame:
        return {"uptime": 1.0, "idle_time": 0.0, "resources": {"cpu_percent": 0.0}}

    async def _show_settings(self) -> JSONResponse:
        if not self.has_settings:
            return JSONResponse({"error": "Settings not found"}, 404)
        return JSONResponse(self.settings.show())

    async def _store_settings(self, request: Request) -> JSONResponse:
        body: object = None
        try:
            body = await request.json()
            if not self._manners.stores_settings:
                return JSONResponse({"error": "Something went wrong storing settings"}, 500)
            self.settings.write(body)
        except Violation as exc:
            self.violations.append(f"POST /api/settings: {exc}")
            return JSONResponse({"detail": [{"type": "value_error", "msg": str(exc), "input": body}]}, 422)
        except ValueError:
            self.violations.append("POST /api/settings: not JSON")
            return JSONResponse({"detail": [{"type": "json_invalid", "msg": "JSON decode error"}]}, 422)
        self.has_settings = True
        return JSONResponse({"message": "Settings stored"})

    async def _create(self, request: Request) -> JSONResponse:
        body: object = None
        try:
            creation = read_creation(body := await request.json())
            servers = None if creation.get("mcp_config") is None else read_servers(creation["mcp_config"])
        except Violation as exc:
            self.violations.append(f"POST /api/conversations: {exc}")
            # The real server's error quotes the whole input.
            return JSONResponse({"detail": [{"type": "extra_forbidden", "msg": str(exc), "input": body}]}, 422)
        except ValueError:
            self.violations.append("POST /api/conversations: not JSON")
            return JSONResponse({"detail": [{"type": "json_invalid", "msg": "JSON decode error"}]}, 422)
        if not self.has_settings:
            missing = {"status": "error", "message": "Settings not found", "msg_id": SETTINGS_MISSING}
            return JSONResponse(missing, 400)
        conversation = self.conversation(uuid4().hex)
        await self._begin(conversation, servers)
        await self._warm_up(conversation, creation.get("initial_user_msg"))
        status = {"status": "ok", "conversation_id": conversation.conversation_id, "message": None}
        return JSONResponse({**status, "conversation_status": "STARTING"})

    async def _describe(self, conversation_id: str) -> Response:
        conversation = self.conversations.get(conversation_id)
        if conversation is not None:
            conversation.looks += 1
        if not self._manners.tells_status:
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse(None if conversation is None else conversation.describe())

    async def _list_events(
        self,
        conversation_id: str,
        start_id: int = 0,
        end_id: int | None = None,
        reverse: bool = False,
        limit: int = DEFAULT_PAGE,
    ) -> JSONResponse:
        if not 0 <= limit <= EVENT_PAGE:
            self.violations.append(f"a page of {limit} events was requested")
            return JSONResponse({"detail": "Invalid limit"}, 400)
        store = self.conversation(conversation_id).store
        return JSONResponse(store.page(start_id, end_id, limit, backwards=reverse))

    async def _take_event(self, conversation_id: str, request: Request) -> Response:
        conversation = self.conversation(conversation_id)
        try:
            await conversation.accept(await request.json())
        except (Violation, ValueError):
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"success": True})

    async def begin_again(self, conversation_id: str) -> bool:
        """Start the agent loop of a conversation, as a join does, with the MCP servers of the settings."""
        conversation = self.conversation(conversation_id)
        begun = await self._begin(conversation)
        if begun:
            await self._warm_up(conversation)
        return begun

    async def _start_again(self, conversation_id: str) -> JSONResponse:
        """Start an agent loop."""
        before = self.conversation(conversation_id).status_name
        await self.begin_again(conversation_id)
        status = {"status": "ok", "conversation_id": conversation_id, "message": None}
        return JSONResponse({**status, "conversation_status": before})

    async def _stop(self, conversation_id: str) -> JSONResponse:
        """Stop an agent loop."""
        conversation = self.conversation(conversation_id)
        before = conversation.status_name
        await conversation.stop()
        status = {"status": "ok", "conversation_id": conversation_id, "message": None}
        return JSONResponse({**status, "conversation_status": before})

    async def _order_run(self, conversation_id: str, order: RunOrder) -> JSONResponse:
        """Let the agent run a command, and return the result; for use with curl."""
        work = self.conversation(conversation_id)
        try:
            return JSONResponse(await work.agent_runs(order.command, order.output, gated=order.gated))
        except TimeoutError as exc:
            return JSONResponse({"detail": str(exc)}, 504)

    async def _order_call(self, conversation_id: str, order: CallOrder) -> JSONResponse:
        """Let the agent call an MCP tool, and return the result; for use with curl."""
        return JSONResponse(await self.conversation(conversation_id).agent_calls(order.tool, order.arguments))

    async def _order_words(self, conversation_id: str, order: SayOrder) -> JSONResponse:
        """Let the agent send a message; for use with curl."""
        return JSONResponse(await self.conversation(conversation_id).agent_says(order.text))
