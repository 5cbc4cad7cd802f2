"""Translates between Pigeon messages and canonical events. No I/O.

Events of the runtime, on the channel `events`; each has a number:

    {"number": 1, "type": "message", "from": "agent", "text": "Hi"}
    {"number": 2, "type": "call", "id": "c1", "tool": "ask_for_cards", "arguments": {"rank": "7"}}
    {"number": 3, "type": "idle"}

Messages of the client, on the channel `messages`:

    {"type": "message", "text": "Hi"}
    {"type": "result", "id": "c1", "result": "Go fish!"}
    {"type": "result", "id": "c1", "error": "no such player"}
"""

from typing import Any

from gateway.adapter.checks import check_id, check_json, dropped
from gateway.adapter.payload import keep, payload_of, read_typed
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    Author,
    Draft,
    Envelope,
    Event,
    Loss,
    MessagePosted,
    SessionMoved,
    Text,
    ToolFinished,
    ToolRequested,
    text_of,
)
from gateway.strict_json import find_fault, pointer

EVENTS, MESSAGES = "events", "messages"


class PigeonCodec:
    """Implements `gateway.adapter.port.Codec`."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Read one message of the runtime or of another client."""
        payload = read_typed(payload_of(frame))
        if fault := find_fault(payload):
            raise MalformedFrame(f"the message {fault.reason}", path=fault.path)
        match frame.channel:
            case "events":
                return (_read_event(frame, payload),)
            case "messages":
                return (_read_message(frame, payload),)
            case _:
                return (keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Write one event as a message."""
        match item.event:
            case MessagePosted(author=Author(role="user")) as event:
                text = text_of(event.content)
                check_json(text, "/content")
                return _sent({"type": "message", "text": text}, *_losses_of(event))
            case ToolFinished(outcome="success") as event:
                check_id(event.native_call_id, "/native_call_id")
                check_json(event.result, "/result")
                return _sent(
                    {"type": "result", "id": event.native_call_id, "result": event.result},
                    *dropped(("tool", event.tool), ("context", event.context), note="a result has no such member"),
                    *_wakes_anyway(event),
                )
            case ToolFinished() as event:
                check_id(event.native_call_id, "/native_call_id")
                error = event.outcome if event.error is None else event.error
                check_json(error, "/error")
                failed = [Loss(how="narrowed", path="/outcome")] if event.outcome != "failure" else []
                unknown = [Loss(how="dropped", path="/unknown")] if event.unknown else []
                return _sent(
                    {"type": "result", "id": event.native_call_id, "error": error},
                    *failed,
                    *unknown,
                    *dropped(
                        ("tool", event.tool), ("context", event.context), ("result", event.result),
                        note="a failed result has no such member",
                    ),
                    *_wakes_anyway(event),
                )  # fmt: skip
            case event:
                raise CannotExpress(f"the Pigeon protocol has no {event.kind}")


def _read_event(frame: Frame, payload: dict[str, Any]) -> Draft:
    match payload:
        case {"number": int(number)} if not isinstance(number, bool) and number >= 0:
            pass
        case _:
            raise MalformedFrame("an event has a number", path="/number")
    event: Event
    echo = False
    match payload:
        case {"type": "message", "from": "agent" | "user" as role, "text": str(text)}:
            event, known = MessagePosted(author=Author(role=role), content=(Text(text=text),)), {"from", "text"}
            # It may be the gateway's own message, so the gateway compares it with its sent messages.
            echo = role == "user"
        case {"type": "call", "id": str(native), "tool": str(tool), "arguments": dict()} if native and tool:
            event = ToolRequested(native_call_id=native, tool=tool, arguments=payload["arguments"])
            known = {"id", "tool", "arguments"}
        case {"type": "idle"}:
            event, known = SessionMoved(state="idle"), set[str]()
        case {"type": "message" | "call"}:
            raise MalformedFrame(f"a {payload['type']} lacks a member or has one of the wrong type")
        case _:
            event, known = keep(frame).event, set(payload)
    lost = _unknown_members(payload, {"number", "type"} | known)
    # The gateway drops repeated events by their number.
    return Draft(event, native_id=str(number), native_sequence=number, losses=lost, echo=echo)


def _read_message(frame: Frame, payload: dict[str, Any]) -> Draft:
    match payload:
        case {"type": "message", "text": str(text)}:
            message = MessagePosted(content=(Text(text=text),))
            return Draft(message, losses=_unknown_members(payload, {"type", "text"}))
        case {"type": "result", "id": str(native), "error": str(error)} if native:
            failed = ToolFinished(native_call_id=native, outcome="failure", error=error)
            return Draft(failed, losses=_unknown_members(payload, {"type", "id", "error"}))
        case {"type": "result", "id": str(native), "result": result} if native:
            finished = ToolFinished(native_call_id=native, outcome="success", result=result)
            return Draft(finished, losses=_unknown_members(payload, {"type", "id", "result"}))
        case {"type": "message" | "result"}:
            raise MalformedFrame(f"a {payload['type']} lacks a member or has one of the wrong type")
        case _:
            return keep(frame)


def _sent(payload: dict[str, Any], *losses: Loss) -> Encoded:
    return Encoded((Frame(MESSAGES, payload),), losses)


def _unknown_members(payload: dict[str, Any], known: set[str]) -> tuple[Loss, ...]:
    return tuple(Loss(how="dropped", path=pointer("", name)) for name in payload if name not in known)


def _losses_of(event: MessagePosted) -> tuple[Loss, ...]:
    lost = dropped(
        ("message_id", event.message_id), ("extra_args", event.extra_args), ("created_at", event.created_at),
        ("burst", event.burst), ("author/id", event.author.id), ("author/name", event.author.name),
        note="a message has a text only",
    )  # fmt: skip
    is_one_text = len(event.content) == 1 and event.content[0].type == "text"
    as_text = () if is_one_text else (Loss(how="narrowed", path="/content", note="sent as one text"),)
    whole = () if event.complete else (Loss(how="dropped", path="/complete"),)
    return (*lost, *as_text, *whole, *_wakes_anyway(event))


def _wakes_anyway(event: MessagePosted | ToolFinished) -> tuple[Loss, ...]:
    note = "the agent always answers"
    return () if event.wakes_agent else (Loss(how="narrowed", path="/wakes_agent", note=note),)
