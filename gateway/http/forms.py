"""What clients may send: the bodies and query parameters of all operations, with their limits. Pure."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.ports.engine import CallState, InteractionState

Label = Annotated[str, Field(max_length=256)]
LabelName = Annotated[str, Field(min_length=1, max_length=64)]


class Body(BaseModel):
    """The base of all bodies: unknown members are errors, so that typing errors show."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OpenSession(Body):
    runtime: Annotated[str, Field(min_length=1, max_length=64)]
    """A runtime of the configuration."""
    native_id: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The runtime's own id of a session to attach to; without one a new session is created there."""
    labels: Annotated[dict[LabelName, Label], Field(max_length=32)] = {}
    """Labels for routing and for your own bookkeeping."""


class CancelCall(Body):
    reason: Annotated[str, Field(max_length=1_000)] | None = None
    """Why; it is told to the executor."""


class RedriveCall(Body):
    new_key: bool = False
    """Use a new idempotency key, so that the executor does the work again even if it remembers the old one."""
    deliver: bool = False
    """Send the outcome to the runtime as well."""


class Redeliver(Body):
    target: Annotated[str, Field(pattern=r"^(runtime|destination:[A-Za-z0-9][A-Za-z0-9._-]{0,63})$")]
    """`runtime`, or `destination:NAME`."""


class AnswerInteraction(Body):
    """One of three: `decision` (and `scope`) for an approval, `answer` for a question, `value` for a secret."""

    decision: Literal["allow", "deny"] | None = None
    scope: Literal["once", "session", "always"] | None = None
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
            raise ValueError("`scope` belongs to a `decision`")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return what was given."""
        return self.model_dump(exclude_none=True)


class Query(BaseModel):
    """The base of all query parameters: unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ListQuery(Query):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """How many rows to answer at most."""
    after: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The `next` of the page before."""


class SessionsQuery(ListQuery):
    runtime: Annotated[str, Field(max_length=64)] | None = None
    """Only sessions of this runtime."""


class CloseQuery(Query):
    erase: bool = False
    """Also erase the bodies of its events; needs the scope `operate`."""


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
    runtime: Annotated[str, Field(max_length=64)] | None = None
    tool: Annotated[str, Field(max_length=256)] | None = None
    state: list[CallState] = []
    """One or several states, repeated or separated by commas."""
    unknown: bool | None = None
    """Only calls whose outcome is unknown (true) or known (false)."""


class InteractionsQuery(ListQuery):
    session_id: Annotated[str, Field(max_length=128)] | None = None
    state: InteractionState | None = None
