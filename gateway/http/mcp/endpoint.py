"""The MCP endpoints: check token, method and message before the MCP library receives the request."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from gateway.adapter.options import McpClient
from gateway.core.callers import BY_ITS_CALLER, is_own
from gateway.core.own_actions import TICKET
from gateway.errors import Conflict, Elsewhere, Unauthorized, install_line
from gateway.events import CallId, SessionId
from gateway.guard import in_thread, spawn
from gateway.http.auth import TOOLS, Caller, is_forwarded
from gateway.http.body import check_type
from gateway.http.errors import Refused, problem_of, problem_reply
from gateway.http.mcp.exchange import CallRefused, Exchange, pending_session, unknown_session
from gateway.http.mcp.reading import NoMessage, read_message
from gateway.http.reply import Reply, dump
from gateway.http.route import ApiRequest
from gateway.runtime.app import Gateway
from gateway.runtime.calls.tickets import Ticket
from gateway.runtime.views import CalledSession
from gateway.settings.model import Settings

if TYPE_CHECKING:
    from gateway.http.mcp.server import McpServer

_CANCELLED = "notifications/cancelled"
_CALL = "dragoman/call_id"
_METHOD = "POST"
_IMPORT = 60.0
"""Seconds allowed for the import of the MCP library."""

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class McpHandler:
    """Serves the MCP requests of one application and tracks the waiting ones."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server: McpServer | None = None
        self._held: defaultdict[tuple[SessionId, str, str], list[Exchange]] = defaultdict(list)
        """By session, caller and request id; a client that restarts its counter may use an id twice."""
        # A client may wait for only five seconds, and a busy machine imports the library for longer.
        gateway.call_when_reloaded(self._prepare)
        self._prepare(gateway.settings)

    def _prepare(self, settings: Settings) -> None:
        """Import the MCP library if a runtime needs it, before the first request."""
        takes_mcp = any(one.takes_mcp or one.mcp_clients is not None for one in settings.runtimes.values())
        if self._server is None and takes_mcp and find_spec("mcp") is not None:
            self._server = _import_server()(self._gateway)

    async def take(self, request: ApiRequest, session_id: SessionId, receive: Receive, send: Send) -> None:
        """Serve a request with a session's tool token."""
        admitting = request.api_state.authenticator.admit_caller(request, session_id)
        caller = await self._admit(admitting, request, receive, send)
        if caller is not None:
            await self._answer(request, await self._gateway.opening.find(session_id), caller, send)

    async def take_client(self, request: ApiRequest, runtime: str, receive: Receive, send: Send) -> None:
        """Serve a request of a client with its own token; the first one opens the client's session."""
        admitting = request.api_state.authenticator.admit_client(request, runtime)
        client = await self._admit(admitting, request, receive, send)
        if client is not None:
            session = await self._gateway.opening.of_client(runtime, client)
            await self._answer(request, session, TOOLS["mcp client"], send, client)

    async def take_ticket(self, request: ApiRequest, ticket_id: str, receive: Receive, send: Send) -> None:
        """Serve a request of a native session that the gateway created, with its ticket."""
        admitting = request.api_state.authenticator.admit_ticket(request, ticket_id)
        ticket = await self._admit(admitting, request, receive, send)
        if ticket is None:
            return
        header = self._gateway.options(ticket.runtime).mcp_session_header
        named = None if header is None else request.headers.get(header)
        session = await self._gateway.opening.of_ticket(ticket, named)
        if session is None:
            session = pending_session(ticket)
        await self._answer(request, session, TOOLS[TICKET], send, ticket)

    async def take_shared(self, request: ApiRequest, runtime: str, receive: Receive, send: Send) -> None:
        """Serve a request with the ticket of a runtime's settings; a header names the session."""
        admitting = self._admit_shared(request, runtime)
        if await self._admit(admitting, request, receive, send) is None:
            return
        header = self._gateway.options(runtime).mcp_session_header
        named = "" if header is None else request.headers.get(header, "")
        session = await self._gateway.opening.of_runtime(runtime, named) if named else None
        if session is None:
            session = unknown_session(runtime, named, self._gateway.settings.runtimes[runtime].labels)
        await self._answer(request, session, TOOLS[TICKET], send, runtime)

    async def _admit_shared(self, request: ApiRequest, runtime: str) -> str:
        await request.api_state.authenticator.admit_shared(request, runtime)
        return runtime

    async def _admit(self, admitting: Awaitable[T], request: ApiRequest, receive: Receive, send: Send) -> T | None:
        """Authenticate before the method or body is checked; None if an error response was sent."""
        try:
            who = await admitting
        except Unauthorized as exc:
            request.state.problem = problem_of(exc)
            response = problem_reply(exc)
            # Without `resource_metadata`, because there is no authorization server.
            response.headers["www-authenticate"] = 'Bearer error="invalid_token"'
        else:
            if request.method == _METHOD:
                return who
            response = problem_reply(HTTPException(405))
            response.headers["allow"] = _METHOD
        await response(request.scope, receive, send)
        return None

    async def _answer(
        self,
        request: ApiRequest,
        session: CalledSession,
        caller: Caller,
        send: Send,
        sender: Ticket | McpClient | str | None = None,
    ) -> None:
        """Serve an authenticated request."""
        raw = await request.body()
        check_type(request)
        try:
            message = read_message(raw)
        except NoMessage as exc:
            await _tell_fault(exc)(request.scope, request.receive, send)
            return
        exchange = Exchange(request, session, caller, message, sender)
        if message.get("method") == _CANCELLED and "id" not in message:
            try:
                await self._cancel_held(exchange)
            except CallRefused as exc:
                raise Refused("not-found", str(exc)) from exc
            await Response(status_code=202)(request.scope, request.receive, send)
            return
        await self._serve(exchange, raw, request.receive, send)

    async def _load_server(self) -> "McpServer":
        """Return the MCP server; the first call imports the library.

        Raises:
            Refused: the library is not installed.
        """
        if self._server is None:
            # The import may take seconds. It runs in a thread, so that the lease is renewed meanwhile.
            make = await in_thread("mcp", _import_server, within=_IMPORT, what="the import of the MCP library")
            self._server = self._server or make(self._gateway)
        return self._server

    async def _serve(self, exchange: Exchange, raw: bytes, receive: Receive, send: Send) -> None:
        server = await self._load_server()
        request, left = exchange.request, asyncio.Event()
        request.state.mcp = exchange
        place = self._place(exchange, exchange.message.get("id"))
        self._held[place].append(exchange)
        gone = cancels = False
        try:
            async with exchange.tasks as tasks:
                serving = server.serve(
                    _trimmed(request.scope),
                    _Replayed(raw, left),
                    exchange.sending(send, left),
                    streamed=exchange.streamed,
                )
                answering = spawn("mcp answer", serving, tasks)
                watching = spawn("mcp connection", _watch(receive, left), tasks)
                await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
                watching.cancel()
                gone = left.is_set() and not exchange.answered
                if gone:
                    # The call continues; one that is being opened is recorded when the tasks have ended.
                    wanted = self._gateway.settings.mcp.on_disconnect
                    cancels = wanted == "cancel" or (wanted == "auto" and exchange.ends_with_connection)
                    answering.cancel()
                else:
                    await answering
                    await exchange.note_received()
        finally:
            self._held[place].remove(exchange)
            if not self._held[place]:
                del self._held[place]
            await exchange.leave()
        if cancels:
            await self._disconnected(exchange)
        if gone:
            raise ClientDisconnect

    async def _disconnected(self, exchange: Exchange) -> None:
        call = exchange.canceled_call
        if call is None or not call.is_open:
            return
        # While this listens, no repeat joins the call; an existing listener still needs its outcome.
        async with self._gateway.deduplicator.listening_alone(call.call_id) as alone:
            if alone:
                await self._cancel(exchange, call.call_id, "Canceled because its caller closed the connection.")

    async def _cancel_held(self, exchange: Exchange) -> None:
        if _CALL in exchange.meta:
            # From an instance that holds the request and does not own the session.
            call = await exchange.find(exchange.meta[_CALL])
            if is_own(call, exchange.caller.name):
                await self._cancel(exchange, call.call_id, BY_ITS_CALLER)
            return
        held = self._held.get(self._place(exchange, exchange.params.get("requestId")), [])
        if len(held) == 1:
            await held[0].wait_opened()
            if (call := held[0].canceled_call) is not None:
                await self._cancel(exchange, call.call_id, BY_ITS_CALLER)

    async def _cancel(self, exchange: Exchange, call_id: CallId, reason: str) -> None:
        try:
            await self._gateway.calls.cancel(call_id, reason=reason)
        except Conflict:
            # The call has ended meanwhile.
            return
        except Elsewhere as exc:
            if exc.unsure or is_forwarded(exchange.request):
                raise
            forwarding, session_id = exchange.request.api_state.forwarding, exchange.session.session_id
            params = {"requestId": "-", "_meta": {_CALL: call_id}}
            body = dump({"jsonrpc": "2.0", "method": _CANCELLED, "params": params})
            written = forwarding.request_of(
                exchange.request, exchange.caller, f"/mcp/{quote(session_id, safe='')}", body
            )
            await forwarding.ask_owner(session_id, written, until=self._gateway.forwarder.patience())

    def _place(self, exchange: Exchange, request_id: object) -> tuple[SessionId, str, str]:
        return exchange.session.session_id, exchange.caller.name, repr(request_id)


