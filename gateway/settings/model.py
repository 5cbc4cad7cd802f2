"""The schema of the YAML: one frozen model per section, with working defaults and a description per field.

`load` validates each runtime with the options model of its adapter; here runtimes are any subclass of
`RuntimeOptions`. Durations are written as `20s`, `500ms`, `2m`, `7d` or seconds.
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
    Field,
    SecretStr,
    SerializeAsAny,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dragoman.postgres_dsn import why_refused
from dragoman.webhook_secret import decode_secret
from gateway.adapter.duration import Duration
from gateway.adapter.options import check_header, refusal
from gateway.adapter.port import LARGEST_FRAME, RuntimeOptions
from gateway.settings.functions import PATH
from gateway.settings.routes import ApprovalsSpec, RouteSpec
from gateway.settings.section import Name, Patience, Section, one_or_more
from gateway.settings.urls import PlainBase, PlainOrigin, TracePage, WebOrigin, WebUrl

_CONTRACT_HEADERS = frozenset({
    "dragoman-attempt", "idempotency-key", "traceparent", "tracestate",
    "webhook-id", "webhook-signature", "webhook-timestamp"})  # fmt: skip


def _not_empty(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(not secret.get_secret_value() for secret in secrets):
        text = "a secret must not be empty; remove the key for unsigned requests, or generate one: {make}"
        raise refusal(text, make="echo whsec_$(openssl rand -base64 32)")
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


def _file_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("must be a path without a NUL character")
    return path


def _lease_time(span: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= span <= timedelta(seconds=60):
        raise ValueError("must be from 1s to 60s; much less than the default of 6s loses leases to short pauses")
    return span


def _keep_alive_time(span: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= span <= timedelta(hours=1):
        raise ValueError("must be from 1s to 1h, and longer than the idle timeout of a load balancer in front")
    return span


def _hold_time(span: timedelta) -> timedelta:
    if span > timedelta(seconds=80):
        raise ValueError("must be at most 80s: a request without a response is aborted after 90s")
    return span


def _function_path(path: str) -> str:
    if not re.fullmatch(PATH, path):
        raise ValueError("must be the path of an async function: package.module:function")
    return path


Secrets = Annotated[
    tuple[SecretStr, ...],
    BeforeValidator(one_or_more),
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
"""The URL of a PostgreSQL database; a secret, because it contains the password."""

Headers = Annotated[dict[str, str], AfterValidator(_sendable)]
"""Extra request headers; the headers of the webhook contract are not allowed."""

Size = Annotated[ByteSize, Field(gt=0)]
"""A number of bytes, or a text such as 512KiB, 4MiB, 2GiB."""

ToolName = Annotated[str, Field(min_length=1, max_length=128)]

UNDECLARED = "_other"
"""The metrics label for tools that are not configured; no configured tool can have this name."""


FunctionPath = Annotated[
    str, AfterValidator(_function_path), WithJsonSchema({"type": "string", "pattern": rf"{PATH}|\$\{{"})
]
"""The path of an async function: package.module:function."""


class ApiKey(Section):
    """One key of the HTTP API and what it may do."""

    name: Name
    """Shown in logs instead of the key."""
    key: SecretStr
    """The key itself, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scopes: Annotated[frozenset[Literal["read", "drive", "operate", "answer", "approve"]], Field(min_length=1)] = (
        frozenset({"read", "drive", "operate", "answer"})
    )
    """read: read everything; drive: open sessions and post events; answer: answer interactions and calls;
    operate: cancel, redrive, reload, erase; approve: allow held calls, which no key may without it."""

    @field_validator("key")
    @classmethod
    def _key_not_empty(cls, key: SecretStr) -> SecretStr:
        if not key.get_secret_value():
            raise refusal("an API key must not be empty; generate one with `{make}`", make="openssl rand -hex 32")
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in key.get_secret_value()):
            # No client could send it in a header.
            text = "an API key must not contain a line break or another control character; generate one with `{make}`"
            raise refusal(text, make="openssl rand -hex 32")
        if key.get_secret_value() != key.get_secret_value().strip():
            raise refusal("an API key must not begin or end with a space: HTTP removes it from the header")
        return key


