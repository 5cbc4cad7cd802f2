"""The YAML options of an OpenHands runtime."""

from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from adapters.openhands.shared_options import SessionKey, check_mcp_url
from gateway.adapter.duration import Duration
from gateway.adapter.options import RestUrl, SocketPath, base_url, rest_base
from gateway.adapter.port import RuntimeOptions

OWN_TOOLS = frozenset(
    {
        *("browser", "delegate_to_browsing_agent", "edit_file", "execute_bash", "execute_ipython_cell", "finish"),
        *("request_condensation", "str_replace_editor", "task_tracker", "think"),
    }
)
"""The functions that an OpenHands agent may have itself; most depend on its configuration."""


class ConversationOptions(BaseModel):
    """The conversation to create; every member is optional."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    repository: str | None = Field(default=None, description="Repository to work on, e.g. owner/name.")
    git_provider: str | None = Field(
        default=None, description="Git provider of the repository: github, gitlab, bitbucket."
    )
    selected_branch: str | None = Field(default=None, description="Branch to check out.")
    initial_user_msg: str | None = Field(default=None, description="First message; the agent starts on it at once.")
    image_urls: list[str] | None = Field(default=None, description="Images of the first message.")
    conversation_instructions: str | None = Field(default=None, description="Standing instructions for the agent.")
    mcp_config: dict[str, Any] | None = Field(default=None, description="MCP servers for this conversation.")
    suggested_task: dict[str, Any] | None = Field(default=None, description="A task suggested by OpenHands.")
    create_microagent: dict[str, Any] | None = Field(default=None, description="A microagent to create.")
    replay_json: str | None = Field(default=None, description="A trajectory to replay, as JSON text.")


class OpenHandsOptions(RuntimeOptions):
    """An OpenHands server: an existing conversation (`conversation_id`) or a new one (`conversation`)."""

    path: SocketPath = "/socket.io"
    rest_url: RestUrl = None
    session_api_key: SessionKey = Field(
        default=None, description="The server's SESSION_API_KEY, if it has one; empty means none."
    )
    conversation_id: str | None = Field(default=None, description="Attach to this conversation.")
    conversation: ConversationOptions | None = Field(default=None, description="Create a conversation like this.")
    mcp_url: str | None = Field(
        default=None,
        description="The gateway's address for the server, which calls the tools there; by default `public_url`.",
    )
    tools: Literal["create", "settings"] = Field(
        default="create",
        description="How conversations get the backend's tools. create: each new conversation gets its own address,"
        " which the server forgets when it starts the agent again. settings: the server's settings contain one address"
        " for all conversations of this runtime, at every start of an agent.",
    )
    providers_set: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="Git providers of the user; the server rejects unknown ones without an error.",
    )
    action_event: Literal["oh_action", "oh_user_action"] = Field(
        default="oh_action",
        description="Socket.IO event for messages and orders to the server. The documented name is"
        " oh_action; servers since March 2025 also accept oh_user_action.",
    )
    unsafe_orders: bool = Field(
        default=False,
        description="Accept orders that are documented and spoil a conversation on 0.62: `write`, after which the agent"
        " fails, and a `confirmation_state` other than `confirmed`, which rejects the order or waits forever.",
    )
    keep_system_prompt: bool = Field(
        default=False,
        description="Store the whole system prompt and tools of each conversation (some 30 KB), not only a hash.",
    )
    wait_timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="Time limit for the server to accept a link, including the replay; at most ten minutes. Some"
        " refusals have no response.",
    )
    ack_timeout: Duration = Field(
        default=timedelta(seconds=5),
        description="Time limit for an acknowledgement; a rejected message gets none.",
    )

    look_again: Duration = Field(
        default=timedelta(seconds=60),
        description="Interval of status queries of a stopped conversation; a new message wakes it at once.",
    )
    evicted_wait: Duration = Field(
        default=timedelta(seconds=60),
        description="Pause before an evicted conversation is connected again, even with pending work; doubles each"
        " time, up to ten times that.",
    )

    _are_base_urls = field_validator("url", "rest_url")(
        base_url("http", "https", "ws", "wss", example="http://openhands:3000", key="session_api_key")
    )
    _is_a_base_url = field_validator("mcp_url")(check_mcp_url)

    @property
    def native_id(self) -> str | None:
        """The conversation to attach to."""
        return self.conversation_id

    @property
    def creates(self) -> bool:
        """Whether to create a conversation."""
        return self.conversation is not None

    @property
    def takes_mcp(self) -> bool:
        """Whether conversations get the address of our MCP server."""
        return self.creates or self.shares_tools

    @property
    def mcp_session_header(self) -> str:
        """The header in which OpenHands names the conversation."""
        return "X-OpenHands-ServerConversation-ID"

    @property
    def shares_tools(self) -> bool:
        """Whether the server's settings contain our MCP server."""
        return self.tools == "settings"

    @property
    def calls_unasked(self) -> bool:
        """True: confirmation mode never asks before a call of an MCP tool (OH44)."""
        return True

    @property
    def delegates(self) -> bool:
        """True: the states of a delegate look like the agent's own (OH48)."""
        return True

    @property
    def own_tools(self) -> frozenset[str]:
        """The functions of the agent itself."""
        return OWN_TOOLS

    @property
    def mcp_base(self) -> str | None:
        """The gateway's address for the server."""
        return self.mcp_url

    @property
    def key(self) -> str | None:
        """The key to send, or None to send none."""
        return self.session_api_key.get_secret_value() if self.session_api_key is not None else None

    @property
    def rest_base(self) -> str:
        """Base URL of the REST interface."""
        return rest_base(self.url, self.rest_url)

    @field_validator("conversation_id")
    @classmethod
    def _is_a_conversation_id(cls, name: str | None) -> str | None:
        if name is not None and not is_conversation_id(name):
            raise ValueError(
                "a conversation id must have 1 to 100 characters and no '..', slash, space or control character"
            )
        return name

    @field_validator("providers_set")
    @classmethod
    def _are_provider_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name.isascii() or not name.replace("_", "").isalpha() for name in names):
            raise ValueError("provider names contain only letters and underscores, such as github, gitlab, bitbucket")
        return names

    @model_validator(mode="after")
    def _names_one_conversation(self) -> "OpenHandsOptions":
        if (self.conversation_id is None) == (self.conversation is None):
            raise ValueError(
                "set exactly one of conversation_id (an existing conversation) and conversation (a new one, may be {})"
            )
        return self


def is_conversation_id(name: str) -> bool:
    """Report whether a text is safe as a conversation id (OH12)."""
    unsafe = any(letter.isspace() or not letter.isprintable() or letter in "/\\" for letter in name)
    return 1 <= len(name) <= 100 and ".." not in name and not unsafe
