"""What the YAML may say about a HUMA runtime."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from gateway.adapter.duration import Duration
from gateway.adapter.options import ApiKey, NativeId, RestUrl, SocketPath, base_url, refusal
from gateway.adapter.port import RuntimeOptions

MAX_FRAME = 900_000
"""Bytes: a Socket.IO server that is left as it comes hangs up on a message of 1,000,000 (L74: no limit of its own)."""

HISTORY_KEY = "conversationHistory"
"""Where the document's examples have the conversation."""
FORBIDDEN_KEYS = frozenset({"__proto__", "constructor", "prototype"})
"""No record of a 0.2.0 client's event has them at any depth (Client Events, Validation; Validation Limits)."""

HistoryKey = Annotated[
    str,
    Field(
        # No member of a JSON pointer that would need an escape.
        pattern=r"^[A-Za-z0-9_.-]{1,128}$",
        description="Key under which the gateway adds the conversation to a context that lacks it; `off` adds none.",
        examples=["conversationHistory", "off"],
    ),
]

RefusalGrace = Annotated[
    Duration, Field(description="How long after connecting an error or a hang-up still counts as a refusal.")
]
_REFUSAL_GRACE = timedelta(milliseconds=100)


class AgentOptions(BaseModel):
    """The agent to create, where none exists yet."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(min_length=1, description="Name of the agent in HUMA.")
    agent_type: str = Field(default="HUMA-0.1", description="HUMA's agent type.")
    class_name: str = Field(min_length=1, description="Who the agent is, in a word.")
    personality: str = Field(description="The agent's character, as text or Markdown.")
    instructions: str = Field(description="What the agent does and when it uses which tool.")
    router_type: str | None = Field(
        default=None,
        description="How HUMA decides when to act: random, llm-judge, conversational, turn-taking, voice-game.",
    )
    addons: dict[str, Any] | None = Field(
        default=None, description="Addons, e.g. {enabled: [messaging]}.", examples=[{"enabled": ["messaging"]}]
    )
    voice: dict[str, Any] | None = Field(default=None, description="Voice settings, e.g. {enabled: true, voiceId: …}.")
    ttl_seconds: int | None = Field(default=None, gt=0, description="HUMA deletes the agent after this time.")
    metadata: dict[str, Any] = Field(default={}, description="Further metadata, passed on as it is.")


class HumaOptions(RuntimeOptions):
    """What both versions have."""

    path: SocketPath = "/socket.io/"
    api_key: ApiKey = Field(description="HUMA API key; goes into the connection's query string.")
    agent_id: NativeId | None = Field(default=None, description="Attach to this agent.")
    agent: AgentOptions | None = Field(default=None, description="Create an agent like this.")
    rest_url: RestUrl = None
    transports: SkipJsonSchema[None] = None
    """Removed; refused with the reason."""

    _are_base_urls = field_validator("url", "rest_url")(
        base_url("http", "https", "ws", "wss", example="https://api.example.com", key="api_key")
    )

    history: HistoryKey = HISTORY_KEY

    @property
    def history_key(self) -> str | None:
        """The key of the conversation in a context."""
        return None if self.history == "off" else self.history

    @property
    def native_id(self) -> str | None:
        """The agent to attach to."""
        return self.agent_id

    @property
    def creates(self) -> bool:
        """Whether an agent is to be created."""
        return self.agent is not None

    @field_validator("transports", mode="before")
    @classmethod
    def _refuse_transports(cls, _transports: object) -> None:
        raise refusal("HUMA is connected by WebSocket only, and this option was removed; delete the line")

    @model_validator(mode="after")
    def _names_one_agent(self) -> "HumaOptions":
        if (self.agent_id is None) == (self.agent is None):
            raise ValueError("give either agent_id (an agent that exists) or agent (one to create)")
        return self


class Huma01Options(HumaOptions):
    """A HUMA 0.1 runtime: an agent that exists (`agent_id`) or one to create (`agent`)."""

    history: HistoryKey = "off"
    extensions: bool = Field(
        default=True,
        description="Send fields that the 0.1 document lacks and public clients send: `skipImmediateProcessing` and"
        " `context` on results, `skipCancelPendingMessage` on quiet contexts.",
    )
    max_frame: ByteSize = Field(
        default=ByteSize(MAX_FRAME),
        ge=65_536,
        description="Largest frame with a tool's result; a longer result is cut. Servers left as they come take 1 MB.",
        examples=["4MB"],
    )
    refusal_grace: RefusalGrace = _REFUSAL_GRACE


class Huma02Options(HumaOptions):
    """A HUMA 0.2.0 runtime: an agent that exists (`agent_id`) or one to create (`agent`)."""

    refusal_grace: RefusalGrace = _REFUSAL_GRACE

    @field_validator("history")
    @classmethod
    def _may_be_a_key(cls, history: str) -> str:
        if history in FORBIDDEN_KEYS or history == "message":
            raise ValueError(f"HUMA 0.2.0 keeps the key {history!r} for itself; write another key, or off")
        return history


AnyHumaOptions = Huma01Options | Huma02Options
