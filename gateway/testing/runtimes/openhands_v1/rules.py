"""The rules of an OpenHands agent-server for its clients. Pure.

Source: measurements of real servers of 1.58.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gateway.testing.runtimes.openhands_v1.events import MASKED, Frame

PAGE = 100
_SECRET_WORDS = ("api_key", "authorization", "token", "secret", "password", "value")
ACP_SERVERS = frozenset({"claude-code", "codex", "gemini-cli", "kimi-code", "pi", "opencode", "custom"})
POLICIES = frozenset({"NeverConfirm", "AlwaysConfirm", "ConfirmRisky"})
RISKS = ("LOW", "MEDIUM", "HIGH")
_MCP_KEYS = frozenset({"url", "transport", "headers", "auth", "enabled", "timeout", "command", "args", "env"})


class Invalid(Exception):
    """A body that gets 422; the response quotes all of it."""

    def __init__(self, where: tuple[str | int, ...], why: str) -> None:
        super().__init__(f"{'.'.join(map(str, where))}: {why}")
        self.where = where
        self.why = why


class Unusable(Exception):
    """A message that a server can read but not use; `code` is the name of its exception."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Said:
    """A client's message."""

    content: list[Frame]
    run: bool

    @property
    def text(self) -> str:
        """Its texts, joined."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")


@dataclass(frozen=True, slots=True)
class McpEntry:
    """One server of `mcp_config`."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Creation:
    """The body that creates a conversation."""

    agent: Frame
    """The agent, with its secrets."""
    is_acp: bool
    workspace: Frame
    policy: Frame
    analyzer: Frame | None
    tags: Frame
    servers: Mapping[str, McpEntry]
    conversation_id: str | None
    max_iterations: int
    body: Frame
    """The whole body."""


def read_creation(body: object, *, wraps_mcp: bool = False) -> Creation:
    """Parse the body of `POST /api/conversations`; `wraps_mcp` for servers before 1.31.2.

    Raises:
        Invalid: the server responds with 422.
    """
    given = _object(body, ())
    workspace = given.get("workspace")
    if not isinstance(workspace, dict):
        raise Invalid(("workspace",), "Field required")
    named = [name for name in ("agent", "agent_settings", "agent_profile_id") if given.get(name) is not None]
    if not named:
        raise Invalid((), "Value error, one of agent, agent_settings, agent_profile_id is required")
    agent = _object(given.get(named[0]), (named[0],))
    is_acp = agent.get("agent_kind") == "acp" or agent.get("kind") == "ACPAgent"
    if is_acp:
        _check_acp(agent, named[0])
    elif not isinstance(agent.get("llm"), dict):
        raise Invalid((named[0], "llm"), "Field required")
    policy = _object(given.get("confirmation_policy", {"kind": "NeverConfirm"}), ("confirmation_policy",))
    return Creation(
        agent=agent,
        is_acp=is_acp,
        workspace={"working_dir": "/workspace", "kind": "LocalWorkspace"} | cast("Frame", workspace),
        policy=read_policy(policy),
        analyzer=given.get("security_analyzer"),
        tags=given.get("tags") or {},
        servers=read_servers(agent.get("mcp_config") or {}, named[0], wraps=wraps_mcp),
        conversation_id=given.get("conversation_id"),
        max_iterations=given.get("max_iterations", 500),
        body=given,
    )


def _check_acp(agent: Frame, name: str) -> None:
    if "llm" in agent:
        raise Invalid((name, "llm"), "Extra inputs are not permitted")
    server = agent.get("acp_server", "custom")
    if server not in ACP_SERVERS:
        raise Invalid((name, "acp_server"), f"Input should be one of {sorted(ACP_SERVERS)}")
    if server == "custom" and not agent.get("acp_command"):
        raise Invalid((name, "acp_command"), "a custom server needs a command")


