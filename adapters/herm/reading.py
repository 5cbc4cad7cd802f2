"""Decodes the envelopes of lists and streams. Pure."""

from collections.abc import Callable
from typing import Any, cast

from adapters.herm import wire
from adapters.herm.content import TEXT_MEMBERS, join_texts, read_blocks
from adapters.herm.reading_tools import read_custom_use, read_tool_result, read_tool_use
from adapters.herm.reading_user import read_user_event
from gateway.errors import MalformedFrame
from gateway.events import (
    Author,
    Draft,
    FaultReported,
    Loss,
    MessagePosted,
    MessageStreamed,
    Opaque,
    QuestionAsked,
    SecretAsked,
    SessionMoved,
    SessionTitled,
    ThoughtShared,
    ThreadReceived,
    ThreadSent,
)
from gateway.events.frozen import replace
from gateway.strict_json import find_fault, json_type, read_model, unknown_fields

INSIDE = "/payload"
FAULT_KEY = "#fault"
"""Suffix of the native id of a fault that is part of the end of a turn."""


def read_envelope(payload: dict[str, Any], *, plain: bool) -> tuple[Draft, ...]:
    """Decode one envelope: one draft, or two for a tool use with an approval and for a turn that ended in an error.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    code, message = payload.get("error"), payload.get("message")
    if isinstance(code, str) and isinstance(message, str) and "payload" not in payload:
        return (_error_body(payload, code, message),)
    inside, losses = _inside(payload)
    fault = None if plain else find_fault(payload)
    if inside["type"] == wire.CUSTOM_TOOL_USE:
        drafts = (read_custom_use(inside, INSIDE, plain=fault is None),)
    elif fault is not None:
        raise MalformedFrame(fault.reason, path=fault.path)
    else:
        drafts = _read(payload, inside)
    draft, *more = drafts
    event_id, sequence, created_at, found = _metadata(payload, plain=fault is None)
    if isinstance(draft.event, Opaque):
        # An opaque event has lost nothing of the envelope.
        return (Draft(draft.event, event_id, sequence, created_at, echo=draft.echo),)
    first = Draft(
        draft.event,
        event_id,
        sequence,
        created_at,
        losses=losses + found + draft.losses,
        live=draft.live,
        echo=draft.echo,
        written=draft.written,
    )
    return (first, *(_follow(first, other) for other in more)) if more else (first,)


def _follow(first: Draft, draft: Draft) -> Draft:
    # The dedupe key of each draft must differ.
    what = FAULT_KEY if isinstance(draft.event, FaultReported) else "#approval"
    own = None if first.native_id is None else f"{first.native_id}{what}"
    return replace(draft, native_id=own, native_sequence=first.native_sequence, native_time=first.native_time)


def _inside(payload: dict[str, Any]) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    """Unwrap the payload; its type has precedence over the envelope's."""
    inside = payload.get("payload")
    if not isinstance(inside, dict):
        raise MalformedFrame(f"expected an object, got {json_type(inside)}", path=INSIDE)
    members = cast("dict[str, Any]", inside)
    outer, inner = payload.get("type"), members.get("type")
    if inner is None and isinstance(outer, str):
        note = "missing; read from the envelope"
        return {**members, "type": outer}, (Loss(how="defaulted", path=f"{INSIDE}/type", note=note),)
    if not isinstance(inner, str):
        raise MalformedFrame(f"expected a string, got {json_type(inner)}", path=f"{INSIDE}/type")
    if outer == inner:
        return members, ()
    return members, (Loss(how="dropped", path="/type", note="the type of the payload differs and has precedence"),)


def _metadata(payload: dict[str, Any], *, plain: bool) -> tuple[str | None, int | None, str | None, tuple[Loss, ...]]:
    """Decode the envelope; an invalid member does not reject the event."""
    event_id, sequence, created_at = (
        wire.event_id_of(payload),
        wire.sequence_of(payload),
        wire.created_at_of(payload),
    )
    if not plain:
        event_id = None if find_fault(event_id) else event_id
        created_at = None if find_fault(created_at) else created_at
    losses: tuple[Loss, ...] = ()
    if event_id is None or sequence is None or created_at is None:
        losses = tuple(
            Loss(how="dropped", path=f"/{name}", note="invalid")
            for name, read in (("id", event_id), ("sequence", sequence), ("createdAt", created_at))
            if payload.get(name) is not None and read is None
        )
    if payload.get("status") not in (None, wire.COMPLETE):
        losses += (Loss(how="dropped", path="/status", note="an undocumented processing status"),)
    if not wire.METADATA.issuperset(payload):
        losses += unknown_fields({name: None for name in payload if name not in wire.METADATA})
    return event_id, sequence, created_at, losses


