"""The socket for whoever answers calls: what is asked, and the ways it can end. Pure."""

from collections.abc import Awaitable, Callable
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, cast

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dragoman.models.described import Described
from gateway.events import ContextUpdate, Outcome
from gateway.events.frozen import frozen
from gateway.strict_json import json_type


def _unheard(_data: dict[str, Any]) -> None:
    """Take no report."""


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
    arguments: bytes | None = field(default=None, compare=False, repr=False)
    """The `arguments` in the data as compact JSON, where somebody has written them."""
    report: Callable[[dict[str, Any]], None] = field(default=_unheard, compare=False, repr=False)
    """Tells how far a call is: a JSON object of 64 KiB at most, which goes on record as `call.progressed`.

    It never raises and may be called from any thread, until the answer is there. A report that is no such object is
    ignored; of those within 100 ms only the newest is kept, and `limits.progress` bounds all of one call's.
    """


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
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The result as compact JSON if it was read strictly; it needs no further check."""
    synthetic: bool = field(default=False, compare=False)
    """Made by the gateway, for want of an answer."""
    refused: bool = field(default=False, compare=False)
    """Whether the executor has told no outcome, but turned the request away or answered with what means nothing: most
    likely a mistake in how it is set up."""
    without_outcome: bool = field(default=False, compare=False)
    """Whether the response had no outcome in it: its status or its form alone makes this a failure."""


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
    """What became of one event copy.

    `delivered`; `again`: try later; `unsent`: it certainly did not leave, so that the try does not count; `refused`:
    final; `gone`: 410, switch the destination off.
    """

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
    unknown: bool = Field(
        default=False, description="On failure: the work may have been done; listed for the operator."
    )
    updates: list[ContextUpdate] = Field(
        default_factory=list[ContextUpdate],
        description="Fresh state that reaches the agent before the result.",
        max_length=100,
    )
    wakes_agent: bool | None = Field(default=None, description="Whether the agent should go on; default true.")


_MOST_IGNORED = 20
_OUTCOME = TypeAdapter(Outcome).validator
_SAID, _KINDS = frozenset({"outcome", "result", "error"}), ("success", "failure", "canceled")
_OUTCOME_MEMBERS = _SAID | {"unknown"}
"""Of what most answers are made: members that the form and an outcome have alike, and kinds that both know."""
# Asked for on each call, a model collects them anew.
_MEMBERS, _UPDATE_MEMBERS = frozenset(OutcomeForm.model_fields), frozenset(ContextUpdate.model_fields)


def outcome_from(body: Any, *, strict: bool = False, may_quote: bool = True, written: bytes | None = None) -> Answered:
    """Read an outcome out of a JSON body, as webhooks and callbacks send it (gateway/executors/README.md#answers).

    `{"outcome": "success", "result", "updates": [{"name", "context", "description"}], "wakes_agent"}` or
    `{"outcome": "failure" | "canceled", "error"}`, a failure also with `unknown`. Members that nobody knows are ignored
    and named in the answer;
    `strict` refuses them. `may_quote` is passed on; `written` is the body's JSON, of which the result's part is.

    Raises:
        ValueError: with a text that names the member and what is allowed.
    """
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object with an `outcome`, got {json_type(body)}")
    known = given = cast("dict[str, Any]", body)
    ignored, updates, wakes_agent = (), (), None
    try:
        if not known.keys() <= _SAID or known.get("outcome") not in _KINDS:
            if not strict:
                known, ignored = _known(known)
            form = OutcomeForm.model_validate(known)
            updates, wakes_agent = tuple(form.updates), form.wakes_agent
            if form.unknown and form.outcome != "failure":
                raise ValueError(f"/unknown: only a failure may be unknown, not {form.outcome}")
            known = {name: known[name] for name in known.keys() & _OUTCOME_MEMBERS}
        outcome = _OUTCOME.validate_python(known, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        place = "/".join(str(part) for part in first["loc"])
        raise ValueError(f"/{place}: {first['msg']}") from exc
    result = orjson.dumps(given["result"]) if written is not None and "result" in given else None
    return Answered(outcome, updates, wakes_agent, ignored, may_quote, result)


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
