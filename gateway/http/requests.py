"""Models of request bodies and query parameters, with their limits. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from dragoman.models.described import Described, Documented
from gateway.events import KINDS, OutcomeKind, SessionId
from gateway.http.positions import read_in_list
from gateway.runtime.clients.dead_letters import Which
from gateway.store.call import SETTLED, CallState
from gateway.store.rows import CallFilter, EventFilter, Generation, Page, SessionFilter
from gateway.store.step import InteractionState

Label = Annotated[str, Field(max_length=256)]
TARGET = r"^(runtime|(destination|notice):[A-Za-z0-9][A-Za-z0-9._-]{0,63})$"
LONGEST_CALL_KEY = 200
MOST_SESSIONS = 100
"""The maximum number of sessions that a request names."""
_LABEL = "label."
CALL_KEY = rf"^[ -~]{{1,{LONGEST_CALL_KEY}}}$"


def _without_nul(given: str) -> str:
    if "\0" in given:
        raise ValueError("must not contain the character U+0000")
    return given


NativeId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_without_nul)]
SearchText = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_without_nul)]
SessionPosition = Annotated[str, Field(min_length=1, max_length=256)]
LabelName = Annotated[str, Field(min_length=1, max_length=64)]


class Misplaced(ValueError):
    """A member that the others exclude or require."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(reason)
        self.member = member


class Body(Described):
    """The base of all bodies: unknown members are errors, and values are not converted between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OpenSession(Body):
    runtime: Annotated[str, Field(min_length=1, max_length=64)]
    """The runtime's name in the configuration."""
    native_id: NativeId | None = None
    """The runtime's own id of the session to attach to. Omit it to create a session."""
    labels: Annotated[dict[LabelName, Label], Field(max_length=32)] = {}
    """Labels for routing and your own use."""
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The name of a created session; overrides the configuration."""
    instructions: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    """The agent's instructions in a created session; overrides the configuration."""

    @model_validator(mode="after")
    def _creates(self) -> Self:
        for member in ("name", "instructions"):
            if self.native_id is not None and getattr(self, member) is not None:
                raise Misplaced(member, f"`{member}` is only for created sessions; omit it with `native_id`")
        return self


class CallTool(Body):
    tool: Annotated[str, Field(min_length=1, max_length=256)]
    """A configured tool that a route of the session leads to an executor."""
    arguments: dict[str, Any] = {}
    """The arguments; they must match the tool's schema."""
    key: Annotated[str, Field(pattern=CALL_KEY)] | None = None
    """Same as the header `Idempotency-Key`."""


class CancelCall(Body):
    reason: Annotated[str, Field(max_length=1_000)] | None = None
    """The reason, which the executor receives."""


class RedriveCall(Body):
    new_key: bool = False
    """Use a new idempotency key, so that the executor runs the call again even if it knows the old key."""
    deliver: bool = False
    """Also send the outcome to the runtime."""


