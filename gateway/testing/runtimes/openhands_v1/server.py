"""A simulated OpenHands agent-server of the V1 protocol, on a real socket; run it with `python -m`.

async with AgentServer() as server:
    work = server.add()
    await work.wait_connections()
    await work.agent_runs("ls", "a.txt")
    await work.agent_runs("rm a.txt", "", gated=True)
    await work.finish("Done.")
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Self

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from gateway.testing.change import PATIENCE
from gateway.testing.runtimes.openhands_v1.acp import AcpConversation as AcpConversation
from gateway.testing.runtimes.openhands_v1.agent import SimConversation as SimConversation
from gateway.testing.runtimes.openhands_v1.conversation import (
    Busy,
    Conversation,
    Manners as Manners,
    NoCapacity,
    new_id,
    read_id,
)
from gateway.testing.runtimes.openhands_v1.events import USABLE_TOOLS, Frame
from gateway.testing.runtimes.openhands_v1.mcp import McpClients
from gateway.testing.runtimes.openhands_v1.questions import questions
from gateway.testing.runtimes.openhands_v1.rules import (
    PAGE,
    Invalid,
    Unusable,
    read_answer,
    read_creation,
    read_message,
    read_policy,
    read_servers,
    without_secrets,
)
from gateway.testing.runtimes.openhands_v1.sockets import Sockets, is_key
from gateway.testing.serving import LOOPBACK, Served
from gateway.testing.wire import Wire

FRAME_LIMIT = 16 * 1024**2
CONVERSATION_LIMIT = 5_000
AGENT: Frame = {
    "kind": "Agent",
    "llm": {"model": "openai/gpt-4o", "api_key": "sk-simulated", "usage_id": "agent", "stream": True},
    "tools": [{"name": "terminal"}, {"name": "file_editor"}, {"name": "task_tracker"}],
}
_OPEN = frozenset({"/", "/alive", "/health", "/ready", "/server_info", "/openapi.json"})


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


class Fault(Exception):
    """A request that gets an error with a `detail`."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class AgentServer:
    """Serves conversations, which clients create over REST, and tests with `add`."""

    def __init__(
        self,
        *,
        session_api_key: str | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        manners: Manners | None = None,
        wire: Wire | None = None,
    ) -> None:
        self.session_api_key = session_api_key
        self.conversations: dict[str, Conversation] = {}
        self.violations: list[str] = []
        """The requests that a correct client never sends."""
        self.requests: list[str] = []
        """The newest requests, as method and path."""
        self._manners = manners or Manners()
        self._wire = wire
        self._began = time.monotonic()
        self._lost_answers = 0
        self._refused_runs = 0
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self._stumbles: list[tuple[str, int]] = []
        self.sockets = Sockets(self, self._manners)
        self.asking = questions(self)
        """Lets a conversation's agent ask a human."""
        self._served = Served(self._pages(), host=host, port=port, biggest_frame=FRAME_LIMIT, wire=wire)

    @property
    def url(self) -> str:
        return self._served.url

    def add(self, conversation_id: str | None = None, **body: Any) -> SimConversation:
        """Create a conversation with the built-in agent; `body` overrides members of the usual request."""
        made = self._make({"conversation_id": conversation_id or new_id(), "agent": AGENT, "workspace": {}, **body})
        assert isinstance(made, SimConversation)
        return made

    def add_acp(
        self, conversation_id: str | None = None, *, server: str = "custom", **settings: Any
    ) -> AcpConversation:
        """Create a conversation with an ACP agent; `settings` are its further settings."""
        agent: Frame = {"agent_kind": "acp", "acp_server": server, **settings}
        if server == "custom":
            agent.setdefault("acp_command", ["simulated-acp"])
        made = self._make({"conversation_id": conversation_id or new_id(), "agent_settings": agent, "workspace": {}})
        assert isinstance(made, AcpConversation)
        return made

    def may_run(self) -> bool:
        """Return whether another conversation may run; a refused run counts down."""
        if self._refused_runs:
            self._refused_runs -= 1
            return False
        return sum(one.runs for one in self.conversations.values()) < self._manners.runs

    # Faults

    def refuse_runs(self, count: int = 1) -> None:
        """Refuse the next runs with 429; their messages are saved."""
        self._refused_runs += count

    def lose_answers(self, count: int = 1) -> None:
        """Process the next POST requests, but reset their connections instead of responding."""
        self._lost_answers += count

    def hold_answers(self) -> None:
        """Process POST requests, but respond only after `release_answers`."""
        self._may_answer.clear()

    def release_answers(self) -> None:
        """Send the held responses, and respond normally again."""
        self._may_answer.set()

    def stumble(self, ending: str, status: int, *, times: int = 1) -> None:
        """Respond to the next requests whose path ends so with a status, without processing them."""
        self._stumbles += [(ending, status)] * times

    def stop_stumbling(self) -> None:
        """Process requests again."""
        self._stumbles.clear()

    async def start(self) -> None:
        """Start listening; a restart keeps the port and what is stored."""
        for conversation in self.conversations.values():
            conversation.recover()
        await self._served.start()

    async def stop(self) -> None:
        """Abort all connections and refuse new ones until the next start, as in a crash."""
        self.asking.stop()
        for conversation in self.conversations.values():
            conversation.crash()
        await self._served.pause()

    def retire(self) -> None:
        """Close all sockets as a server does that shuts down."""
        for conversation in self.conversations.values():
            conversation.close_sockets(1012, "")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._served.stop()
        async with asyncio.timeout(PATIENCE):
            for conversation in self.conversations.values():
                await conversation.mcp.stop()

    def cut(self, conversation_id: str) -> int:
        """Reset the sockets of a conversation; return their number."""
        names = {conversation_id, conversation_id.replace("-", "")}
        return self._served.reset(
            lambda scope: scope["type"] == "websocket" and scope["path"].rpartition("/")[2] in names
        )

    def _make(self, body: Frame) -> Conversation:
        if len(self.conversations) >= CONVERSATION_LIMIT:
            raise RuntimeError(f"a simulated server keeps at most {CONVERSATION_LIMIT} conversations")
        creation = read_creation(body, wraps_mcp=self._manners.wraps_mcp)
        kind = AcpConversation if creation.is_acp else SimConversation
        name = creation.conversation_id or new_id()
        conversation = kind(name, creation, self, self._manners, self._wire)
        self.conversations[name] = conversation
        return conversation

    # Routes

    def _pages(self) -> FastAPI:
        app = FastAPI(title="OpenHands Agent Server", docs_url=None, redoc_url=None, version=self._manners.version)
        add = app.add_api_route
        for path in ("/alive", "/health", "/ready"):
            add(path, self._say_alive, methods=["GET"])
        add("/server_info", self._say_info, methods=["GET"])
        one = "/api/conversations/{conversation_id}"
        add("/api/conversations", self._create, methods=["POST"])
        add("/api/conversations/search", self._search, methods=["GET"])
        add("/api/conversations/count", self._count, methods=["GET"])
        add(one, self._describe, methods=["GET"])
        add(one, self._delete, methods=["DELETE"])
        add(f"{one}/events/search", self._list, methods=["GET"])
        add(f"{one}/events/count", self._count_events, methods=["GET"])
        add(f"{one}/events/respond_to_confirmation", self._decide, methods=["POST"])
        add(f"{one}/events/{{event_id}}", self._show_event, methods=["GET"])
        add(f"{one}/events", self._take_message, methods=["POST"])
        add(f"{one}/run", self._run, methods=["POST"])
        add(f"{one}/pause", self._pause, methods=["POST"])
        if self._manners.has_interrupt:
            add(f"{one}/interrupt", self._interrupt, methods=["POST"])
        add(f"{one}/navigate", self._navigate, methods=["POST"])
        add(f"{one}/confirmation_policy", self._set_policy, methods=["POST"])
        add(f"{one}/secrets", self._set_secrets, methods=["POST"])
        add(f"{one}/agent_final_response", self._final_response, methods=["GET"])
        add("/api/mcp/test", self._test_mcp, methods=["POST"])
        app.add_api_websocket_route("/sockets/events/{conversation_id}", self.sockets.events)
        if self._manners.has_session_socket:
            app.add_api_websocket_route("/sockets/session/{conversation_id}", self.sockets.session)
        add("/simulator/conversations/{conversation_id}/run", self._order_run, methods=["POST"])
        add("/simulator/conversations/{conversation_id}/call", self._order_call, methods=["POST"])
        add("/simulator/conversations/{conversation_id}/say", self._order_words, methods=["POST"])
        self.asking.add_page(app)
        app.add_exception_handler(Fault, _to_response)
        app.middleware("http")(self._pass)
        return app

    async def _pass(self, request: Request, call_next: Any) -> Response:
        path = request.url.path
        self.requests.append(f"{request.method} {path}")
        del self.requests[:-1000]
        if path not in _OPEN and not path.startswith("/simulator/ask/"):
            given = request.headers.get("x-session-api-key")
            if self.session_api_key is not None and not is_key(given or "", self.session_api_key):
                self.violations.append(f"{request.method} {path}: 401")
                return JSONResponse({"detail": "Unauthorized"}, 401)
        for number, (ending, status) in enumerate(self._stumbles):
            if path.endswith(ending):
                del self._stumbles[number]
                return JSONResponse({"detail": "Simulated fault"}, status)
        response: Response = await call_next(request)
        if request.method == "POST" and not path.startswith("/simulator/"):
            if self._lost_answers:
                self._lost_answers -= 1
                client = request.scope["client"]
                self._served.reset(lambda scope: scope["client"] == client)
            await self._may_answer.wait()
        return response

    async def _say_alive(self) -> Frame:
        return {"status": "ok"}

    async def _say_info(self) -> Frame:
        up = time.monotonic() - self._began
        runtime = "docker" if self._manners.proxied else "process"
        return {
            "uptime": up,
            "idle_time": 0.0,
            "title": "OpenHands Agent Server",
            "version": self._manners.version,
            "sdk_version": self._manners.version,
            "usable_tools": list(USABLE_TOOLS),
            "capabilities": self._manners.capabilities,
            "conversation_runtime": runtime,
            "available_conversation_runtimes": [runtime],
        }

    async def _create(self, request: Request) -> JSONResponse:
        body = await self._body(request)
        name = self._name_of(body)
        if name is not None and (known := self.conversations.get(name)) is not None:
            # Nothing of the body is used.
            return JSONResponse(known.describe(), 200)
        try:
            conversation = self._make(body if name is None else {**body, "conversation_id": name})
        except Invalid as exc:
            raise self._invalid(request, exc, body) from exc
        if body.get("initial_message") is not None:
            self.violations.append("POST /api/conversations: initial_message is lost if the request is repeated")
            await self._hear(conversation, {"run": True, **body["initial_message"]}, request)
        return JSONResponse(conversation.describe(), 201)

    def _name_of(self, body: Frame) -> str | None:
        given = body.get("conversation_id")
        if given is None:
            self.violations.append("POST /api/conversations: no conversation_id, so a repeat makes another one")
            return None
        if not isinstance(given, str) or (name := read_id(given)) is None:
            raise Fault(422, [{"type": "uuid_parsing", "loc": ["body", "conversation_id"], "msg": "invalid UUID"}])
        return name

    async def _search(self, limit: int = PAGE) -> Frame:
        return {"items": [one.describe() for one in [*self.conversations.values()][:limit]], "next_page_id": None}

    async def _count(self) -> int:
        return len(self.conversations)

    async def _describe(self, conversation_id: str) -> JSONResponse:
        conversation = self._found(conversation_id)
        async with conversation.lock:
            return JSONResponse(conversation.describe())

    async def _delete(self, conversation_id: str) -> JSONResponse:
        conversation = self._found(conversation_id)
        del self.conversations[conversation.conversation_id]
        conversation.delete()
        return _done()

    async def _list(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation = self._found(conversation_id)
        query: Mapping[str, str] = request.query_params
        limit = query.get("limit", str(PAGE))
        if not limit.isdigit() or not 1 <= int(limit) <= PAGE:
            if not self._manners.has_session_socket:
                raise Fault(
                    500, {"detail": "Internal Server Error", "exception": "AssertionError", "error_id": new_id()}
                )
            raise Fault(422, [{"type": "less_than_equal", "loc": ["query", "limit"], "msg": f"at most {PAGE}"}])
        page_id = query.get("page_id")
        if page_id is not None and conversation.log.find(page_id) is None:
            conversation.object_to(f"a page from the unknown event {page_id[:64]!r}, which is the first page")
        try:
            return JSONResponse(conversation.log.page(query, int(limit)))
        except ValueError as exc:
            raise Fault(422, [{"type": "datetime", "loc": ["query"], "msg": str(exc)}]) from exc

    async def _count_events(self, conversation_id: str) -> JSONResponse:
        return JSONResponse(len(self._found(conversation_id).events))

    async def _show_event(self, conversation_id: str, event_id: str) -> JSONResponse:
        event = self._found(conversation_id).log.find(event_id)
        if event is None:
            raise Fault(404, "Not Found")
        return JSONResponse({"parent_id": None, **event})

    async def _take_message(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation = self._found(conversation_id)
        await self._hear(conversation, await self._body(request), request)
        return _done()

    async def _hear(self, conversation: Conversation, body: object, request: Request) -> None:
        try:
            await conversation.hear(read_message(body))
        except Invalid as exc:
            raise self._invalid(request, exc, body) from exc
        except Unusable as exc:
            broken = {"detail": "Internal Server Error", "exception": f"{exc.code}: {exc}", "error_id": new_id()}
            raise Fault(500, broken) from exc
        except NoCapacity as exc:
            raise Fault(429, "Maximum number of concurrent runs reached") from exc

    async def _run(self, conversation_id: str) -> JSONResponse:
        conversation = self._found(conversation_id)
        conversation.note("run", None)
        if conversation.status == "waiting_for_confirmation":
            conversation.object_to("/run executes the held actions")
        await self._begin(conversation.order_run())
        return _done()

    async def _pause(self, conversation_id: str) -> JSONResponse:
        conversation = self._found(conversation_id)
        conversation.note("pause", None)
        await conversation.pause()
        return _done()

    async def _interrupt(self, conversation_id: str) -> JSONResponse:
        conversation = self._found(conversation_id)
        conversation.note("interrupt", None)
        await conversation.interrupt()
        return _done()

    async def _decide(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation, body = self._found(conversation_id), await self._body(request)
        try:
            accept, reason = read_answer(body)
        except Invalid as exc:
            raise self._invalid(request, exc, body) from exc
        await self._begin(conversation.decide(accept, reason))
        return _done()

    async def _begin(self, starting: Any) -> None:
        try:
            await starting
        except Busy as exc:
            raise Fault(409, "Conversation already running. Wait for completion or pause first.") from exc
        except NoCapacity as exc:
            raise Fault(429, "Maximum number of concurrent runs reached") from exc

    async def _navigate(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation, body = self._found(conversation_id), await self._body(request)
        event_id = body.get("event_id")
        conversation.note("navigate", event_id)
        if conversation.runs:
            raise Fault(409, "Conversation is running")
        if not conversation.navigate(event_id):
            raise Fault(404, "Event not found")
        return _done()

    async def _set_policy(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation, body = self._found(conversation_id), await self._body(request)
        try:
            policy = read_policy(body.get("policy"))
        except Invalid as exc:
            raise self._invalid(request, exc, body) from exc
        async with conversation.lock:
            conversation.policy = policy
            conversation.update("confirmation_policy", policy)
        return _done()

    async def _set_secrets(self, conversation_id: str, request: Request) -> JSONResponse:
        conversation, body = self._found(conversation_id), await self._body(request)
        async with conversation.lock:
            conversation.secrets |= body.get("secrets") or {}
        return _done()

    async def _final_response(self, conversation_id: str) -> Frame:
        return {"response": self._found(conversation_id).final_response()}

    async def _test_mcp(self, request: Request) -> JSONResponse:
        """Say whether an MCP server can be reached from here."""
        body = await self._body(request)
        try:
            entries = read_servers({"tested": body.get("server")}, "server", wraps=False)
        except Invalid as exc:
            raise self._invalid(request, exc, body) from exc
        tested = McpClients(entries, self._manners, self._wire)
        try:
            await tested.begin()
        finally:
            await tested.stop()
        return JSONResponse({"ok": bool(tested.listed), "tools": [*tested.listed]})

    # Pages for use with curl

    async def _order_run(self, conversation_id: str, order: RunOrder) -> JSONResponse:
        """Let the agent run a command, and return the result's event."""
        work = self._found(conversation_id)
        if not isinstance(work, SimConversation):
            raise Fault(409, "an ACP agent runs its own commands")
        return await self._ordered(work.agent_runs(order.command, order.output, gated=order.gated))

    async def _order_call(self, conversation_id: str, order: CallOrder) -> JSONResponse:
        """Let the agent call an MCP tool, and return the result's event."""
        return await self._ordered(self._found(conversation_id).agent_calls(order.tool, order.arguments))

    async def _order_words(self, conversation_id: str, order: SayOrder) -> JSONResponse:
        """Let the agent answer with a text, which ends its run."""
        return await self._ordered(self._found(conversation_id).agent_says(order.text))

    async def _ordered(self, acting: Any) -> JSONResponse:
        try:
            return JSONResponse(await acting)
        except TimeoutError as exc:
            raise Fault(504, str(exc)) from exc
        except (Busy, LookupError, RuntimeError, Unusable) as exc:
            raise Fault(409, str(exc)) from exc
        except NoCapacity as exc:
            raise Fault(429, "Maximum number of concurrent runs reached") from exc

    # Helpers

    def _found(self, conversation_id: str) -> Conversation:
        name = read_id(conversation_id)
        if name is None:
            raise Fault(422, [{"type": "uuid_parsing", "loc": ["path", "conversation_id"], "msg": "invalid UUID"}])
        conversation = self.conversations.get(name)
        if conversation is None:
            raise Fault(404, "Not Found")
        return conversation

    async def _body(self, request: Request) -> Any:
        try:
            body: Any = await request.json()
        except ValueError as exc:
            self.violations.append(f"{request.method} {request.url.path}: not JSON")
            raise Fault(422, [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error"}]) from exc
        if not isinstance(body, dict):
            raise self._invalid(request, Invalid((), "Input should be an object"), body)
        return body  # pyright: ignore[reportUnknownVariableType] -- JSON

    def _invalid(self, request: Request, why: Invalid, body: object) -> Fault:
        """Make the response to an invalid body, which quotes all of it."""
        self.violations.append(f"{request.method} {request.url.path}: {why}")
        quoted = without_secrets(body, mask="<redacted>")
        return Fault(422, [{"type": "value_error", "loc": ["body", *why.where], "msg": why.why, "input": quoted}])


def _done() -> JSONResponse:
    return JSONResponse({"success": True})


async def _to_response(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, Fault)
    if exc.status == 500:
        return JSONResponse(exc.detail, 500)
    return JSONResponse({"detail": exc.detail}, exc.status)
