"""Writes what a runtime shows of its tools: calls for the host, calls of its own, and their results. Pure."""

from adapters.herm import wire
from adapters.herm.content import check_count, write_text
from adapters.herm.outcome import outcome_text
from adapters.herm.wrapping import Said, dropped
from gateway.adapter.checks import check_id, check_json, check_text
from gateway.events import Loss, ToolFinished, ToolRequested


def write_tool_requested(event: ToolRequested) -> Said:
    """Write a call.

    Raises:
        CannotExpress: an id or the arguments cannot be said.
    """
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool, "/tool")
    check_json(event.arguments, "/arguments")
    losses = dropped(("thought", event.thought), ("supersedes", event.supersedes), ("problem", event.problem))
    if event.runs_in == "host":
        losses += dropped(("needs_approval", event.needs_approval or None), ("preview", event.preview))
        payload = wire.event(wire.CUSTOM_TOOL_USE, id=event.native_call_id, tool=event.tool, input=event.arguments)
        return Said(payload, losses)
    check_text(event.preview or "", "/preview")
    payload = wire.event(
        wire.MCP_TOOL_USE if event.tool.startswith(wire.MCP_PREFIX) else wire.TOOL_USE,
        id=event.native_call_id,
        tool=event.tool,
        input=event.arguments,
        status="running",
        preview=event.preview,
        # Present only where a confirmation is needed.
        requires_action=event.needs_approval or None,
    )
    return Said(payload, losses)


def write_tool_finished(event: ToolFinished, written: bytes | None) -> Said:
    """Write the result of a call that the runtime carried out itself.

    Raises:
        CannotExpress: an id or the result cannot be said, or is too long.
    """
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool or "-", "/tool")
    losses = dropped(("updates", event.updates or None))
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every result continues the turn"),)
    said = outcome_text(event, written)
    answer = write_text(said.text, said.path)
    check_count(answer.blocks, said.path)
    payload = wire.event(
        wire.MCP_TOOL_RESULT if (event.tool or "").startswith(wire.MCP_PREFIX) else wire.TOOL_RESULT,
        tool_use_id=event.native_call_id,
        tool=event.tool,
        status="failed" if said.failed else "completed",
        content=answer.blocks,
        is_error=said.failed,
    )
    return Said(payload, losses + said.losses + answer.losses)
