"""The native messages of Herm and their spelling. Pure.

There are two channels: `stream` has one envelope of a list or event stream, `events` one bare, posted `user.*` event.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from gateway.adapter.checks import ID_LENGTH
from gateway.errors import LinkRefused
from gateway.events import SessionState
from gateway.events.frozen import frozen

STREAM = "stream"
EVENTS = "events"

USER = "user."
USER_MESSAGE = "user.message"
STEER = "user.steer"
INTERRUPT = "user.interrupt"
CONFIRMATION = "user.tool_confirmation"
CUSTOM_RESULT = "user.custom_tool_result"
CLARIFY_RESULT = "user.clarify_result"
SUDO_RESULT = "user.sudo_result"
SECRET_RESULT = "user.secret_result"  # noqa: S105 - the name of an event

AGENT_MESSAGE = "agent.message"
THINKING = "agent.thinking"
TOOL_USE = "agent.tool_use"
TOOL_RESULT = "agent.tool_result"
MCP_TOOL_USE = "agent.mcp_tool_use"
MCP_TOOL_RESULT = "agent.mcp_tool_result"
CUSTOM_TOOL_USE = "agent.custom_tool_use"
CLARIFY_REQUEST = "agent.clarify_request"
SUDO_REQUEST = "agent.sudo_request"
SECRET_REQUEST = "agent.secret_request"  # noqa: S105 - the name of an event
THREAD_SENT = "agent.thread_message_sent"
THREAD_RECEIVED = "agent.thread_message_received"
RUNNING = "session.status_running"
IDLE = "session.status_idle"
TITLE = "session.title_updated"

END_TURN = "end_turn"
ERROR = "error"
ERROR_TEXT = "The agent stopped with an error."
"""The text of an error without a reason."""
REQUIRES_ACTION = "requires_action"

USER_TYPES = frozenset(
    {
        USER_MESSAGE, STEER, INTERRUPT, CONFIRMATION, CUSTOM_RESULT, CLARIFY_RESULT, SUDO_RESULT, SECRET_RESULT,
    }
)  # fmt: skip
ANSWERS = frozenset({CONFIRMATION, CUSTOM_RESULT, CLARIFY_RESULT, SUDO_RESULT, SECRET_RESULT})
"""Events that answer a request of the agent; a late one has no effect."""
HINTS = frozenset({STEER, INTERRUPT})
"""Events without effect outside a turn."""
SECRETS = frozenset({SUDO_RESULT, SECRET_RESULT})
RUNTIME_TYPES = frozenset(
    {
        AGENT_MESSAGE, THINKING, TOOL_USE, TOOL_RESULT, MCP_TOOL_USE, MCP_TOOL_RESULT, CUSTOM_TOOL_USE,
        CLARIFY_REQUEST, SUDO_REQUEST, SECRET_REQUEST, THREAD_SENT, THREAD_RECEIVED, RUNNING, IDLE, TITLE,
    }
)  # fmt: skip

_STREAMED = frozenset({AGENT_MESSAGE, THINKING})
"""Events that may arrive in chunks."""

COMPLETE = "complete"
"""The only documented processing status; it adds no information."""
MCP_PREFIX = "mcp_"
"""Hermes names MCP tools `mcp_<server>_<tool>`; only the name distinguishes them from built-in tools."""

BLOCKS = 100
TEXT_LENGTH = 20_000
"""Characters of one text block, counted as UTF-16 units: the stricter reading of the documents."""
HIDDEN = "********"
SECRET_MEMBERS = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential")
"""Parts of names of members with a secret, in an event of any type."""
SECRET_WORDS = ("sudo", "secret", "password")
"""Words in an unreadable text that may contain a secret."""


class Hidden(str):
    """An outgoing password or secret value: JSON contains it, `repr` hides it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(HIDDEN)


Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH)]


