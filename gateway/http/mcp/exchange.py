"""One request of an MCP client: its caller, its session and the call that it waits for."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import orjson
import structlog
from starlette.types import Message, Send

from gateway.adapter.options import McpClient
from gateway.adapter.port import Tool
from gateway.core.arguments import ArgumentValidator
from gateway.core.callers import CallRequest, id_of, is_own
from gateway.core.trace_context import TraceContext, read_traceparent
from gateway.core.unheard import GET_RESULT
from gateway.errors import Draining, EngineUnavailable, InvalidRequest, NotFound, UnknownTool
from gateway.events import CallId, SessionId
from gateway.guard import Tasks, spawn
from gateway.http.auth import Caller
from gateway.http.calling import open_call
from gateway.http.errors import problem_of, problem_reply
from gateway.http.forward import TRACEPARENT, TRACESTATE
from gateway.http.requests import LONGEST_CALL_KEY
from gateway.http.route import ApiRequest
from gateway.runtime.app import Gateway
from gateway.runtime.calls.tickets import Ticket
from gateway.runtime.views import CalledSession
from gateway.store.call import Call

KEY = "dragoman/key"
WAIT_ON: dict[str, Any] = {
    "type": "object",
    "properties": {"call_id": {"type": "string", "description": "The call_id from the earlier result."}},
    "required": ["call_id"],
    "additionalProperties": False,
}
"""The arguments of the tool that continues to wait for a call."""
LARGEST_ARGUMENTS = 1024**2
_STREAM = "text/event-stream"
_VERSION = "mcp-protocol-version"
_RELIABLE_STREAMS = "2026-07-28"
"""The first version whose clients notice a broken stream, and in which a closed connection cancels its request."""
_WAITING = ArgumentValidator({GET_RESULT: Tool(GET_RESULT, "", WAIT_ON)})

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class CallRefused(Exception):
    """A call that is not made; the text is for the client."""


@dataclass
class Exchange:
    """A parsed message and its connection."""

    request: ApiRequest
    session: CalledSession
    caller: Caller
    message: dict[str, Any]
    sender: Ticket | McpClient | str | None = None
    """The ticket or client that authenticates the request, or the runtime whose settings contain the ticket."""
    call: Call | None = None
    """The call that the request waits for."""
    span: str | None = None
    """The span of the request, if it is traced."""
    ended: bool = False
    """Whether the response contains the outcome of the call."""
    replayed: bool = False
    """Whether the call ended before the request, and its caller did not receive the outcome."""
    waits: bool = False
    """Whether the request waits for the end of the call, or left without the outcome."""
    answered: bool = False
    """Whether the complete response was passed to the open connection."""
    refusal: Draining | None = None
    """The reason for a 503 in place of a message, unless the response has started."""
    tasks: Tasks = field(default_factory=Tasks)
    """The tasks of the request."""
    _only_waits: bool = False
    _listens_to: CallId | None = None
    _opening: asyncio.Task[Call] | None = None

    @property
    def gateway(self) -> Gateway:
        return self.request.api_state.gateway

    @property
    def agent_of(self) -> str | None:
        """The runtime of the calling agent, if an agent calls."""
        match self.sender:
            case Ticket(runtime=runtime) | str(runtime):
                return runtime
            case _:
                return None

    @property
    def hold(self) -> timedelta:
        """The time that the request waits for its call: shorter than the timeout of a runtime's client."""
        hold = self.gateway.settings.mcp.hold
        patience = None if self.agent_of is None else self.gateway.capabilities(self.agent_of).mcp_hold
        return hold if patience is None else min(hold, patience)

    @property
    def tells_held(self) -> bool:
        """Whether a call that waits for a person ends the request at once, so that an agent can do something else."""
        return self.agent_of is not None and not self._only_waits

    @property
    def streamed(self) -> bool:
        """Whether the response is a stream that reports progress.

        Clients before 2026-07-28 wait for the rest of a broken stream, some for five minutes.
        """
        wants_progress = isinstance(self.sender, McpClient) and self.sender.progress
        survives = self.ends_with_connection or wants_progress
        return survives and _STREAM in self.request.headers.get("accept", "") and "progressToken" in self.meta

    @property
    def ends_with_connection(self) -> bool:
        """Whether closing the connection cancels the request in the client's version of the protocol."""
        return self.request.headers.get(_VERSION, "").strip() >= _RELIABLE_STREAMS

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the message."""
        return _mapping(self.message.get("params"))

    @property
    def trace(self) -> TraceContext | None:
        """The client's trace context."""
        return read_traceparent(self.meta.get(TRACEPARENT), self.meta.get(TRACESTATE))

    @property
    def meta(self) -> dict[str, Any]:
        """The `_meta` of the parameters."""
        return _mapping(self.params.get("_meta"))

    def sending(self, send: Send, left: asyncio.Event) -> Send:
        """Wrap `send` to record that the complete response was sent before the client `left`."""

        start: Message | None = None

        async def noting(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and self.gateway.draining.begun.happened:
                # The first chunk follows the decision whether the gateway still accepts the call.
                start = message
                return
            if start is not None:
                if self.refusal is not None:
                    if not self.answered:
                        self.answered = True
                        self.request.state.problem = problem_of(self.refusal)
                        await problem_reply(self.refusal)(self.request.scope, self.request.receive, send)
                    return
                began, start = start, None
                await send(began)
            # After the response every connection looks closed.
            open_before = not left.is_set()
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self.answered = open_before

        return noting

    async def take(self, tool: str, arguments: dict[str, Any], protocol: str) -> Call:
        """Open the requested call, or find the one that `get_result` names, and listen to it.

        Raises:
            CallRefused, UnknownTool, DragomanError: the call is not possible.
        """
        # Shielded: if the client disconnects meanwhile, the opened call is still known here.
        self._opening = spawn("mcp call", self._take(tool, arguments, protocol), self.tasks)
        return await asyncio.shield(self._opening)

    async def wait_opened(self) -> None:
        """Wait until a call that is being opened is open."""
        if self._opening is not None:
            await asyncio.wait({self._opening})

    async def note_received(self) -> None:
        """Record that the caller has the outcome: its conversation is not told, and an agent's next equal call runs."""
        call = self.own_call
        if call is None or not self.ended:
            return
        self.waits = False
        await self.gateway.calls.note_listened(call, until=None)
        if self.replayed:
            return
        try:
            await self.gateway.deduplicator.note_received(call)
        except EngineUnavailable as exc:
            # The agent's next equal call may get this outcome once more.
            log.warning("receipt of an outcome not recorded", call_id=call.call_id, reason=str(exc))

    async def leave(self) -> None:
        """Stop listening to the call."""
        if self._listens_to is not None:
            await self.gateway.deduplicator.stop_listening(self._listens_to)
        call = self.own_call
        if call is not None and self.waits:
            await self.gateway.calls.note_listened(call, until=self.gateway.clock.now())

    async def _take(self, tool: str, arguments: dict[str, Any], protocol: str) -> Call:
        if not self.session.on_record:
            raise CallRefused(self._absent())
        if tool == GET_RESULT:
            fitted = _WAITING.fit(GET_RESULT, arguments)
            if fitted.problem is not None:
                raise CallRefused(fitted.problem)
            self._only_waits = True
            self.call = await self.find(fitted.arguments["call_id"])
            await self._listen(self.call.call_id)
        else:
            self.call = await self._open(tool, arguments, protocol)
        return self.call

    async def note_listed(self) -> None:
        """Record that an agent listed its tools; listings of other clients do not count."""
        watch, session = self.gateway.tool_watch, self.session
        if isinstance(self.sender, Ticket):
            await watch.note_listed(session.session_id if session.on_record else None, self.sender)
        elif self.agent_of is not None:
            if session.on_record:
                await watch.note_listed(session.session_id)
            elif not session.native_id:
                await watch.note_shared_listed(self.agent_of)

    def _absent(self) -> str:
        """Return the reason why the request has no session."""
        if isinstance(self.sender, Ticket):
            return "this session is not recorded yet; call again in a moment"
        runtime, native_id = self.session.runtime, self.session.native_id
        if not native_id:
            return f"the request does not name a session of runtime {runtime!r}"
        return f"{native_id[:100]!r} is no open session of runtime {runtime!r} here; POST /v1/sessions attaches it"

    async def _listen(self, call_id: CallId) -> None:
        await self.gateway.deduplicator.listen(call_id)
        self._listens_to = call_id

    async def _open(self, tool: str, arguments: dict[str, Any], protocol: str) -> Call:
        size = len(orjson.dumps(arguments))
        if size > LARGEST_ARGUMENTS:
            raise CallRefused(f"the arguments have {size} bytes; at most {LARGEST_ARGUMENTS} are allowed")
        deduplicator, session, key = self.gateway.deduplicator, self.session, self._key()
        fresh = key is None
        if key is None:
            key = deduplicator.generate_key()
            known = await deduplicator.join_open_call(session.session_id, self.caller.name, tool, arguments)
            if known is not None:
                self._listens_to = known.call_id
                return known
            spec = self.gateway.settings.tools.get(tool)
            if self.agent_of is not None and spec is not None and not spec.read_only:
                known = await deduplicator.take_unreceived(session.session_id, tool, arguments)
                if known is not None:
                    self.replayed = True
                    return known
        asked = CallRequest(tool, arguments, self.caller.name, key, protocol, fresh, self.trace, self.span)
        # Registered before the call is stored, so that no concurrent equal call joins it.
        await self._listen(id_of(session.runtime, session.native_id, asked))
        opened = await open_call(self.request, session.session_id, asked, self.caller)
        if not isinstance(opened, Call):
            problem: dict[str, Any] = orjson.loads(bytes(opened.body))
            if problem["type"] == "/problems/unknown-tool":
                raise UnknownTool(problem["detail"])
            raise CallRefused(problem["detail"])
        return opened

    @property
    def own_call(self) -> Call | None:
        """The call that the request waits for, if its caller made it."""
        return self.call if self.call is not None and is_own(self.call, self.caller.name) else None

    @property
    def canceled_call(self) -> Call | None:
        """The call that the end of the request cancels; the end of `get_result` ends only the wait."""
        return None if self._only_waits else self.own_call

    async def find(self, call_id: object) -> Call:
        """Find a caller's call in this session.

        Raises:
            CallRefused: there is no such call.
        """
        try:
            call = await self.gateway.calls.one(CallId(str(call_id)))
        except NotFound:
            call = None
        if call is None or call.session_id != self.session.session_id or call.answer_to != "caller":
            raise CallRefused("this session has no such call; use the call_id from the earlier result")
        return call

    def _key(self) -> str | None:
        key = self.meta.get(KEY)
        if key is None:
            return None
        if isinstance(key, str) and key.isascii() and key.isprintable() and 0 < len(key) <= LONGEST_CALL_KEY:
            return key
        raise InvalidRequest(f"`_meta` {KEY!r} must be 1 to {LONGEST_CALL_KEY} printable ASCII characters")


def pending_session(ticket: Ticket) -> CalledSession:
    """Return a placeholder for a ticket's session that is not recorded yet; it may list tools."""
    session_id = SessionId(f"ticket:{ticket.ticket_id}")
    return CalledSession(session_id, ticket.runtime, "", ticket.labels, on_record=False)


def unknown_session(runtime: str, native_id: str, labels: Mapping[str, str]) -> CalledSession:
    """Return a placeholder for an unknown or unnamed native session; it may list the tools of its runtime."""
    return CalledSession(SessionId(f"runtime:{runtime}"), runtime, native_id, labels, on_record=False)


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