class Api(Section):
    """The HTTP API: its keys and limits."""

    keys: tuple[ApiKey, ...] = ()
    """The API keys. Without keys, `serve` binds loopback addresses only."""
    open: frozenset[Literal["metrics", "version", "openapi"]] = frozenset()
    """Pages that need no key."""
    origins: tuple[WebOrigin, ...] = ()
    """Origins of web pages that may use the API: scheme, host and port. Loopback origins and that of `public_url` are
    always allowed, as are requests without an `Origin`."""
    max_body: Size = ByteSize(4 * 1024**2)
    """Largest request body."""
    body_memory: Size = ByteSize(256 * 1024**2)
    """Maximum memory for all request bodies together; further requests get 503."""
    heartbeat: Patience = timedelta(seconds=4)
    """Time between SSE comments on a quiet stream; clients with a shorter read timeout disconnect."""


class HttpSpec(Section):
    """The HTTP server."""

    keep_alive: Annotated[Duration, AfterValidator(_keep_alive_time)] = timedelta(seconds=75)
    """How long an idle connection stays open, 1s to 1h; must exceed the idle timeout of a load balancer in front."""


class UiSpec(Section):
    """The web UI at /ui, where operators sign in with an API key."""

    enabled: bool = True
    """Whether it is served; otherwise every path under /ui responds with 404."""
    insecure: bool = False
    """Whether operators on other machines may sign in over plain HTTP; the network can read their keys and cookies."""


class SqliteStore(Section):
    """Everything in one file on a local disk; needs no server."""

    type: Literal["sqlite"] = "sqlite"
    """`sqlite`: one file, no server."""
    path: Annotated[Path, AfterValidator(_file_path)] = Path("dragoman.db")
    """The database file; its folder must exist and be on a local disk."""


class PostgresStore(Section):
    """Everything in one schema of a PostgreSQL database; several gateways can share it."""

    type: Literal["postgres"]
    """`postgres`: a server of version 14 or newer."""
    dsn: Dsn
    """postgresql://user:password@host:5432/database; PgBouncer works too, also in transaction mode."""
    direct_dsn: Dsn | None = None
    """A direct URL of the server behind PgBouncer, so that notifications of other gateways arrive at once."""
    schema_name: Annotated[str, Field(alias="schema", pattern=r"^[a-z_][a-z0-9_]{0,47}$")] = "dragoman"
    """The schema of the tables; created if it is missing."""
    connections: Annotated[int, Field(ge=4, le=100)] = 8
    """Maximum number of connections: two write steps, one renews the lease, the others run queries. One more receives
    notifications."""


class MemoryStore(Section):
    """Everything in a temporary file that is deleted when the gateway stops."""

    type: Literal["memory"]
    """Nothing survives a restart: for trials only. A killed gateway leaves the file in the temporary folder."""


def _default_to_sqlite(given: object) -> object:
    return {"type": "sqlite", **cast("dict[str, Any]", given)} if isinstance(given, dict) else given


Store = Annotated[
    SqliteStore | PostgresStore | MemoryStore,
    Field(discriminator="type"),
    # pydantic requires the discriminator even if it has a default.
    BeforeValidator(_default_to_sqlite),
]


class InstanceSpec(Section):
    """This process as one of several on a PostgreSQL store; a single process needs no settings here."""

    url: PlainOrigin | None = None
    """The URL of this instance for the other instances; by default http, this machine's host name and the port."""
    lease: Annotated[Duration, AfterValidator(_lease_time)] = timedelta(seconds=6)
    """How long after its last heartbeat other instances take over its sessions, 1s to 60s; the same for all.

    A store outage of up to two thirds of this time has no effect; after that, sessions pause until it responds.
    """


