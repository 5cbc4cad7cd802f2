"""The shape of the YAML: one frozen model per section, with defaults that work and a description per field.

Runtimes are validated by their adapter's own options model, which `load` looks up; here they are
`RuntimeOptions` of any subclass. Durations are written as `20s`, `500ms`, `2m`, `7d` or seconds.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    SerializeAsAny,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dragoman.models.described import Documented
from dragoman.postgres_dsn import why_refused
from dragoman.webhook_secret import decode_secret
from gateway.adapter.duration import Duration
from gateway.adapter.options import check_header, refusal
from gateway.adapter.port import LARGEST_FRAME, RuntimeOptions
from gateway.addresses import read_origin
from gateway.settings.functions import PATH

_CONTRACT_HEADERS = frozenset(
    {"dragoman-attempt", "idempotency-key", "traceparent", "webhook-id", "webhook-signature", "webhook-timestamp"}
)


def _one_or_more(given: object) -> object:
    return [given] if isinstance(given, str | SecretStr) else given


def _not_empty(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(not secret.get_secret_value() for secret in secrets):
        mend = "a secret must not be empty; leave the key out for unsigned requests, or make one: {make}"
        raise refusal(mend, make="echo whsec_$(openssl rand -base64 32)")
    for number, secret in enumerate(secrets, 1):
        try:
            decode_secret(secret.get_secret_value())
        except ValueError as exc:
            raise refusal("secret {number} of {count} {why}", number=number, count=len(secrets), why=str(exc)) from None
    return secrets


def _sendable(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        check_header(name, value)
        if name.lower() in _CONTRACT_HEADERS:
            raise refusal("the gateway sets the header '{name}' itself; choose another name", name=name)
    if len({name.lower() for name in headers}) < len(headers):
        raise refusal("two headers differ only in case; keep one")
    return headers


def _one_login(url: AnyHttpUrl, headers: Mapping[str, str]) -> None:
    if url.username is not None and "authorization" in {name.lower() for name in headers}:
        raise refusal("the user name in `url` contradicts the `authorization` in `headers`; keep one of them")


def _postgres_url(dsn: SecretStr) -> SecretStr:
    if (fault := why_refused(dsn.get_secret_value())) is not None:
        raise refusal("{fault}", fault=fault)
    return dsn


def _some_time(span: timedelta) -> timedelta:
    if not span:
        raise ValueError("must be longer than 0s")
    return span


def _plain_origin(url: AnyHttpUrl) -> AnyHttpUrl:
    if url.username or url.password or url.query or url.fragment or (url.path or "/") != "/":
        raise ValueError("must be scheme, host and port only, e.g. http://10.0.0.7:8080")
    return url


def _web_origin(text: str) -> str:
    origin = read_origin(text.removesuffix("/"))
    if origin is None:
        raise ValueError("must be the origin of a web page: scheme, host and port only, e.g. https://app.example.com")
    return origin


def _lease_time(span: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= span <= timedelta(seconds=60):
        raise ValueError("must be from 1s to 60s; much less than the default of 6s loses leases to short pauses")
    return span


def _keep_alive_time(span: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= span <= timedelta(hours=1):
        raise ValueError("must be from 1s to 1h, and longer than the load balancer in front keeps a connection")
    return span


def _hold_time(span: timedelta) -> timedelta:
    if span > timedelta(seconds=80):
        raise ValueError("must be at most 80s: a request is given up whose answer has not begun after 90s")
    return span


def _function_path(path: str) -> str:
    if not re.fullmatch(PATH, path):
        raise ValueError("must be the path of an async function: package.module:function")
    return path


Secrets = Annotated[
    tuple[SecretStr, ...],
    BeforeValidator(_one_or_more),
    AfterValidator(_not_empty),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
            "writeOnly": True,
        }
    ),
]
"""One secret, or [new, old] while rotating; the first signs, all verify."""

Dsn = Annotated[SecretStr, AfterValidator(_postgres_url)]
"""The URL of a PostgreSQL database; a secret, because it holds the password."""

Headers = Annotated[dict[str, str], AfterValidator(_sendable)]
"""Extra request headers, apart from those that the webhook contract uses."""

Patience = Annotated[Duration, AfterValidator(_some_time)]
"""A duration that something real must fit into, so never zero."""

Size = Annotated[ByteSize, Field(gt=0)]
"""A number of bytes, or a text such as 512KiB, 4MiB, 2GiB."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""How runtimes, executors, destinations and keys are called in logs, metrics and routes."""

