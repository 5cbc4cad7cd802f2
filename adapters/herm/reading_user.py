"""Decodes `user.*` events, posted by a client or returned in lists and streams. Pure."""

from typing import Any

from pydantic import SecretStr

from adapters.herm import wire
from adapters.herm.content import join_texts, read_blocks
from gateway.errors import MalformedFrame
from gateway.events import (
    ApprovalGiven,
    Draft,
    MessagePosted,
    QuestionAnswered,
    SecretSupplied,
    ToolFinished,
    TurnInterrupted,
    TurnSteered,
)
from gateway.strict_json import find_fault, read_model, unknown_fields


def read_user_event(payload: dict[str, Any], path: str = "", *, strict: bool = True) -> Draft | None:
    """Decode one bare `user.*` event; None for an unknown type.

    Raises:
        MalformedFrame: with the path of the error, below `path`.
    """
    kind = payload["type"]
    if kind not in wire.USER_TYPES:
        return None
    if fault := find_fault(payload, path):
        raise MalformedFrame(fault.reason, path=fault.path)
    match kind:
        case wire.USER_MESSAGE:
            message = read_model(wire.UserMessage, payload, path)
            read = read_blocks(message.content, f"{path}/content", strict=strict)
            return Draft(
                MessagePosted(content=read.content), losses=read.losses + unknown_fields(message.model_extra, path)
            )
        case wire.STEER:
            steer = read_model(wire.Steer, payload, path)
            return Draft(TurnSteered(text=steer.message), losses=unknown_fields(steer.model_extra, path))
        case wire.INTERRUPT:
            stop = read_model(wire.Interrupt, payload, path)
            return Draft(TurnInterrupted(reason=stop.message), losses=unknown_fields(stop.model_extra, path))
        case wire.CONFIRMATION:
            return _confirmation(read_model(wire.Confirmation, payload, path), path)
        case wire.CUSTOM_RESULT:
            return _custom_result(read_model(wire.CustomResult, payload, path), path, strict=strict)
        case wire.CLARIFY_RESULT:
            native = read_model(wire.ClarifyResult, payload, path)
            event = QuestionAnswered(id=native.request_id, answer=native.answer)
            return Draft(event, losses=unknown_fields(native.model_extra, path))
        case wire.SUDO_RESULT:
            sudo = read_model(wire.SudoResult, payload, path)
            supplied = SecretSupplied(id=sudo.request_id, purpose="sudo", value=SecretStr(sudo.password))
            return Draft(supplied, losses=unknown_fields(sudo.model_extra, path))
        case _:
            secret = read_model(wire.SecretResult, payload, path)
            supplied = SecretSupplied(id=secret.request_id, purpose="secret", value=SecretStr(secret.value))
            return Draft(supplied, losses=unknown_fields(secret.model_extra, path))


def _confirmation(native: wire.Confirmation, path: str) -> Draft:
    call, decision = native.tool_use_id, native.result
    event = ApprovalGiven(id=call, native_call_id=call, decision=decision, scope=native.scope)
    return Draft(event, losses=unknown_fields(native.model_extra, path))


def _custom_result(native: wire.CustomResult, path: str, *, strict: bool) -> Draft:
    read = read_blocks(native.content, f"{path}/content", strict=strict)
    text, losses = join_texts(read, f"{path}/content", between="\n")
    losses += unknown_fields(native.model_extra, path)
    return Draft(make_outcome(native.tool_use_id, None, text, failed=native.is_error is True), losses=losses)


def make_outcome(call: str, tool: str | None, text: str, *, failed: bool) -> ToolFinished:
    """Make an outcome from the text of a result."""
    if failed:
        return ToolFinished(native_call_id=call, tool=tool, outcome="failure", error=text)
    return ToolFinished(native_call_id=call, tool=tool, outcome="success", result=text)
