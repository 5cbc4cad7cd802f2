"""The native messages of an OpenHands V1 agent-server and their spelling. Pure.

`OV` numbers are rules of the protocol. Received frames have the channel of their socket, sent frames the name of their
POST.
"""

import re
from typing import Annotated, Any, cast

from pydantic import Field

from adapters.openhands.wire import Wire, v1_version
from gateway.adapter.checks import ID_LENGTH
from gateway.events import SessionState
from gateway.events.frozen import frozen
from gateway.strict_json import find_fault

PROTOCOL = "openhands/1.58"

EVENTS = "events"
"""One bare event, of the events socket or of a page."""
SESSION = "session"
"""One frame of the session socket: an event with its sequence, or news of the socket (OV11)."""
SOCKETS = frozenset({EVENTS, SESSION})

POST_MESSAGE = "POST events"
POST_INTERRUPT = "POST interrupt"
POST_CONFIRMATION = "POST respond_to_confirmation"
POST_RUN = "POST run"
POST_PAUSE = "POST pause"
POST_CONDENSE = "POST condense"
POST_POLICY = "POST confirmation_policy"
POST_ANALYZER = "POST security_analyzer"
POST_PATHS = {
    POST_MESSAGE: "/events",
    POST_INTERRUPT: "/interrupt",
    POST_CONFIRMATION: "/events/respond_to_confirmation",
    POST_RUN: "/run",
    POST_PAUSE: "/pause",
    POST_CONDENSE: "/condense",
    POST_POLICY: "/confirmation_policy",
    POST_ANALYZER: "/security_analyzer",
}
"""The path of each sent channel below `conversation_path`."""

CONVERSATIONS_PATH = "/api/conversations"
MCP_SERVER = "dragoman"
"""Our name in `mcp_config`; with a second MCP server it is the prefix of our tools (OV47)."""

OLDEST = (1, 23)
"""The first version with `/interrupt` (OV1)."""
SEQUENCED = (1, 45)
"""The first version with the session socket (OV1)."""

FRAME_BYTES = 16 * 1024 * 1024
"""The server closes with 1009 on a larger frame (OV20)."""
EVENT_BYTES = 4 * 1024 * 1024
"""The session socket closes with 1013 on a larger event (OV20)."""

CLOSE_UNAUTHORIZED = 4001
CLOSE_UNKNOWN = 4004
CLOSE_LATER = 1013
CLOSE_TOO_LARGE = 1009
"""Our own frame was too large (OV7)."""
FRAME_TOO_LARGE = "frame_too_large"
"""The reason of 1013 for an event that only pages can show (OV20)."""

SYNC = "sync"
DURABLE = "durable"
TRANSIENT = "transient"
DELTA = "delta"
ITEM_STARTED = "item_started"
ITEM_ABORTED = "item_aborted"
SOCKET_ERROR = "error"
AUTH = "auth"

SYSTEM_PROMPT = "SystemPromptEvent"
MESSAGE = "MessageEvent"
ACTION = "ActionEvent"
OBSERVATION = "ObservationEvent"
AGENT_ERROR = "AgentErrorEvent"
REJECTION = "UserRejectObservation"
STATE_UPDATE = "ConversationStateUpdateEvent"
PAUSED_EVENT = "PauseEvent"
INTERRUPTED_EVENT = "InterruptEvent"
CONVERSATION_ERROR = "ConversationErrorEvent"
SERVER_ERROR = "ServerErrorEvent"
STREAMING_DELTA = "StreamingDeltaEvent"
ACP_TOOL_CALL = "ACPToolCallEvent"
HOOK = "HookExecutionEvent"
COMPLETION_LOG = "LLMCompletionLogEvent"
PAUSE_REASONS = {PAUSED_EVENT: "pause", INTERRUPTED_EVENT: "interrupt"}
MESSAGE_HOOK = "UserPromptSubmit"
BLOCKED_CODE = "MESSAGE_BLOCKED"
"""Our code of a message that a hook has blocked (OV68)."""

EXECUTION_STATUS = "execution_status"
FULL_STATE = "full_state"
AGENT_STATE = "agent_state"

IDLE = "idle"
RUNNING = "running"
WAITING = "waiting_for_confirmation"
PAUSED = "paused"
FINISHED = "finished"
ERROR = "error"
STUCK = "stuck"
DELETING = "deleting"

HIDDEN = "********"

FINISH_ACTION = "FinishAction"
THINK_ACTION = "ThinkAction"
MCP_ACTION = "MCPToolAction"
CLIENT_ACTION = "ClientAction_"
"""The beginning of the action kinds of client tools (OV44)."""
TOOL_KINDS = {
    "terminal": "Terminal",
    "file_editor": "FileEditor",
    "task_tracker": "TaskTracker",
    "task": "Task",
    "finish": "Finish",
    "think": "Think",
}
"""The beginning of the kinds of a tool's action and observation; other tools have those of MCP (OV19, OV38)."""
SILENT_OBSERVATIONS = frozenset({"FinishObservation", "ThinkObservation"})
"""Observations that add nothing to their action."""
SILENT_KEYS = frozenset({"stats", "last_user_message_id", AGENT_STATE})
"""State updates of the server's own records."""
UNKNOWN_RISK = "UNKNOWN"
UNPARSED = "_openhands_malformed_tool_call"
"""The argument that marks a call whose arguments the server could not parse (OV38)."""
INTERRUPTED_CALL = "Tool call interrupted before completion"
RESTARTED_CALL = "A restart occurred while this tool was in progress"
"""Prefixes of the error texts of calls with an unknown outcome (OV31, OV40)."""

Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH)]
TIME_LENGTH = 64
Time = Annotated[str, Field(min_length=1, max_length=TIME_LENGTH)]