ToolName = Annotated[str, Field(min_length=1, max_length=128)]

UNDECLARED = "_other"
"""The label under which metrics count names that the configuration lacks; no name of it can be this one."""


FunctionPath = Annotated[
    str, AfterValidator(_function_path), WithJsonSchema({"type": "string", "pattern": rf"{PATH}|\$\{{"})
]
"""Where an async function is found: package.module:function."""


class Section(Documented):
    """The base of all sections: frozen, unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        # Built when first used: a part of a larger section never is, by itself.
        defer_build=True,
    )


class ApiKey(Section):
    """One key of the HTTP API and what it may do."""

    name: Name
    """Shown in logs instead of the key."""
    key: SecretStr
    """The key itself, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scopes: Annotated[frozenset[Literal["read", "drive", "operate", "answer"]], Field(min_length=1)] = frozenset(
        {"read", "drive", "operate", "answer"}
    )
    """read: look at everything; drive: open sessions and post events; answer: answer interactions and calls;
    operate: cancel, redrive, reload, erase."""

    @field_validator("key")
    @classmethod
    def _key_not_empty(cls, key: SecretStr) -> SecretStr:
        if not key.get_secret_value():
            raise refusal("an API key must not be empty; `{make}` makes a good one", make="openssl rand -hex 32")
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in key.get_secret_value()):
            # No client could send it: a header holds one line.
            mend = "an API key must not contain a line break or another control character; `{make}` makes a good one"
            raise refusal(mend, make="openssl rand -hex 32")
        if key.get_secret_value() != key.get_secret_value().strip():
            raise refusal("an API key must not begin or end with a space: HTTP removes it from the header")
        return key


class Api(Section):
    """The HTTP face: who may use it and how much it takes."""

    keys: tuple[ApiKey, ...] = ()
    """Who may use the HTTP API. Without keys, `serve` binds loopback addresses only."""
    open: frozenset[Literal["metrics", "version", "openapi"]] = frozenset()
    """Pages that need no key."""
    origins: tuple[Annotated[str, AfterValidator(_web_origin)], ...] = ()
    """Web pages whose requests are served, by origin: scheme, host and port. Loopback pages and the one at `public_url`
    always are; a request without `Origin` is not from a page."""
    max_body: Size = ByteSize(4 * 1024**2)
    """Largest request body."""
    body_memory: Size = ByteSize(256 * 1024**2)
    """What the request bodies under way may take together; who comes later gets 503."""
    heartbeat: Patience = timedelta(seconds=4)
    """Time between SSE comments on a quiet stream; clients whose read time-out is shorter give it up."""


class HttpSpec(Section):
    """The HTTP server."""

    keep_alive: Annotated[Duration, AfterValidator(_keep_alive_time)] = timedelta(seconds=75)
    """How long an idle connection stays open, 1s to 1h; must exceed the idle timeout of a load balancer in front."""


class SqliteStore(Section):
    """Everything in one file on a local disk; needs no server."""

    type: Literal["sqlite"] = "sqlite"
    """`sqlite`: one file, no server."""
    path: Path = Path("dragoman.db")
    """The database file; its folder must exist and be on a local disk."""


class PostgresStore(Section):
    """Everything in one schema of a PostgreSQL database, which any number of gateways may share."""

    type: Literal["postgres"]
    """`postgres`: a server of version 14 or newer."""
    dsn: Dsn
    """postgresql://user:password@host:5432/database; PgBouncer may stand in between, also in transaction mode."""
    direct_dsn: Dsn | None = None
    """A way past PgBouncer to the server itself, so that news of other gateways are heard at once."""
    schema_name: Annotated[str, Field(alias="schema", pattern=r"^[a-z_][a-z0-9_]{0,47}$")] = "dragoman"
    """The schema that holds the tables; it is made where it is missing."""
    connections: Annotated[int, Field(ge=4, le=100)] = 8
    """Connections at most: two write steps, one keeps the lease, the rest answers questions. One more listens."""