class Letters(Documented):
    """The filters for dead letters."""

    kind: Literal["call", "delivery"] | None = None
    """Only calls, or only deliveries."""
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only dead letters of this runtime."""
    executor: Annotated[str, Field(max_length=64)] | None = None
    """Only calls to this executor."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """Only deliveries to `runtime`, `destination:NAME` or `notice:NAME`."""
    since: Annotated[AwareDatetime, Field(strict=False)] | None = None
    """Only calls and events since this time, for example 2026-11-20T12:00:00Z."""
    unknown: bool | None = None
    """Only calls that may have run (true), or that did not run (false)."""
    tool: Annotated[str, Field(max_length=256)] | None = None
    """Only calls of this tool."""
    cause: Annotated[str, Field(max_length=1_000)] | None = None
    """Only those whose error or reason is this text, with or without details after `: `, `; ` or ` (`."""

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        for member in ("executor", "unknown", "tool"):
            if getattr(self, member) is not None and (self.target is not None or self.kind == "delivery"):
                raise Misplaced(member, f"`{member}` filters calls, which have no `target`")
        if self.target is not None and self.kind == "call":
            raise Misplaced("target", "`target` filters deliveries, so `kind` cannot be `call`")
        return self

    def which(self) -> Which:
        """Return the filter for the store."""
        return Which(
            self.kind, self.runtime, self.executor, self.target, self.since, self.unknown, self.tool, self.cause
        )


class RedriveMany(Letters, RedriveCall):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    """The maximum number of dead letters."""
    dry_run: bool = False
    """Only list the dead letters that would be redriven."""


class DismissMany(Letters, Body):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    """The maximum number of dead letters."""
    dry_run: bool = False
    """Only list the dead letters that would be dismissed."""


class Redeliver(Body):
    target: Annotated[str, Field(pattern=TARGET)]
    """`runtime`, `destination:NAME` or `notice:NAME`."""


class AnswerInteraction(Body):
    """One of three: `decision` for an approval, `answer` for a question, `value` for a secret."""

    decision: Literal["allow", "deny"] | None = None
    """The answer to an approval."""
    scope: Literal["once", "session", "always"] | None = None
    """The validity of a decision."""
    reason: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """The reason of a decision, for the agent; a loss if the runtime takes none. At most 2,000 characters for a held
    call."""
    binding: Annotated[str, Field(max_length=64)] | None = None
    """What is allowed, as the interaction shows it; required to allow a held call."""
    arguments: dict[str, Any] | None = None
    """Other arguments for a held call, instead of those that were asked about."""
    answer: Annotated[str, Field(max_length=100_000)] | None = None
    """The answer to a question; an empty one skips it."""
    value: Annotated[str, Field(max_length=100_000)] | None = None
    """The secret. The gateway sends it to the runtime and never stores it."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "AnswerInteraction":
        given = [name for name in ("decision", "answer", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("set exactly one of `decision`, `answer` and `value`")
        for name in ("scope", "reason", "binding", "arguments"):
            if getattr(self, name) is not None and self.decision is None:
                raise Misplaced(name, f"`{name}` requires `decision`")
        if self.arguments is not None and self.decision != "allow":
            raise Misplaced("arguments", "`arguments` requires the decision `allow`")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return the members that were given."""
        return self.model_dump(exclude_none=True)


class Query(Documented):
    """The base of all query parameters; unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _split(given: object) -> object:
    if not isinstance(given, list):
        return given
    return [part for text in cast("list[str]", given) for part in text.split(",")]


class ListQuery(Query):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """The maximum number of rows."""
    after: Annotated[str, Field(min_length=1, max_length=600)] | None = None
    """The `next` of the previous page."""

    def page(self, own: Generation) -> Page:
        """Return the page for the store, whose generation is `own`."""
        return Page(self.limit, None if self.after is None else read_in_list(self.after, own))


class LabelQuery(Query):
    labels: Annotated[
        dict[str, str], WithJsonSchema({"type": "string", "maxLength": 256}), Field(alias=f"{_LABEL}NAME")
    ] = Field(default_factory=dict[str, str])
    """Only sessions whose label NAME has this value; several labels must all match."""

    @model_validator(mode="before")
    @classmethod
    def _read_labels(cls, given: dict[str, Any]) -> dict[str, Any]:
        labels = {name.removeprefix(_LABEL): value for name, value in given.items() if name.startswith(_LABEL)}
        for name, value in labels.items():
            if not 1 <= len(name) <= 64 or len(value) > 256:
                raise Misplaced(
                    f"{_LABEL}{name}", "a label has a name of 1 to 64 and a value of at most 256 characters"
                )
        if len(labels) > 32:
            raise Misplaced(f"{_LABEL}NAME", "a session has at most 32 labels")
        rest = {name: value for name, value in given.items() if not name.startswith(_LABEL)}
        return {**rest, f"{_LABEL}NAME": labels} if labels else rest


def _known(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not kinds_of([pattern]):
            raise ValueError(f"no event kind matches {pattern[:50]!r}")
    return patterns


KindPatterns = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=64)]],
    BeforeValidator(_split),
    Field(max_length=64),
    AfterValidator(_known),
]


def kinds_of(patterns: Sequence[str]) -> frozenset[str]:
    """Return the kinds of events that match any of these globs."""
    return frozenset(kind for pattern in patterns for kind in KINDS if fnmatchcase(kind, pattern))


class DeadLettersQuery(Letters, ListQuery):
    pass


SessionIds = Annotated[
    list[Annotated[str, Field(max_length=128)]], BeforeValidator(_split), Field(max_length=MOST_SESSIONS)
]


class SessionsQuery(ListQuery, LabelQuery):
    session_id: SessionIds = []
    """Only sessions with these ids, repeated or separated by commas."""
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only sessions of this runtime."""
    native_id: NativeId | None = None
    """Only sessions with this native id."""
    open: bool = False
    """Only open sessions."""
    state: Annotated[list[Annotated[str, Field(max_length=64)]], BeforeValidator(_split), Field(max_length=16)] = []
    """One or more states, repeated or separated by commas."""
    since: AwareDatetime | None = None
    """Only sessions opened at this time or later, for example 2026-11-20T12:00:00Z."""
    until: AwareDatetime | None = None
    """Only sessions opened before this time."""
    text: SearchText | None = None
    """Only sessions whose id begins with this text, or whose `RUNTIME/NATIVE_ID` or labels contain it."""
    order: Literal["oldest", "newest"] = "oldest"
    """The order by time of opening."""

    def which(self) -> SessionFilter:
        """Return the filter for the store."""
        return SessionFilter(
            self.runtime,
            self.native_id,
            self.open,
            frozenset(self.state),
            self.labels,
            self.since,
            self.until,
            self.text,
            frozenset(self.session_id),
        )


class RuntimesQuery(Query):
    session_id: SessionIds = []
    """Only the links of these sessions, repeated or separated by commas; without it all links."""


class CloseQuery(Query):
    erase: bool = False
    """Also erase the bodies of the session's events; requires the scope `operate`."""