def _read(payload: dict[str, Any], inside: dict[str, Any]) -> tuple[Draft, ...]:
    kind: str = inside["type"]
    if (read := _READERS.get(kind)) is not None:
        return read(inside)
    if kind.startswith(wire.USER):
        draft = read_user_event(inside, INSIDE, strict=False)
        return (replace(draft or _keep(wire.without_secrets(payload)), echo=True),)
    return (_keep(payload),)


def _keep(payload: dict[str, Any]) -> Draft:
    return Draft(Opaque(channel=wire.STREAM, payload=payload))


def _tool_use(inside: dict[str, Any]) -> tuple[Draft, ...]:
    return read_tool_use(read_model(wire.ToolUse, inside, INSIDE), INSIDE)


def _tool_result(inside: dict[str, Any]) -> tuple[Draft, ...]:
    return (read_tool_result(read_model(wire.ToolResult, inside, INSIDE), INSIDE),)


def _thought(inside: dict[str, Any]) -> tuple[Draft, ...]:
    thought = read_model(wire.Message, inside, INSIDE)
    text, losses = _one_text(thought.content)
    losses += unknown_fields(thought.model_extra, INSIDE)
    return (Draft(ThoughtShared(text=text), losses=losses, live=thought.delta is True),)


def _thread(inside: dict[str, Any]) -> tuple[Draft, ...]:
    thread = read_model(wire.ThreadMessage, inside, INSIDE)
    read = read_blocks(thread.content, f"{INSIDE}/content", strict=False)
    kind = ThreadSent if thread.type == wire.THREAD_SENT else ThreadReceived
    event = kind(thread_id=thread.thread_id, content=read.content)
    return (Draft(event, losses=read.losses + unknown_fields(thread.model_extra, INSIDE)),)


def _running(inside: dict[str, Any]) -> tuple[Draft, ...]:
    extra = {name: None for name in inside if name != "type"}
    return (Draft(SessionMoved(state="running"), losses=unknown_fields(extra, INSIDE)),)


def _title(inside: dict[str, Any]) -> tuple[Draft, ...]:
    title = read_model(wire.Title, inside, INSIDE)
    losses = unknown_fields(title.model_extra, INSIDE)
    return (Draft(SessionTitled(title=title.title), losses=losses, live=True),)


def _one_text(content: list[Any]) -> tuple[str, tuple[Loss, ...]]:
    block = content[0] if len(content) == 1 else None
    if isinstance(block, dict) and len(members := cast("dict[str, Any]", block)) == TEXT_MEMBERS:
        text = members.get("text")
        if members.get("type") == "text" and isinstance(text, str):
            # Fast path for nearly every chunk: a single block without losses.
            return text, ()
    return join_texts(read_blocks(content, f"{INSIDE}/content", strict=False), f"{INSIDE}/content", between="")


def _message(inside: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.Message, inside, INSIDE)
    extra = unknown_fields(native.model_extra, INSIDE)
    if native.delta is True:
        text, losses = _one_text(native.content)
        return (Draft(MessageStreamed(text=text), losses=losses + extra, live=True),)
    if native.delta is None:
        extra += (Loss(how="defaulted", path=f"{INSIDE}/delta", note="missing; read as complete"),)
    read = read_blocks(native.content, f"{INSIDE}/content", strict=False)
    return (Draft(MessagePosted(author=Author(role="agent"), content=read.content), losses=read.losses + extra),)


