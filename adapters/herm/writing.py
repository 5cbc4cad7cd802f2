"""Encodes events as Herm events of clients and of the runtime. Pure."""

from typing import Any

from adapters.herm import wire
from adapters.herm.content import write_content, write_text
from adapters.herm.reading import FAULT_KEY
from adapters.herm.wrapping import NativeEvent, comes_from_runtime, dropped, wrap
from adapters.herm.writing_tools import write_tool_finished, write_tool_requested
from adapters.herm.writing_user import write_custom_result, write_user_event
from gateway.adapter.checks import check_id, check_json, check_text
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    Draft,
    Envelope,
    FaultReported,
    Loss,
    MessagePosted,
    MessageStreamed,
    Opaque,
    QuestionAnswered,
    QuestionAsked,
    SecretAsked,
    SecretSupplied,
    SessionMoved,
    SessionTitled,
    ThoughtShared,
    ThreadReceived,
    ThreadSent,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    TurnSteered,
)


def write_event(item: Draft | Envelope) -> Encoded:
    """Encode one event as frames.

    Raises:
        CannotExpress: Herm has no equivalent, or a value exceeds a limit.
    """
    event = item.event
    match event:
        case ApprovalGiven() | QuestionAnswered() | SecretSupplied() | TurnSteered() | TurnInterrupted():
            return wrap(item, write_user_event(event))
        case MessagePosted() if event.author.role != "agent" and event.burst is None:
            return wrap(item, write_user_event(event))
        case ToolFinished() if not comes_from_runtime(item):
            return wrap(item, write_custom_result(event, item.written))
        case ToolFinished():
            return wrap(item, write_tool_finished(event, item.written))
        case ToolRequested():
            return wrap(item, write_tool_requested(event))
        case ApprovalAsked(native_call_id=None):
            raise CannotExpress("Herm requests approvals only for tool calls", path="/native_call_id")
        case ApprovalAsked():
            # `requires_action` of the tool use requests the approval; there is no separate event.
            return Encoded(())
        case FaultReported() if _is_part_of_a_state(item):
            return Encoded(())
        case Opaque():
            return _opaque(event)
        case _:
            return wrap(item, _write_runtime_event(item))


def _is_part_of_a_state(item: Draft | Envelope) -> bool:
    """Whether the preceding end of the turn contains this fault."""
    native = item.native_id if isinstance(item, Draft) else item.origin.native_id if item.origin is not None else None
    return native is not None and native.endswith(FAULT_KEY)


def _write_runtime_event(item: Draft | Envelope) -> NativeEvent:
    event = item.event
    match event:
        case MessagePosted():
            return _agent_message(event)
        case MessageStreamed(text=text):
            return _text_event(wire.AGENT_MESSAGE, text, delta=True, losses=dropped(("message_id", event.message_id)))
        case ThoughtShared(text=text):
            return _text_event(wire.THINKING, text, delta=isinstance(item, Draft) and item.live)
        case QuestionAsked():
            check_id(event.id, "/id")
            check_text(event.text, "/text")
            check_json(list(event.choices), "/choices")
            return NativeEvent(
                wire.clarify_request(request_id=event.id, question=event.text, choices=list(event.choices) or None)
            )
        case SecretAsked():
            return _secret_request(event)
        case ThreadSent() | ThreadReceived():
            check_id(event.thread_id, "/thread_id")
            written = write_content(event.content, "/content")
            kind = wire.THREAD_SENT if isinstance(event, ThreadSent) else wire.THREAD_RECEIVED
            return NativeEvent(wire.event(kind, thread_id=event.thread_id, content=written.blocks), written.losses)
        case SessionMoved():
            return _state(event)
        case SessionTitled(title=title):
            check_text(title, "/title")
            return NativeEvent(wire.event(wire.TITLE, title=title))
        case FaultReported():
            check_text(event.message, "/message")
            loss = Loss(how="narrowed", path="", note="Herm reports a fault as the end of the turn")
            return NativeEvent(_idle(type=wire.ERROR, message=event.message), (loss,))
        case _:
            raise CannotExpress(f"Herm has no equivalent of {event.kind}")