def _trimmed(scope: Scope) -> Scope:
    """Remove the white space around header values, which the HTTP parser keeps at their ends (RFC 9110, 5.5)."""
    return {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}


class _Replayed:
    """An ASGI `receive` that replays the body, then waits for the disconnect."""

    def __init__(self, raw: bytes, left: asyncio.Event) -> None:
        self._raw: bytes | None = raw
        self._left = left

    async def __call__(self) -> Message:
        if self._raw is None:
            await self._left.wait()
            return {"type": "http.disconnect"}
        raw, self._raw = self._raw, None
        return {"type": "http.request", "body": raw, "more_body": False}


async def _watch(receive: Receive, left: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    left.set()


def _tell_fault(exc: NoMessage) -> Response:
    error: dict[str, Any] = {"code": exc.code, "message": str(exc)}
    if exc.place is not None:
        error["data"] = {"pointer": exc.place}
    return Reply({"jsonrpc": "2.0", "id": None, "error": error}, 400)


def _import_server() -> "type[McpServer]":
    try:
        # The library loads slowly, and most gateways never need it.
        from gateway.http.mcp.server import McpServer
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in {"mcp", "mcp_types", "sse_starlette"}:
            raise
        raise Refused("unknown-path", f"MCP requires a library that is not installed; {install_line('mcp')}") from exc
    return McpServer


class _SessionEndpoint:
    """The endpoint for a session's tool token, in plain ASGI like the MCP library."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(scope, receive)
        handler = cast(McpHandler, request.app.state.mcp)
        await handler.take(request, SessionId(request.path_params["session_id"]), receive, send)


class _ClientEndpoint:
    """The endpoint for clients with their own token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(scope, receive)
        handler = cast(McpHandler, request.app.state.mcp)
        await handler.take_client(request, request.path_params["runtime"], receive, send)


class _TicketEndpoint:
    """The endpoint for native sessions with a ticket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(scope, receive)
        handler = cast(McpHandler, request.app.state.mcp)
        await handler.take_ticket(request, request.path_params["ticket_id"], receive, send)


class _SharedEndpoint:
    """The endpoint for all native sessions of a runtime whose settings contain the ticket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ApiRequest(scope, receive)
        handler = cast(McpHandler, request.app.state.mcp)
        await handler.take_shared(request, request.path_params["runtime"], receive, send)


MCP_ROUTES: list[BaseRoute] = [
    # Clients may add a slash, and few repeat a POST after a redirect.
    Route(path + slash, endpoint)
    for slash in ("", "/")
    for path, endpoint in (
        ("/mcp/{session_id}", _SessionEndpoint()),
        ("/mcp/r/{runtime}", _ClientEndpoint()),
        ("/mcp/t/{ticket_id}", _TicketEndpoint()),
        ("/mcp/s/{runtime}", _SharedEndpoint()),
    )
]
