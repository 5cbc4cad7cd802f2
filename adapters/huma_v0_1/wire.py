"""The messages of HUMA 0.1 as they stand on the wire; native spelling lives here and nowhere else. Pure."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.events import SessionState

FROM_CLIENT = "message"
FROM_SERVER = "event"
ERRORS = "error"

HUMA_EVENT = "huma-0.1-event"
NEW_MESSAGE = "new-message"
TOOL_RESULT = "tool-result"
TOOL_CALL = "tool-call"
CANCEL_TOOL_CALL = "cancel-tool-call"
MESSAGING = "messaging"
ERROR = "error"
STATUS = "status"

CLIENT_TYPES = frozenset({HUMA_EVENT, NEW_MESSAGE, TOOL_RESULT})
SERVER_TYPES = frozenset({TOOL_CALL, CANCEL_TOOL_CALL, MESSAGING, ERROR, STATUS})

ID_LENGTH = 1024
"""Ours: the documents bound neither ids nor tool names."""
NAME_LENGTH = 128
"""Of 0.2.0; 0.1 documents no limits, and the same servers speak both."""
MAX_FRAME = 900_000
"""Bytes: a Socket.IO server that is left as it comes hangs up on a message of 1,000,000 (L74: no limit of its own)."""
IMAGE_BYTES = 4 * 1024 * 1024
IMAGE_PREFIXES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "webp", "gif"))

REJECTED = "INVALID_EVENT"
"""What the server answers to a message it does not take."""
AGENTS_PATH = "/api/agents"
KEY_HEADER = "X-API-Key"
TERMINAL_CODES = frozenset({"UNAUTHORIZED", "AGENT_NOT_FOUND", "AGENT_EXPIRED", "MISSING_AGENT_ID"})
"""Why a connection is refused for good (connection guide)."""


def _whole(given: object) -> object:
    # JSON from other languages writes whole numbers as floats.
    return int(given) if isinstance(given, float) and given.is_integer() else given


Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1_000_000)]


class Wire(BaseModel):
    """The base of all messages: types are taken literally, unknown fields are kept so that they can be listed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: str


class Open(BaseModel):
    """The base of the parts of a message."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class Enveloped(Wire):
    content: dict[str, Any]


class ContextEvent(Open):
    """The content of a `huma-0.1-event` without a type of its own."""

    name: str = Field(min_length=1)
    context: dict[str, Any]
    description: str
    skip_cancel_pending_message: bool | None = Field(default=None, alias="skipCancelPendingMessage")


class ToolResult(Open):
    """The content of a `huma-0.1-event` whose own type is `tool-result`."""

    type: Literal["tool-result"] | None = None
    tool_call_id: Id = Field(alias="toolCallId")
    status: Literal["completed", "canceled"] | None = None
    success: bool
    result: Any = None
    error: str | None = None
    skip_immediate_processing: bool | None = Field(default=None, alias="skipImmediateProcessing")
    context: dict[str, Any] | None = None


class Attachment(Open):
    url: str
    alt: str | None = None


class Participant(Open):
    id: str
    nickname: str


class ChatMessage(Open):
    """The content of a `new-message`."""

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
"""The documents show a status but not its words; these are the ones that leave no doubt."""


def state_of(word: str) -> SessionState | None:
    """Say which state a status word means, where that is clear."""
    return _STATES.get(word.strip().lower().replace("-", "_"))


def word_for(state: SessionState) -> tuple[str, bool]:
    """Say a state as HUMA would, and whether that says all of it: a client of HUMA knows none of our own words."""
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


def is_result_in_context(content: dict[str, Any]) -> bool:
    """Whether a context event is a tool result that an early client wrapped wrongly."""
    inner = content.get("context")
    return content.get("name") == TOOL_RESULT and isinstance(inner, dict) and "toolCallId" in inner


def context_event(*, name: str, context: dict[str, Any], description: str, wakes: bool) -> dict[str, Any]:
    """Write a context event; one that shall not wake the agent asks at least not to interrupt it."""
    content: dict[str, Any] = {"name": name, "context": context, "description": description}
    if not wakes:
        content["skipCancelPendingMessage"] = True
    return {"type": HUMA_EVENT, "content": content}


def tool_result(
    *, call: str, success: bool, canceled: bool, wakes: bool, context: dict[str, Any] | None, **answer: Any
) -> dict[str, Any]:
    """Write a tool result; `answer` is a result, an error, or nothing."""
    content: dict[str, Any] = {
        "type": TOOL_RESULT,
        "toolCallId": call,
        "status": "canceled" if canceled else "completed",
        "success": success,
        **answer,
    }
    if not wakes:
        content["skipImmediateProcessing"] = True
    if context is not None:
        content["context"] = context
    return {"type": HUMA_EVENT, "content": content}


def tool_call(*, call: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Write a tool-call."""
    return {"type": TOOL_CALL, "toolCallId": call, "toolName": tool, "arguments": arguments}


def cancel_tool_call(*, call: str, tool: str | None, reason: str | None) -> dict[str, Any]:
    """Write a cancel-tool-call."""
    return without_none({"type": CANCEL_TOOL_CALL, "toolCallId": call, "toolName": tool, "reason": reason})


def messaging(
    event: str,
    *,
    call: str | None,
    message: str | None = None,
    index: int | None = None,
    count: int | None = None,
    reason: str | None = None,
    extra_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a messaging event."""
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
    """Write an error."""
    return without_none({"type": ERROR, "message": message, "code": code})


def status(state: str) -> dict[str, Any]:
    """Write a status."""
    return {"type": STATUS, "status": state}


def chat_message(
    message_id: str,
    *,
    content: str,
    images: list[dict[str, Any]],
    author: tuple[str, str],
    created_at: str | None,
) -> dict[str, Any]:
    """Write a new-message."""
    author_id, nickname = author
    fields = {
        "id": message_id,
        "content": content,
        "images": images or None,
        "participant": {"id": author_id, "nickname": nickname},
        "createdAt": created_at,
        "type": "message",
    }
    return {"type": NEW_MESSAGE, "content": without_none(fields)}


def connection_query(*, agent_id: str, api_key: str) -> dict[str, str]:
    """Write the query string of the Socket.IO connection."""
    return {"agentId": agent_id, "apiKey": api_key}


def create_agent(
    *,
    name: str,
    agent_type: str,
    metadata: dict[str, Any],
    described: tuple[str, str, str],
    tools: list[dict[str, Any]],
    router_type: str | None,
    addons: dict[str, Any] | None,
    voice: dict[str, Any] | None,
    ttl_seconds: int | None,
) -> dict[str, Any]:
    """Write the body of POST /api/agents; `described` is class name, personality and instructions."""
    class_name, personality, instructions = described
    merged = {
        **metadata,
        "className": class_name,
        "personality": personality,
        "instructions": instructions,
        "tools": tools,
        "routerType": router_type,
        "addons": addons,
        "voice": voice,
    }
    body = {
        "name": name,
        "agentType": agent_type,
        "metadata": without_none(merged),
        "ttlSeconds": ttl_seconds,
    }
    return without_none(body)


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not given."""
    return {key: value for key, value in fields.items() if value is not None}