class ToolSpec(Section):
    """One tool that agents may call."""

    description: str = ""
    """The purpose of the tool and when to use it; the agent's model reads this."""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    """A JSON Schema object; arguments are checked against it before the executor gets them."""
    read_only: bool = False
    """True if the tool changes nothing; MCP clients see this, and a repeated call runs again."""
    nulls: Literal["drop", "keep"] = "drop"
    """drop: a null for an optional argument counts as omitted if the schema refuses null; keep: the call is refused."""


class McpSpec(Section):
    """How MCP clients are served."""

    hold: Annotated[Patience, AfterValidator(_hold_time)] = timedelta(seconds=50)
    """How long a request waits for its call to end, up to 80s; then the response explains how to keep waiting."""
    on_disconnect: Literal["auto", "continue", "cancel"] = "auto"
    """Whether a closed connection cancels the call of its request.

    `auto` follows the client's protocol version: 2026-07-28 cancels, earlier versions do not.
    """


class Backoff(Section):
    """How the wait between attempts grows; each wait is random, up to the current limit."""

    initial: Patience = timedelta(milliseconds=500)
    """Limit of the first wait; it doubles with each attempt."""
    maximum: Patience = timedelta(seconds=10)
    """Upper bound of the limit."""


class BreakerSpec(Section):
    """When the calls of a failing executor fail at once, without a request."""

    failures: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Consecutive failed requests that open the breaker: a lost connection, a timeout, a 5xx."""
    open_for: Patience = timedelta(seconds=10)
    """How long the breaker stays open before one call probes the executor (plus up to a quarter, at random)."""


BreakerOption = BreakerSpec | Literal["off"]


class WebhookSpec(Section):
    """Sends calls to an HTTP backend as signed POSTs."""

    type: Literal["webhook"]
    """`webhook`: calls go to a backend over HTTP."""
    url: WebUrl
    """The URL to which calls are POSTed."""
    secret: Secrets = ()
    """Signs each request (Standard Webhooks); [new, old] while rotating. Without one, requests are unsigned."""
    timeout: Patience = timedelta(seconds=20)
    """Time limit for one attempt."""
    deadline: Patience = timedelta(seconds=120)
    """Time limit for the whole call, over all attempts."""
    accepted_deadline: Patience = timedelta(seconds=600)
    """Time limit for the outcome after a 202."""
    accepted_silence: Patience = timedelta(seconds=120)
    """How long an `idempotent` executor may be silent after a 202 before it gets the request again."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Maximum number of times a request is sent; a request that could not be sent does not count."""
    reconnect_within: Duration = timedelta(seconds=30)
    """How long calls wait for an unreachable executor, counted from the first failed connection."""
    backoff: Backoff = Backoff()
    """The wait between attempts."""
    idempotent: bool = False
    """True if a repeat with the same key is harmless; otherwise a request that may have arrived is never repeated."""
    response: Literal["outcome", "raw"] = "outcome"
    """`raw` uses the whole JSON body as the result."""
    headers: Headers = {}
    """Extra request headers."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Maximum number of concurrent calls; further calls wait."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Maximum number of calls started per second; further calls wait."""
    breaker: BreakerOption = BreakerSpec()
    """When calls fail at once because requests keep failing; `off`: only while the executor is unreachable."""
    max_response: Size = ByteSize(1024**2)
    """Largest response body."""
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
    """Answers every call with the same result or error, without a backend."""

    type: Literal["static"]
    """`static`: the answer is configured here."""
    result: Any = None
    """The result of every call."""
    error: str | None = None
    """Set this instead to fail every call with this text."""
    delay: Duration = timedelta(0)
    """The delay before the answer."""

    @property
    def concurrency(self) -> int:
        return 10_000

    @property
    def idempotent(self) -> bool:
        return True


