"""Writes canonical events as HUMA 0.1 messages, in either direction, within the protocol's limits. Pure."""

from typing import Any

from adapters.huma_v0_1 import wire
from adapters.huma_v0_1.chat import write_chat_message
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress
from gateway.events import (
    ContextUpdated,
    Draft,
    Envelope,
    FaultReported,
    Loss,
    MessagePosted,
    Opaque,
    SessionMoved,
    Text,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TypingChanged,
    text_of,
)
from gateway.json_values import find_fault, utf16_length

_TYPES = {
    wire.FROM_CLIENT: wire.CLIENT_TYPES,
    wire.FROM_SERVER: wire.SERVER_TYPES,
    wire.ERRORS: frozenset({wire.ERROR}),
}

_ERRORS = {
    "failure": "The tool failed.",
    "expired": "The tool did not answer in time.",
    "canceled": "The call was canceled.",
}


def write_event(item: Draft | Envelope) -> Encoded:
    """Write one event as frames.

    Raises:
        CannotExpress: 0.2.0 has no words for it, or a value breaks a limit.
    """
    event = item.event
    match event:
        case ContextUpdated():
            return _context_event(event)
        case ToolFinished():
            return _tool_result(event)
        case ToolRequested():
            return _tool_call(event)
        case ToolCanceled():
            return _cancel(event)
        case MessagePosted() if event.burst is not None or event.author.role == "agent":
            return _message_sent(event)
        case MessagePosted():
            written = write_chat_message(event, item)
            return _say(wire.FROM_CLIENT, written.message, written.losses)
        case TypingChanged():
            return _typing(event)
        case SessionMoved():
            return _status(event)
        case FaultReported():
            _check_text(event.message, "/message")
            _check_text(event.code or "", "/code")
            return _say(wire.FROM_SERVER, wire.error(message=event.message, code=event.code))
        case Opaque():
            return _opaque(event)
        case _:
            raise CannotExpress(f"HUMA 0.1 has no words for {event.kind}")


def _say(channel: str, payload: dict[str, Any], losses: tuple[Loss, ...] = ()) -> Encoded:
    return Encoded((Frame(channel, payload),), losses)


def _context_event(event: ContextUpdated) -> Encoded:
    length = utf16_length(event.name)
    if not 1 <= length <= wire.NAME_LENGTH:
        raise CannotExpress(f"a name has 1 to {wire.NAME_LENGTH} characters, this one has {length}", path="/name")
    _check_text(event.name, "/name")
    _check_text(event.description, "/description")
    _check_record(event.context, "/context")
    if event.name == wire.TOOL_RESULT and "toolCallId" in event.context:
        raise CannotExpress("HUMA servers would take this for a tool result; choose another name", path="/name")
    losses = _dropped(("message", event.message))
    if not event.wakes_agent:
        note = "0.1 can only ask not to be interrupted; the agent may still answer"
        losses += (Loss(how="narrowed", path="/wakes_agent", note=note),)
    said = wire.context_event(
        name=event.name, context=event.context, description=event.description, wakes=event.wakes_agent
    )
    return _say(wire.FROM_CLIENT, said, losses)


def _tool_result(event: ToolFinished) -> Encoded:
    # The tool's name is not told: 0.1 has no field for it, and the id says it all.
    _check_id(event.native_call_id, "/native_call_id")
    losses = _dropped(("unknown", event.unknown or None))
    answer: dict[str, Any] = {}
    error = event.error
    if event.outcome == "success":
        losses += _dropped(("error", error))
        if event.result is not None:
            _check_record(event.result, "/result")
            answer["result"] = event.result
    else:
        losses += _dropped(("result", event.result))
        if event.outcome == "expired":
            losses += (Loss(how="narrowed", path="/outcome", note="told as a failure"),)
        if not error:
            losses += (Loss(how="invented", path="/error", note=f"a {event.outcome} result has an error text"),)
        answer["error"] = error or _ERRORS[event.outcome]
        _check_text(answer["error"], "/error")
    wakes = event.wakes_agent
    if event.outcome == "canceled" and wakes:
        # A canceled result that wakes makes the agent call, cancel and call again without end.
        losses += (Loss(how="narrowed", path="/wakes_agent", note="a canceled result never wakes"),)
        wakes = False
    if event.context is not None:
        _check_record(event.context, "/context")
    said = wire.tool_result(
        call=event.native_call_id,
        success=event.outcome == "success",
        canceled=event.outcome == "canceled",
        wakes=wakes,
        context=event.context,
        **answer,
    )
    return _say(wire.FROM_CLIENT, said, losses)


