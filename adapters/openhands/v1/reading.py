"""Decodes the events of both sockets and the frames of the session socket. Pure."""

from collections.abc import Callable
from typing import Any, Literal, cast

from adapters.openhands.v1 import wire
from adapters.openhands.v1.acp import read_acp_call
from adapters.openhands.v1.calls import read_action, read_agent_error, read_observation, read_rejection
from adapters.openhands.v1.content import read_blocks
from adapters.openhands.v1.drafts import BLOCKED, opaque, reasoning_of, silent, stored, unknown_of, unread
from adapters.openhands.wire import digest_of
from gateway.errors import MalformedFrame
from gateway.events import (
    Author,
    Draft,
    FaultReported,
    Loss,
    MessagePosted,
    MessageStreamed,
    Opaque,
    SessionMoved,
    ThoughtShared,
)
from gateway.events.frozen import replace
from gateway.strict_json import json_type, read_model

_MOST_TITLES = 200
_DETAIL_LENGTH = 1_000
_ROLES: dict[str, Literal["agent", "user", "system"]] = {"agent": "agent", "user": "user", "environment": "system"}


def read_session_frame(payload: dict[str, Any]) -> tuple[Draft, ...] | None:
    """Decode a frame of the session socket; None for an unknown type.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    match payload.get("type"):
        case wire.DURABLE:
            sequence = payload.get("seq")
            # `type` excludes bool, which is a subclass of int.
            if type(sequence) is not int or not 0 <= sequence < 2**63:
                raise MalformedFrame("expected a whole number from 0", path="/seq")
            drafts = _inside(payload)
            return tuple([draft if draft.live else replace(draft, native_sequence=sequence) for draft in drafts])
        case wire.TRANSIENT:
            return tuple(
                replace(draft, native_id=None, live=draft.live or isinstance(draft.event, Opaque))
                for draft in _inside(payload)
            )
        case wire.DELTA:
            return (_delta(payload),)
        case wire.SOCKET_ERROR:
            return (_server_error(payload),)
        case wire.SYNC | wire.ITEM_STARTED | wire.ITEM_ABORTED | wire.AUTH:
            return (silent(payload, wire.SESSION),)
        case _:
            return None


def _inside(payload: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode the event of an envelope; paths of its losses begin at the event, as on the events socket."""
    event = payload.get("event")
    if not isinstance(event, dict):
        raise MalformedFrame(f"expected an object, got {json_type(event)}", path="/event")
    try:
        return read_event(cast("dict[str, Any]", event))
    except MalformedFrame as exc:
        raise MalformedFrame(exc.reason, path=f"/event{exc.path}") from exc