class MemoryStore(Section):
    """Everything in a temporary file that is deleted when the gateway stops."""

    type: Literal["memory"]
    """Nothing survives a restart: for trials only. A killed gateway leaves the file in the temporary folder."""


def _default_to_sqlite(given: object) -> object:
    return {"type": "sqlite", **cast("dict[str, Any]", given)} if isinstance(given, dict) else given


Store = Annotated[
    SqliteStore | PostgresStore | MemoryStore,
    Field(discriminator="type"),
    # A discriminator wants its key even where a default would do.
    BeforeValidator(_default_to_sqlite),
]


class InstanceSpec(Section):
    """This process among others on one store; a process that has its store for itself needs none of this."""

    url: Annotated[AnyHttpUrl, AfterValidator(_plain_origin)] | None = None
    """Where the other instances reach this one's API; by default http, the name of this machine and the port."""
    lease: Annotated[Duration, AfterValidator(_lease_time)] = timedelta(seconds=6)
    """How long after its last sign of life the others take its sessions over, 1s to 60s; the same for all.

    A store that stands still for two thirds of it costs nothing; beyond, sessions are silent until it answers.
    """


class ToolSpec(Section):
    """One tool that agents may call."""

    description: str = ""
    """What the tool does and when to use it; the agent's model reads this."""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    """A JSON Schema object; calls are checked against it before the executor sees them."""
    read_only: bool = False
    """True says that it changes nothing; MCP clients are told so, and a repeat of it asks anew."""
    nulls: Literal["drop", "keep"] = "drop"
    """drop: null for an optional argument whose schema refuses null counts as omitted; keep: the call is refused."""


class McpSpec(Section):
    """How callers over MCP are served."""

    hold: Annotated[Patience, AfterValidator(_hold_time)] = timedelta(seconds=50)
    """How long a request waits for its call to end, up to 80s; then it is told how to wait on."""
    on_disconnect: Literal["auto", "go_on", "cancel"] = "auto"
    """Whether a closed connection cancels the call that its request waits for.

    `auto` follows the client's version of the protocol: it does at 2026-07-28, and does not before.
    """


class Backoff(Section):
    """How the wait between attempts grows; each is drawn at random below the limit."""

    initial: Patience = timedelta(milliseconds=500)
    """Limit of the first wait; it doubles with each attempt."""
    maximum: Patience = timedelta(seconds=10)
    """Where the doubling ends."""


class BreakerSpec(Section):
    """When the calls of an executor whose requests fail end at once, without a request."""

    failures: Annotated[int, Field(ge=1, le=1_000)] = 5
    """How many requests in a row must fail: a lost connection, no answer in time, a 5xx."""
    open_for: Patience = timedelta(seconds=10)
    """How long until one call probes it (up to a quarter longer, drawn at random)."""


BreakerOption = BreakerSpec | Literal["off"]