class RotateQuery(Query):
    of: Literal["token", "ticket"] = "token"
    """`token` is the session's tool token; `ticket` is the token that its native session received on creation."""
    force: bool = False
    """Required to rotate a ticket, because the native session cannot receive another one."""


class ReloadQuery(Query):
    dry_run: bool = False
    """Only report the changes."""
    force: bool = False
    """Also restart runtimes whose protocol cannot replay; messages that their agents send meanwhile are lost."""


class EventsQuery(Query):
    after: SessionPosition = "0"
    """Return events after this `position`, `next` or sequence."""
    kind: KindPatterns = []
    """Only events of these kinds: one or more globs, repeated or separated by commas, for example `tool.*`."""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    """The maximum number of events."""
    native: bool = False
    """Whether each event comes with its native frames; then a page has at most 100 events."""
    excerpts: bool = False
    """Whether an event above 8 KiB is `cut`: `opaque`, with its first members and texts in `payload`."""


class StreamQuery(Query):
    after: SessionPosition | None = None
    """Start after this `id`, or after a sequence. Without it and without `Last-Event-ID`, the stream starts with new
    events."""


class AllEventsQuery(LabelQuery):
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only events of this runtime's sessions."""
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only events of this session."""
    kind: KindPatterns = []
    """Only events of these kinds: one or more globs, repeated or separated by commas, for example `tool.*`."""
    after: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Start after the event with this `id` of a stream with the same filters; `0` starts with the oldest event. Without
    it and without `Last-Event-ID`, the stream starts with new events."""

    def which(self) -> EventFilter:
        """Return the filter for the store."""
        session_id = None if self.session_id is None else SessionId(self.session_id)
        return EventFilter(session_id, self.runtime, self.labels, kinds_of(self.kind))


class CallsQuery(ListQuery, LabelQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only calls of this session."""
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only calls of this runtime."""
    tool: Annotated[str, Field(max_length=256)] | None = None
    """Only calls of this tool."""
    state: Annotated[list[CallState], BeforeValidator(_split)] = []
    """One or more states, repeated or separated by commas."""
    unknown: bool | None = None
    """Only calls whose outcome is unknown (true) or known (false)."""
    outcome: Annotated[list[OutcomeKind], BeforeValidator(_split)] = []
    """Only ended calls with one of these outcomes, repeated or separated by commas."""
    executor: Annotated[str, Field(max_length=64)] | None = None
    """Only calls to this executor."""
    trace_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    """Only calls of this trace."""
    since: AwareDatetime | None = None
    """Only calls opened at this time or later, for example 2026-11-20T12:00:00Z."""
    until: AwareDatetime | None = None
    """Only calls opened before this time."""
    text: SearchText | None = None
    """Only calls with an id or idempotency key that begins with this text, whose error contains it, or whose request of
    at most 16 KiB contains it with the same case."""
    arguments: bool = False
    """Whether each call has an `arguments_excerpt`."""

    @model_validator(mode="after")
    def _state_or_outcome(self) -> Self:
        if self.state and self.outcome:
            raise Misplaced("outcome", "`outcome` and `state` exclude each other")
        return self

    def which(self) -> CallFilter:
        """Return the filter for the store."""
        return CallFilter(
            session_id=None if self.session_id is None else SessionId(self.session_id),
            runtime=self.runtime,
            tool=self.tool,
            states=frozenset(self.state) | {SETTLED[outcome] for outcome in self.outcome},
            unknown=self.unknown,
            executor=self.executor,
            since=self.since,
            until=self.until,
            labels=self.labels,
            trace_id=self.trace_id,
            text=self.text,
        )


def _seconds(given: object) -> object:
    return given.removesuffix("s") if isinstance(given, str) else given


class WaitQuery(Query):
    wait: Annotated[float, Field(ge=0, le=60), BeforeValidator(_seconds)] = 0
    """The maximum number of seconds to wait for the end of the call."""


class ApprovalsQuery(ListQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only approvals of this session."""
    since: Annotated[AwareDatetime, Field(strict=False)] | None = None
    """Only those asked since this time, for example 2026-11-20T12:00:00Z."""


class InteractionsQuery(ListQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only interactions of this session."""
    state: InteractionState | None = None
    """Only interactions in this state."""
