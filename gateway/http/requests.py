"""What clients may send: the bodies and query parameters of all operations, with their limits. Pure."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.events.described import Described
from gateway.runtime.calls.dead_letters import Which
from gateway.store.call import CallState
from gateway.store.rows import SessionFilter
from gateway.store.step import InteractionState

Label = Annotated[str, Field(max_length=256)]
TARGET = r"^(runtime|destination:[A-Za-z0-9][A-Za-z0-9._-]{0,63})$"
LONGEST_CALL_KEY = 200
CALL_KEY = rf"^[ -~]{{1,{LONGEST_CALL_KEY}}}$"


def _without_nul(given: str) -> str:
    if "\0" in given:
        raise ValueError("must not hold the character U+0000")
    return given


NativeId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_without_nul)]
LabelName = Annotated[str, Field(min_length=1, max_length=64)]


class Misplaced(ValueError):
    """A member that does not go with the others, or that they lack."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(reason)
        self.member = member


class Body(Described):
    """The base of all bodies: unknown members are errors, so that typing errors show, and a number is no text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class OpenSession(Body):
    runtime: Annotated[str, Field(min_length=1, max_length=64)]
    """A runtime of the configuration."""
    native_id: NativeId | None = None
    """The runtime's own id of a session to attach to; without one a new session is created there."""
    labels: Annotated[dict[LabelName, Label], Field(max_length=32)] = {}
    """Labels for routing and for your own bookkeeping."""
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What to call a session that is created, in place of what the configuration says."""
    instructions: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    """What the agent of a session that is created is to do, in place of what the configuration says."""

    @model_validator(mode="after")
    def _creates(self) -> Self:
        for member in ("name", "instructions"):
            if self.native_id is not None and getattr(self, member) is not None:
                raise Misplaced(member, f"`{member}` is for a session that is created; one with a `native_id` exists")
        return self


class CallTool(Body):
    tool: Annotated[str, Field(min_length=1, max_length=256)]
    """A tool of the catalog: one that the configuration declares, and a route leads to an executor."""
    arguments: dict[str, Any] = {}
    """What it is called with; they must fit the tool's schema."""
    key: Annotated[str, Field(pattern=CALL_KEY)] | None = None
    """The same as the header `Idempotency-Key`."""


class CancelCall(Body):
    reason: Annotated[str, Field(max_length=1_000)] | None = None
    """Why; it is told to the executor."""


class RedriveCall(Body):
    new_key: bool = False
    """Use a new idempotency key, so that the executor does the work again even if it remembers the old one."""
    deliver: bool = False
    """Send the outcome to the runtime as well."""


class Letters(BaseModel):
    """Which dead letters are meant: the filters of lists and of redriving many."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["call", "delivery"] | None = None
    """Only calls, or only deliveries."""
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only of this runtime."""
    executor: Annotated[str, Field(max_length=64)] | None = None
    """Only calls that went to this executor."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """Only deliveries to `runtime`, or to `destination:NAME`."""
    since: Annotated[AwareDatetime, Field(strict=False)] | None = None
    """Only what was asked or said at this time or later, e.g. 2026-11-20T12:00:00Z."""
    unknown: bool | None = None
    """Only calls that may have been done, nobody knows (true), or that were surely not (false)."""

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        for member in ("executor", "unknown"):
            if getattr(self, member) is not None and (self.target is not None or self.kind == "delivery"):
                raise Misplaced(member, f"`{member}` is about calls, which have no `target`")
        if self.target is not None and self.kind == "call":
            raise Misplaced("target", "`target` is about deliveries, so `kind` cannot be call")
        return self

    def which(self) -> Which:
        """Say what is meant."""
        return Which(self.kind, self.runtime, self.executor, self.target, self.since, self.unknown)


class RedriveMany(Letters, RedriveCall):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    """How many to try at most."""
    dry_run: bool = False
    """Only say what would be tried."""


class DismissMany(Letters, Body):
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    """How many to dismiss at most."""
    dry_run: bool = False
    """Only say what would be dismissed."""


class Redeliver(Body):
    target: Annotated[str, Field(pattern=TARGET)]
    """`runtime`, or `destination:NAME`."""


class AnswerInteraction(Body):
    """One of three: `decision` (and `scope`) for an approval, `answer` for a question, `value` for a secret."""

    decision: Literal["allow", "deny"] | None = None
    """The answer to an approval."""
    scope: Literal["once", "session", "always"] | None = None
    """For how long a decision holds."""
    answer: Annotated[str, Field(max_length=100_000)] | None = None
    """The answer to a question; an empty one skips it."""
    value: Annotated[str, Field(max_length=100_000)] | None = None
    """The secret; it is passed on and never stored."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "AnswerInteraction":
        given = [name for name in ("decision", "answer", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of `decision`, `answer` and `value`")
        if self.scope is not None and self.decision is None:
            raise Misplaced("scope", "`scope` belongs to a `decision`")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return what was given."""
        return self.model_dump(exclude_none=True)


class Query(BaseModel):
    """The base of all query parameters: unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _split(given: object) -> object:
    if not isinstance(given, list):
        return given
    return [part for text in cast("list[str]", given) for part in text.split(",")]


class ListQuery(Query):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """How many rows to answer at most."""
    after: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The `next` of the page before."""


class DeadLettersQuery(Letters, ListQuery):
    pass


class SessionsQuery(ListQuery):
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only sessions of this runtime."""
    native_id: NativeId | None = None
    """Only the one that its `runtime` calls so."""
    open: bool = False
    """Only those that are not closed."""
    order: Literal["oldest", "newest"] = "oldest"
    """Which come first: those that were opened first, or last."""

    @model_validator(mode="after")
    def _names_both(self) -> Self:
        if self.native_id is not None and self.runtime is None:
            raise Misplaced("runtime", "a `native_id` is the name that one `runtime` uses: give both")
        return self

    def which(self) -> SessionFilter:
        """Say what is meant."""
        return SessionFilter(self.runtime, self.native_id, self.open)


class CloseQuery(Query):
    erase: bool = False
    """Also erase the bodies of its events; needs the scope `operate`."""


class RotateQuery(Query):
    of: Literal["token", "ticket"] = "token"
    """`ticket`: not the session's tool token, but what its native session was told on creation."""
    force: bool = False
    """A ticket is rotated only with this: there is no way to tell the native session another one."""


class ReloadQuery(Query):
    dry_run: bool = False
    """Only report what would change."""
    force: bool = False
    """Also restart runtimes whose protocol cannot replay: messages that their agents send meanwhile are lost."""


class EventsQuery(Query):
    after: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Answer events behind this sequence."""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    """How many events to answer at most."""


class StreamQuery(Query):
    after: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Begin behind this sequence; without it, and without `Last-Event-ID`, the stream begins with what happens next."""


class CallsQuery(ListQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only calls of this session."""
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only calls of this runtime."""
    tool: Annotated[str, Field(max_length=256)] | None = None
    """Only calls of this tool."""
    state: Annotated[list[CallState], BeforeValidator(_split)] = []
    """One or several states, repeated or separated by commas."""
    unknown: bool | None = None
    """Only calls whose outcome is unknown (true) or known (false)."""


def _seconds(given: object) -> object:
    return given.removesuffix("s") if isinstance(given, str) else given


class WaitQuery(Query):
    wait: Annotated[float, Field(ge=0, le=60), BeforeValidator(_seconds)] = 0
    """For how many seconds to wait until the call has ended."""


class InteractionsQuery(ListQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    """Only what was asked in this session."""
    state: InteractionState | None = None
    """Only what stands so."""
