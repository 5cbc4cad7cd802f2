"""Encodes tool events of the runtime: calls for the host, its own calls, and their results. Pure."""

from adapters.herm import wire
from adapters.herm.content import check_count, write_text
from adapters.herm.outcome import outcome_text
from adapters.herm.wrapping import NativeEvent, dropped
from gateway.adapter.checks import check_id, check_json, check_text
from gateway.events import Loss, ToolFinished, ToolRequested


def write_tool_requested(event: ToolRequested) -> NativeEvent:
    """Encode a call.

    Raises:
        CannotExpress: an id or the arguments are invalid.
    """
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool, "/tool")
    check_json(event.arguments, "/arguments")
    losses = dropped(("thought", event.thought), ("supersedes", event.supersedes), ("problem", event.problem))
    if event.runs_in == "host":
        losses += dropped(("needs_approval", event.needs_approval or None), ("preview", event.preview))
        payload = wire.event(wire.CUSTOM_TOOL_USE, id=event.native_call_id, tool=event.tool, input=event.arguments)
        return NativeEvent(payload, losses)
    check_text(event.preview or "", "/preview")
    payload = wire.event(
        wire.MCP_TOOL_USE if event.tool.startswith(wire.MCP_PREFIX) else wire.TOOL_USE,
        id=event.native_call_id,
        tool=event.tool,
        input=event.arguments,
        status="running",
        preview=event.preview,
        # Present only if a confirmation is required.
        requires_action=event.needs_approval or None,
    )
    return NativeEvent(payload, losses)


def write_tool_finished(event: ToolFinished, written: bytes | None) -> NativeEvent:
    """Encode the result of a call that the runtime executed.

    Raises:
        CannotExpress: an id or the result is invalid or too long.
    """
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool or "-", "/tool")
    losses = dropped(("updates", event.updates or None))
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every result continues the turn"),)
    outcome = outcome_text(event, written)
    answer = write_text(outcome.text, outcome.path)
    check_count(answer.blocks, outcome.path)
    payload = wire.event(
        wire.MCP_TOOL_RESULT if (event.tool or "").startswith(wire.MCP_PREFIX) else wire.TOOL_RESULT,
        tool_use_id=event.native_call_id,
        tool=event.tool,
        status="failed" if outcome.failed else "completed",
        content=answer.blocks,
        is_error=outcome.failed,
    )
    return NativeEvent(payload, losses + outcome.losses + answer.losses)
