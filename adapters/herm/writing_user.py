"""Writes the `user.*` events that a client posts. Pure."""

from typing import assert_never

from adapters.herm import wire
from adapters.herm.content import check_count, write_content, write_text
from adapters.herm.outcome import outcome_text, updates_text
from adapters.herm.wrapping import Said, dropped
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


def write_user_event(event: UserEvent) -> Said:
    """Write one event as a client says it; the outcome of a call has a function of its own.

    Raises:
        CannotExpress: a value breaks a limit of Herm.
    """
    match event:
        case MessagePosted():
            return _message(event)
        case ApprovalGiven():
            return _confirmation(event)
        case QuestionAnswered():
            check_id(event.id, "/id")
            check_text(event.answer, "/answer")
            return Said(wire.event(wire.CLARIFY_RESULT, request_id=event.id, answer=event.answer))
        case SecretSupplied():
            return _secret(event)
        case TurnSteered():
            check_text(event.text, "/text")
            return Said(wire.event(wire.STEER, message=event.text))
        case TurnInterrupted():
            check_text(event.reason or "", "/reason")
            return Said(wire.event(wire.INTERRUPT, message=event.reason))
        case _:
            assert_never(event)


def _message(event: MessagePosted) -> Said:
    losses = dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("created_at", event.created_at),
        ("extra_args", event.extra_args),
        ("complete", None if event.complete else False),
    )
    if event.author.role != "user":
        losses += (Loss(how="narrowed", path="/author/role", note="told as a user's message"),)
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every message starts a turn"),)
    written = write_content(event.content, "/content")
    return Said(wire.event(wire.USER_MESSAGE, content=written.blocks), losses + written.losses)


def write_custom_result(event: ToolFinished, written: bytes | None) -> Said:
    """Write the outcome of a call; `written` is its result's JSON, where somebody has looked through it already.

    Raises:
        CannotExpress: the id or the result cannot be said, or is too long.
    """
    check_id(event.native_call_id, "/native_call_id")
    losses: tuple[Loss, ...] = ()
    if not event.wakes_agent:
        losses += (Loss(how="narrowed", path="/wakes_agent", note="in Herm every result continues the turn"),)
    said = outcome_text(event, written)
    answer = write_text(said.text, said.path)
    losses += said.losses + answer.losses
    blocks = answer.blocks
    if event.updates:
        fresh = write_text(updates_text(event.updates), "/updates")
        losses += (Loss(how="narrowed", path="/updates", note="told as text before the result"), *fresh.losses)
        blocks = [*fresh.blocks, *blocks]
    check_count(blocks, said.path)
    payload = wire.event(wire.CUSTOM_RESULT, tool_use_id=event.native_call_id, content=blocks, is_error=said.failed)
    return Said(payload, losses)


def _confirmation(event: ApprovalGiven) -> Said:
    call = event.native_call_id or event.id
    check_id(call, "/native_call_id" if event.native_call_id else "/id")
    losses = dropped(("id", event.id if event.id != call else None))
    payload = wire.event(wire.CONFIRMATION, tool_use_id=call, result=event.decision, scope=event.scope)
    return Said(payload, losses)


def _secret(event: SecretSupplied) -> Said:
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
        return Said(wire.event(wire.SUDO_RESULT, request_id=event.id, password=hidden))
    return Said(wire.event(wire.SECRET_RESULT, request_id=event.id, value=hidden))
