"""Encodes the server messages of both versions, and the common parts of client messages. Pure."""

from functools import partial
from typing import Any

import orjson

from adapters.huma import wire
from gateway.adapter.checks import check_id, check_json, check_text, dropped as dropped_members
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress
from gateway.events import (
    ContextUpdated,
    Event,
    FaultReported,
    Loss,
    MessagePosted,
    SessionMoved,
    Text,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TypingChanged,
    text_of,
)
from gateway.strict_json import utf16_length

dropped = partial(dropped_members, note="HUMA has no field for it")


def make_frame(
    channel: str, payload: dict[str, Any], losses: tuple[Loss, ...] = (), *, result: bytes | None = None
) -> Encoded:
    """Make one frame; `result` is the JSON of the payload's member `result`, if available."""
    written = None if result is None else orjson.dumps({**payload, "result": orjson.Fragment(result)})
    return Encoded((Frame(channel, payload, written=written),), losses)


def write_server_message(event: Event, *, faults_on: str) -> Encoded | None:
    """Encode a server message; None for an event without an equivalent.

    Raises:
        CannotExpress: a value exceeds a limit.
    """
    match event:
        case ToolRequested():
            return _tool_call(event)
        case ToolCanceled():
            return _cancel(event)
        case MessagePosted():
            return _message_sent(event)
        case TypingChanged():
            return _typing(event)
        case SessionMoved():
            return _status(event)
        case FaultReported():
            check_text(event.message, "/message")
            check_text(event.code or "", "/code")
            return make_frame(faults_on, wire.error(message=event.message, code=event.code))
        case _:
            return None


def is_chat(event: MessagePosted) -> bool:
    """Whether a message is a participant's, which only a client sends; a server sends the agent's."""
    return event.burst is None and event.author.role != "agent"


def check_context(event: ContextUpdated, *, forbidden: frozenset[str] = frozenset()) -> None:
    """Refuse a context that exceeds a limit of HUMA.

    Raises:
        CannotExpress: with the path of the error.
    """
    length = utf16_length(event.name)
    if not 1 <= length <= wire.NAME_LENGTH:
        raise CannotExpress(f"a name must have 1 to {wire.NAME_LENGTH} characters, not {length}", path="/name")
    check_text(event.name, "/name")
    check_text(event.description, "/description")
    check_json(event.context, "/context", forbidden=forbidden)


def wakes(event: ToolFinished) -> tuple[bool, tuple[Loss, ...]]:
    """Return whether a result wakes the agent, and the losses.

    A canceled result never does: the agent would call, cancel and call again without end.
    """
    if event.outcome == "canceled" and event.wakes_agent:
        return False, (Loss(how="narrowed", path="/wakes_agent", note="a canceled result never wakes"),)
    return event.wakes_agent, ()


def _tool_call(event: ToolRequested) -> Encoded:
    if event.runs_in != "host":
        raise CannotExpress("a HUMA client would execute a call that the runtime executes itself", path="/runs_in")
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool, "/tool")
    check_json(event.arguments, "/arguments")
    losses = dropped(
        ("needs_approval", event.needs_approval or None),
        ("thought", event.thought),
        ("preview", event.preview),
        ("supersedes", event.supersedes),
        ("problem", event.problem),
    )
    call = wire.tool_call(call=event.native_call_id, tool=event.tool, arguments=event.arguments)
    return make_frame(wire.FROM_SERVER, call, losses)


def _cancel(event: ToolCanceled) -> Encoded:
    check_id(event.native_call_id, "/native_call_id")
    check_text(event.tool or "", "/tool")
    check_text(event.reason or "", "/reason")
    cancel = wire.cancel_tool_call(call=event.native_call_id, tool=event.tool, reason=event.reason)
    return make_frame(wire.FROM_SERVER, cancel)


def _message_sent(event: MessagePosted) -> Encoded:
    if not any(isinstance(block, Text) for block in event.content):
        raise CannotExpress("an agent's message for HUMA requires a text", path="/content")
    losses = dropped(
        ("author/id", event.author.id),
        ("author/name", event.author.name),
        ("message_id", event.message_id),
        ("created_at", event.created_at),
        ("complete", None if event.complete else True),
        ("wakes_agent", None if event.wakes_agent else True),
    )
    if event.author.role != "agent":
        losses += (Loss(how="narrowed", path="/author/role", note="messages of a burst are the agent's"),)
    texts = [place for place, block in enumerate(event.content) if isinstance(block, Text)]
    losses += tuple(
        Loss(how="dropped", path=f"/content/{place}", note="HUMA agents send text only")
        for place in range(len(event.content))
        if place not in texts
    )
    if len(texts) > 1:
        losses += (Loss(how="narrowed", path="/content", note="texts were joined with newlines"),)
    text = text_of(event.content)
    check_text(text, "/content")
    if event.extra_args is not None:
        check_json(event.extra_args, "/extra_args")
    burst = event.burst
    if burst is not None:
        check_id(burst.call, "/burst/call")
        if burst.index < 0 or (burst.count or 0) < 0:
            raise CannotExpress("a place in a burst must not be negative", path="/burst")
    sent = wire.messaging(
        "message_sent",
        call=burst.call if burst else None,
        message=text,
        place=(burst.index, burst.count) if burst else (None, None),
        extra_args=event.extra_args,
    )
    return make_frame(wire.FROM_SERVER, sent, losses)


def _typing(event: TypingChanged) -> Encoded:
    check_text(event.native_call_id or "", "/native_call_id")
    check_text(event.reason or "", "/reason")
    if event.extra_args is not None:
        check_json(event.extra_args, "/extra_args")
    native = wire.messaging(
        "typing_start" if event.typing else "typing_end",
        call=event.native_call_id,
        reason=event.reason,
        extra_args=event.extra_args,
    )
    return make_frame(wire.FROM_SERVER, native)


def _status(event: SessionMoved) -> Encoded:
    losses = dropped(("reason", event.reason), ("waiting_for", event.waiting_for or None), ("thread", event.thread))
    word = event.native_state or ""
    if not word or (wire.state_of(word) or "running") != event.state:
        losses += dropped(("native_state", event.native_state))
        word, exact = wire.word_for(event.state)
        if not exact:
            losses += (Loss(how="narrowed", path="/state", note=f"sent as {word}"),)
    check_text(word, "/native_state")
    return make_frame(wire.FROM_SERVER, wire.status(word), losses)
