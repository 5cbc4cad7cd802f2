"""Decodes the calls of the built-in agent and their ends. Pure."""

from typing import Any, cast

import orjson

from adapters.openhands.v1 import wire
from adapters.openhands.v1.content import joined, read_blocks, read_text
from adapters.openhands.v1.drafts import THOUGHT, reasoning_of, silent, stored, unknown_of, unread
from gateway.errors import MalformedFrame
from gateway.events import (
    Author,
    Draft,
    Loss,
    MessagePosted,
    Text,
    ThoughtShared,
    ToolFinished,
    ToolRequested,
)
from gateway.strict_json import find_fault, json_type, read_model, unknown_fields

FAILED = "The action failed."
REJECTED = "The user rejected the action."
_MCP_MEMBERS = 2
"""The members of an MCP action: kind and data."""


def read_action(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode an ActionEvent: a call, or a message or thought that the agent expresses as one (A1)."""
    native = read_model(wire.ActionEvent, event)
    # Most actions have neither thoughts nor unknown members.
    thought, losses = read_text(native.thought, "/thought") if native.thought else ("", ())
    if native.model_extra:
        losses += unknown_of(native)
    if native.thinking_blocks and not native.reasoning_content:
        losses += unread(native, "thinking_blocks")
    reasoning = reasoning_of(native, native.reasoning_content) if native.reasoning_content else ()
    match _kind_of(native.action):
        case wire.FINISH_ACTION:
            text, more = _member(native, "message")
            message = MessagePosted(author=Author(role="agent"), content=(Text(text=text),))
            return (*reasoning, *reasoning_of(native, thought, THOUGHT), stored(native, message, losses + more))
        case wire.THINK_ACTION:
            text, more = _member(native, "thought")
            thoughts = (*reasoning, *reasoning_of(native, thought, THOUGHT))
            return (*thoughts, stored(native, ThoughtShared(text=text), losses + more))
        case kind:
            arguments, more = _arguments(native, kind)
            preview, risk = _preview(native)
            call = ToolRequested(
                native_call_id=native.id,
                tool=native.tool_name,
                arguments=arguments,
                runs_in="runtime",
                thought=thought or None,
                preview=preview,
            )
            draft = stored(native, call, losses + more + risk, correlation=native.tool_call_id)
            return (*reasoning, draft)


def _kind_of(action: dict[str, Any] | None) -> str | None:
    if action is None:
        return None
    kind = action.get("kind")
    if not isinstance(kind, str):
        raise MalformedFrame(f"expected a string, got {json_type(kind)}", path="/action/kind")
    return kind


def _member(native: wire.ActionEvent, name: str) -> tuple[str, tuple[Loss, ...]]:
    """Return the text of a finish or think, and its other members as losses."""
    action = native.action or {}
    text = action.get(name)
    if not isinstance(text, str):
        raise MalformedFrame(f"expected a string, got {json_type(text)}", path=f"/action/{name}")
    rest = {key: None for key, value in action.items() if key not in {"kind", name} and value is not None}
    return text, unknown_fields(rest, "/action")


def _arguments(native: wire.ActionEvent, kind: str | None) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    action = native.action
    if action is None:
        return _unusable(native.tool_call)
    if kind != wire.MCP_ACTION:
        arguments = {key: value for key, value in action.items() if key != "kind"}
        return arguments, _kind_losses(native.tool_name, kind or "")
    data = action.get("data")
    if not isinstance(data, dict):
        raise MalformedFrame(f"expected an object, got {json_type(data)}", path="/action/data")
    losses: tuple[Loss, ...] = ()
    if len(action) > _MCP_MEMBERS:
        losses = unknown_fields({key: None for key in action if key not in {"kind", "data"}}, "/action")
    if native.tool_name in wire.TOOL_KINDS:
        losses += (_implied("/action/kind"),)
    return cast("dict[str, Any]", data), losses


def _kind_losses(tool: str, kind: str) -> tuple[Loss, ...]:
    if kind.startswith(wire.CLIENT_ACTION):
        note = "a client tool: the server has answered it already and accepts no result (OV44)"
        return (Loss(how="narrowed", path="/action/kind", note=note),)
    return () if kind == wire.action_kind(tool) else (_implied("/action/kind"),)


def _implied(path: str) -> Loss:
    return Loss(how="dropped", path=path, note="not the kind that the tool's name implies")


def _unusable(call: dict[str, Any] | None) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    """Read the arguments of a call that the server could not use from the model's text."""
    text = (call or {}).get("arguments")
    try:
        given: object = orjson.loads(text) if isinstance(text, str) else None
    except ValueError:
        given = None
    lost = Loss(how="dropped", path="/tool_call/arguments", note="the server could not use the call")
    if not isinstance(given, dict) or find_fault(members := cast("dict[str, Any]", given)) or wire.UNPARSED in members:
        return {}, (lost,)
    # The server adds these two to the schema of every tool.
    return {key: value for key, value in members.items() if key not in {"security_risk", "summary"}}, ()


def _preview(native: wire.ActionEvent) -> tuple[str | None, tuple[Loss, ...]]:
    if native.security_risk == wire.UNKNOWN_RISK:
        return native.summary or None, ()
    risk = f"risk: {native.security_risk}"
    preview = f"{native.summary} ({risk})" if native.summary else risk
    return preview, (Loss(how="narrowed", path="/security_risk", note="stated in the preview"),)


def read_observation(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode the end of a call; `is_error` decides, not the exit code (A3)."""
    native = read_model(wire.ObservationEvent, event)
    inner = read_model(wire.Observation, native.observation, "/observation")
    if inner.kind in wire.SILENT_OBSERVATIONS:
        return (silent(event),)
    content, _ = read_blocks(inner.content, "/observation/content")
    losses = unknown_of(native) + unread(native, "extended_content")
    if inner.kind != wire.observation_kind(native.tool_name):
        losses += (_implied("/observation/kind"),)
    result: dict[str, Any] = {**(inner.model_extra or {})}
    if result.get("tool_name") == native.tool_name:
        del result["tool_name"]
    text = joined(content)
    is_text = all(isinstance(block, Text) for block in content)
    if not is_text:
        result["content"] = [_plain(block) for block in inner.content]
    elif not inner.is_error:
        result["content"] = text
    finished = ToolFinished(
        native_call_id=native.action_id,
        tool=native.tool_name,
        outcome="failure" if inner.is_error else "success",
        result=result or None,
        error=(text or FAILED) if inner.is_error else None,
    )
    return (stored(native, finished, losses, correlation=native.tool_call_id),)


def _plain(block: Any) -> Any:
    return {key: value for key, value in block.items() if key != "cache_prompt"}


def read_agent_error(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode the failure of a call, which only the correlation names (OV41)."""
    native = read_model(wire.AgentErrorEvent, event)
    finished = ToolFinished(
        native_call_id="",
        tool=native.tool_name,
        outcome="failure",
        error=native.error or FAILED,
        unknown=native.error.startswith((wire.INTERRUPTED_CALL, wire.RESTARTED_CALL)),
    )
    losses = unknown_of(native) + unread(native, "classification")
    return (stored(native, finished, losses, correlation=native.tool_call_id),)


def read_rejection(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode the rejection of a held call."""
    native = read_model(wire.UserRejection, event)
    finished = ToolFinished(
        native_call_id=native.action_id,
        tool=native.tool_name,
        outcome="canceled",
        error=native.rejection_reason or REJECTED,
    )
    losses = unknown_of(native)
    if native.rejection_source != "user":
        losses += (Loss(how="narrowed", path="/rejection_source", note="read as the user's"),)
    return (stored(native, finished, losses, correlation=native.tool_call_id),)
