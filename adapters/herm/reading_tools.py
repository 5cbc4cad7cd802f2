"""Decodes tool events: calls for the gateway, calls that the runtime executes, and their results. Pure."""

from typing import Any

import orjson

from adapters.herm import wire
from adapters.herm.content import join_texts, read_blocks
from adapters.herm.reading_user import make_outcome
from gateway.errors import MalformedFrame
from gateway.events import ApprovalAsked, Draft, Loss, ToolRequested
from gateway.strict_json import find_fault, json_type, read_model, unknown_fields


def read_custom_use(inside: dict[str, Any], path: str, *, plain: bool) -> Draft:
    """Decode a call for the host; a call with an id gets an answer even if its arguments are invalid.

    Raises:
        MalformedFrame: the id or the tool name is invalid.
    """
    losses: tuple[Loss, ...] = ()
    if not plain and find_fault(list(inside)):
        # An invalid name of an unknown field must not reject the call.
        inside = {key: value for key, value in inside.items() if not find_fault(key)}
        losses = (Loss(how="dropped", path=path, note="fields with invalid names"),)
    call = read_model(wire.CustomToolUse, inside, path)
    if not plain and (fault := find_fault([call.id, call.tool])):
        raise MalformedFrame(fault.reason, path=f"{path}/id" if fault.path == "/0" else f"{path}/tool")
    losses += unknown_fields(call.model_extra, path)
    where = f"{path}/input"
    arguments: dict[str, Any] = {}
    problem: str | None = None
    match call.input:
        case None:
            note = "missing" if "input" not in inside else "null"
            losses += (Loss(how="defaulted", path=where, note=f"{note}; read as no arguments"),)
        case dict():
            if not plain and (fault := find_fault(inside["input"], "/input")):
                problem = f"The arguments are invalid: {fault.path} {fault.reason}."
            else:
                arguments = inside["input"]
        case other:
            problem = f"The arguments must be an object with one member per parameter, not {json_type(other)}."
    if problem is not None:
        losses += (Loss(how="dropped", path=where, note="invalid"),)
    event = ToolRequested(native_call_id=call.id, tool=call.tool, arguments=arguments, runs_in="host", problem=problem)
    return Draft(event, losses=losses, written=orjson.dumps(arguments) if plain else None)


def read_tool_use(use: wire.ToolUse, path: str) -> tuple[Draft, ...]:
    """Decode a call that the runtime executes, and the approval that it may wait for."""
    losses = unknown_fields(use.model_extra, path) + _check_prefix(use.type, use.tool, path)
    if use.input is None:
        losses += (Loss(how="defaulted", path=f"{path}/input", note="missing; read as no arguments"),)
    if use.status not in {None, "running"}:
        losses += (Loss(how="dropped", path=f"{path}/status", note="an undocumented status"),)
    arguments = use.input or {}
    needs_approval = use.requires_action is True
    event = ToolRequested(
        native_call_id=use.id,
        tool=use.tool,
        arguments=arguments,
        runs_in="runtime",
        needs_approval=needs_approval,
        preview=use.preview,
    )
    if not needs_approval:
        return (Draft(event, losses=losses),)
    asked = ApprovalAsked(
        id=use.id,
        native_call_id=use.id,
        tool=use.tool,
        arguments=arguments,
        scopes=("once", "session", "always"),
    )
    return (Draft(event, losses=losses), Draft(asked))


def read_tool_result(native: wire.ToolResult, path: str) -> Draft:
    """Decode the result of such a call; it failed if either error flag is set."""
    read = read_blocks(native.content, f"{path}/content", strict=False)
    text, losses = join_texts(read, f"{path}/content", between="\n")
    losses += unknown_fields(native.model_extra, path)
    if native.tool is not None:
        losses += _check_prefix(native.type, native.tool, path)
    failed = native.is_error is True or native.status == "failed"
    if native.status not in {None, "completed", "failed"}:
        losses += (Loss(how="dropped", path=f"{path}/status", note="an undocumented status"),)
    elif failed and (native.status == "completed" or native.is_error is False):
        where = "status" if native.status == "completed" else "is_error"
        losses += (Loss(how="dropped", path=f"{path}/{where}", note="the other flag marks a failure"),)
    return Draft(make_outcome(native.tool_use_id, native.tool, text, failed=failed), losses=losses)


def _check_prefix(kind: str, tool: str, path: str) -> tuple[Loss, ...]:
    is_mcp = kind in {wire.MCP_TOOL_USE, wire.MCP_TOOL_RESULT}
    if is_mcp == tool.startswith(wire.MCP_PREFIX):
        return ()
    return (Loss(how="narrowed", path=f"{path}/type", note="the prefix of the tool's name has precedence"),)
