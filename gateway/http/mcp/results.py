"""Results of `tools/call`: the outcome of a call, or the reason why there is none. Pure."""

from typing import Any

import mcp_types as types
from mcp_types.version import is_version_at_least

from gateway.core.unheard import GET_RESULT, named_of
from gateway.events import ContextUpdate, ToolFinished
from gateway.http.reply import dump
from gateway.store.call import Call

LARGEST = 1024**2
"""Bytes of a result, as text, that a client receives."""
REPLAYED = "dragoman/replayed"
"""Marks a result that an earlier equal call produced, in `_meta`."""
ANY_VALUE = "2026-07-28"
"""The first version that allows any JSON value as structured content."""


def to_tool_result(finished: ToolFinished, call: Call, protocol: str) -> types.CallToolResult:
    """Return the outcome of a call: its updates, then its result, or the text of its failure.

    The result is also structured content if the version of the protocol allows its type: an object before 2026-07-28,
    any JSON value since. The library omits null.
    """
    if finished.outcome != "success":
        return refused(_failure(finished))
    updates = [_text(_update(one)) for one in finished.updates]
    result: Any = finished.result
    text = result if isinstance(result, str) else dump(result).decode()
    size = len(text.encode()) + sum(len(one.text.encode()) for one in updates)
    if size > LARGEST:
        where = f"GET /v1/calls/{call.call_id} with this token returns all of it"
        cut = text.encode()[:LARGEST].decode(errors="ignore")
        return types.CallToolResult(
            content=[
                _text(f"The call succeeded. Its result has {size} bytes and starts as follows; {where}."),
                _text(cut),
            ]
        )
    is_allowed = isinstance(result, dict) or is_version_at_least(protocol, ANY_VALUE)
    return types.CallToolResult(content=[*updates, _text(text)], structured_content=result if is_allowed else None)


def mark_replayed(result: types.CallToolResult, call: Call) -> types.CallToolResult:
    """Return the result of an earlier call with a first text that says so."""
    text = (
        f"{call.tool} did not run again. You made the same call at {call.created_at:%H:%M:%S} UTC and did not receive"
        " its result, which follows. Call again to run it once more."
    )
    return result.model_copy(update={"content": [_text(text), *result.content], "meta": {REPLAYED: True}})


def unfinished(call: Call) -> types.CallToolResult:
    """Return the text that tells the client how to wait for an open call."""
    state = "Waits for a person's approval" if call.state == "held" else "Not finished"
    how = f"Call {GET_RESULT} with {named_of(call.call_id)} to wait; do not call {call.tool} again."
    return types.CallToolResult(content=[_text(f"{state}. {how}")])


def gone(call: Call) -> types.CallToolResult:
    """Return the error for an ended call without an outcome on record."""
    return refused(f"the call has {call.state}; its outcome was removed")


def refused(reason: str) -> types.CallToolResult:
    """Return an error result."""
    return types.CallToolResult(content=[_text(reason)], is_error=True)


def _failure(finished: ToolFinished) -> str:
    error = finished.error or f"the call ended as {finished.outcome}"
    return error if not finished.unknown or error.startswith("outcome unknown") else f"outcome unknown: {error}"


def _update(update: ContextUpdate) -> str:
    said = f"{update.name}: {update.description}" if update.description else update.name
    return f"{said}\n{dump(update.context).decode()}"


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)
