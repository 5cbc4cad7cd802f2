"""The YAML options of an OpenHands V1 runtime."""

import re
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from adapters.openhands.shared_options import SessionKey, check_mcp_url
from gateway.adapter.duration import Duration
from gateway.adapter.options import ApiKey, base_url, refusal
from gateway.adapter.port import RuntimeOptions

OWN_TOOLS = frozenset({"browser_tool_set", "file_editor", "finish", "start_child_conversation", "task"}) | frozenset(
    {"task_tool_set", "task_tracker", "terminal", "think"}
)
"""The tools that an agent of V1 may have itself (OV19)."""
_HTTP_MCP = frozenset({"claude-code", "codex"})
"""ACP servers whose CLI takes MCP servers over HTTP (OV53)."""
_CONVERSATION_ID = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE
)
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)

Word = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class LlmOptions(_Part):
    """The model of a new conversation."""

    model: Word = Field(description="Name of the model, e.g. openai/gpt-4o.")
    api_key: ApiKey | None = Field(default=None, description="Key of the model's provider.")
    base_url: Word | None = Field(default=None, description="Address of the provider, if it is not the usual one.")
    stream: bool = Field(default=True, description="Whether texts arrive piece by piece.")
    more: dict[str, Any] = Field(default={}, description="Further members of the server's `llm`.")


class BuiltInAgent(_Part):
    """The agent of OpenHands itself."""

    kind: Literal["openhands"] = Field(description="The agent of OpenHands.")
    llm: LlmOptions = Field(description="Its model.")
    tools: tuple[Word, ...] = Field(
        default=("terminal", "file_editor", "task_tracker"),
        max_length=64,
        description="Its own tools; the server's `usable_tools` lists the names.",
    )


class AcpAgent(_Part):
    """An agent that the server runs over the Agent Client Protocol, such as Claude Code or Codex."""

    kind: Literal["acp"] = Field(description="An agent of the Agent Client Protocol.")
    server: Word = Field(
        description="claude-code, codex, gemini-cli, kimi-code, pi, opencode, or custom with a `command`."
    )
    model: Word | None = Field(default=None, description="Name of the model, in the agent's spelling.")
    command: tuple[Word, ...] = Field(default=(), max_length=64, description="Command line that starts the agent.")
    http_mcp: bool | None = Field(
        default=None,
        description="Whether the agent accepts MCP servers over HTTP, and thus the backend's tools; by default only"
        " claude-code and codex.",
    )

    @property
    def takes_tools(self) -> bool:
        """Whether the backend's tools reach the agent (OV53)."""
        return self.server in _HTTP_MCP if self.http_mcp is None else self.http_mcp

    @model_validator(mode="after")
    def _names_its_command(self) -> "AcpAgent":
        if self.server == "custom" and not self.command:
            raise ValueError("server: custom needs the command that starts the agent")
        return self


class NewConversation(_Part):
    """The conversation to create."""

    agent: Annotated[BuiltInAgent | AcpAgent, Field(discriminator="kind")] = Field(description="Its agent.")
    working_dir: Word = Field(default="/workspace", description="Its folder on the server.")
    confirmation_policy: Literal["never", "always", "risky"] = Field(
        default="never", description="Which actions of the agent wait for an approval; ACP agents never wait."
    )
    risk_threshold: Literal["LOW", "MEDIUM", "HIGH"] = Field(
        default="HIGH", description="With `risky`: the lowest risk that needs an approval."
    )
    confirm_unknown: bool = Field(default=True, description="With `risky`: whether unrated actions need an approval.")
    security_analyzer: bool = Field(
        default=False, description="Whether the model rates its actions; without it every risk is unknown."
    )
    max_iterations: int = Field(default=500, ge=1, le=1_000_000, description="Steps after which a run ends.")
    stuck_detection: bool = Field(default=True, description="Whether the server ends a run that repeats itself.")
    secrets: dict[str, SecretStr] = Field(
        default={}, max_length=256, description="Variables for the agent's commands; ACP agents receive all of them."
    )
    tags: dict[Word, str] = Field(default={}, max_length=64, description="Tags of the conversation.")

    @field_validator("secrets")
    @classmethod
    def _are_variables(cls, secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if any(not _SECRET_NAME.fullmatch(name) for name in secrets):
            raise refusal("the name of a secret is that of a variable: letters, digits and underscores")
        return secrets


class AppOptions(_Part):
    """The app server whose sandboxes contain the agent-servers (OV64)."""

    url: str = Field(description="Base URL of the app server.", examples=["http://openhands:3000"])
    api_key: ApiKey | None = Field(default=None, description="The app server's SESSION_API_KEY, if it has one.")
    host: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]{1,253}$")] | None = Field(
        default=None, description="Host in place of `localhost` in the addresses of sandboxes (Docker)."
    )
    model: Literal["user"] | None = Field(
        default=None,
        description="user: the app server creates conversations with the model and the MCP servers of its settings."
        " Otherwise `conversation` names the model, or `conversation_id` an existing conversation.",
    )
    resume: bool = Field(default=True, description="Whether a paused sandbox is resumed to attach to a conversation.")
    start_timeout: Duration = Field(
        default=timedelta(minutes=5), description="Time limit for the start of a sandbox and of its conversation."
    )

    _is_a_base_url = field_validator("url")(base_url("http", "https", example="http://openhands:3000", key="api_key"))