class Wire(BaseModel):
    """The base of all messages: strict types; unknown fields are kept to be listed as losses."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: str


class UserMessage(Wire):
    content: list[Any]


class Steer(Wire):
    message: str


class Interrupt(Wire):
    message: str | None = None


class Confirmation(Wire):
    tool_use_id: Id
    result: Literal["allow", "deny"]
    scope: Literal["once", "session", "always"] | None = None


class CustomResult(Wire):
    tool_use_id: Id
    content: list[Any]
    is_error: bool | None = None


class ClarifyResult(Wire):
    request_id: Id
    answer: str


class SudoResult(Wire):
    request_id: Id
    password: str


class SecretResult(Wire):
    request_id: Id
    value: str


class Message(Wire):
    """The payload of agent.message and agent.thinking."""

    content: list[Any]
    delta: bool | None = None


class ToolUse(Wire):
    """The payload of agent.tool_use and agent.mcp_tool_use."""

    id: Id
    tool: Id
    input: dict[str, Any] | None = None
    status: str | None = None
    preview: str | None = None
    requires_action: bool | None = None


class CustomToolUse(Wire):
    id: Id
    tool: Id
    input: Any = None


class ToolResult(Wire):
    """The payload of agent.tool_result and agent.mcp_tool_result."""

    tool_use_id: Id
    tool: Id | None = None
    status: str | None = None
    content: list[Any]
    is_error: bool | None = None


class ClarifyRequest(Wire):
    request_id: Id
    question: str
    choices: list[Any] | None = None


class SecretRequest(Wire):
    """The payload of agent.sudo_request and agent.secret_request, which are undocumented."""

    request_id: Id
    prompt: str | None = None
    env_var: str | None = None


class ThreadMessage(Wire):
    thread_id: Id
    content: list[Any]


class Idle(Wire):
    stop_reason: dict[str, Any] | None = None


class Title(Wire):
    title: str


_STATES: dict[str, SessionState] = {END_TURN: "idle", ERROR: "error", REQUIRES_ACTION: "awaiting_outcome"}


def state_of(stop_reason: str) -> SessionState | None:
    """Return the state of a stop reason; None for an undocumented one."""
    return _STATES.get(stop_reason)


@frozen
class Place:
    """The place of an event in its session, as given by its envelope."""

    event_id: str | None = None
    sequence: int | None = None
    is_live: bool = False
    """Whether it is not part of the stored history."""
    is_delta: bool = False


def place_of(payload: object) -> Place:
    """Return the place of any payload; never raises."""
    if not isinstance(payload, dict):
        return Place()
    envelope = cast("dict[str, Any]", payload)
    inside = _inside_of(envelope)
    kind = _type_of(envelope, inside)
    delta = kind in _STREAMED and inside.get("delta") is True
    return Place(event_id_of(envelope), sequence_of(envelope), delta or kind == TITLE, delta)


def check_protocol(payload: object) -> None:
    """Refuse the flat events of Claude Managed Agents, whose paths and lists are those of Herm.

    Raises:
        LinkRefused: the event has `processed_at` and no payload; Herm has payloads and writes `processedAt`.
    """
    match payload:
        case {"payload": object()}:
            pass
        case {"type": str(kind), "processed_at": str() | None} if "." in kind:
            looks = "this looks like Claude Managed Agents, which needs its own adapter"
            detail = f"{looks}: the event {kind[:100]!r} has no payload; set url to a Herm server"
            raise LinkRefused("WRONG_PROTOCOL", detail, terminal=True)
        case _:
            pass


def _inside_of(envelope: dict[str, Any]) -> dict[str, Any]:
    inside = envelope.get("payload")
    return cast("dict[str, Any]", inside) if isinstance(inside, dict) else {}


def _type_of(envelope: dict[str, Any], inside: dict[str, Any]) -> str | None:
    kind = inside.get("type")
    if not isinstance(kind, str):
        kind = envelope.get("type")
    return kind if isinstance(kind, str) else None


def event_id_of(envelope: dict[str, Any]) -> str | None:
    """Return the id of an envelope."""
    given = envelope.get("id")
    return given if isinstance(given, str) and 1 <= len(given) <= ID_LENGTH else None


def sequence_of(envelope: dict[str, Any]) -> int | None:
    """Return the sequence of an envelope; some languages write whole numbers as floats."""
    number = envelope.get("sequence")
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    # `type` excludes bool, which is a subclass of int.
    return number if type(number) is int and 0 <= number < 2**63 else None


def created_at_of(envelope: dict[str, Any]) -> str | None:
    """Return the creation time of an envelope."""
    given = envelope.get("createdAt")
    return given if isinstance(given, str) and 1 <= len(given) <= ID_LENGTH else None


METADATA = frozenset({"id", "type", "sessionId", "sequence", "status", "payload", "processedAt", "createdAt"})


def event_type_of(payload: object) -> str | None:
    """Return the type of an envelope's payload, or of a bare event."""
    if not isinstance(payload, dict):
        return None
    members = cast("dict[str, Any]", payload)
    return _type_of(members, _inside_of(members))


