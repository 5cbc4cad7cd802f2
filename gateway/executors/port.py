"""The socket for whoever answers calls: what is asked, and the ways it can end. Pure."""

from collections.abc import Awaitable
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, cast

from pydantic import ConfigDict, Field, ValidationError

from gateway.events import ContextUpdate, Outcome
from gateway.events.described import Described
from gateway.events.frozen import frozen


@frozen
class Request:
    """One attempt at asking an executor something.

    `kind` is an event's kind: `tool.requested` asks for an outcome; `message.posted`,
    `approval.asked` and `question.asked` ask for a reply of their own form
    (gateway/executors/README.md#messages-approvals-questions).
    """

    kind: str
    key: str
    """The idempotency key: the same for every attempt, for ever."""
    data: dict[str, Any]
    """The `data` member of the webhook body; `attempt` and `deadline` are already in it."""
    attempt: int
    timeout: timedelta
    """How long this one attempt may take."""


@frozen
class Cancellation:
    """Tell an executor that nobody waits for a call any more; best effort."""

    key: str
    """The call's key with `.cancel` behind it."""
    data: dict[str, Any]
    timeout: timedelta


@frozen
class Answered:
    """A final outcome of a call, success or not."""

    outcome: Outcome
    updates: tuple[ContextUpdate, ...] = ()
    wakes_agent: bool | None = None
    """None leaves it to the outcome: everything but canceled wakes."""
    ignored: tuple[str, ...] = ()
    """Members of the answer that nobody knows."""
    may_quote: bool = field(default=True, compare=False)
    """Whether it may tell something that was sent along; False only after a look through its text."""
    plain: bool = field(default=False, compare=False)
    """Whether `find_fault` surely minds nothing in the result, so that no codec need look through it again."""


@frozen
class Replied:
    """The reply to a routed message, approval or question; an empty object where the body was empty."""

    reply: dict[str, Any]


@frozen
class Accepted:
    """The outcome will come later, to the callback."""


@frozen
class NeverSent:
    """The request certainly never left; safe to try again for every executor."""

    reason: str


@frozen
class NotProcessed:
    """The executor says it did nothing (425, 429, 503 with Retry-After); safe to try again."""

    reason: str
    retry_after: timedelta | None = None
    by_choice: bool = False
    """Whether the executor itself has decided so (4xx): it is there, and its breaker stays closed."""


@frozen
class Uncertain:
    """The request may have been carried out; only an idempotent executor is asked again."""

    reason: str
    by_choice: bool = False
    """As for NotProcessed."""


Answer = Answered | Replied | Accepted | NeverSent | NotProcessed | Uncertain


class Executor(Protocol):
    """Answers requests; an async context manager that owns its connections.

    `execute` never raises for what the other side does: every way it can end is an `Answer`.
    It is canceled (asyncio) when nobody wants the answer any more. A future that it returns is under way already;
    anything else is awaited in a task.
    """

    def execute(self, request: Request) -> Awaitable[Answer]: ...

    async def cancel(self, cancellation: Cancellation) -> None:
        """Tell about a canceled call; failures are swallowed here, after a log line."""
        ...

    async def __aenter__(self) -> "Executor": ...
    async def __aexit__(self, *exc: object) -> None: ...


@frozen
class Copied:
    """What became of one event copy: `delivered`, `again` (try later), `refused` (final), `gone` (410: switch off)."""

    state: str
    reason: str | None = None
    retry_after: timedelta | None = None


class Destination(Protocol):
    """Receives one-way copies of events; an async context manager."""

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        """Send one copy; `key` is the event id, the same on every attempt."""
        ...

    async def __aenter__(self) -> "Destination": ...
    async def __aexit__(self, *exc: object) -> None: ...


class OutcomeForm(Described):
    """The answer to a call as an executor writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    outcome: Literal["success", "failure", "canceled"] = Field(description="How the call ended.")
    result: Any = Field(default=None, description="Any JSON; on success.")
    error: str | None = Field(default=None, description="Text for the agent; on failure or canceled.")
    updates: list[ContextUpdate] = Field(
        default_factory=list[ContextUpdate],
        description="Fresh state that reaches the agent before the result.",
        max_length=100,
    )
    wakes_agent: bool | None = Field(default=None, description="Whether the agent should go on; default true.")


_MOST_IGNORED = 20
# Asked for on each call, a model collects them anew.
_MEMBERS, _UPDATE_MEMBERS = frozenset(OutcomeForm.model_fields), frozenset(ContextUpdate.model_fields)


def outcome_from(body: Any, *, strict: bool = False, may_quote: bool = True, plain: bool = False) -> Answered:
    """Read an outcome out of a JSON body, as webhooks and callbacks send it (gateway/executors/README.md#answers).

    `{"outcome": "success", "result", "updates": [{"name", "context", "description"}], "wakes_agent"}` or
    `{"outcome": "failure" | "canceled", "error"}`. Members that nobody knows are ignored and named in the answer;
    `strict` refuses them. `may_quote` and `plain` are passed on.

    Raises:
        ValueError: with a text that names the member and what is allowed.
    """
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object with an `outcome`, got {type(body).__name__}")
    known, ignored = cast("dict[str, Any]", body), ()
    if not strict and not (known.keys() <= _MEMBERS and "updates" not in known):
        known, ignored = _known(known)
    try:
        form = OutcomeForm.model_validate(known)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        place = "/".join(str(part) for part in first["loc"])
        raise ValueError(f"/{place}: {first['msg']}") from exc
    outcome = Outcome(outcome=form.outcome, result=form.result, error=form.error)
    return Answered(outcome, tuple(form.updates), form.wakes_agent, ignored, may_quote, plain)


def _known(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Leave out what nobody knows; returns the names of it, bounded."""
    strange = [name for name in body if name not in _MEMBERS]
    known = {name: value for name, value in body.items() if name in _MEMBERS}
    if isinstance(updates := body.get("updates"), list):
        pruned: list[Any] = []
        for update in cast("list[Any]", updates):
            if not isinstance(update, dict):
                pruned.append(update)
                continue
            members = cast("dict[str, Any]", update)
            strange += [f"updates/{name}" for name in members if name not in _UPDATE_MEMBERS]
            pruned.append({name: value for name, value in members.items() if name in _UPDATE_MEMBERS})
        known["updates"] = pruned
    return known, tuple(dict.fromkeys(strange[:_MOST_IGNORED]))
