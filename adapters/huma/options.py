"""The YAML options of a HUMA runtime."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from gateway.adapter.duration import Duration
from gateway.adapter.options import ApiKey, NativeId, RestUrl, SocketPath, base_url
from gateway.adapter.port import ConfirmationRule, Confirmer, RuntimeOptions

MAX_FRAME = 900_000
"""Bytes. A Socket.IO server with default settings disconnects on a message of 1,000,000 (L74)."""

HISTORY_KEY = "conversationHistory"
"""The key of the conversation in the document's examples."""
FORBIDDEN_KEYS = frozenset({"__proto__", "constructor", "prototype"})
"""Keys that 0.2.0 forbids at any depth of a client's record (Client Events, Validation; Validation Limits)."""

CONFIRMATION_SECONDS = 30

MESSAGE_KEY = "message"
"""The key of a chat message in a context, as in HUMA's connection guide (events)."""
_MESSAGING = "messaging"
"""The addon whose messages wait for confirmations."""
# Excludes characters that a JSON pointer would escape.
ContextKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
HistoryKey = Annotated[
    ContextKey,
    Field(
        description="Key under which the gateway adds the conversation to a context that lacks it; `off` adds none.",
        examples=["conversationHistory", "off"],
    ),
]

RefusalGrace = Annotated[
    Duration, Field(description="Time after connecting in which an error or a disconnect counts as a refusal.")
]
_REFUSAL_GRACE = timedelta(milliseconds=100)


class AgentOptions(BaseModel):
    """The agent to create."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(min_length=1, description="Name of the agent in HUMA.")
    agent_type: str = Field(default="HUMA-0.1", description="HUMA's agent type.")
    class_name: str = Field(min_length=1, description="Class name of the agent.")
    personality: str = Field(description="The agent's character, as text or Markdown.")
    instructions: str = Field(description="Instructions for the agent, including the use of its tools.")
    router_type: str | None = Field(
        default=None,
        description="HUMA's rule for when the agent acts: random, llm-judge, conversational, turn-taking, voice-game.",
    )
    addons: dict[str, Any] | None = Field(
        default=None, description="Addons, e.g. {enabled: [messaging]}.", examples=[{"enabled": ["messaging"]}]
    )
    voice: dict[str, Any] | None = Field(default=None, description="Voice settings, e.g. {enabled: true, voiceId: …}.")
    ttl_seconds: int | None = Field(default=None, gt=0, description="HUMA deletes the agent after this time.")
    metadata: dict[str, Any] = Field(default={}, description="Further metadata, sent unchanged.")


class HumaOptions(RuntimeOptions):
    """The options of both versions."""

    path: SocketPath = "/socket.io/"
    api_key: ApiKey = Field(description="HUMA API key; sent in the connection's query string.")
    agent_id: NativeId | None = Field(default=None, description="Attach to this agent.")
    agent: AgentOptions | None = Field(default=None, description="Create an agent like this.")
    rest_url: RestUrl = None

    _are_base_urls = field_validator("url", "rest_url")(
        base_url("http", "https", "ws", "wss", example="https://api.example.com", key="api_key")
    )

    history: HistoryKey = HISTORY_KEY

    @property
    def history_key(self) -> str | None:
        """The context key of the conversation."""
        return None if self.history == "off" else self.history

    @property
    def native_id(self) -> str | None:
        """The agent to attach to."""
        return self.agent_id

    @property
    def creates(self) -> bool:
        """Whether to create an agent."""
        return self.agent is not None

    @model_validator(mode="after")
    def _names_one_agent(self) -> "HumaOptions":
        if (self.agent_id is None) == (self.agent is None):
            raise ValueError("set exactly one of agent_id (an existing agent) and agent (a new one)")
        return self


class Huma01Options(HumaOptions):
    """A HUMA 0.1 runtime: an existing agent (`agent_id`) or a new one (`agent`)."""

    history: HistoryKey = "off"
    extensions: bool = Field(
        default=True,
        description="Send fields that the 0.1 document lacks and public clients send: `skipImmediateProcessing` and"
        " `context` on results, `skipCancelPendingMessage` on quiet contexts.",
    )
    max_frame: ByteSize = Field(
        default=ByteSize(MAX_FRAME),
        ge=65_536,
        description="Largest frame with a tool's result; a longer result is truncated. By default servers accept 1 MB.",
        examples=["4MB"],
    )
    refusal_grace: RefusalGrace = _REFUSAL_GRACE


class Huma02Options(HumaOptions):
    """A HUMA 0.2.0 runtime: an existing agent (`agent_id`) or a new one (`agent`)."""

    hydrate: bool = Field(default=True, description="Send the last context on each connect, without waking the agent.")
    refusal_grace: RefusalGrace = _REFUSAL_GRACE
    confirm: Confirmer | None = Field(
        default=None,
        description="What confirms an agent's message: `executor` (its reply), `copied` (the delivery of its copy),"
        " `client` (a posted `message.confirmed`) or `recorded` (nothing: nobody has delivered it yet). Default:"
        " `executor` if a route takes `message.posted` to one, `copied` if a route that names `message.posted` copies"
        " it to exactly one destination, otherwise `recorded`.",
    )
    confirm_by: str | None = Field(default=None, description="The destination whose copy counts, with `copied`.")
    message: ContextKey = Field(
        default=MESSAGE_KEY,
        description="Key under which a context carries a posted message; `off` only puts its text in the description.",
        examples=[MESSAGE_KEY, "off"],
    )

    @property
    def confirmation(self) -> ConfirmationRule:
        """How an agent's messages are confirmed; the gateway may create an agent that sends none."""
        enabled = (self.agent.addons or {}).get("enabled") if self.agent is not None else [_MESSAGING]
        return ConfirmationRule(
            timedelta(seconds=CONFIRMATION_SECONDS),
            self.confirm,
            self.confirm_by,
            expected=self.confirm is not None or (isinstance(enabled, list) and _MESSAGING in enabled),
        )

    @property
    def message_key(self) -> str | None:
        """The context key of a posted message."""
        return None if self.message == "off" else self.message

    @field_validator("history", "message")
    @classmethod
    def _may_be_a_key(cls, key: str) -> str:
        if key in FORBIDDEN_KEYS:
            raise ValueError(f"HUMA 0.2.0 reserves the key {key!r}; use another key, or off")
        return key

    @model_validator(mode="after")
    def _fits_together(self) -> "Huma02Options":
        if self.history_key is not None and self.history_key == self.message_key:
            raise ValueError(f"history and message have the same key {self.message_key!r}; use another for one")
        if self.confirm_by is not None and self.confirm != "copied":
            raise ValueError("confirm_by applies only to `confirm: copied`; add that, or remove this")
        return self


AnyHumaOptions = Huma01Options | Huma02Options