def without_secrets(payload: Any) -> Any:
    """Mask passwords and secret values in an event that a server repeats.

    In a `user.*` event of an unknown type, names of members identify the secrets.
    """
    kinds = _user_types_of(payload)
    if not kinds:
        return payload
    if kinds & SECRETS:
        return _mask_values(payload)
    return _mask_members(payload) if kinds - USER_TYPES else payload


def _user_types_of(payload: Any) -> set[str]:
    """Return the `user.*` types of an envelope and of its payload."""
    if not isinstance(payload, dict):
        return set()
    members = cast("dict[str, Any]", payload)
    types = (members.get("type"), _inside_of(members).get("type"))
    return {kind for kind in types if isinstance(kind, str) and kind.startswith(USER)}


def _mask_members(payload: Any) -> Any:
    match payload:
        case dict():
            members = cast("dict[str, Any]", payload)
            return {
                key: HIDDEN if any(word in key.lower() for word in SECRET_MEMBERS) else _mask_members(inner)
                for key, inner in members.items()
            }
        case list():
            return [_mask_members(inner) for inner in cast("list[Any]", payload)]
        case _:
            return payload


def _mask_values(value: Any) -> Any:
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            return {
                key: HIDDEN if key in {"password", "value"} else _mask_values(inner) for key, inner in members.items()
            }
        case list():
            return [_mask_values(inner) for inner in cast("list[Any]", value)]
        case _:
            return value


def envelope(
    payload: dict[str, Any],
    *,
    event_id: str | None,
    session_id: str | None = None,
    sequence: int | None,
    created_at: str | None,
    live: bool,
) -> dict[str, Any]:
    """Return the envelope of an event in lists and streams."""
    fields = {
        "id": event_id,
        "type": payload["type"],
        "sessionId": session_id,
        "sequence": sequence,
        "status": None if live else COMPLETE,
        "payload": payload,
        "createdAt": created_at,
    }
    return without_none(fields)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the payload of an event, without None members."""
    return without_none({"type": kind, **fields})


def clarify_request(*, request_id: str, question: str, choices: list[str] | None) -> dict[str, Any]:
    """Return a clarification request; its choices are null, not absent, for a free answer."""
    return {"type": CLARIFY_REQUEST, "request_id": request_id, "question": question, "choices": choices}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def create_session(*, user_id: str | None, title: str | None, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the body of POST /v1/agents/{agentId}/sessions."""
    return without_none({"userId": user_id, "title": title, "metadata": metadata or None})


def session_id_of(answer: object) -> str | None:
    """Return the id of a new session, in any form that related protocols use."""
    match answer:
        case {"id": str(found)} | {"sessionId": str(found)} | {"session_id": str(found)} if found:
            return found
        case {"data": dict()} | {"session": dict()}:
            inner = cast("dict[str, object]", answer)
            return session_id_of(inner.get("data") or inner.get("session"))
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: its events, and the cursor of the next page, if any."""

    events: tuple[Any, ...]
    cursor: str | None


_LISTS = ("data", "events", "items")
_CURSORS = ("nextCursor", "next_cursor", "nextPage", "next_page")


def read_page(answer: object) -> Page | None:
    """Decode a page in any form that related protocols use; None if it has none of them."""
    match answer:
        case list():
            return Page(tuple(cast("list[Any]", answer)), None)
        case {"data": list()} | {"events": list()} | {"items": list()}:
            members = cast("dict[str, Any]", answer)
        case _:
            return None
    events = next(tuple(cast("list[Any]", members[name])) for name in _LISTS if isinstance(members.get(name), list))
    more = members.get("hasMore", members.get("has_more"))
    cursor = next((str(members[name]) for name in _CURSORS if isinstance(members.get(name), str | int)), "")
    if more is True and not cursor and events:
        # Some related protocols use the last event's id as the cursor of the next page.
        cursor = next((known for event in reversed(events) if (known := place_of(event).event_id)), "")
    return Page(events, None if more is False else cursor or None)


_BUSY_WORDS = ("busy", "in_progress", "already_running", "turn_running", "is_running", "turn_active", "active_turn")
_GONE_WORDS = ("archived", "deleted", "terminated", "closed", "not_found")


def means_busy(code: str) -> bool:
    """Whether an error code means a running turn."""
    return any(word in code.lower() for word in _BUSY_WORDS)


def means_absent(code: str) -> bool:
    """Whether an error code means that the session has ended permanently."""
    return any(word in code.lower() for word in _GONE_WORDS)


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without None values."""
    return {key: value for key, value in fields.items() if value is not None}