class PythonSpec(Section):
    """Runs calls as an async function in the gateway's process."""

    type: Literal["python"]
    """`python`: calls your function; it must never block."""
    call: FunctionPath
    """The async function, as package.module:function; it gets the `data` of a webhook and returns the result."""
    timeout: Patience = timedelta(seconds=20)
    """Time limit for one attempt."""
    deadline: Patience = timedelta(seconds=120)
    """Time limit for the whole call, over all attempts."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Maximum number of attempts; an exception is final, so only timeouts and restarts lead to another attempt."""
    idempotent: bool = False
    """True if a repeat with the same key is harmless; otherwise a call that may have started is never repeated."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Maximum number of concurrent calls; further calls wait."""
    breaker: BreakerOption = BreakerSpec()
    """When calls fail at once because earlier calls timed out; `off`: never."""


ExecutorSpec = Annotated[WebhookSpec | StaticSpec | PythonSpec, Field(discriminator="type")]


class DestinationSpec(Section):
    """Receives one-way copies of events, at least once, on a slow schedule."""

    url: WebUrl
    """The URL to which copies of events are POSTed."""
    secret: Secrets = ()
    """Signs each copy, as for executors."""
    headers: Headers = {}
    """Extra request headers."""
    timeout: Patience = timedelta(seconds=20)
    """Time limit for one attempt."""
    attempts: Annotated[int, Field(ge=1, le=50)] = 10
    """How many times a copy is sent before it becomes a dead letter; a copy that could not be sent does not count."""
    reconnect_within: Duration = timedelta(hours=1)
    """How long copies wait for an unreachable destination, counted from the first failed connection."""
    backoff: Backoff = Backoff(initial=timedelta(seconds=5), maximum=timedelta(hours=1))
    """The wait between attempts."""
    concurrency: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Maximum number of concurrent copies, live events not counted; further copies wait."""

    @model_validator(mode="after")
    def _has_one_login(self) -> Self:
        _one_login(self.url, self.headers)
        return self


class Retention(Section):
    """How long history is kept; the oldest closed sessions are removed first."""

    closed_age: Patience = timedelta(days=7)
    """How long a closed session is kept."""
    open_age: Patience = timedelta(days=30)
    """How long the events of an open session are kept."""
    open_events: Annotated[int, Field(ge=100)] = 50_000
    """How many events of one open session are kept."""
    max_bytes: Size = ByteSize(2 * 1024**3)
    """Maximum size of the whole store."""


class Limits(Section):
    """Bounds on queues and waits."""

    session_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Maximum number of concurrent calls per session; further calls wait."""
    session_rate: Annotated[float, Field(gt=0)] | None = None
    """Maximum number of calls started per second and session; further calls wait."""
    inbound_frames: Annotated[int, Field(ge=10)] = 1_000
    """Frames that may wait in one session's inbox."""
    inbound_bytes: Size = ByteSize(8 * 1024**2)
    """Bytes that may wait in one session's inbox."""
    frame: Annotated[Size, Field(ge=64 * 1024, le=LARGEST_FRAME)] = ByteSize(4 * 1024**2)
    """Largest frame of a runtime, 64KiB to 32MiB; a larger one is recorded as `frame.rejected`."""
    frame_memory: Annotated[Size, Field(ge=1024**2)] = ByteSize(64 * 1024**2)
    """Bytes of frames that may wait in all inboxes together; beyond it the gateway stops reading large frames."""
    open_calls: Annotated[int, Field(ge=1)] = 1_000
    """Maximum number of open calls per session, including waiting ones; further calls fail."""
    open_bytes: Size = ByteSize(32 * 1024**2)
    """Maximum memory for the arguments of one session's open calls; further calls fail."""
    sessions: Annotated[int, Field(ge=1)] = 50_000
    """Maximum number of sessions in this process; further ones are refused (503)."""
    followers: Annotated[int, Field(ge=1)] = 5_000
    """Maximum number of open event streams; further ones get 503."""
    session_followers: Annotated[int, Field(ge=1)] = 1_000
    """Maximum number of open event streams per session; further ones get 503."""
    outbound: Annotated[int, Field(ge=100)] = 10_000
    """Events of one session that may wait for delivery to its runtime; further client events are refused (503)."""
    members: Annotated[int, Field(ge=1_000)] = 20_000
    """Maximum number of members in one external JSON value, over all levels: request bodies, responses of executors,
    callbacks, frames of runtimes. Larger values are refused, since parsing them delays everything else."""
    progress: Size = ByteSize(4 * 1024**2)
    """Maximum size of all progress reports of one call; each report counts as at least 1 KiB."""
    cancel_grace: Patience = timedelta(seconds=10)
    """How long an executor may still answer after an operator's cancel."""
    interaction_timeout: Patience = timedelta(seconds=300)
    """How long a human has to answer; then the request is denied or skipped."""
    drain: Duration = timedelta(seconds=25)
    """How long a stopping gateway waits for running attempts, sends and waiting requests."""


