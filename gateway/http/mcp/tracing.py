"""Traces the `tools/call` requests of MCP clients."""

from datetime import datetime, timedelta
from random import getrandbits

from gateway.core.trace_context import call_span, context_of, key_context, read_traceparent, request_span
from gateway.http.forward import TRACEPARENT
from gateway.http.mcp.exchange import Exchange
from gateway.traces.queue import Traces
from gateway.traces.spans import ToolRequest, mcp_span

_SKEW = timedelta(seconds=1)
"""Allowed difference between the clocks of two instances."""


class RequestTrace:
    """Writes the span of one request after its end."""

    def __init__(self, traces: Traces, exchange: Exchange, tool: str, protocol: str) -> None:
        self._traces = traces
        self._exchange = exchange
        self._clock = exchange.gateway.clock
        request_id = str(exchange.message.get("id"))
        transport = read_traceparent(exchange.request.headers.get(TRACEPARENT))
        self._request = ToolRequest(tool, request_id, protocol, self._clock.now(), exchange.trace, transport)

    def end(self, error: str | None) -> None:
        """Write the span; `error` is its error.type."""
        exchange, request, call = self._exchange, self._request, self._exchange.call
        span_id = f"{getrandbits(64) or 1:016x}"
        if call is not None and exchange.has_opened and _is_new(call.created_at, request.started_at):
            place, span_id = context_of(call), request_span(call.call_id)
        elif request.caller is not None:
            place = request.caller
        elif call is not None:
            place = context_of(call).below(call_span(call.call_id))
        else:
            spec = exchange.gateway.settings.traces
            place = key_context(f"request {span_id}", 1.0 if spec is None else spec.ratio)
        if place.sampled:
            self._traces.put(mcp_span(request, place, span_id, self._clock.now(), error))


def _is_new(created_at: datetime, started_at: datetime) -> bool:
    """Whether a request has opened a call, rather than found it by its key."""
    return created_at >= started_at - _SKEW
