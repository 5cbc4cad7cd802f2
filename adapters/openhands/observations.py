"""Decodes OpenHands observations: results of actions, states of the agent, errors. Pure."""

import json
from typing import Any, cast

from adapters.openhands import wire
from gateway.events import (
    Content,
    Data,
    Event,
    FaultReported,
    Loss,
    OutcomeKind,
    SessionMoved,
    SessionState,
    Text,
    ThreadReceived,
    ToolFinished,
)
from gateway.strict_json import read_model, unknown_fields

_EXIT_UNKNOWN = -1


def read_observation(native: wire.ServerEvent, correlation: str | None) -> tuple[Event | None, tuple[Loss, ...]]:
    """Decode an observation; None for one that becomes opaque."""
    extras = native.extras or {}
    match native.observation:
        case "agent_state_changed":
            event, losses = _state(read_model(wire.StateExtras, extras, "/extras"))
            if native.content:
                losses += (Loss(how="dropped", path="/content", note="a state has a reason but no text"),)
            return event, losses
        case "delegate":
            return _delegated(native, read_model(wire.DelegateExtras, extras, "/extras"), correlation)
        case wire.LOOP:
            event = FaultReported(message=native.content, code=wire.LOOP)
            return event, unknown_fields(extras, "/extras")
        case "error" if native.cause is None:
            # Without an action: the agent called an unknown tool, or called it incorrectly (OH24, OH50).
            fault = read_model(wire.ErrorExtras, extras, "/extras")
            event = FaultReported(message=native.content, code=fault.error_id or None)
            return event, unknown_fields(fault.model_extra, "/extras")
        case str(name) if name in wire.RESULTS:
            return _finished(name, native, extras), ()
        case _:
            return None, ()


def make_state(state: SessionState, reason: str, native: str) -> SessionMoved:
    """Make a state event that keeps the native word."""
    if native == wire.RATE_LIMITED:
        reason = reason or wire.RATE_LIMITED
    return SessionMoved(state=state, reason=reason or None, native_state=native)


def _state(extras: wire.StateExtras) -> tuple[Event, tuple[Loss, ...]]:
    losses = unknown_fields(extras.model_extra, "/extras")
    state = wire.state_of(extras.agent_state)
    if state is None:
        # The server accepts any word from a client as the state.
        losses += (Loss(how="narrowed", path="/extras/agent_state", note="an unknown state, read as running"),)
    return make_state(state or "running", extras.reason, extras.agent_state), losses


def _delegated(
    native: wire.ServerEvent, extras: wire.DelegateExtras, correlation: str | None
) -> tuple[Event, tuple[Loss, ...]]:
    content: tuple[Content, ...] = (Text(text=native.content),)
    if extras.outputs:
        content += (Data(data={"outputs": extras.outputs}),)
    thread = correlation or (str(native.cause) if native.cause is not None else "")
    return ThreadReceived(thread_id=thread, content=content), unknown_fields(extras.model_extra, "/extras")


def _finished(name: str, native: wire.ServerEvent, extras: dict[str, Any]) -> Event:
    outcome, error = _outcome(name, native, extras)
    result: dict[str, Any] = {"observation": name}
    if error is None or error != native.content:
        result["content"] = native.content
    if extras:
        result["extras"] = extras
    if native.success is not None:
        result["success"] = native.success
    return ToolFinished(
        native_call_id=str(native.cause) if native.cause is not None else "",
        tool=_tool_of(name),
        outcome=outcome,
        result=result,
        error=error,
        unknown=outcome == "failure" and _exit_code(extras) == _EXIT_UNKNOWN,
    )


def _tool_of(observation: str) -> str | None:
    match observation:
        case "mcp":
            return "call_tool_mcp"
        case "error" | "success" | "user_rejected":
            # These end any action; the core finds the tool by the cause.
            return None
        case name:
            return name


def _outcome(name: str, native: wire.ServerEvent, extras: dict[str, Any]) -> tuple[OutcomeKind, str | None]:
    """Return the outcome of an action (OH36, OH37) and, on a failure, the error text that the agent saw."""
    match name:
        case "user_rejected":
            return "canceled", native.content or "The user rejected the action."
        case "error" if extras.get("error_id") == wire.NOT_EXECUTED:
            return "canceled", native.content or "The agent was stopped before the action ran."
        case "error":
            return "failure", native.content or "The action failed."
        case "mcp":
            error = _mcp_error(native.content)
            return ("success", None) if error is None else ("failure", error)
        case "run" | "run_ipython" if native.success is False:
            return "failure", native.content or _exit_text(extras)
        case _ if native.success is None and name == "run" and _exit_code(extras) not in (None, 0):
            return "failure", native.content or _exit_text(extras)
        case _ if name != "run" and native.content.startswith(wire.ERROR_PREFIX):
            return "failure", native.content
        case _ if extras.get("error") is True and name.startswith("browse"):
            return "failure", native.content or "The browser reported an error."
        case _:
            return "success", None


def _exit_code(extras: dict[str, Any]) -> int | None:
    match extras.get("metadata"):
        case {"exit_code": bool()}:
            return None
        case {"exit_code": int(code)}:
            return code
        case _:
            return None


def _exit_text(extras: dict[str, Any]) -> str:
    code = _exit_code(extras)
    if code == _EXIT_UNKNOWN:
        return "The command is still running, or was abandoned after its timeout."
    return "The command failed." if code is None else f"The command ended with exit code {code}."


def _mcp_error(content: str) -> str | None:
    """Return the error text of an MCP result, which is JSON inside a text."""
    try:
        native: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    match native:
        case {"isError": True}:
            texts = [_text_of(block) for block in _blocks(cast("dict[str, Any]", native).get("content"))]
            text = "\n".join(part for part in texts if part)
            return text.encode("utf-8", "replace").decode() or "The MCP tool failed."
        case _:
            return None


def _blocks(content: object) -> list[object]:
    return cast("list[object]", content)[:100] if isinstance(content, list) else []


def _text_of(block: object) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return ""
