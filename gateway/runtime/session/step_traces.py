"""Traces the turns and calls that a committed step has ended."""

from collections.abc import Sequence

from gateway.core.session import StepBuilder
from gateway.events import CallId, Envelope
from gateway.traces.queue import Traces
from gateway.traces.spans import tool_span, turn_span


def trace_step(traces: Traces, builder: StepBuilder, envelopes: Sequence[Envelope]) -> None:
    """Write the spans of the turn and the calls that ended in a step."""
    before, runtime = builder.base, builder.runtime
    opened = builder.opened
    for envelope in envelopes:
        event = envelope.event
        if event.kind != "tool.finished" or envelope.linked_to is not None:
            continue
        call_id = CallId(event.call_id or "")
        call = before.calls.get(call_id) or opened.get(call_id)
        if call is None:
            continue
        span = tool_span(call, event, envelope.recorded_at, content=traces.content)
        if span is not None:
            traces.put(span)
    if before.memory.turn is not None and builder.memory.turn is not before.memory.turn:
        span = turn_span(before, runtime.adapter, builder.now, runtime.policy.trace_ratio)
        if span is not None:
            traces.put(span)
