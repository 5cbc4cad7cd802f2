"""The native messages of OpenHands and their spelling. Pure.

`OH` numbers are rules of the protocol (V0, as of OpenHands 0.62).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from gateway.adapter.checks import ID_LENGTH
from gateway.events import SessionState

PROTOCOL = "openhands/0.62"
EVENTS = "oh_event"
ACTIONS = "oh_action"
"""The event of the public document; every server from 0.17 listens for it (OH2)."""
USER_ACTIONS = "oh_user_action"
"""The name that the web frontend sends; servers since March 2025 listen for it, too (OH2)."""
CLIENT_CHANNELS = frozenset({ACTIONS, USER_ACTIONS})

MESSAGE_BYTES = 4 * 1024 * 1024
"""The server drops a larger message without an error (OH58)."""
OVERLAP = 50
"""Ids below the highest one from which a link resumes: live order is not id order (OH18)."""
PAGE = 100
"""Maximum number of events in a REST response (OH63)."""

UNKNOWN = "UNKNOWN"
"""Our word for a conversation unknown to the server, which answers `null`."""
USUAL_MCP_TIMEOUT, LONGEST_MCP_TIMEOUT = 60, 3_600
"""The default and the maximum time limit of an MCP tool call in seconds."""

SERVER_INFO_PATH = "/server_info"
"""Open without a key in V0 and V1; only an agent-server of V1 reports a version (OV2, OV4)."""
OPENAPI_PATH = "/openapi.json"
"""Open without a key (OV72)."""
COUNT_PATH = "/api/v1/app-conversations/count"
"""A number, or 401, of the app server of V1 (OV72)."""
CONVERSATIONS_PATH = "/api/conversations"
SETTINGS_PATH = "/api/settings"
SHOWN_SETTINGS = frozenset({"provider_tokens_set", "llm_api_key_set", "search_api_key_set", "secrets_store"})
"""Members that the server adds when it shows its settings; they are not written back."""
KEY_HEADER = "X-Session-API-Key"

TOOLS = frozenset(
    {
        "run",
        "run_ipython",
        "read",
        "write",
        "edit",
        "browse",
        "browse_interactive",
        "call_tool_mcp",
        "task_tracking",
    }
)
"""Actions of the agent that its runtime executes (OH 3.3)."""
BOOKKEEPING = frozenset({"null", "system", "recall", "condensation", "condensation_request", "loop_recovery"})
"""Actions for the runtime's internal records; they become opaque."""
LIVE_FROM_ENVIRONMENT = frozenset({"run", "agent_state_changed", "recall", "error"})
"""Observations of the environment that are also sent live (OH16)."""
GATED = frozenset({"run", "run_ipython"})
"""Actions that show on the wire that they wait for an approval (OH33)."""
RESULTS = frozenset(
    {
        "run",
        "run_ipython",
        "read",
        "write",
        "edit",
        "browse",
        "browse_interactive",
        "mcp",
        "task_tracking",
        "download",
        "success",
        "error",
        "user_rejected",
    }
)
"""Observations that end an action (OH 3.4)."""
CLIENT_ACTIONS = TOOLS | {"think", "finish", "reject", "delegate", "change_agent_state"}
"""Actions besides `message` that the server accepts from a client (OH53); `ORDERS` has the permitted ones."""

NOT_EXECUTED = "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_STOPPED"
TOO_MANY = "AGENT_ERROR$TOO_MANY_CONVERSATIONS"
LOOP = "loop_detection"
AWAITING = "awaiting_confirmation"
CONFIRMED = "confirmed"
PROMPT = "system"
STOPPED, ALLOWED, DENIED = "stopped", "user_confirmed", "user_rejected"
RATE_LIMITED = "rate_limited"
ERROR_PREFIX = "ERROR:\n"
FINISHED_TEXT = "All done! What's next on the agenda?"

IGNORED = frozenset({"timeout", "llm_metrics", "tool_call_metadata"})
"""Random (OH23), billing (OH26), and the bulk of the traffic (OH25), of which only the id is read."""

_STATES: dict[str, SessionState] = {
    "init": "starting",
    "loading": "starting",
    "running": "running",
    "awaiting_user_input": "awaiting_input",
    "paused": "paused",
    "stopped": "stopped",
    "finished": "finished",
    "rejected": "finished",
    "error": "error",
    "awaiting_user_confirmation": "awaiting_approval",
    "user_confirmed": "running",
    "user_rejected": "running",
    "rate_limited": "running",
}
_WORDS: dict[SessionState, str] = {
    "starting": "loading",
    "running": "running",
    "idle": "awaiting_user_input",
    "awaiting_input": "awaiting_user_input",
    "awaiting_approval": "awaiting_user_confirmation",
    "awaiting_outcome": "running",
    "paused": "paused",
    "finished": "finished",
    "stopped": "stopped",
    "error": "error",
}
_STATUSES: dict[str, SessionState] = {
    "STATUS$STARTING_RUNTIME": "starting",
    "STATUS$BUILDING_RUNTIME": "starting",
    "STATUS$RUNTIME_STARTED": "starting",
    "STATUS$SETTING_UP_WORKSPACE": "starting",
    "STATUS$SETTING_UP_GIT_HOOKS": "starting",
    "STATUS$READY": "starting",
    "STATUS$LLM_RETRY": "running",
    "STATUS$STOPPED": "stopped",
}