class WebhookSpec(Section):
    """Answers calls by a signed POST to an HTTP backend."""

    type: Literal["webhook"]
    """`webhook`: the backend is asked over HTTP."""
    url: AnyHttpUrl
    """Where calls are POSTed."""
    secret: Secrets = ()
    """Signs each request (Standard Webhooks); [new, old] while rotating. Without one, requests are unsigned."""
    timeout: Patience = timedelta(seconds=20)
    """How long one attempt may take."""
    deadline: Patience = timedelta(seconds=120)
    """How long the whole call may take, over all attempts."""
    accepted_deadline: Patience = timedelta(seconds=600)
    """How long the outcome may take after a 202."""
    accepted_silence: Patience = timedelta(seconds=120)
    """After so long without progress or outcome behind a 202, an `idempotent` executor gets the request again."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """How often a request is sent at most; one that could not be sent does not count."""
    reconnect_within: Duration = timedelta(seconds=30)
    """How long calls wait for an executor that cannot be reached, from the moment it was first found unreachable."""
    backoff: Backoff = Backoff()
    """The wait between attempts."""
    idempotent: bool = False
    """True promises that a repeat with the same key does no harm; else what may have arrived is never repeated."""
    response: Literal["outcome", "raw"] = "outcome"
    """`raw` takes the whole JSON body as the result."""
    headers: Headers = {}
    """Extra request headers."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Calls in flight at once; more wait."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Calls per second at most; more wait."""
    breaker: BreakerOption = BreakerSpec()
    """When its calls fail at once because its requests fail; `off`: only while it cannot be reached."""
    max_response: Size = ByteSize(1024**2)
    """Largest response body that is read."""
    idle: Duration | None = None
    """How long an idle connection may be reused; 1s by default, 4s if `idempotent`. 0s: no reuse.

    A server's `Keep-Alive: timeout=N` shortens it to N - 1 seconds; `max=1` prevents reuse.
    """

    @property
    def idle_seconds(self) -> float:
        """`idle`, or its default."""
        if self.idle is not None:
            return self.idle.total_seconds()
        return 4.0 if self.idempotent else 1.0

    @model_validator(mode="after")
    def _has_one_login(self) -> Self:
        _one_login(self.url, self.headers)
        return self


class StaticSpec(Section):
    """Answers every call with the same words, without any backend."""

    type: Literal["static"]
    """`static`: the answer stands here."""
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


class PythonSpec(Section):
    """Answers calls by an async function inside the gateway's own process."""

    type: Literal["python"]
    """`python`: a function of yours is called; it must never block."""
    call: FunctionPath
    """The async function, as package.module:function; it gets the `data` of a webhook and returns the answer."""
    timeout: Patience = timedelta(seconds=20)
    """How long one attempt may take."""
    deadline: Patience = timedelta(seconds=120)
    """How long the whole call may take, over all attempts."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """How often a call is tried at most; an exception is final, so this is about time-outs and restarts."""
    idempotent: bool = False
    """True promises that a repeat with the same key does no harm; else what may have begun is never repeated."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Calls in flight at once; more wait."""
    breaker: BreakerOption = BreakerSpec()
    """When it is left alone because it does not answer in time; `off` asks it always."""


ExecutorSpec = Annotated[WebhookSpec | StaticSpec | PythonSpec, Field(discriminator="type")]


