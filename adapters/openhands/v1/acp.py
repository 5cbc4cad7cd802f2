"""Converts the tool calls of ACP agents (OV55), in both directions. Pure."""

import hashlib
import re
from typing import Any, cast

import orjson

from adapters.openhands.v1 import wire
from adapters.openhands.v1.calls import FAILED
from adapters.openhands.v1.drafts import stored, unknown_of
from gateway.events import Draft, Loss, ToolFinished, ToolRequested
from gateway.events.frozen import replace
from gateway.strict_json import json_type, read_model, unknown_fields

_PREFIX = "acp."
_DOTTED = re.compile(r"mcp\.([^.\s]+)\.(\S+)")
_UNDERSCORED = re.compile(r"mcp__\S+?__\S+")
_TERMINAL = frozenset({"completed", "failed"})


def is_acp(tool: str) -> bool:
    """Whether a name is one that `read_acp_call` gives to a tool."""
    return tool.startswith(_PREFIX) or bool(_UNDERSCORED.fullmatch(tool) or _DOTTED.fullmatch(tool))


def mcp_name(tool: str) -> str | None:
    """Return the name of an MCP tool, perhaps after its server's; None for a tool of the agent."""
    if tool in wire.TOOL_KINDS or tool.startswith(_PREFIX):
        return None
    dotted = _DOTTED.fullmatch(tool)
    return tool if dotted is None else f"{dotted[1]}_{dotted[2]}"


def read_acp_call(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode the start or the end of a call.

    An end may be the first event of its call, or the first with the arguments. So each event gives a request with a key
    of call and arguments: the gateway drops a repeat, and other arguments replace those of the start.
    """
    native = read_model(wire.AcpToolCall, event)
    tool = _tool_of(native)
    arguments, losses = _arguments(native)
    request = ToolRequested(
        native_call_id=native.tool_call_id,
        tool=tool,
        arguments=arguments,
        runs_in="runtime",
        preview=native.title if native.title and native.title != tool else None,
    )
    call = native.tool_call_id
    key = f"{call}#{_digest(arguments)}"
    losses += unknown_of(native)
    if native.status not in _TERMINAL:
        return (replace(stored(native, request, losses, correlation=call), native_id=key),)
    asked = replace(stored(native, request, correlation=call), native_id=key)
    return asked, stored(native, *_finished(native, tool, losses), correlation=call)


def _tool_of(native: wire.AcpToolCall) -> str:
    """Return the name of an MCP tool from the title, which is otherwise text for people."""
    title = native.title
    if len(title) <= wire.ID_LENGTH and (_UNDERSCORED.fullmatch(title) or _DOTTED.fullmatch(title)):
        return title
    return f"{_PREFIX}{native.tool_kind or 'other'}"


def _arguments(native: wire.AcpToolCall) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    dotted = _DOTTED.fullmatch(native.title)
    given: Any = native.raw_input
    match given:
        case None:
            return {}, ()
        case {"server": str(server), "tool": str(tool), "arguments": dict()} if dotted is not None:
            rest = {name: None for name in given if name not in {"server", "tool", "arguments"}}
            if (server, tool) != dotted.groups():
                rest |= {"server": None, "tool": None}
            return given["arguments"], unknown_fields(rest, "/raw_input")
        case dict():
            return cast("dict[str, Any]", given), ()
        case other:
            note = f"expected an object, got {json_type(other)}"
            return {}, (Loss(how="dropped", path="/raw_input", note=note),)


def _digest(arguments: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _finished(native: wire.AcpToolCall, tool: str, losses: tuple[Loss, ...]) -> tuple[ToolFinished, tuple[Loss, ...]]:
    """Decode an end; one without output may be the server's invention and proves nothing (OV56)."""
    result: Any = native.raw_output
    if result is None and native.content:
        result = {"content": native.content}
    elif native.content:
        losses += (Loss(how="dropped", path="/content", note="raw_output has precedence"),)
    failed = native.status == "failed" or native.is_error
    if native.is_error and native.status == "completed":
        losses += (Loss(how="narrowed", path="/status", note="is_error has precedence"),)
    event = ToolFinished(
        native_call_id=native.tool_call_id,
        tool=tool,
        outcome="failure" if failed else "success",
        result=result,
        error=_error_of(result) if failed else None,
        unknown=result is None,
    )
    return event, losses


def _error_of(result: Any) -> str:
    match result:
        case str(text) if text:
            return text
        case None | "":
            return FAILED
        case {"content": list()}:
            texts = [text for block in result["content"] if (text := _text_in(block))]
            return "\n".join(texts) or FAILED
        case _:
            return orjson.dumps(result).decode()


def _text_in(block: Any) -> str | None:
    match block:
        case {"content": {"text": str(text)}}:
            return text
        case _:
            return None


def write_acp_request(event: ToolRequested) -> dict[str, Any]:
    """Encode the start of a call."""
    return {**_common(event.native_call_id, event.tool, event.preview, event.arguments), "status": "pending"}


def write_acp_end(event: ToolFinished) -> dict[str, Any]:
    """Encode the end of a call; its request has the arguments."""
    failed = event.outcome != "success"
    members = _common(event.native_call_id, event.tool or "", None, None)
    match event.result:
        case {"content": list()} if len(event.result) == 1:
            output: dict[str, Any] = {"content": event.result["content"]}
        case None if failed and not event.unknown:
            output = {"raw_output": event.error or FAILED}
        case None:
            output = {}
        case result:
            output = {"raw_output": result}
    return {**members, "status": "failed" if failed else "completed", **output, "is_error": failed}


def _common(call: str, tool: str, preview: str | None, arguments: dict[str, Any] | None) -> dict[str, Any]:
    dotted, is_unnamed = _DOTTED.fullmatch(tool), tool.startswith(_PREFIX)
    members: dict[str, Any] = {
        "tool_call_id": call,
        "title": (preview or "") if is_unnamed else tool,
        "tool_kind": tool.removeprefix(_PREFIX) if is_unnamed else "other",
        "is_error": False,
    }
    if arguments is not None and dotted is not None:
        members["raw_input"] = {"server": dotted[1], "tool": dotted[2], "arguments": arguments}
    elif arguments is not None:
        members["raw_input"] = arguments
    return members