def state_of(word: str) -> SessionState | None:
    """Decode a native agent state; None for an undocumented one."""
    return _STATES.get(word)


def word_for(state: SessionState) -> str:
    """Encode a state."""
    return _WORDS[state]


def state_of_status(status: str) -> SessionState | None:
    """Decode a status update; None for an undocumented one."""
    return _STATUSES.get(status)


class Wire(BaseModel):
    """The base of all messages: strict types; unknown fields are kept to be listed as losses."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class ServerEvent(Wire):
    """An action or observation on `oh_event`; `action` has precedence (OH38)."""

    id: int = Field(ge=0, lt=2**63)
    timestamp: str = Field(min_length=1, max_length=64)
    source: str | None = None
    message: str | None = None
    cause: int | None = None
    action: str | None = None
    observation: str | None = None
    args: dict[str, Any] | None = None
    content: str = ""
    extras: dict[str, Any] | None = None
    success: bool | None = None


class StatusUpdate(Wire):
    """A report about the conversation without source and id, which is never replayed (OH28, OH31)."""

    status_update: bool
    type: str
    id: str | None = None
    message: str = ""
    conversation_title: str | None = None


class Failure(Wire):
    """The agent session could not be created (OH30)."""

    error: bool
    message: str = ""


class ClientAction(Wire):
    """A client message; the server overwrites the optional fields (OH52)."""

    action: str
    args: dict[str, Any] = {}
    timeout: Any = None
    message: Any = None
    source: Any = None
    timestamp: Any = None
    cause: Any = None
    id: Any = None


class MessageArgs(Wire):
    content: str | None = None
    thought: str | None = None
    image_urls: list[str] | None = None
    images_urls: list[str] | None = None
    file_urls: list[str] | None = None
    wait_for_response: bool | None = None
    security_risk: int | None = None
    timestamp: Any = None
    """The frontend sends it, the server overwrites it (OH35, OH57)."""


MESSAGE_DEFAULTS: dict[str, Any] = {"file_urls": [], "wait_for_response": False, "security_risk": -1}


class FinishArgs(Wire):
    """The arguments of `finish` and `reject`."""

    final_thought: str = ""
    outputs: dict[str, Any] | None = None
    thought: str = ""
    task_completed: Any = None


class ThinkArgs(Wire):
    thought: str = ""


class DelegateArgs(Wire):
    agent: str
    inputs: dict[str, Any] = {}
    thought: str = ""


class StateArgs(Wire):
    agent_state: str
    thought: str = ""


class StateExtras(Wire):
    agent_state: str
    reason: str = ""


class ErrorExtras(Wire):
    error_id: str = ""


class DelegateExtras(Wire):
    outputs: dict[str, Any] | None = None


def trim(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the payload without the fields in `IGNORED`."""
    return (
        payload if IGNORED.isdisjoint(payload) else {key: value for key, value in payload.items() if key not in IGNORED}
    )


def digest_of(value: object) -> dict[str, Any]:
    """Return size and hash of a JSON value; sorted keys give equal bytes for equal values."""
    encoded = json.dumps(value, sort_keys=True).encode()
    return {"bytes": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()}


def correlation_of(payload: Mapping[str, Any]) -> str | None:
    """Return the id that connects an action to its observation without `cause` (OH25)."""
    match payload.get("tool_call_metadata"):
        case None:
            return None
        case {"tool_call_id": str(name)} if 0 < len(name) <= ID_LENGTH and not _has_surrogate(name):
            return name
        case _:
            return None


def native_id(number: int, timestamp: str) -> str:
    """Return the key of an event: ids alone repeat, arrive out of order and have rewritten sources (OH16-OH19)."""
    return f"{number}@{timestamp}"


def mark_of(payload: object) -> tuple[int, str] | None:
    """Return the id and time of an event on `oh_event`, if any."""
    match payload:
        case {"id": bool()}:
            return None
        case {"id": int(number), "timestamp": str(timestamp)}:
            return number, timestamp
        case _:
            return None


def is_state(payload: object) -> bool:
    """Report whether an event is a state of the agent."""
    match payload:
        case {"action": str()}:
            return False
        case {"observation": "agent_state_changed"}:
            return True
        case _:
            return False


def is_start(payload: object) -> bool:
    """Report whether an event is a start of the agent."""
    match payload:
        case {"extras": {"agent_state": "loading"}}:
            return is_state(payload)
        case _:
            return False