class Logging(Section):
    """Level and format of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """debug also shows each frame, truncated and with secrets masked."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: coloured lines in a terminal, JSON elsewhere."""


class TracesSpec(Section):
    """The export of traces to an OpenTelemetry collector."""

    endpoint: PlainBase | None = None
    """The collector's base URL, to which `/v1/traces` is appended; by default that of `OTEL_EXPORTER_OTLP_ENDPOINT`,
    else `http://localhost:4318`."""
    headers: dict[str, SecretStr] = {}
    """Extra headers of each export, such as `authorization`."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The fraction of traces that are exported, unless the caller of a call has decided."""
    content: bool = False
    """Whether spans contain the arguments and results of calls, up to 16 KiB each, with configured secrets masked."""
    ui: TracePage | None = None
    """The URL of a page about one trace, with `{id}` in place of its id, such as `https://traces.example.com/trace/{id}`;
    pages of calls link to it."""

    @field_validator("headers", mode="after")
    @classmethod
    def _headers_are_sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            check_header(name, value.get_secret_value())
        return headers


class Settings(Section):
    """A whole configuration file."""

    public_url: WebUrl | None = None
    """The gateway's URL for callbacks of executors after a 202; by default its address, if that is loopback."""
    api: Api = Api()
    """The HTTP API: keys and limits."""
    http: HttpSpec = HttpSpec()
    """The HTTP server."""
    ui: UiSpec = UiSpec()
    """The web UI."""
    engine: Store = SqliteStore()
    """The database."""
    mcp: McpSpec = McpSpec()
    """MCP clients."""
    instance: InstanceSpec = InstanceSpec()
    """This process as one of several on a store."""
    tools: dict[ToolName, ToolSpec] = {}
    """Tools that agents may call, declared once for all runtimes."""
    runtimes: dict[Name, SerializeAsAny[RuntimeOptions]] = {}
    """The agent runtimes to connect to."""
    executors: dict[Name, ExecutorSpec] = {}
    """The executors of calls: `webhook` calls a backend, `python` a function, `static` answers from this file."""
    destinations: dict[Name, DestinationSpec] = {}
    """Receivers of event copies."""
    routes: tuple[RouteSpec, ...] = ()
    """Any match with `deny` denies a call, else the first one with `to` answers; every one with `copy_to` copies."""
    approvals: ApprovalsSpec = ApprovalsSpec()
    """Calls that wait for a human, because their route has `approve`."""
    unrouted: Literal["fail", "ignore"] = "fail"
    """For calls without a route: fail sends the agent an error; ignore leaves them to another client."""
    retention: Retention = Retention()
    """How long history is kept."""
    limits: Limits = Limits()
    """Bounds on queues and waits."""
    logging: Logging = Logging()
    """Level and format of the log."""
    traces: TracesSpec | None = None
    """The export of traces; without it, `OTEL_EXPORTER_OTLP_ENDPOINT` enables it."""