def _tool_call(event: ToolRequested) -> Encoded:
    if event.runs_in != "host":
        raise CannotExpress("a HUMA client would carry out what the runtime carries out itself", path="/runs_in")
    _check_id(event.native_call_id, "/native_call_id")
    _check_id(event.tool, "/tool")
    _check_record(event.arguments, "/arguments")
    losses = _dropped(
        ("needs_approval", event.needs_approval or None),
        ("thought", event.thought),
        ("preview", event.preview),
        ("supersedes", event.supersedes),
        ("problem", event.problem),
    )
    call = wire.tool_call(call=event.native_call_id, tool=event.tool, arguments=event.arguments)
    return _say(wire.FROM_SERVER, call, losses)


def _cancel(event: ToolCanceled) -> Encoded:
    _check_id(event.native_call_id, "/native_call_id")
    _check_text(event.tool or "", "/tool")
    _check_text(event.reason or "", "/reason")
    cancel = wire.cancel_tool_call(call=event.native_call_id, tool=event.tool, reason=event.reason)
    return _say(wire.FROM_SERVER, cancel)


def _message_sent(event: MessagePosted) -> Encoded:
    if not any(isinstance(block, Text) for block in event.content):
        raise CannotExpress("an agent's message for HUMA needs text", path="/content")
    losses = _dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("created_at", event.created_at),
        ("complete", None if event.complete else True),
        ("wakes_agent", None if event.wakes_agent else True),
    )
    if event.author.role != "agent":
        losses += (Loss(how="narrowed", path="/author/role", note="messages of a burst are the agent's"),)
    kept = [place for place, block in enumerate(event.content) if isinstance(block, Text)]
    losses += tuple(
        Loss(how="dropped", path=f"/content/{place}", note="HUMA agents send text only")
        for place in range(len(event.content))
        if place not in kept
    )
    if len(kept) > 1:
        losses += (Loss(how="narrowed", path="/content", note="texts were joined with newlines"),)
    text = text_of(event.content)
    _check_text(text, "/content")
    if event.extra_args is not None:
        _check_record(event.extra_args, "/extra_args")
    burst = event.burst
    if burst is not None:
        _check_id(burst.call, "/burst/call")
        if burst.index < 0 or (burst.count or 0) < 0:
            raise CannotExpress("a place in a burst is not negative", path="/burst")
    sent = wire.messaging(
        "message_sent",
        call=burst.call if burst else None,
        message=text,
        index=burst.index if burst else None,
        count=burst.count if burst else None,
        extra_args=event.extra_args,
    )
    return _say(wire.FROM_SERVER, sent, losses)


def _typing(event: TypingChanged) -> Encoded:
    _check_text(event.native_call_id or "", "/native_call_id")
    _check_text(event.reason or "", "/reason")
    if event.extra_args is not None:
        _check_record(event.extra_args, "/extra_args")
    said = wire.messaging(
        "typing_start" if event.typing else "typing_end",
        call=event.native_call_id,
        reason=event.reason,
        extra_args=event.extra_args,
    )
    return _say(wire.FROM_SERVER, said)


def _status(event: SessionMoved) -> Encoded:
    losses = _dropped(("reason", event.reason), ("waiting_for", event.waiting_for or None), ("thread", event.thread))
    word = event.native_state or ""
    if not word or (wire.state_of(word) or "running") != event.state:
        losses += _dropped(("native_state", event.native_state))
        word, exact = wire.word_for(event.state)
        if not exact:
            losses += (Loss(how="narrowed", path="/state", note=f"told as {word}"),)
    _check_text(word, "/native_state")
    return _say(wire.FROM_SERVER, wire.status(word), losses)


def _opaque(event: Opaque) -> Encoded:
    match event.payload:
        case {"type": str(known)} if known in _TYPES.get(event.channel, ()):
            raise CannotExpress(f"say a {known} by its own kind of event, not as opaque", path="/payload/type")
        case _:
            _check_text(event.channel, "/channel")
            _check_record(event.payload, "/payload")
            return Encoded((Frame(event.channel, event.payload),))


def _check_text(text: str, path: str) -> None:
    if not text.isascii() and (fault := find_fault(text, path)):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)


def _check_id(text: str, path: str) -> None:
    if not 1 <= len(text) <= wire.ID_LENGTH:
        raise CannotExpress(f"{path} has 1 to {wire.ID_LENGTH} characters, this one has {len(text)}", path=path)
    _check_text(text, path)


def _check_record(value: object, path: str) -> None:
    if fault := find_fault(value, path):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)


def _dropped(*fields: tuple[str, object]) -> tuple[Loss, ...]:
    return tuple(
        Loss(how="dropped", path=f"/{name}", note="HUMA has no place for it")
        for name, given in fields
        if given is not None
    )