class OpenHandsV1Options(RuntimeOptions):
    """An agent-server (`url`) or an app server (`app`), with an existing conversation or a new one."""

    url: str = Field(
        default="", description="Base URL of the agent-server; not with `app`.", examples=["http://openhands:8000"]
    )
    session_api_key: SessionKey = Field(
        default=None, description="A key of the agent-server, if it has any; empty means none."
    )
    app: AppOptions | None = Field(default=None, description="The app server, in place of `url`.")
    conversation_id: str | None = Field(default=None, description="Attach to this conversation (a UUID).")
    conversation: NewConversation | None = Field(default=None, description="Create a conversation like this.")
    mcp_url: str | None = Field(
        default=None,
        description="The gateway's address for the server, which calls the tools there; by default `public_url`.",
    )
    after_deny: Literal["run", "wait"] = Field(
        default="run",
        description="After denied actions: run lets the agent continue with the reason, wait leaves it idle until the"
        " next message.",
    )
    steer: Literal["join", "replace"] = Field(
        default="join",
        description="A message during the turn of an ACP agent: join adds it as the next turn, replace ends the turn.",
    )
    send_timeout: Duration = Field(
        default=timedelta(minutes=9),
        description="Time limit for a message, which waits for a running tool; less than ten minutes.",
    )

    _is_an_agent_server = field_validator("url")(
        base_url("http", "https", example="http://openhands:8000", key="session_api_key")
    )
    _is_a_base_url = field_validator("mcp_url")(check_mcp_url)

    @property
    def native_id(self) -> str | None:
        """The conversation to attach to."""
        return self.conversation_id

    @property
    def creates(self) -> bool:
        """Whether to create conversations."""
        return self.conversation_id is None

    @property
    def takes_mcp(self) -> bool:
        """Whether new conversations get the address of our MCP server."""
        if self.conversation is None:
            return False
        agent = self.conversation.agent
        return not isinstance(agent, AcpAgent) or agent.takes_tools

    @property
    def calls_unasked(self) -> bool:
        """Whether the server itself answers each request for permission with yes, as for ACP agents (OV58)."""
        return self.conversation is not None and isinstance(self.conversation.agent, AcpAgent)

    @property
    def passes_declared_only(self) -> bool:
        """Whether the server validates the arguments, as for its own agent (OV50)."""
        return not self.calls_unasked

    @property
    def own_tools(self) -> frozenset[str]:
        """The tools of the agent itself."""
        return OWN_TOOLS

    @property
    def mcp_base(self) -> str | None:
        """The gateway's address for the server."""
        return self.mcp_url

    @property
    def key(self) -> str:
        """The key of the agent-server; empty without one."""
        return self.session_api_key.get_secret_value() if self.session_api_key is not None else ""

    @model_validator(mode="before")
    @classmethod
    def _names_one_server(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        options = cast("dict[str, Any]", given)
        match options:
            case {"app": {"url": str(url)}} if not options.get("url"):
                return {**options, "url": url}
            case {"app": {"url": str(url)}} if options["url"] == url:
                # A copy of valid options.
                return options
            case {"app": dict()} if not options.get("url"):
                # The options of the app have the fault.
                return options
            case {"app": dict()}:
                raise ValueError("set either url (an agent-server) or app (an app server)")
            case {"url": str(url)} if url:
                return options
            case _:
                raise ValueError("set url (an agent-server) or app (an app server)")

    @field_validator("conversation_id")
    @classmethod
    def _is_a_conversation_id(cls, name: str | None) -> str | None:
        if name is not None and not is_conversation_id(name):
            raise ValueError("a conversation id is a UUID, such as c70b4d45-e97b-43d6-84f7-8ff27032d0d5")
        return None if name is None else with_dashes(name)

    @field_validator("send_timeout")
    @classmethod
    def _is_a_deadline(cls, span: timedelta) -> timedelta:
        if not timedelta(0) < span < timedelta(minutes=10):
            raise ValueError("write a duration of less than ten minutes, e.g. 9m")
        return span

    @model_validator(mode="after")
    def _names_one_conversation(self) -> "OpenHandsV1Options":
        by_app = self.app is not None and self.app.model == "user"
        if (self.conversation_id is not None) + (self.conversation is not None) + by_app != 1:
            raise ValueError(
                "set exactly one of conversation_id (an existing conversation), conversation (a new one) and"
                " app.model: user (a new one with the settings of the app server)"
            )
        if self.app is not None and self.session_api_key is not None:
            raise ValueError("the app server names the key of each sandbox; remove session_api_key")
        return self


def is_conversation_id(name: str) -> bool:
    """Report whether a text is a UUID, with or without dashes (OV6)."""
    return _CONVERSATION_ID.fullmatch(name) is not None


def with_dashes(name: str) -> str:
    """Return a conversation id as agent-servers write it; app servers leave the dashes out (OV75)."""
    plain = name.replace("-", "").lower()
    return f"{plain[:8]}-{plain[8:12]}-{plain[12:16]}-{plain[16:20]}-{plain[20:]}"