def _agent_message(event: MessagePosted) -> NativeEvent:
    losses = dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("created_at", event.created_at),
        ("extra_args", event.extra_args),
        ("burst", event.burst),
        ("complete", None if event.complete else False),
        ("wakes_agent", None if event.wakes_agent else False),
    )
    if event.author.role != "agent":
        losses += (Loss(how="narrowed", path="/author/role", note="messages of a burst are the agent's"),)
    written = write_content(event.content, "/content")
    payload = wire.event(wire.AGENT_MESSAGE, content=written.blocks, delta=False)
    return NativeEvent(payload, losses + written.losses)


def _text_event(kind: str, text: str, *, delta: bool, losses: tuple[Loss, ...] = ()) -> NativeEvent:
    check_text(text, "/text")
    written = write_text(text, "/text")
    return NativeEvent(wire.event(kind, content=written.blocks, delta=delta), losses + written.losses)


def _secret_request(event: SecretAsked) -> NativeEvent:
    check_id(event.id, "/id")
    check_text(event.prompt or "", "/prompt")
    check_text(event.name or "", "/name")
    kind = wire.SUDO_REQUEST if event.purpose == "sudo" else wire.SECRET_REQUEST
    return NativeEvent(wire.event(kind, request_id=event.id, prompt=event.prompt, env_var=event.name))


def _state(event: SessionMoved) -> NativeEvent:
    losses = dropped(("thread", event.thread))
    known = wire.state_of(event.native_state or "")
    if event.native_state is not None and known != event.state:
        losses += dropped(("native_state", event.native_state))
    match event.state:
        case "running" | "starting":
            if event.state == "starting":
                losses += (_narrowed("/state", "sent as running"),)
            losses += dropped(("reason", event.reason), ("waiting_for", event.waiting_for or None))
            return NativeEvent(wire.event(wire.RUNNING), losses)
        case "error":
            check_text(event.reason or "", "/reason")
            if event.reason is None:
                losses += (Loss(how="invented", path="/reason", note="an error requires a message"),)
            losses += dropped(("waiting_for", event.waiting_for or None))
            message = wire.ERROR_TEXT if event.reason is None else event.reason
            return NativeEvent(_idle(type=wire.ERROR, message=message), losses)
        case "awaiting_outcome" | "awaiting_approval" | "awaiting_input":
            check_json(list(event.waiting_for), "/waiting_for")
            if event.state != "awaiting_outcome":
                losses += (_narrowed("/state", "Herm has one state for all kinds of waiting"),)
            losses += dropped(("reason", event.reason))
            return NativeEvent(_idle(type=wire.REQUIRES_ACTION, event_ids=list(event.waiting_for)), losses)
        case _:
            if event.state != "idle":
                losses += (_narrowed("/state", "sent as the end of the turn"),)
                losses += dropped(("native_state", event.native_state if known == event.state else None))
            losses += dropped(("reason", event.reason), ("waiting_for", event.waiting_for or None))
            return NativeEvent(_idle(type=wire.END_TURN), losses)


def _idle(**stop_reason: Any) -> dict[str, Any]:
    return wire.event(wire.IDLE, stop_reason=stop_reason)


def _narrowed(path: str, note: str) -> Loss:
    return Loss(how="narrowed", path=path, note=note)


def _opaque(event: Opaque) -> Encoded:
    check_text(event.channel, "/channel")
    check_json(event.payload, "/payload")
    kind = wire.event_type_of(event.payload)
    match event.channel:
        case wire.EVENTS:
            if kind is None or not kind.startswith(wire.USER):
                raise CannotExpress("clients of Herm post only user.* events", path="/payload/type")
        case wire.STREAM:
            pass
        case _:
            return Encoded((Frame(event.channel, event.payload),))
    if kind in wire.USER_TYPES | wire.RUNTIME_TYPES:
        raise CannotExpress(f"send {kind} as its own kind of event, not as opaque", path="/payload/type")
    return Encoded((Frame(event.channel, event.payload),))
