"""The native messages of both HUMA versions and their spelling. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.adapter.checks import ID_LENGTH
from gateway.events import SessionState

FROM_CLIENT = "message"
FROM_SERVER = "event"
ERRORS = "error"

TOOL_RESULT = "tool-result"
TOOL_CALL = "tool-call"
CANCEL_TOOL_CALL = "cancel-tool-call"
MESSAGING = "messaging"
ERROR = "error"
STATUS = "status"

SERVER_TYPES = frozenset({TOOL_CALL, CANCEL_TOOL_CALL, MESSAGING, ERROR, STATUS})
EMITS = frozenset({"tool.requested", "tool.canceled", "message.posted", "typing.changed", "session.moved"})
"""The kinds of server messages."""

NAME_LENGTH = 128
"""Documented only by 0.2.0, but the same servers speak both versions."""
IMAGE_BYTES = 4 * 1024 * 1024
IMAGE_PREFIXES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "webp", "gif"))

REJECTED = "INVALID_EVENT"
"""The server's error code for a rejected message."""
AGENTS_PATH = "/api/agents"
KEY_HEADER = "X-API-Key"
TERMINAL_CODES = frozenset({"UNAUTHORIZED", "AGENT_NOT_FOUND", "AGENT_EXPIRED", "MISSING_AGENT_ID"})
"""Codes of final refusals (connection guide)."""


def _whole(given: object) -> object:
    # JSON from other languages writes whole numbers as floats.
    return int(given) if isinstance(given, float) and given.is_integer() else given


Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1_000_000)]


class Part(BaseModel):
    """The base of all parts of a message: strict types; unknown fields are kept to be listed as losses."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class Wire(Part):
    """The base of all messages."""

    type: str


class Attachment(Part):
    url: str
    alt: str | None = None


class Participant(Part):
    id: str
    nickname: str


class ChatMessage(Part):
    """The content of a `new-message` of 0.1, and of `context.message` in 0.2.0."""

    id: Id
    content: str
    participant: Participant
    images: list[Attachment] | None = None
    created_at: str | None = Field(default=None, alias="createdAt")
    type: Literal["message"] | None = None


class ToolCall(Wire):
    tool_call_id: Id = Field(alias="toolCallId")
    tool_name: Id = Field(alias="toolName")
    arguments: Any = None


class CancelToolCall(Wire):
    tool_call_id: Id = Field(alias="toolCallId")
    tool_name: Id | None = Field(default=None, alias="toolName")
    reason: str | None = None


class Messaging(Wire):
    event: Literal["typing_start", "message_sent", "typing_end"]
    tool_call_id: Id | None = Field(default=None, alias="toolCallId")
    message: str | None = None
    message_index: Count | None = Field(default=None, alias="messageIndex")
    message_count: Count | None = Field(default=None, alias="messageCount")
    reason: str | None = None
    extra_args: dict[str, Any] | None = None


class ErrorReport(Wire):
    message: str
    code: str | None = None


class Status(Wire):
    status: str


_STATES: dict[str, SessionState] = {
    "idle": "idle",
    "ready": "idle",
    "connected": "idle",
    "waiting": "idle",
    "active": "running",
    "busy": "running",
    "running": "running",
    "thinking": "running",
    "processing": "running",
    "typing": "running",
    "created": "starting",
    "starting": "starting",
    "connecting": "starting",
    "awaiting_input": "awaiting_input",
    "awaiting_approval": "awaiting_approval",
    "awaiting_outcome": "awaiting_outcome",
    "paused": "paused",
    "finished": "finished",
    "completed": "finished",
    "ended": "finished",
    "stopped": "stopped",
    "disconnected": "stopped",
    "error": "error",
    "failed": "error",
}
"""The documents show a status but not its words; these words are unambiguous."""


def state_of(word: str) -> SessionState | None:
    """Return the state of a status word, if it is unambiguous."""
    return _STATES.get(word.strip().lower().replace("-", "_"))


def word_for(state: SessionState) -> tuple[str, bool]:
    """Return the native word of a state, and whether it is exact; HUMA clients know only native words."""
    match state:
        case "idle":
            return "idle", True
        case "running":
            return "busy", True
        case "error":
            return "error", True
        case "starting" | "awaiting_outcome" | "awaiting_approval":
            return "busy", False
        case _:
            return "idle", False


def tool_call(*, call: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": TOOL_CALL, "toolCallId": call, "toolName": tool, "arguments": arguments}


def cancel_tool_call(*, call: str, tool: str | None, reason: str | None) -> dict[str, Any]:
    return without_none({"type": CANCEL_TOOL_CALL, "toolCallId": call, "toolName": tool, "reason": reason})


def messaging(
    event: str,
    *,
    call: str | None,
    message: str | None = None,
    place: tuple[int | None, int | None] = (None, None),
    reason: str | None = None,
    extra_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a messaging event; `place` is the index in a burst and the count of its messages."""
    index, count = place
    fields = {
        "type": MESSAGING,
        "event": event,
        "toolCallId": call,
        "message": message,
        "messageIndex": index,
        "messageCount": count,
        "reason": reason,
        "extra_args": extra_args,
    }
    return without_none(fields)


def error(*, message: str, code: str | None) -> dict[str, Any]:
    return without_none({"type": ERROR, "message": message, "code": code})


def status(state: str) -> dict[str, Any]:
    return {"type": STATUS, "status": state}


def chat_message(
    message_id: str,
    *,
    content: str,
    images: list[dict[str, Any]],
    author: tuple[str, str],
    created_at: str | None,
) -> dict[str, Any]:
    author_id, nickname = author
    fields = {
        "id": message_id,
        "content": content,
        "images": images or None,
        "participant": {"id": author_id, "nickname": nickname},
        "createdAt": created_at,
        "type": "message",
    }
    return without_none(fields)


def connection_query(*, agent_id: str, api_key: str) -> dict[str, str]:
    """Return the query of the Socket.IO connection."""
    return {"agentId": agent_id, "apiKey": api_key}


@dataclass(frozen=True, slots=True)
class NewAgent:
    """The members of the body of POST /api/agents."""

    name: str
    agent_type: str
    metadata: dict[str, Any]
    class_name: str
    personality: str
    instructions: str
    tools: list[dict[str, Any]]
    router_type: str | None
    addons: dict[str, Any] | None
    voice: dict[str, Any] | None
    ttl_seconds: int | None


def create_agent(agent: NewAgent) -> dict[str, Any]:
    """Return the body of POST /api/agents."""
    merged = {
        **agent.metadata,
        "className": agent.class_name,
        "personality": agent.personality,
        "instructions": agent.instructions,
        "tools": agent.tools,
        "routerType": agent.router_type,
        "addons": agent.addons,
        "voice": agent.voice,
    }
    body = {
        "name": agent.name,
        "agentType": agent.agent_type,
        "metadata": without_none(merged),
        "ttlSeconds": agent.ttl_seconds,
    }
    return without_none(body)


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without None values."""
    return {key: value for key, value in fields.items() if value is not None}