def read_event(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode a bare event.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    kind = event.get("kind")
    if not isinstance(kind, str):
        raise MalformedFrame(f"expected a string, got {json_type(kind)}", path="/kind")
    read = _READERS.get(kind)
    return (opaque(event),) if read is None else read(event)


def _message(event: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.MessageEvent, event)
    said = native.llm_message
    content, losses = read_blocks(said.content, "/llm_message/content")
    losses += unknown_of(native) + unread(native, "activated_skills", "extended_content")
    losses += unknown_of(said, "/llm_message")
    if not said.reasoning_content:
        losses += unread(said, "thinking_blocks", path="/llm_message")
    role = _ROLES.get(native.source or "", "system")
    if native.source not in _ROLES:
        losses += (Loss(how="narrowed", path="/source", note="read as the system's"),)
    if said.role != ("assistant" if role == "agent" else "user"):
        losses += (Loss(how="narrowed", path="/llm_message/role", note="the source has precedence"),)
    posted = MessagePosted(author=Author(role=role, name=native.sender), content=content)
    message = stored(native, posted, losses, echo=role == "user")
    return (*reasoning_of(native, said.reasoning_content), message)


def _state_update(event: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.StateUpdate, event)
    match native.key, native.value:
        case wire.EXECUTION_STATUS, str(status):
            moved, losses = _moved(status, "/value")
            draft = stored(native, moved, losses + unknown_of(native))
            # OV40, OV56: after a crash the server reports the end of the first open action at most.
            return (replace(draft, abandons_actions=moved.state == "error"),)
        case wire.EXECUTION_STATUS, other:
            raise MalformedFrame(f"expected a string, got {json_type(other)}", path="/value")
        case wire.FULL_STATE, {"execution_status": str(status)}:
            # Its id is new each time, and it is stored nowhere (OV22).
            moved, losses = _moved(status, "/value/execution_status")
            return (Draft(moved, native_time=native.timestamp, losses=losses, live=True),)
        case wire.FULL_STATE, _:
            raise MalformedFrame("expected a state with a status", path="/value/execution_status")
        case key, _ if key in wire.SILENT_KEYS:
            return (silent(event),)
        case _:
            return (opaque(event),)


def _moved(status: str, path: str) -> tuple[SessionMoved, tuple[Loss, ...]]:
    state = wire.state_of(status)
    losses: tuple[Loss, ...] = ()
    if state is None:
        losses = (Loss(how="narrowed", path=path, note="an unknown status, read as running"),)
    reason = status if status == wire.STUCK else None
    return SessionMoved(state=state or "running", reason=reason, native_state=status), losses


def _paused(event: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.StoredEvent, event)
    moved = SessionMoved(state="paused", reason=wire.PAUSE_REASONS[native.kind], native_state=native.kind)
    return (stored(native, moved, unknown_of(native)),)


def _conversation_error(event: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.ConversationError, event)
    fault = FaultReported(message=native.detail or native.code, code=native.code or None)
    return (stored(native, fault, unknown_of(native) + unread(native, "classification")),)


def _server_error(payload: dict[str, Any]) -> Draft:
    """Decode the answer to a bad frame of this client, whose detail may quote the whole frame (OV15)."""
    native = read_model(wire.ServerError, payload)
    losses = unknown_of(native)
    detail = native.detail[:_DETAIL_LENGTH]
    if detail != native.detail:
        losses += (Loss(how="narrowed", path="/detail", note=f"cut to {_DETAIL_LENGTH} characters"),)
    return Draft(FaultReported(message=detail or native.code, code=native.code or None), losses=losses)


def _hook(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Keep a hook; one that has blocked a message is also a fault, because nothing works on the message (OV68)."""
    native = read_model(wire.HookExecution, event)
    if native.blocked is not True or native.hook_event_type != wire.MESSAGE_HOOK:
        return (opaque(event),)
    reason = f": {native.reason}" if native.reason else ""
    fault = FaultReported(message=f"a hook of the server has blocked the message{reason}", code=wire.BLOCKED_CODE)
    return opaque(event), stored(native, fault, suffix=BLOCKED)


def _delta(payload: dict[str, Any]) -> Draft:
    native = read_model(wire.ItemDelta, payload)
    losses = unknown_of(native)
    match native.kind:
        case "text" if native.content:
            # A higher attempt replaces the text of the lower one (OV12).
            item = native.item_id if native.attempt == 1 else f"{native.item_id}#{native.attempt}"
            return Draft(MessageStreamed(text=native.content, message_id=item), losses=losses, live=True)
        case "reasoning" if native.content:
            return Draft(ThoughtShared(text=native.content), losses=losses, live=True)
        case _:
            return silent(payload, wire.SESSION)


def _streaming_delta(event: dict[str, Any]) -> tuple[Draft, ...]:
    native = read_model(wire.StreamingDelta, event)
    losses = unknown_of(native)
    drafts: tuple[Draft, ...] = ()
    if native.reasoning_content:
        drafts += (Draft(ThoughtShared(text=native.reasoning_content), losses=losses, live=True),)
    if native.content:
        drafts += (Draft(MessageStreamed(text=native.content), losses=losses, live=True),)
    return drafts or (silent(event),)


def _prompt(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Keep size and hash of the prompt and its tools, which every conversation repeats, and the tools' names."""
    shorter, losses = _shorten(event, "system_prompt", "dynamic_context", "tools")
    if isinstance(tools := event.get("tools"), list):
        titles = [title for tool in cast("list[Any]", tools)[:_MOST_TITLES] if (title := _title_of(tool))]
        shorter["tools"] = {**shorter["tools"], "titles": titles}
    return (opaque(shorter, losses),)


def _title_of(tool: Any) -> str | None:
    match tool:
        case {"title": str(title)}:
            return title
        case _:
            return None


def _completion_log(event: dict[str, Any]) -> tuple[Draft, ...]:
    """Keep size and hash of a logged model call, which contains the whole prompt."""
    return (opaque(*_shorten(event, "log_data")),)


def _shorten(event: dict[str, Any], *names: str) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    long = [name for name in names if event.get(name) is not None and not _is_digest(event[name])]
    losses = tuple(Loss(how="narrowed", path=f"/{name}", note="stored as size and hash") for name in long)
    return {**event, **{name: digest_of(event[name]) for name in long}}, losses


def _is_digest(value: Any) -> bool:
    match value:
        case {"bytes": int(), "sha256": str()}:
            return True
        case _:
            return False


_READERS: dict[str, Callable[[dict[str, Any]], tuple[Draft, ...]]] = {
    wire.MESSAGE: _message,
    wire.ACTION: read_action,
    wire.OBSERVATION: read_observation,
    wire.AGENT_ERROR: read_agent_error,
    wire.REJECTION: read_rejection,
    wire.STATE_UPDATE: _state_update,
    wire.PAUSED_EVENT: _paused,
    wire.INTERRUPTED_EVENT: _paused,
    wire.CONVERSATION_ERROR: _conversation_error,
    wire.SERVER_ERROR: lambda event: (_server_error(event),),
    wire.HOOK: _hook,
    wire.STREAMING_DELTA: _streaming_delta,
    wire.ACP_TOOL_CALL: read_acp_call,
    wire.SYSTEM_PROMPT: _prompt,
    wire.COMPLETION_LOG: _completion_log,
}
"""Decoders by kind; other kinds are opaque."""