def is_unsent(payload: object) -> bool:
    """Report whether a replay omits this stored event (OH15), which REST shows (OH63)."""
    match payload:
        case {"action": "null" | "recall"}:
            return True
        case {"action": str()}:
            return False
        case {"observation": "null"}:
            return True
        case _:
            return False


def is_eviction(payload: object) -> bool:
    """Report whether the server evicts this conversation for another one (OH65)."""
    match payload:
        case {"status_update": True, "id": str(status)}:
            return status == TOO_MANY
        case _:
            return False


def is_never_live(payload: object) -> bool:
    """Report whether only a replay shows this event: few kinds of the environment are sent live (OH16)."""
    match payload:
        case {"source": "environment", "action": str()}:
            return True
        case {"source": "environment", "observation": str(name)}:
            return name not in LIVE_FROM_ENVIRONMENT
        case _:
            return False


def read_refusal(data: object) -> tuple[str, str, bool] | None:
    """Decode a CONNECT_ERROR as code, text and whether it is final; None for an undocumented one."""
    match data:
        case {"message": str(message), "data": {"msg_id": str(code)}}:
            # The server's library puts its second argument under `data` (OH10).
            return code[:100], f"{message}: {SETTINGS_FIX}", True
        case {"message": str(message)} | str(message):
            pass
        case _:
            return None
    if message == "invalid_session_api_key":
        return "UNAUTHORIZED", "the server has another session_api_key", True
    if message.startswith("No conversation_id"):
        return "NO_CONVERSATION_ID", message, True
    if message.startswith("Settings not found"):
        return SETTINGS_MISSING, f"{message}: {SETTINGS_FIX}", True
    return None


CROWDED = (
    "TOO_MANY_CONVERSATIONS: the server has evicted this conversation for another one;"
    " raise max_concurrent_conversations in its configuration"
)
NO_REST = frozenset({404, 405, 501})
"""Status codes of a server without the REST interface; the public document describes only Socket.IO."""
ENDED = frozenset({"STOPPED", "ARCHIVED", UNKNOWN})
"""REST status of a conversation without a running agent; a join would start one (OH12, OH21)."""
HIDDEN = "<secret_hidden>"
"""The server's replacement of a secret (OH39)."""
FAILED = 500
"""REST status code of an internal error."""
SETTINGS_MISSING = "CONFIGURATION$SETTINGS_NOT_FOUND"
SETTINGS_FIX = "store a model and its key in the OpenHands settings first (POST /api/settings)"
SILENCE = (
    "the server accepted the connection and sent nothing; check session_api_key and the names in providers_set,"
    " or the log of the server"
)


_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,39}")


def v1_version(info: object) -> str | None:
    """Return the version of a V1 agent-server from `/server_info`; None for every other server (OV2).

    A V0 server reports uptime and resources without a version.
    """
    match info:
        case {"version": str(version), "sdk_version": str()} | {"version": str(version), "usable_tools": list()}:
            return version if _VERSION.fullmatch(version) else "of an unknown version"
        case _:
            return None


def app_server(openapi: object) -> str | None:
    """Return the version of a V1 app server from its OpenAPI document; None for every other server (OV72).

    Servers from 1.0 to 1.6 have the paths of both protocols.
    """
    match openapi:
        case {"info": {"version": str(version)}, "paths": dict()}:
            paths = cast("dict[str, dict[str, object]]", openapi)["paths"]
        case _:
            return None
    if COUNT_PATH not in paths or CONVERSATIONS_PATH in paths:
        return None
    return version if _VERSION.fullmatch(version) else "of an unknown version"


def unacknowledged(action_event: str) -> str:
    """Explain a missing acknowledgement (OH2, OH8)."""
    other = USER_ACTIONS if action_event == ACTIONS else ACTIONS
    return (
        "the server rejected the message, which it never reports, or it does not listen for the event"
        f" {action_event!r}; for that server set `action_event: {other}`"
    )


def connection_query(
    *, conversation_id: str, latest_event_id: int, providers_set: tuple[str, ...], session_api_key: str | None
) -> dict[str, str]:
    """Return the query of the handshake; an empty key or provider list must be omitted (OH6, OH9)."""
    query = {"conversation_id": conversation_id, "latest_event_id": str(latest_event_id)}
    if providers_set:
        query["providers_set"] = ",".join(providers_set)
    if session_api_key:
        query["session_api_key"] = session_api_key
    return query


def action_message(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"action": name, "args": args}


def user_message(args: dict[str, Any]) -> dict[str, Any]:
    return {"action": "message", "source": "user", "args": args}


def status_update(kind: str, *, status: str, message: str) -> dict[str, Any]:
    return {"status_update": True, "type": kind, "id": status, "message": message}


def title_update(title: str) -> dict[str, Any]:
    return {"status_update": True, "type": "info", "message": "", "conversation_title": title}


def failure(message: str) -> dict[str, Any]:
    return {"error": True, "message": message}


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)