class StoredEvent(Wire):
    """The members of every stored event; the tree of `parent_id` is not used."""

    kind: str
    id: Id
    timestamp: Time
    source: str | None = None
    parent_id: Any = None


class LlmMessage(Wire):
    role: str
    content: list[Any]
    reasoning_content: str | None = None
    thinking_blocks: list[Any] = []


class MessageEvent(StoredEvent):
    llm_message: LlmMessage
    llm_response_id: Any = None
    activated_skills: list[Any] = []
    extended_content: list[Any] = []
    sender: str | None = None


class ActionEvent(StoredEvent):
    """A call of the agent; `action` is absent if the server could not use it (OV38)."""

    thought: list[Any] = []
    reasoning_content: str | None = None
    thinking_blocks: list[Any] = []
    action: dict[str, Any] | None = None
    tool_name: Id
    tool_call_id: Id
    tool_call: dict[str, Any] | None = None
    llm_response_id: Any = None
    security_risk: str = UNKNOWN_RISK
    summary: str | None = None


class ObservationEvent(StoredEvent):
    tool_name: Id
    tool_call_id: Id
    action_id: Id
    observation: dict[str, Any]
    extended_content: list[Any] = []


class Observation(Wire):
    """The members of an observation that every tool has; the others are part of the result."""

    kind: str
    content: list[Any] = []
    is_error: bool = False


class AgentErrorEvent(StoredEvent):
    tool_name: Id
    tool_call_id: Id
    error: str
    classification: Any = None


class UserRejection(StoredEvent):
    tool_name: Id
    tool_call_id: Id
    action_id: Id
    rejection_reason: str = ""
    rejection_source: str = "user"


class StateUpdate(StoredEvent):
    key: str
    value: Any = None


class ConversationError(StoredEvent):
    code: str = ""
    detail: str = ""
    classification: Any = None


class HookExecution(StoredEvent):
    hook_event_type: str | None = None
    blocked: bool | None = None
    reason: str | None = None


class ServerError(Wire):
    """A ServerErrorEvent or an `error` frame: the answer to a bad frame of this client (OV15)."""

    code: str = ""
    detail: str = ""
    kind: Any = None
    type: Any = None
    id: Any = None
    timestamp: Any = None
    source: Any = None


class StreamingDelta(Wire):
    """A piece of text on the events socket; the first one is empty."""

    kind: Any = None
    id: Any = None
    timestamp: Any = None
    source: Any = None
    parent_id: Any = None
    content: str | None = None
    reasoning_content: str | None = None


class ItemDelta(Wire):
    """A piece of text on the session socket; `item_id` is the id of the event to come (OV12)."""

    type: Any = None
    item_id: Id
    attempt: int = Field(default=1, ge=1, lt=2**31)
    order: Any = None
    kind: str
    content: str
    chunk_id: Any = None
    choice_index: Any = None


class AcpToolCall(StoredEvent):
    """The start or the end of a tool call of an ACP agent (OV55)."""

    tool_call_id: Id
    title: str = ""
    status: str | None = None
    tool_kind: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: list[Any] | None = None
    is_error: bool = False


class UserMessage(Wire):
    """A message of a client: the body of `POST events`, or a frame of a socket, which always runs (OV28)."""

    role: str
    content: list[Any] | str
    run: bool | None = None


class ConfirmationBody(Wire):
    accept: bool
    reason: str | None = None


_STATES: dict[str, SessionState] = {
    IDLE: "idle",
    RUNNING: "running",
    WAITING: "awaiting_approval",
    PAUSED: "paused",
    FINISHED: "finished",
    ERROR: "error",
    STUCK: "error",
    DELETING: "stopped",
}
_WORDS: dict[SessionState, str] = {
    "starting": RUNNING,
    "running": RUNNING,
    "idle": IDLE,
    "awaiting_input": FINISHED,
    "awaiting_approval": WAITING,
    "awaiting_outcome": RUNNING,
    "paused": PAUSED,
    "finished": FINISHED,
    "stopped": DELETING,
    "error": ERROR,
}


def state_of(status: str) -> SessionState | None:
    """Decode an execution status (OV27); None for an undocumented one."""
    return _STATES.get(status)


def word_for(state: SessionState) -> str:
    """Encode a state as an execution status."""
    return _WORDS[state]


def action_kind(tool: str) -> str:
    """Return the kind of a tool's action."""
    return f"{TOOL_KINDS.get(tool, 'MCPTool')}Action"


