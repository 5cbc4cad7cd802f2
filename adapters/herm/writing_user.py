"""Encodes the `user.*` events of clients. Pure."""

from typing import assert_never

from adapters.herm import wire
from adapters.herm.content import check_count, write_content, write_text
from adapters.herm.outcome import outcome_text, updates_text
from adapters.herm.wrapping import NativeEvent, dropped
from gateway.adapter.checks import check_id, check_text
from gateway.errors import CannotExpress
from gateway.events import (
    ApprovalGiven,
    Loss,
    MessagePosted,
    QuestionAnswered,
    SecretSupplied,
    ToolFinished,
    TurnInterrupted,
    TurnSteered,
)
from gateway.strict_json import find_fault

UserEvent = MessagePosted | ApprovalGiven | QuestionAnswered | SecretSupplied | TurnSteered | TurnInterrupted


def write_user_event(event: UserEvent) -> NativeEvent:
    """Encode one client event; `write_custom_result` encodes outcomes.

    Raises:
        CannotExpress: a value exceeds a limit of Herm.
    """
    match event:
        case MessagePosted():
            return _message(event)
        case ApprovalGiven():
            return _confirmation(event)
        case QuestionAnswered():
            check_id(event.id, "/id")
            check_text(event.answer, "/answer")
            return NativeEvent(wire.event(wire.CLARIFY_RESULT, request_id=event.id, answer=event.answer))
        case SecretSupplied():
            return _secret(event)
        case TurnSteered():
            check_text(event.text, "/text")
            return NativeEvent(wire.event(wire.STEER, message=event.text))
        case TurnInterrupted():
            check_text(event.reason or "", "/reason")
            return NativeEvent(wire.event(wire.INTERRUPT, message=event.reason))
        case _:
            assert_never(event)


def _message(event: MessagePosted) -> NativeEvent:
    losses = dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("created_at", event.created_at),
        ("extra_args", event.extra_args),
        ("complete", None if event.complete else False),
    )
    if event.author.role != "user":
        losses += (Loss(how="narrowed", path="/author/role", note="sent as a user's message"),)
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every message starts a turn"),)
    written = write_content(event.content, "/content")
    return NativeEvent(wire.event(wire.USER_MESSAGE, content=written.blocks), losses + written.losses)


def write_custom_result(event: ToolFinished, written: bytes | None) -> NativeEvent:
    """Encode the outcome of a call; `written` is the result's JSON, if it has been checked.

    Raises:
        CannotExpress: the id or the result is invalid or too long.
    """
    check_id(event.native_call_id, "/native_call_id")
    losses: tuple[Loss, ...] = ()
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every result continues the turn"),)
    outcome = outcome_text(event, written)
    answer = write_text(outcome.text, outcome.path)
    losses += outcome.losses + answer.losses
    blocks = answer.blocks
    if event.updates:
        updates = write_text(updates_text(event.updates), "/updates")
        losses += (Loss(how="narrowed", path="/updates", note="sent as text before the result"), *updates.losses)
        blocks = [*updates.blocks, *blocks]
    check_count(blocks, outcome.path)
    payload = wire.event(wire.CUSTOM_RESULT, tool_use_id=event.native_call_id, content=blocks, is_error=outcome.failed)
    return NativeEvent(payload, losses)


def _confirmation(event: ApprovalGiven) -> NativeEvent:
    call = event.native_call_id or event.id
    check_id(call, "/native_call_id" if event.native_call_id else "/id")
    losses = dropped(("id", event.id if event.id != call else None), ("reason", event.reason))
    payload = wire.event(wire.CONFIRMATION, tool_use_id=call, result=event.decision, scope=event.scope)
    return NativeEvent(payload, losses)


def _secret(event: SecretSupplied) -> NativeEvent:
    check_id(event.id, "/id")
    lost = None
    try:
        value = event.reveal()
    except ValueError as exc:
        value, lost = "", str(exc)
    if lost is not None:
        raise CannotExpress(lost, path="/value")
    if fault := find_fault(value):
        # The fault names a kind of letter, never the value.
        raise CannotExpress(f"/value {fault.reason}", path="/value")
    hidden = wire.Hidden(value)
    if event.purpose == "sudo":
        return NativeEvent(wire.event(wire.SUDO_RESULT, request_id=event.id, password=hidden))
    return NativeEvent(wire.event(wire.SECRET_RESULT, request_id=event.id, value=hidden))
