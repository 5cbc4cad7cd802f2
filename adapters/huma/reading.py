"""Decodes the server messages of both versions, and the common parts of client messages. Pure."""

import re
from typing import Any

import orjson

from adapters.huma import wire
from gateway.adapter.checks import ID_LENGTH
from gateway.errors import MalformedFrame
from gateway.events import (
    Author,
    Burst,
    Draft,
    FaultReported,
    Loss,
    MessagePosted,
    OutcomeKind,
    SessionMoved,
    Text,
    ToolCanceled,
    ToolRequested,
    TypingChanged,
)
from gateway.strict_json import Malformed, find_fault, json_type, read_model, unknown_fields

_HEAD = re.compile(r'\s*(?:\[\s*"event"\s*,\s*)?\{([^{}]*)')
"""The members of a payload up to the first nested object."""
_CALL = re.compile(r'"type"\s*:\s*"tool-call"')
_CALL_ID = re.compile(rf'"toolCallId"\s*:\s*"([^"\\]{{1,{ID_LENGTH}}})"')
_TOOL = re.compile(rf'"toolName"\s*:\s*"([^"\\]{{1,{ID_LENGTH}}})"')


def read_server_message(payload: dict[str, Any], *, written: bytes | None) -> Draft | None:
    """Decode a server message on `event` or an error on `error`; None for an unknown type."""
    if payload["type"] == wire.TOOL_CALL:
        return _tool_call(payload, written)
    if payload["type"] not in wire.SERVER_TYPES:
        return None
    if written is None:
        refuse_invalid(payload)
    match payload["type"]:
        case wire.CANCEL_TOOL_CALL:
            cancel = read_model(wire.CancelToolCall, payload)
            event = ToolCanceled(native_call_id=cancel.tool_call_id, tool=cancel.tool_name, reason=cancel.reason)
            return Draft(event, losses=unknown_fields(cancel.model_extra))
        case wire.MESSAGING:
            return _messaging(read_model(wire.Messaging, payload))
        case wire.ERROR:
            report = read_model(wire.ErrorReport, payload)
            event = FaultReported(message=report.message, code=report.code)
            return Draft(event, losses=unknown_fields(report.model_extra))
        case _:
            return _status(read_model(wire.Status, payload))


def read_malformed_call(payload: Malformed) -> Draft | None:
    """Decode the call at the start of an unreadable frame, so that the agent gets a failure."""
    head = _HEAD.match(payload.excerpt)
    if head is None or not _CALL.search(head[1]):
        return None
    call_id, tool = _CALL_ID.search(head[1]), _TOOL.search(head[1])
    if call_id is None or tool is None:
        return None
    problem = f"The call cannot be executed: {payload.reason}."
    event = ToolRequested(native_call_id=call_id[1], tool=tool[1], arguments={}, runs_in="host", problem=problem)
    return Draft(event, losses=(Loss(how="dropped", path="/arguments", note=payload.reason),))


def refuse_invalid(value: object, path: str = "", *, forbidden: frozenset[str] = frozenset()) -> None:
    """Refuse a value that is not plain, bounded JSON or has a key in `forbidden`.

    Raises:
        MalformedFrame: with the path of the error.
    """
    if fault := find_fault(value, path, forbidden=forbidden):
        raise MalformedFrame(fault.reason, path=fault.path)


def settle(
    outcome: OutcomeKind, *, result: Any, error: str | None, path: str = ""
) -> tuple[Any, str | None, tuple[Loss, ...]]:
    """Return the result and error that fit the outcome (A38), and the losses."""
    losses: tuple[Loss, ...] = ()
    if outcome == "success" and error is not None:
        losses += (Loss(how="dropped", path=f"{path}/error", note="a success has no error"),)
        error = None
    if outcome != "success" and result is not None:
        losses += (Loss(how="dropped", path=f"{path}/result", note=f"outcome {outcome} has no result"),)
        result = None
    if outcome == "failure" and not error:
        losses += (Loss(how="invented", path=f"{path}/error", note="a failure requires an error text"),)
        error = "The tool failed without saying why."
    return result, error, losses