def observation_kind(tool: str) -> str:
    """Return the kind of a tool's observation."""
    return f"{TOOL_KINDS.get(tool, 'MCPTool')}Observation"


_VERSION = re.compile(r"(\d+)\.(\d+)")


def version_of(info: object) -> tuple[int, int] | None:
    """Return major and minor version from `/server_info`; None if it names none (OV2)."""
    found = _VERSION.match(v1_version(info) or "")
    return (int(found[1]), int(found[2])) if found else None


def conversation_path(conversation_id: str) -> str:
    return f"{CONVERSATIONS_PATH}/{conversation_id}"


def search_path(conversation_id: str) -> str:
    """Return the path of the pages of stored events (OV21)."""
    return f"{conversation_path(conversation_id)}/events/search"


def count_path(conversation_id: str) -> str:
    return f"{conversation_path(conversation_id)}/events/count"


def navigate_path(conversation_id: str) -> str:
    """Return the path that moves the end of a conversation to an earlier event (OV60)."""
    return f"{conversation_path(conversation_id)}/navigate"


def socket_path(channel: str, conversation_id: str) -> str:
    return f"/sockets/{channel}/{conversation_id}"


def auth(key: str) -> dict[str, Any]:
    """Return the first frame of a socket; a third key would make it a message (OV5)."""
    return {"type": AUTH, "session_api_key": key}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_block(urls: list[str]) -> dict[str, Any]:
    return {"type": "image", "image_urls": urls}


def user_message(content: list[dict[str, Any]], *, run: bool) -> dict[str, Any]:
    """Return the body of `POST events` (OV28)."""
    return {"role": "user", "content": content, "run": run}


def confirmation(*, accept: bool, reason: str | None) -> dict[str, Any]:
    """Return the body of `POST respond_to_confirmation` (OV36)."""
    return {"accept": accept} if reason is None else {"accept": accept, "reason": reason}


@frozen
class Page:
    """One page of stored events, and the id of the first event of the next page."""

    events: tuple[Any, ...]
    next_page_id: str | None


def read_page(answer: object) -> Page | None:
    """Decode a page of `events/search`; None for another answer."""
    match answer:
        case {"items": list(), "next_page_id": str() | None}:
            members = cast("dict[str, Any]", answer)
            return Page(tuple(members["items"]), members["next_page_id"] or None)
        case {"items": list()}:
            return Page(tuple(cast("dict[str, Any]", answer)["items"]), None)
        case _:
            return None


def event_in(channel: str, payload: object) -> dict[str, Any] | None:
    """Return the event of a received frame; None for news of the session socket and anything else."""
    match payload:
        case {"type": "durable" | "transient", "event": dict()} if channel == SESSION:
            return cast("dict[str, Any]", payload)["event"]
        case {"kind": str()} if channel == EVENTS:
            return cast("dict[str, Any]", payload)
        case _:
            return None


def sequence_of(payload: object) -> int | None:
    """Return the index of a durable frame in the store (OV11)."""
    match payload:
        case {"type": "durable", "seq": int(number)} if type(number) is int and 0 <= number < 2**63:
            return number
        case _:
            return None


def through_of(payload: object) -> int | None:
    """Return the index of the last stored event from a sync frame: -1 without any; None for another frame (OV11)."""
    match payload:
        case {"type": "sync", "through_seq": int(number)} if type(number) is int and -1 <= number < 2**63:
            return number
        case {"type": "sync", "through_seq": object() as given} if given is not None:
            return None
        case {"type": "sync"}:
            return -1
        case _:
            return None


def event_id_of(event: object) -> str | None:
    """Return the id of an event."""
    match event:
        case {"id": str(given)} if 1 <= len(given) <= ID_LENGTH and not find_fault(given):
            return given
        case _:
            return None


def is_full_state(event: object) -> bool:
    """Whether an event is the snapshot that ends a run; it is never stored and its id is always new (OV34)."""
    match event:
        case {"kind": "ConversationStateUpdateEvent", "key": "full_state"}:
            return True
        case _:
            return False


def status_in(event: object) -> str | None:
    """Return the execution status that a state update or a snapshot names."""
    match event:
        case {"kind": "ConversationStateUpdateEvent", "key": "execution_status", "value": str(status)}:
            return status
        case {"kind": "ConversationStateUpdateEvent", "key": "full_state", "value": {"execution_status": str(status)}}:
            return status
        case _:
            return None


_SECRET_PARTS = ("password", "secret", "api_key", "apikey", "authorization", "credential", "acp_session_id")


def without_secrets(payload: Any) -> Any:
    """Mask texts in members with the name of a secret, such as the resume secret of an ACP agent (OV54)."""
    match payload:
        case dict():
            members = cast("dict[str, Any]", payload)
            return {
                key: HIDDEN if isinstance(inner, str) and _is_secret(key) else without_secrets(inner)
                for key, inner in members.items()
            }
        case list():
            return [without_secrets(inner) for inner in cast("list[Any]", payload)]
        case _:
            return payload


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return lower == "token" or lower.endswith("_token") or any(part in lower for part in _SECRET_PARTS)
