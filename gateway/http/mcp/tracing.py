"""Traces the `tools/call` requests of MCP clients."""

from gateway.core.trace_context import call_span, context_of, key_context, place_of_request, read_traceparent
from gateway.http.forward import TRACEPARENT
from gateway.http.mcp.exchange import Exchange
from gateway.traces.queue import Traces
from gateway.traces.spans import ToolRequest, mcp_span


class RequestTrace:
    """Writes the span of one request after its end."""

    def __init__(self, traces: Traces, exchange: Exchange, tool: str, protocol: str) -> None:
        self._traces = traces
        self._exchange = exchange
        self._clock = exchange.gateway.clock
        self._span = exchange.span = exchange.gateway.ids.span_id()
        request_id = str(exchange.message.get("id"))
        transport = read_traceparent(exchange.request.headers.get(TRACEPARENT))
        self._request = ToolRequest(tool, request_id, protocol, self._clock.now(), exchange.trace, transport)

    def end(self, error: str | None) -> None:
        """Write the span; `error` is its error.type."""
        caller, call = self._request.caller, self._exchange.call
        if call is not None and context_of(call).parent == self._span:
            place = place_of_request(call, caller)
        elif caller is not None:
            place = caller
        elif call is not None:
            # Another request has opened the call.
            place = context_of(call).below(call_span(call.call_id))
        else:
            spec = self._exchange.gateway.settings.traces
            place = key_context(f"request {self._span}", 1.0 if spec is None else spec.ratio)
        if place.sampled:
            self._traces.put(mcp_span(self._request, place, self._span, self._clock.now(), error))