def _question(inside: dict[str, Any]) -> tuple[Draft, ...]:
    asked = read_model(wire.ClarifyRequest, inside, INSIDE)
    losses = unknown_fields(asked.model_extra, INSIDE)
    choices: list[str] = []
    for place, choice in enumerate(asked.choices or []):
        if isinstance(choice, str):
            choices.append(choice)
        else:
            # The agent is blocked until an answer arrives, so keep the question.
            losses += (Loss(how="dropped", path=f"{INSIDE}/choices/{place}", note="a choice that is not a text"),)
    return (Draft(QuestionAsked(id=asked.request_id, text=asked.question, choices=tuple(choices)), losses=losses),)


def _secret(inside: dict[str, Any]) -> tuple[Draft, ...]:
    asked = read_model(wire.SecretRequest, inside, INSIDE)
    event = SecretAsked(
        id=asked.request_id,
        purpose="sudo" if asked.type == wire.SUDO_REQUEST else "secret",
        prompt=asked.prompt,
        name=asked.env_var,
    )
    return (Draft(event, losses=unknown_fields(asked.model_extra, INSIDE)),)


def _idle(inside: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.Idle, inside, INSIDE)
    losses = unknown_fields(native.model_extra, INSIDE)
    where = f"{INSIDE}/stop_reason"
    if native.stop_reason is None:
        note = "missing; read as the end of the turn"
        return (Draft(SessionMoved(state="idle"), losses=(*losses, Loss(how="defaulted", path=where, note=note))),)
    extra = dict(native.stop_reason)
    word = extra.pop("type", None)
    if not isinstance(word, str):
        raise MalformedFrame(f"expected a string, got {json_type(word)}", path=f"{where}/type")
    state = wire.state_of(word)
    if state is None:
        losses += (Loss(how="narrowed", path=f"{where}/type", note="an unknown reason, read as the end of the turn"),)
    waiting: tuple[str, ...] = ()
    reason = None
    if state == "awaiting_outcome":
        waiting, found = _event_ids(extra.pop("event_ids", None), f"{where}/event_ids")
        losses += found
    elif isinstance(extra.get("message"), str):
        reason = extra.pop("message")
    losses += unknown_fields(extra, where)
    moved = Draft(
        SessionMoved(state=state or "idle", reason=reason, waiting_for=waiting, native_state=word), losses=losses
    )
    if state != "error":
        return (moved,)
    return moved, Draft(FaultReported(message=reason or wire.ERROR_TEXT, code=wire.ERROR))


def _event_ids(given: object, where: str) -> tuple[tuple[str, ...], tuple[Loss, ...]]:
    if given is None:
        return (), (Loss(how="defaulted", path=where, note="missing; read as none"),)
    if not isinstance(given, list):
        raise MalformedFrame(f"expected an array, got {json_type(given)}", path=where)
    ids = cast("list[object]", given)
    losses = tuple(
        Loss(how="dropped", path=f"{where}/{place}", note="an id that is not a text")
        for place, one in enumerate(ids)
        if not isinstance(one, str)
    )
    return tuple(one for one in ids if isinstance(one, str)), losses


_READERS: dict[str, Callable[[dict[str, Any]], tuple[Draft, ...]]] = {
    wire.TOOL_USE: _tool_use,
    wire.MCP_TOOL_USE: _tool_use,
    wire.TOOL_RESULT: _tool_result,
    wire.MCP_TOOL_RESULT: _tool_result,
    wire.AGENT_MESSAGE: _message,
    wire.THINKING: _thought,
    wire.CLARIFY_REQUEST: _question,
    wire.SUDO_REQUEST: _secret,
    wire.SECRET_REQUEST: _secret,
    wire.THREAD_SENT: _thread,
    wire.THREAD_RECEIVED: _thread,
    wire.RUNNING: _running,
    wire.IDLE: _idle,
    wire.TITLE: _title,
}
"""Decoders of agent and session events. Calls for the host are decoded separately: one with an id gets an answer."""


def _error_body(payload: dict[str, Any], code: str, message: str) -> Draft:
    """Decode an error body, which some servers also send on the stream."""
    if fault := find_fault(payload):
        raise MalformedFrame(fault.reason, path=fault.path)
    extra = {name: None for name in payload if name not in {"error", "message"}}
    return Draft(FaultReported(message=message, code=code), losses=unknown_fields(extra))