class DestinationSpec(Section):
    """Receives one-way copies of events, at least once, on a slow schedule."""

    url: AnyHttpUrl
    """Where copies of events are POSTed."""
    secret: Secrets = ()
    """Signs each copy, as for executors."""
    headers: Headers = {}
    """Extra request headers."""
    timeout: Patience = timedelta(seconds=20)
    """How long one attempt may take."""
    attempts: Annotated[int, Field(ge=1, le=50)] = 10
    """How often a copy is sent before it becomes a dead letter; one that could not be sent does not count."""
    reconnect_within: Duration = timedelta(hours=1)
    """How long copies wait for a destination that cannot be reached, from the moment it was first found unreachable."""
    backoff: Backoff = Backoff(initial=timedelta(seconds=5), maximum=timedelta(hours=1))
    """The wait between attempts."""
    concurrency: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Copies in flight at once; more wait."""

    @model_validator(mode="after")
    def _has_one_login(self) -> Self:
        _one_login(self.url, self.headers)
        return self


class MatchSpec(Section):
    """What a route is about; everything given must match."""

    runtime: str = "*"
    """Glob over runtime names."""
    tool: str | None = None
    """Glob over tool names; matches calls."""
    event: str | None = None
    """Glob over event kinds, e.g. `message.posted`, `approval.asked`."""
    label: dict[str, str] = {}
    """Session labels that must all match (globs)."""


class RouteSpec(Section):
    """One rule: what matches goes to an executor, or is copied to destinations."""

    match: MatchSpec = MatchSpec()
    """What this rule is about; by default, everything."""
    to: str | None = None
    """Executor that answers."""
    copy_to: Annotated[
        tuple[str, ...],
        BeforeValidator(_one_or_more),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = ()
    """Destinations that get a copy; one name or a list."""


class Retention(Section):
    """How long history is kept; what is removed first is the oldest of closed sessions."""

    closed_age: Patience = timedelta(days=7)
    """How long a closed session is kept."""
    open_age: Patience = timedelta(days=30)
    """How long the events of an open session are kept."""
    open_events: Annotated[int, Field(ge=100)] = 50_000
    """How many events of one open session are kept."""
    max_bytes: Size = ByteSize(2 * 1024**3)
    """How large the whole store may become."""


class Limits(Section):
    """Bounds on queues and waits."""

    session_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Calls of one session in flight at once; more wait."""
    session_rate: Annotated[float, Field(gt=0)] | None = None
    """Calls of one session that begin in a second at most; more wait."""
    inbound_frames: Annotated[int, Field(ge=10)] = 1_000
    """Frames that may wait in one session's inbox."""
    inbound_bytes: Size = ByteSize(8 * 1024**2)
    """Bytes that may wait in one session's inbox."""
    frame: Annotated[Size, Field(ge=64 * 1024, le=LARGEST_FRAME)] = ByteSize(4 * 1024**2)
    """Largest frame of a runtime, 64KiB to 32MiB; a larger one is recorded as `frame.rejected`."""
    frame_memory: Annotated[Size, Field(ge=1024**2)] = ByteSize(64 * 1024**2)
    """Bytes of frames that may wait in all inboxes together; beyond it the gateway stops reading large frames."""
    open_calls: Annotated[int, Field(ge=1)] = 1_000
    """Calls of one session that may be open at once, those that wait included; the next are answered with a failure."""
    open_bytes: Size = ByteSize(32 * 1024**2)
    """What the arguments of one session's open calls may take in memory; the next calls are answered with a failure."""
    sessions: Annotated[int, Field(ge=1)] = 50_000
    """Sessions that this process carries; the next is not opened (503)."""
    followers: Annotated[int, Field(ge=1)] = 5_000
    """Event streams that are open at once; the next gets 503."""
    session_followers: Annotated[int, Field(ge=1)] = 1_000
    """Event streams of one session that are open at once; the next gets 503."""
    outbound: Annotated[int, Field(ge=100)] = 10_000
    """Events of one session that may wait to be delivered to its runtime; a client's next is refused (503)."""
    members: Annotated[int, Field(ge=1_000)] = 20_000
    """Members of one JSON value from outside, all levels together: request bodies, answers of executors, callbacks,
    frames of runtimes. More are refused, since the work for them holds up everybody else."""
    progress: Size = ByteSize(4 * 1024**2)
    """Progress that executors may report of one call in all; each report counts as 1 KiB at least."""
    cancel_grace: Patience = timedelta(seconds=10)
    """How long an executor may still answer after an operator's cancel."""
    interaction_timeout: Patience = timedelta(seconds=300)
    """How long a person may take; then deny or skip."""
    drain: Duration = timedelta(seconds=25)
    """How long a stopping gateway waits for attempts, sends and held requests in flight."""


class Logging(Section):
    """What is logged and how it looks."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """debug also shows each frame, cut short and with secrets masked."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: coloured lines in a terminal, JSON elsewhere."""


class Settings(Section):
    """A whole configuration file."""

    public_url: AnyHttpUrl | None = None
    """Where executors reach this gateway, for callbacks of 202 answers; by default its address, if that is loopback."""
    api: Api = Api()
    """The HTTP API: keys and limits."""
    http: HttpSpec = HttpSpec()
    """The HTTP server."""
    engine: Store = SqliteStore()
    """Where everything is recorded."""
    mcp: McpSpec = McpSpec()
    """Callers over MCP."""
    instance: InstanceSpec = InstanceSpec()
    """This process among several on one store."""
    tools: dict[ToolName, ToolSpec] = {}
    """Tools the agents may call, declared once for all runtimes."""
    runtimes: dict[Name, SerializeAsAny[RuntimeOptions]] = {}
    """The agent runtimes to connect to."""
    executors: dict[Name, ExecutorSpec] = {}
    """Who answers calls: `webhook` asks a backend, `python` calls a function, `static` answers from this file."""
    destinations: dict[Name, DestinationSpec] = {}
    """Who gets copies of events."""
    routes: tuple[RouteSpec, ...] = ()
    """Tried from the top; the first match with `to` answers, every match with `copy_to` gets a copy."""
    unrouted: Literal["fail", "ignore"] = "fail"
    """What happens to calls no route takes: fail tells the agent; ignore leaves them to another client."""
    retention: Retention = Retention()
    """How long history is kept."""
    limits: Limits = Limits()
    """How much may wait, and for how long."""
    logging: Logging = Logging()
    """What is logged."""
