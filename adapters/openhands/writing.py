"""Encodes events as OpenHands messages of clients and, on `oh_event`, of the server. Pure."""

from datetime import UTC
from typing import Any, Literal, cast

import orjson

from adapters.openhands import wire
from adapters.openhands.orders import check_order, write_decision, write_interrupt
from gateway.adapter.checks import dropped
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    ActionOrdered,
    ApprovalGiven,
    Data,
    Draft,
    Envelope,
    Event,
    FaultReported,
    Image,
    Loss,
    MessagePosted,
    Origin,
    SessionMoved,
    SessionTitled,
    Text,
    ThoughtShared,
    ThreadReceived,
    ThreadSent,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    text_of,
)
from gateway.strict_json import find_fault, pointer, read_model

Source = Literal["agent", "user", "environment"]
_SOURCES: dict[str, Source] = {"agent": "agent", "user": "user", "system": "environment"}
NO_EQUIVALENT = "OpenHands has no equivalent"
_FROM_CLIENT = ("message.posted", "approval.given", "turn.interrupted", "action.ordered")


def speaks_as_client(item: Draft | Envelope) -> bool:
    """Report whether an event is a client message of ours, neither an echo nor a server message."""
    ours = item.direction == "to_runtime" if isinstance(item, Envelope) else item.native_id is None
    event = item.event
    return ours and event.kind in _FROM_CLIENT and not (isinstance(event, MessagePosted) and _is_agents(event))


def _is_agents(event: MessagePosted) -> bool:
    return event.author.role == "agent"


def write_client_action(event: Event, *, unsafe_orders: bool) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    """Encode a client message and list its losses.

    Raises:
        CannotExpress: the server would reject it without an error, or it would break the conversation.
    """
    losses: tuple[Loss, ...] = ()
    match event:
        case MessagePosted():
            args, losses = _client_message(event)
            message = wire.user_message(args)
            if event.extra_args is None and not args["image_urls"] and args["content"].isascii():
                # Fast path for a plain ASCII text, which needs no check.
                return _check_size(message), losses
        case ApprovalGiven():
            message = wire.action_message("change_agent_state", write_decision(event))
            if event.scope not in (None, "once"):
                # Every approval is for one action, which the agent's state determines (OH44).
                losses = (_lost("dropped", "/scope"),)
            if event.reason is not None:
                losses += (_lost("dropped", "/reason"),)
        case TurnInterrupted():
            message = wire.action_message("change_agent_state", write_interrupt(event))
            if event.reason == "":
                losses = (_lost("dropped", "/reason"),)
        case ActionOrdered():
            check_order(event, unsafe=unsafe_orders)
            message = wire.action_message(event.action, event.arguments)
        case _:
            raise CannotExpress(f"OpenHands has no equivalent of {event.kind}")
    _check(message)
    return _check_size(message), losses


def _check_size(message: dict[str, Any]) -> dict[str, Any]:
    size = len(orjson.dumps(message))
    if size > wire.MESSAGE_BYTES - 1024:
        raise CannotExpress(f"OpenHands drops messages of over {wire.MESSAGE_BYTES} bytes; this one has {size}")
    return message


def _client_message(event: MessagePosted) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    losses: tuple[Loss, ...] = ()
    match event.content:
        case (Text(text=text),):
            images: list[str] = []
        case content:
            if all(isinstance(block, Data) for block in content):
                raise CannotExpress("a message for OpenHands requires a text or an image", path="/content")
            text, images = text_of(content), _images(event)
            if _content(text, images) != content:
                losses = (_lost("narrowed", "/content"),)
    author, args = event.author, {"content": text, "image_urls": images}
    if author.id is not None or author.name is not None:
        losses = dropped(("author/id", author.id), ("author/name", author.name), note=NO_EQUIVALENT) + losses
    if author.role != "user":
        losses = (_lost("narrowed", "/author/role"), *losses)
    if event.message_id is not None:
        losses += (_lost("dropped", "/message_id"),)
    if not event.wakes_agent:
        losses += (_lost("narrowed", "/wakes_agent"),)
    if not event.complete:
        losses += (_lost("narrowed", "/complete"),)
    if event.burst is not None:
        losses += (_lost("dropped", "/burst"),)
    if event.extra_args is not None:
        losses += _add_extra_args(args, event.extra_args)
    if event.created_at is not None:
        losses += (_lost("dropped", "/created_at"),)
    return args, losses


def _content(text: str, images: list[str]) -> tuple[Text | Image, ...]:
    """Return the content that the server reads from a text with images."""
    texts = (Text(text=text),) if text or not images else ()
    return (*texts, *(Image(url=url) for url in images))