def _tool_call(payload: dict[str, Any], written: bytes | None) -> Draft:
    # A pattern would take several times as long.
    call_id, tool = payload.get("toolCallId"), payload.get("toolName")
    if (
        len(payload) == 4
        and isinstance(call_id, str)
        and isinstance(tool, str)
        and isinstance(payload.get("arguments"), dict)
        and 1 <= len(call_id) <= ID_LENGTH
        and 1 <= len(tool) <= ID_LENGTH
        and (written is not None or not find_fault(payload))
    ):
        # Fast path for nearly every call: exactly the known fields, all valid.
        arguments = payload["arguments"]
        inside = None if written is None else orjson.dumps(arguments)
        event = ToolRequested(native_call_id=call_id, tool=tool, arguments=arguments, runs_in="host")
        return Draft(event, written=inside)
    return _unusual_tool_call(payload)


def _unusual_tool_call(payload: dict[str, Any]) -> Draft:
    losses: tuple[Loss, ...] = ()
    if find_fault(list(payload)):
        # An invalid name of an unknown field must not reject the call.
        payload = {key: value for key, value in payload.items() if not find_fault(key)}
        losses = (Loss(how="dropped", path="", note="fields with invalid names"),)
    call = read_model(wire.ToolCall, payload)
    if fault := find_fault([call.tool_call_id, call.tool_name]):
        raise MalformedFrame(fault.reason, path="/toolCallId" if fault.path == "/0" else "/toolName")
    losses += unknown_fields(call.model_extra)
    arguments: dict[str, Any] = {}
    problem: str | None = None
    # From here on nothing may raise: the call has an id, so the agent gets an answer.
    match call.arguments:
        case None:
            note = "missing" if "arguments" not in payload else "null"
            losses += (Loss(how="defaulted", path="/arguments", note=f"{note}; read as no arguments"),)
        case dict():
            if fault := find_fault(payload["arguments"], "/arguments"):
                problem = f"The arguments are invalid: {fault.path} {fault.reason}."
            else:
                arguments = payload["arguments"]
        case other:
            problem = f"The arguments must be an object with one member per parameter, not {json_type(other)}."
    if problem is not None:
        losses += (Loss(how="dropped", path="/arguments", note="invalid"),)
    event = ToolRequested(
        native_call_id=call.tool_call_id, tool=call.tool_name, arguments=arguments, runs_in="host", problem=problem
    )
    return Draft(event, losses=losses)


def _messaging(native: wire.Messaging) -> Draft:
    losses = unknown_fields(native.model_extra)
    extra_args = native.extra_args
    if extra_args is not None and (fault := find_fault(extra_args, "/extra_args")):
        # The text must still be delivered and confirmed.
        losses += (Loss(how="dropped", path="/extra_args", note=f"{fault.path} {fault.reason}"[:300]),)
        extra_args = None
    if native.event == "message_sent":
        return _message_sent(native, extra_args, losses)
    for member, given in (
        ("message", native.message),
        ("messageIndex", native.message_index),
        ("messageCount", native.message_count),
    ):
        if given is not None:
            losses += (Loss(how="dropped", path=f"/{member}", note=f"not a member of {native.event}"),)
    event = TypingChanged(
        typing=native.event == "typing_start",
        reason=native.reason,
        native_call_id=native.tool_call_id,
        extra_args=extra_args,
    )
    return Draft(event, losses=losses, live=True)


def _message_sent(native: wire.Messaging, extra_args: dict[str, Any] | None, losses: tuple[Loss, ...]) -> Draft:
    if native.message is None:
        raise MalformedFrame("message_sent requires a text", path="/message")
    if native.reason is not None:
        losses += (Loss(how="dropped", path="/reason", note="not a member of message_sent"),)
    burst: Burst | None = None
    if native.tool_call_id is not None:
        if native.message_index is None:
            losses += (Loss(how="defaulted", path="/messageIndex", note="missing; read as the first"),)
        burst = Burst(call=native.tool_call_id, index=native.message_index or 0, count=native.message_count)
    else:
        for member, given in (("messageIndex", native.message_index), ("messageCount", native.message_count)):
            if given is not None:
                losses += (Loss(how="dropped", path=f"/{member}", note="has no meaning without toolCallId"),)
    event = MessagePosted(
        author=Author(role="agent"), content=(Text(text=native.message),), burst=burst, extra_args=extra_args
    )
    return Draft(event, losses=losses)


def _status(native: wire.Status) -> Draft:
    losses = unknown_fields(native.model_extra)
    state = wire.state_of(native.status)
    if state is None:
        losses += (Loss(how="narrowed", path="/status", note="an unknown status, read as running"),)
    return Draft(SessionMoved(state=state or "running", native_state=native.status), losses=losses)
