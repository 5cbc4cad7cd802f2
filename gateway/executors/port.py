"""The port of executors and destinations: requests and every possible answer. Pure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, cast

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dragoman.models.described import Described
from gateway.events import ContextUpdate, Outcome
from gateway.events.frozen import frozen
from gateway.events.response import Response
from gateway.strict_json import json_type


def _always() -> bool:
    return True


def _ignore_report(_data: dict[str, Any]) -> None:
    """Ignore a progress report."""


@dataclass(slots=True)
class HttpExchange:
    """The HTTP request of one attempt, as a webhook executor reports it for traces."""

    url: str = ""
    """The URL without query and credentials; empty until the request is being sent."""
    host: str = ""
    port: int | None = None
    status: int | None = None
    """The status of the response; None without one."""


@frozen
class Request:
    """One attempt at a request to an executor.

    `kind` is an event's kind. `tool.requested` requires an outcome; `message.posted`, `approval.asked` and
    `question.asked` require replies in their own formats (gateway/executors/README.md#messages-approvals-questions).
    """

    kind: str
    key: str
    """The idempotency key, the same for every attempt."""
    data: dict[str, Any]
    """The `data` member of the webhook body, including `attempt` and `deadline`."""
    attempt: int
    timeout: timedelta
    """The time limit of this attempt."""
    arguments: bytes | None = field(default=None, compare=False, repr=False)
    """The `arguments` in the data as compact JSON, if they were serialized before."""
    report: Callable[[dict[str, Any]], None] = field(default=_ignore_report, compare=False, repr=False)
    """Reports progress: takes a JSON object of at most 64 KiB, which is recorded as `call.progressed`.

    It never raises, and any thread may call it until the attempt ends. Invalid reports are ignored, and of several
    reports within 100 ms only the newest is recorded. `limits.progress` bounds all reports of a call.
    """
    traceparent: str | None = None
    """The W3C trace context of this attempt; None: derived from the key."""
    exchange: HttpExchange | None = field(default=None, compare=False, repr=False)
    """Where a webhook executor reports its HTTP request; None if nothing is traced."""
    tracestate: str | None = None
    """The `tracestate` of the caller's trace context."""
    may_start: Callable[[], bool] = field(default=_always, compare=False, repr=False)
    """Whether the work may start now; an executor that waits asks several times a second, and right before it starts.

    False once the gateway stops or no longer owns the session: another process may run the call. The answer is then
    `WITHHELD`; without an answer before the process ends, the attempt counts as perhaps sent.
    """


@frozen
class Cancellation:
    """A notice to an executor that a call was canceled; best effort."""

    key: str
    """The call's key with the suffix `.cancel`."""
    data: dict[str, Any]
    timeout: timedelta
    traceparent: str | None = None
    """The W3C trace context of the canceled attempt; None: derived from the key."""
    tracestate: str | None = None
    """The `tracestate` of the caller's trace context."""


@frozen
class Answered:
    """A final outcome of a call, success or not."""

    outcome: Outcome
    updates: tuple[ContextUpdate, ...] = ()
    wakes_agent: bool | None = None
    """None: every outcome except `canceled` wakes the agent."""
    ignored: tuple[str, ...] = ()
    """Unknown members of the answer."""
    may_quote: bool = field(default=True, compare=False)
    """Whether it may contain a secret that was sent with the request; False only after its text was searched."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The result as compact JSON, if it was parsed strictly; it needs no further check."""
    synthetic: bool = field(default=False, compare=False)
    """Whether the gateway made this answer, because none arrived."""
    refused: bool = field(default=False, compare=False)
    """Whether the executor rejected the request or sent an invalid response, most likely due to a wrong setup."""
    without_outcome: bool = field(default=False, compare=False)
    """Whether the response contained no outcome, so that its status or format alone makes this a failure."""
    response: Response | None = field(default=None, compare=False)
    """The HTTP response, if there was one; also below."""


_UNAUTHORIZED = frozenset({401, 403, 407})
REFUSALS = _UNAUTHORIZED | {405, 415}
"""Statuses with which a server rejects the request itself, whatever its body says."""


def refusal_of(answer: "Answer") -> str | None:
    """Return the reason of a response that shows a wrong setup, and the fix; None for any other answer."""
    match answer:
        case Answered(refused=True, outcome=Outcome(error=reason), response=response):
            pass
        case Uncertain(refused=True, reason=reason, response=response):
            pass
        case _:
            return None
    what = "secret" if response is not None and response.status in _UNAUTHORIZED else "url"
    return f"{reason}; compare the {what} of the executor with the backend's"


@frozen
class Replied:
    """The reply to a routed message, approval or question; an empty object for an empty body."""

    reply: dict[str, Any]


@frozen
class Accepted:
    """The outcome will arrive later at the callback."""

    response: Response | None = field(default=None, compare=False)


@frozen
class NeverSent:
    """The request was certainly not sent; safe to retry for every executor."""

    reason: str
    withheld: bool = False
    """Whether the gateway itself kept it back, which says nothing about the executor."""


WITHHELD = NeverSent("the gateway stops or no longer owns the session", withheld=True)
"""The answer to a request that may not start."""


@frozen
class NotProcessed:
    """The executor did not process the request (425, 429, 503 with Retry-After); safe to retry."""

    reason: str
    retry_after: timedelta | None = None
    by_choice: bool = False
    """Whether the executor itself decided so (4xx); then it is available, and its breaker stays closed."""
    response: Response | None = field(default=None, compare=False)


@frozen
class Uncertain:
    """The request may have been executed; only an idempotent executor gets it again."""

    reason: str
    by_choice: bool = False
    """As for NotProcessed."""
    refused: bool = field(default=False, compare=False)
    """As for Answered: the response cannot be read, although the work may be done."""
    response: Response | None = field(default=None, compare=False)


Answer = Answered | Replied | Accepted | NeverSent | NotProcessed | Uncertain


class Executor(Protocol):
    """Answers requests; an async context manager that owns its connections.

    `execute` raises no error of the peer: every way in which a request can end is an `Answer`. It is canceled (asyncio)
    when the answer is no longer needed. A returned future must be running already; other awaitables run in a task.
    """

    def execute(self, request: Request) -> Awaitable[Answer]: ...

    async def cancel(self, cancellation: Cancellation) -> None:
        """Notify the executor of a canceled call; log failures instead of raising them."""
        ...

    async def __aenter__(self) -> "Executor": ...
    async def __aexit__(self, *exc: object) -> None: ...


@frozen
class Copied:
    """The result of sending one event copy.

    `delivered`; `again`: retry later; `unsent`: it was certainly not sent, so the attempt does not count; `refused`:
    final; `gone`: 410, disable the destination.
    """

    state: str
    reason: str | None = None
    retry_after: timedelta | None = None


LIVE_CONCURRENCY = 4
"""Live events that a destination gets at once, besides its copies of recorded events."""


class Destination(Protocol):
    """Receives one-way copies of events; an async context manager."""

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        """Send one copy; `key` is the event id, the same on every attempt."""
        ...

    async def __aenter__(self) -> "Destination": ...
    async def __aexit__(self, *exc: object) -> None: ...


class OutcomeForm(Described):
    """The outcome of a call as an executor writes it."""

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
    wakes_agent: bool | None = Field(default=None, description="Whether the agent should continue; default true.")


_MOST_IGNORED = 20
_OUTCOME = TypeAdapter(Outcome).validator
_BASIC_MEMBERS, _KINDS = frozenset({"outcome", "result", "error"}), ("success", "failure", "canceled")
_OUTCOME_MEMBERS = _BASIC_MEMBERS | {"unknown"}
"""Members and kinds that `OutcomeForm` shares with `Outcome`; most answers have no others and skip the form."""
# Collected once, since a model collects its fields on each access.
_MEMBERS, _UPDATE_MEMBERS = frozenset(OutcomeForm.model_fields), frozenset(ContextUpdate.model_fields)


def outcome_from(body: Any, *, strict: bool = False, may_quote: bool = True, written: bytes | None = None) -> Answered:
    """Read an outcome from the JSON body of a webhook response or callback (gateway/executors/README.md#answers).

    `{"outcome": "success", "result", "updates": [{"name", "context", "description"}], "wakes_agent"}` or
    `{"outcome": "failure" | "canceled", "error"}`, a failure also with `unknown`. Unknown members are ignored and
    listed in the answer; `strict` rejects them. `may_quote` is passed on. With `written`, the compact JSON of the body,
    the answer also contains the result as compact JSON.

    Raises:
        ValueError: the text names the member and the allowed values.
    """
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object with an `outcome`, got {json_type(body)}")
    known = given = cast("dict[str, Any]", body)
    ignored, updates, wakes_agent = (), (), None
    try:
        if not known.keys() <= _BASIC_MEMBERS or known.get("outcome") not in _KINDS:
            if not strict:
                known, ignored = _split_unknown(known)
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


def _split_unknown(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split off unknown members; return the known ones, and a bounded list of the unknown names."""
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