def _add_extra_args(args: dict[str, Any], given: dict[str, Any]) -> tuple[Loss, ...]:
    """Add further members of a message and list the others as losses."""
    rest = {name: given[name] for name in wire.MESSAGE_DEFAULTS if name in given}
    try:
        read_model(wire.MessageArgs, rest, "/extra_args")
    except MalformedFrame as exc:
        # Any other type would crash the controller without an error (OH55).
        raise CannotExpress(f"{exc.path}: {exc.reason}", path=exc.path) from exc
    args.update(rest)
    unusual = {name: value for name, value in rest.items() if value != wire.MESSAGE_DEFAULTS[name]}
    return tuple(_differing("", {"extra_args": given}, {"extra_args": unusual or None}))


def _lost(how: Literal["dropped", "narrowed"], path: str) -> Loss:
    return Loss(how=how, path=path, note=NO_EQUIVALENT)


def _images(event: MessagePosted) -> list[str]:
    return [block.url for block in event.content if isinstance(block, Image)]


def _check(message: dict[str, Any]) -> None:
    if fault := find_fault(message):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)


def write_server_message(item: Draft | Envelope) -> dict[str, Any]:
    """Encode a server message on `oh_event`.

    Raises:
        CannotExpress: OpenHands has no equivalent.
    """
    event = item.event
    match event:
        case SessionTitled():
            message = wire.title_update(event.title)
        case SessionMoved() if not _has_identity(item) and "$" in (event.native_state or ""):
            message = wire.status_update("info", status=event.native_state or "", message=event.reason or "")
        case FaultReported() if not _has_identity(item):
            message = _failure(event)
        case _:
            message = {**_identity(item), **_body(event)}
            if correlation := _correlation(item):
                # The other members are the model's response, which is never stored.
                message["tool_call_metadata"] = {"tool_call_id": correlation}
    _check(message)
    return message


def _failure(event: FaultReported) -> dict[str, Any]:
    if event.code is None:
        return wire.failure(event.message)
    message = "" if event.message == event.code else event.message
    return wire.status_update("error", status=event.code, message=message)


def _has_identity(item: Draft | Envelope) -> bool:
    match item:
        case Draft():
            return item.native_sequence is not None
        case _:
            return item.origin is not None and item.origin.protocol == wire.PROTOCOL and _sequence(item) is not None


def _sequence(item: Envelope) -> int | None:
    return item.origin.native_sequence if item.origin is not None else None


def _identity(item: Draft | Envelope) -> dict[str, Any]:
    """Return the event's native id and time, else those of our journal; a bare draft has only its event."""
    match item:
        case Draft(native_sequence=int(number)):
            return {"id": number, "timestamp": item.native_time or _EPOCH}
        case Envelope(origin=origin) if origin is not None and _has_identity(item):
            return {"id": origin.native_sequence, "timestamp": origin.native_time or _EPOCH}
        case Envelope():
            # OpenHands writes local time without a zone; the journal has UTC (OH19).
            at = item.recorded_at.astimezone(UTC).replace(tzinfo=None)
            return {"id": item.sequence, "timestamp": at.isoformat(timespec="microseconds")}
        case _:
            native = getattr(item.event, "native_call_id", "") if isinstance(item.event, ToolRequested) else ""
            return {"id": _number(native) or 0, "timestamp": _EPOCH}


_EPOCH = "1970-01-01T00:00:00.000000"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _correlation(item: Draft | Envelope) -> str | None:
    match item:
        case Draft(correlation=str(correlation)) | Envelope(origin=Origin(correlation=str(correlation))) if (
            _has_identity(item)
        ):
            return correlation
        case _:
            pass
    match item.event:
        case ThreadSent(thread_id=thread) | ThreadReceived(thread_id=thread) if not thread.isdigit():
            return thread or None
        case _:
            return None


def _body(event: Event) -> dict[str, Any]:
    match event:
        case MessagePosted():
            return _server_message(event)
        case ThoughtShared(text=text):
            return _action("agent", "think", {"thought": text}, f"I am thinking...: {text}")
        case ToolRequested():
            return _tool(event)
        case ToolFinished():
            return _outcome(event)
        case ActionOrdered(action=action, arguments=arguments):
            return _action("user", action, arguments, "")
        case ApprovalGiven():
            return _state_action(write_decision(event))
        case TurnInterrupted():
            return _state_action(write_interrupt(event))
        case SessionMoved():
            return _state(event)
        case ThreadSent():
            return _delegate(event)
        case ThreadReceived():
            outputs = [block.data for block in event.content if isinstance(block, Data)]
            extras: dict[str, Any] = {"outputs": {}}
            match outputs:
                case [{"outputs": dict()}, *_]:
                    extras = outputs[0]
                case _:
                    pass
            cause = _number(event.thread_id)
            return _observation(
                "delegate", text_of(event.content), extras, **({} if cause is None else {"cause": cause})
            )
        case FaultReported(code=wire.LOOP):
            return _observation(wire.LOOP, event.message, {})
        case FaultReported():
            return _observation("error", event.message, {"error_id": event.code or ""})
        case _:
            raise CannotExpress(f"OpenHands has no equivalent of {event.kind}")