def read_servers(config: object, name: str, *, wraps: bool) -> Mapping[str, McpEntry]:
    """Parse a map of MCP servers; only enabled ones with an address are used.

    Raises:
        Invalid: the server responds with 422.
    """
    entries = _object(config, (name, "mcp_config"))
    if wraps:
        entries = _object(entries.get("mcpServers", {}), (name, "mcp_config", "mcpServers"))
    read: dict[str, McpEntry] = {}
    for key, value in entries.items():
        where = (name, "mcp_config", key)
        entry = _object(value, where)
        if unknown := sorted(entry.keys() - _MCP_KEYS):
            raise Invalid((*where, unknown[0][:64]), "Extra inputs are not permitted")
        headers = dict(cast("Frame", entry.get("headers") or {}))
        auth = entry.get("auth")
        if isinstance(auth, dict):
            if any(header.lower() == "authorization" for header in headers):
                raise Invalid(where, "auth and an Authorization header exclude each other")
            headers["Authorization"] = f"Bearer {cast('Frame', auth).get('value', '')}"
        if entry.get("enabled", True) and isinstance(entry.get("url"), str):
            read[key] = McpEntry(entry["url"], headers)
        elif "command" not in entry:
            raise Invalid((*where, "url"), "Field required")
    return read


def read_policy(policy: object) -> Frame:
    """Parse a confirmation policy.

    Raises:
        Invalid: the server responds with 422.
    """
    given = _object(policy, ("policy",))
    if given.get("kind") not in POLICIES:
        raise Invalid(("policy", "kind"), f"Input should be one of {sorted(POLICIES)}")
    if given["kind"] == "ConfirmRisky":
        return {"threshold": "HIGH", "confirm_unknown": True, **given}
    return given


def asks(policy: Frame, risk: str) -> bool:
    """Return whether a policy holds an action with this risk."""
    match policy["kind"]:
        case "AlwaysConfirm":
            return True
        case "ConfirmRisky":
            if risk == "UNKNOWN":
                return bool(policy["confirm_unknown"])
            return RISKS.index(risk) >= RISKS.index(policy["threshold"])
        case _:
            return False


def read_message(body: object, *, over_socket: bool = False) -> Said:
    """Parse a client's message; unknown members are ignored.

    Raises:
        Invalid: it has no valid form.
        Unusable: it is not the user's.
    """
    given = _object(body, ())
    content = given.get("content", [])
    if isinstance(content, str) and over_socket:
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Invalid(("content",), "Input should be a valid list")
    blocks: list[Frame] = []
    for number, item in enumerate(cast("list[object]", content)):
        block = _object(item, ("content", number))
        match block:
            case {"type": "text", "text": str(said)}:
                blocks.append({"type": "text", "text": said})
            case {"type": "image", "image_urls": list()}:
                blocks.append({"type": "image", "image_urls": block["image_urls"]})
            case _:
                raise Invalid(("content", number), "Input should be a text or an image")
    role = given.get("role", "user")
    if role not in {"user", "assistant", "system", "tool"}:
        raise Invalid(("role",), "Input should be 'user', 'assistant', 'system' or 'tool'")
    if role != "user":
        raise Unusable("AssertionError", "Only user messages are allowed to be sent to the agent.")
    run = given.get("run", False)
    if not isinstance(run, bool):
        raise Invalid(("run",), "Input should be a valid boolean")
    return Said(blocks, run or over_socket)


def read_answer(body: object) -> tuple[bool, str]:
    """Parse the answer to a confirmation: whether it accepts, and the reason.

    Raises:
        Invalid: it has no `accept`.
    """
    given = _object(body, ())
    if not isinstance(accept := given.get("accept"), bool):
        raise Invalid(("accept",), "Field required")
    reason = given.get("reason", "User rejected the action.")
    if not isinstance(reason, str):
        raise Invalid(("reason",), "Input should be a valid string")
    return accept, reason


def is_auth(frame: object) -> bool:
    """Return whether a frame authenticates: it has exactly two keys; with a third it is a message."""
    return isinstance(frame, dict) and cast("Frame", frame).keys() == {"type", "session_api_key"}


def without_secrets(value: Any, *, under: str = "", mask: str = MASKED) -> Any:
    """Replace the secrets in a JSON value, as responses and errors do."""
    if isinstance(value, dict):
        members = cast("Frame", value)
        hides = under in {"headers", "secrets", "env"}
        return {
            key: mask
            if hides and isinstance(member, str)
            else without_secrets(member, under=key if not hides else under, mask=mask)
            for key, member in members.items()
        }
    if isinstance(value, list):
        return [without_secrets(item, under=under, mask=mask) for item in cast("list[Any]", value)]
    return mask if isinstance(value, str) and value and under.lower() in _SECRET_WORDS else value


def _object(value: object, where: tuple[str | int, ...]) -> Frame:
    if not isinstance(value, dict):
        raise Invalid(where, "Input should be a valid dictionary or object to extract fields from")
    return cast("Frame", value)
