"""The shape of the YAML: one frozen model per section, with defaults that work and a description per field.

Runtimes are validated by their adapter's own options model, which `load` looks up; here they are
`RuntimeOptions` of any subclass. Durations are written as `20s`, `500ms`, `2m`, `7d` or seconds.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AnyHttpUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    SerializeAsAny,
    WithJsonSchema,
    field_validator,
)

from gateway.ports.adapter import RuntimeOptions
from gateway.ports.duration import Duration


def _one_or_more(given: object) -> object:
    return [given] if isinstance(given, str | SecretStr) else given


Secrets = Annotated[
    tuple[SecretStr, ...],
    BeforeValidator(_one_or_more),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""One secret, or [new, old] while rotating; the first signs, all verify."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Section(BaseModel):
    """The base of all sections: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class ApiKey(Section):
    name: Name
    """Shown in logs instead of the key."""
    key: SecretStr
    """The key itself, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scopes: frozenset[Literal["read", "drive", "operate", "answer"]] = frozenset({"read", "drive", "operate", "answer"})
    """read: look at everything; drive: open sessions and post events; answer: answer interactions and calls;
    operate: cancel, redrive, reload, erase."""

    @field_validator("key")
    @classmethod
    def _not_empty(cls, key: SecretStr) -> SecretStr:
        if not key.get_secret_value():
            raise ValueError("an API key must not be empty")
        return key


class Api(Section):
    keys: tuple[ApiKey, ...] = ()
    """Who may use the HTTP API. Without keys, `serve` binds loopback addresses only."""
    open: frozenset[Literal["metrics", "version", "openapi"]] = frozenset()
    """Pages that need no key."""
    max_body: ByteSize = ByteSize(4 * 1024**2)
    """Largest request body."""
    heartbeat: Duration = timedelta(seconds=15)
    """Time between SSE comments on a quiet stream."""
    follower_buffer: ByteSize = ByteSize(1024**2)
    """What may wait for one slow SSE follower before it is cut off (it can resume)."""


class SqliteStore(Section):
    type: Literal["sqlite"] = "sqlite"
    path: Path = Path("dragoman.db")
    """The database file; its folder must exist and be on a local disk."""


class MemoryStore(Section):
    type: Literal["memory"]
    """Nothing survives the process: for trials only."""


Store = Annotated[SqliteStore | MemoryStore, Field(discriminator="type")]


class ToolSpec(Section):
    description: str = ""
    """What the tool does and when to use it; the agent's model reads this."""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    """A JSON Schema object; calls are checked against it before the executor sees them."""


class Backoff(Section):
    initial: Duration = timedelta(milliseconds=500)
    maximum: Duration = timedelta(seconds=10)


class WebhookSpec(Section):
    type: Literal["webhook"]
    url: AnyHttpUrl
    """Where calls are POSTed."""
    secret: Secrets = ()
    """Signs each request (Standard Webhooks); [new, old] while rotating. Without one, requests are unsigned."""
    timeout: Duration = timedelta(seconds=20)
    """How long one attempt may take."""
    deadline: Duration = timedelta(seconds=120)
    """How long the whole call may take, over all attempts."""
    accepted_deadline: Duration = timedelta(seconds=600)
    """How long the outcome may take after a 202."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    backoff: Backoff = Backoff()
    idempotent: bool = False
    """True promises that a repeat with the same key does no harm; else what may have arrived is never repeated."""
    response: Literal["outcome", "raw"] = "outcome"
    """`raw` takes the whole JSON body as the result."""
    headers: dict[str, str] = {}
    """Extra request headers."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Calls in flight at once; more wait."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Calls per second at most; more wait."""
    max_response: ByteSize = ByteSize(1024**2)
    """Largest response body that is read."""

    @field_validator("secret")
    @classmethod
    def _secrets_not_empty(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(not secret.get_secret_value() for secret in secrets):
            raise ValueError("a secret must not be empty; leave the key out for unsigned requests")
        return secrets


class StaticSpec(Section):
    type: Literal["static"]
    result: Any = None
    """Answered as the result of every call."""
    error: str | None = None
    """Set this instead to fail every call with this text."""
    delay: Duration = timedelta(0)
    """How long to wait before answering."""

    @property
    def concurrency(self) -> int:
        return 10_000

    @property
    def idempotent(self) -> bool:
        return True


ExecutorSpec = Annotated[WebhookSpec | StaticSpec, Field(discriminator="type")]


class DestinationSpec(Section):
    url: AnyHttpUrl
    """Where copies of events are POSTed."""
    secret: Secrets = ()
    headers: dict[str, str] = {}
    timeout: Duration = timedelta(seconds=20)
    attempts: Annotated[int, Field(ge=1, le=50)] = 10
    backoff: Backoff = Backoff(initial=timedelta(seconds=5), maximum=timedelta(hours=1))
    concurrency: Annotated[int, Field(ge=1, le=1_000)] = 8


class MatchSpec(Section):
    runtime: str = "*"
    """Glob over runtime names."""
    tool: str | None = None
    """Glob over tool names; matches calls."""
    event: str | None = None
    """Glob over event kinds, e.g. `message.posted`, `approval.asked`."""
    label: dict[str, str] = {}
    """Session labels that must all match (globs)."""


class RouteSpec(Section):
    match: MatchSpec = MatchSpec()
    to: str | None = None
    """Executor that answers."""
    copy_to: tuple[str, ...] = ()
    """Destinations that get a copy."""

    @field_validator("copy_to", mode="before")
    @classmethod
    def _one_is_many(cls, given: object) -> object:
        return _one_or_more(given)


class Retention(Section):
    closed_age: Duration = timedelta(days=7)
    open_age: Duration = timedelta(days=30)
    open_events: Annotated[int, Field(ge=100)] = 50_000
    max_bytes: ByteSize = ByteSize(2 * 1024**3)


class Limits(Section):
    session_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Calls of one session in flight at once; more wait."""
    inbound_frames: Annotated[int, Field(ge=10)] = 1_000
    """Frames that may wait in one session's inbox."""
    inbound_bytes: ByteSize = ByteSize(8 * 1024**2)
    cancel_grace: Duration = timedelta(seconds=10)
    """How long an executor may still answer after an operator's cancel."""
    interaction_timeout: Duration = timedelta(seconds=300)
    """How long a person may take; then deny or skip."""
    drain: Duration = timedelta(seconds=25)
    """How long a stopping gateway waits for calls in flight."""


class Logging(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto: coloured lines in a terminal, JSON elsewhere."""


class Settings(Section):
    """A whole configuration file."""

    public_url: AnyHttpUrl | None = None
    """Where executors reach this gateway, for callbacks of 202 answers."""
    api: Api = Api()
    engine: Store = SqliteStore()
    tools: dict[str, ToolSpec] = {}
    """Tools the agents may call, declared once for all runtimes."""
    runtimes: dict[Name, SerializeAsAny[RuntimeOptions]] = {}
    """The agent runtimes to connect to."""
    executors: dict[Name, ExecutorSpec] = {}
    destinations: dict[Name, DestinationSpec] = {}
    routes: tuple[RouteSpec, ...] = ()
    """Tried from the top; the first match with `to` answers, every match with `copy_to` gets a copy."""
    unrouted: Literal["fail", "ignore"] = "fail"
    """What happens to calls no route takes: fail tells the agent; ignore leaves them to another client."""
    retention: Retention = Retention()
    limits: Limits = Limits()
    logging: Logging = Logging()
