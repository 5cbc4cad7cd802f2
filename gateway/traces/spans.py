"""The spans of turns, calls, attempts and MCP requests. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from gateway.core.state import SessionView
from gateway.core.trace_context import (
    NO_SPAN,
    TraceContext,
    attempt_span,
    call_span,
    context_of,
    turn_context,
)
from gateway.events import ToolFinished
from gateway.events.frozen import frozen
from gateway.executors.port import Answer, Answered, HttpExchange, NeverSent, NotProcessed, Uncertain
from gateway.store.call import Call
from gateway.traces import names

_FIRST_ERROR = 400

Kind = Literal["internal", "client", "server"]


@frozen
class Span:
    """A finished span."""

    name: str
    kind: Kind
    place: TraceContext
    span_id: str
    started_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Any]
    """By name; a value that is not a plain one is exported as JSON."""
    error: str | None = None
    """The error.type; None for a success."""
    link: TraceContext | None = None


def turn_span(before: SessionView, adapter: str, ended_at: datetime, ratio: float) -> Span | None:
    """Return the span of the turn that ran in this view and has ended; None if it is not sampled."""
    turn = before.memory.turn
    if turn is None:
        return None
    context = turn_context(before.session_id, turn.sequence, ratio)
    if not context.sampled:
        return None
    attributes = {
        names.OPERATION: names.INVOKE_AGENT,
        names.PROVIDER: adapter.partition("-")[0] or "dragoman",
        names.AGENT: before.runtime,
        names.CONVERSATION: before.session_id,
        names.ADAPTER: adapter,
    }
    name = f"{names.INVOKE_AGENT} {before.runtime}"
    place = context.below(NO_SPAN)
    return Span(name, "client", place, context.parent, turn.started_at, ended_at, attributes)


def tool_span(call: Call, finished: ToolFinished, ended_at: datetime, *, content: bool) -> Span | None:
    """Return the span of a settled call; None if it is not sampled."""
    place = context_of(call)
    if not place.sampled:
        return None
    attributes: dict[str, Any] = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL: call.tool,
        names.TOOL_TYPE: names.FUNCTION,
        names.CALL_ID: call.call_id,
    }
    if content:
        attributes[names.ARGUMENTS] = call.arguments
        if finished.outcome == "success":
            attributes[names.RESULT] = finished.result
    error = None if finished.outcome == "success" else "unknown" if finished.unknown else finished.outcome
    name = f"{names.EXECUTE_TOOL} {call.tool}"
    return Span(name, "internal", place, call_span(call.call_id), call.created_at, ended_at, attributes, error)


def post_span(
    call: Call, exchange: HttpExchange, answer: Answer | None, started_at: datetime, ended_at: datetime
) -> Span | None:
    """Return the span of an attempt that a webhook executor has made; None if there is none or it is not sampled.

    The `answer` of a canceled attempt is None.
    """
    context = context_of(call)
    if not context.sampled or not exchange.url:
        return None
    attributes: dict[str, Any] = {
        names.HTTP_METHOD: "POST",
        names.URL: exchange.url,
        names.SERVER: exchange.host,
        names.PORT: exchange.port,
    }
    if exchange.status is not None:
        attributes[names.HTTP_STATUS] = exchange.status
    if call.attempt > 1:
        attributes[names.HTTP_RESEND] = call.attempt - 1
    if isinstance(answer, Uncertain):
        attributes[names.UNKNOWN] = True
    unsent_at = started_at if isinstance(answer, NeverSent) else None
    span_id = attempt_span(call.call_id, call.attempt, unsent_at=unsent_at)
    place = context.below(call_span(call.call_id))
    return Span("POST", "client", place, span_id, started_at, ended_at, attributes, _error_of(exchange, answer))


def _error_of(exchange: HttpExchange, answer: Answer | None) -> str | None:
    match answer:
        case None:
            return "canceled"
        case NeverSent():
            return "never_sent"
        case _ if exchange.status is not None and exchange.status >= _FIRST_ERROR:
            return str(exchange.status)
        case Answered(refused=True) | NotProcessed() | Uncertain(refused=True):
            return "invalid_response"
        case Uncertain():
            return "no_response"
        case _:
            return None


@frozen
class ToolRequest:
    """One `tools/call` of an MCP client."""

    tool: str
    request_id: str
    protocol: str
    started_at: datetime
    caller: TraceContext | None
    """The trace context in its `_meta`."""
    transport: TraceContext | None
    """The trace context of its HTTP request."""


def mcp_span(request: ToolRequest, place: TraceContext, span_id: str, ended_at: datetime, error: str | None) -> Span:
    """Return the span of an MCP request at a place of a trace."""
    attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL: request.tool,
        names.MCP_METHOD: names.TOOLS_CALL,
        names.MCP_PROTOCOL: request.protocol,
        names.REQUEST_ID: request.request_id,
    }
    name = f"{names.TOOLS_CALL} {request.tool}"
    return Span(name, "server", place, span_id, request.started_at, ended_at, attributes, error, request.transport)