def _action(source: Source, name: str, args: dict[str, Any], message: str) -> dict[str, Any]:
    return {"source": source, "message": message, "action": name, "args": args}


def _observation(name: str, content: str, extras: dict[str, Any], **rest: Any) -> dict[str, Any]:
    message = "" if name == "agent_state_changed" else content
    return {
        "source": "agent",
        "message": message,
        **rest,
        "observation": name,
        "content": content,
        "extras": extras,
    }


def _server_message(event: MessagePosted) -> dict[str, Any]:
    given = event.extra_args or {}
    text = text_of(event.content)
    match given.get("action"):
        case "finish" if _is_agents(event):
            thought = given.get("thought", "")
            args = {"final_thought": text, "outputs": given.get("outputs", {}), "thought": thought}
            return _action("agent", "finish", args, str(thought) or wire.FINISHED_TEXT)
        case "reject" if _is_agents(event):
            args = {"outputs": given.get("outputs", {}), "thought": text}
            if "final_thought" in given:
                args["final_thought"] = given["final_thought"]
            return _action("agent", "reject", args, text)
        case _:
            pass
    images = _images(event) or given.get("image_urls", [])
    args = {"content": text, "image_urls": images, **wire.MESSAGE_DEFAULTS}
    args.update({name: given[name] for name in wire.MESSAGE_DEFAULTS if name in given})
    return _action(_SOURCES[event.author.role], "message", args, text)


def _tool(event: ToolRequested) -> dict[str, Any]:
    if event.tool not in wire.TOOLS:
        raise CannotExpress(f"OpenHands has no action {event.tool[:100]!r}", path="/tool")
    args = dict(event.arguments)
    if event.thought is not None or "thought" not in args:
        args["thought"] = event.thought or ""
    if event.tool in wire.GATED:
        args.setdefault("confirmation_state", wire.AWAITING if event.needs_approval else wire.CONFIRMED)
    return _action("agent", event.tool, args, event.preview or "")


def _outcome(event: ToolFinished) -> dict[str, Any]:
    cause = _number(event.native_call_id)
    rest: dict[str, Any] = {} if cause is None else {"cause": cause}
    match event.result:
        case {"observation": str(name), **members} if name in wire.RESULTS:
            content, extras = members.get("content", event.error or ""), members.get("extras", {})
            message = _observation(name, content, extras, **rest)
            if "success" in members:
                message["success"] = members["success"]
            return message
        case _:
            pass
    match event.outcome:
        case "success":
            _check({"result": event.result})
            text = event.result if isinstance(event.result, str) else orjson.dumps(event.result).decode()
            return _observation("success", text, {}, **rest)
        case "canceled":
            return _observation("user_rejected", event.error or "", {}, **rest)
        case _:
            return _observation("error", event.error or "The action failed.", {"error_id": ""}, **rest)


def _state_action(args: dict[str, Any]) -> dict[str, Any]:
    return _action("user", "change_agent_state", args, f"Agent state changed to {args['agent_state']}")


def _state(event: SessionMoved) -> dict[str, Any]:
    word = event.native_state or ""
    if not word or (wire.state_of(word) or "running") != event.state:
        word = wire.word_for(event.state)
    reason = event.reason or ""
    if word == wire.RATE_LIMITED == reason:
        reason = ""
    return _observation("agent_state_changed", "", {"agent_state": word, "reason": reason})


def _delegate(event: ThreadSent) -> dict[str, Any]:
    works = [block.data for block in event.content if isinstance(block, Data)]
    match works:
        case [{"agent": str(), "inputs": dict()}, *_]:
            work: dict[str, Any] = {"thought": "", **cast("dict[str, Any]", works[0])}
        case _:
            work = {"agent": "", "inputs": {"task": text_of(event.content)}, "thought": ""}
    return _action("agent", "delegate", work, f"I'm asking {work['agent']} for help with this task.")


def differences(before: Event, after: Event) -> tuple[Loss, ...]:
    """List the members of an event that differ after encoding and decoding."""
    known = {"/call_id"}
    match before:
        case ApprovalGiven(scope="once"):
            known = {"/scope", "/id", "/native_call_id"}
        case ApprovalGiven():
            known = {"/id", "/native_call_id"}
        case _:
            pass
    found = _differing("", before.model_dump(), after.model_dump())
    return tuple(loss for loss in found if loss.path not in known)


def _differing(path: str, before: dict[str, Any], after: dict[str, Any]) -> list[Loss]:
    found: list[Loss] = []
    for name, value in before.items():
        other = after.get(name)
        match value, other:
            case None, _:
                pass
            case dict(), dict():
                inner = _differing(pointer(path, name), cast("dict[str, Any]", value), cast("dict[str, Any]", other))
                found.extend(inner)
            case _ if value != other:
                how = "dropped" if other in (None, "", (), [], {}) else "narrowed"
                found.append(Loss(how=how, path=pointer(path, name), note=NO_EQUIVALENT))
            case _:
                pass
    return found
