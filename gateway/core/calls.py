"""The life of a host call: its states, and what each answer of an executor leads to. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal

import orjson

from gateway.errors import Stale
from gateway.events import Outcome, OutcomeKind
from gateway.events.frozen import frozen
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, NotProcessed, Replied, Uncertain
from gateway.store.step import (
    OPEN_STATES,
    Accept,
    CallChange,
    CallState,
    CameLate,
    Claim,
    Dismissed,
    MarkCanceling,
    Open,
    Progressed,
    Redriven,
    Requeue,
    Settle,
)

OVERLOADED = "The gateway is overloaded; try again later."

Signal = Literal["claim", "accept", "requeue", "cancel", "progress", "settle", "clear", "late"]

BORN: frozenset[CallState] = frozenset({"queued", "dispatched"})
"""The states that a call may begin in."""

_ENDS: frozenset[CallState] = frozenset({"succeeded", "failed", "canceled", "expired"})

TRANSITIONS: Mapping[CallState, Mapping[Signal, frozenset[CallState]]] = {
    "queued": {
        "claim": frozenset({"dispatched"}),
        "cancel": frozenset({"queued"}),
        "progress": frozenset({"queued"}),
        "settle": _ENDS,
    },
    "dispatched": {
        "accept": frozenset({"accepted"}),
        "requeue": frozenset({"queued"}),
        "cancel": frozenset({"dispatched"}),
        "progress": frozenset({"dispatched"}),
        "settle": _ENDS,
    },
    "accepted": {"cancel": frozenset({"accepted"}), "progress": frozenset({"accepted"}), "settle": _ENDS},
    "succeeded": {"clear": frozenset({"succeeded"}), "late": frozenset({"succeeded"})},
    "failed": {"clear": frozenset({"failed"}), "late": frozenset({"failed"})},
    "canceled": {"clear": frozenset({"canceled"}), "late": frozenset({"canceled"})},
    "expired": {"clear": frozenset({"expired"}), "late": frozenset({"expired"})},
}
"""Which signal may lead where. A settled call stays as it is; an operator may clear it off the dead letters.

This is the machine: the core and the stores change a call's state by `moved` and in no other way.
"""

_WAYS: Mapping[str, Mapping[Signal, frozenset[CallState]]] = {**TRANSITIONS}

_SETTLED: Mapping[OutcomeKind, CallState] = {
    "success": "succeeded",
    "failure": "failed",
    "canceled": "canceled",
    "expired": "expired",
}


def is_open(state: CallState) -> bool:
    """Whether a call still waits for its outcome."""
    return state in OPEN_STATES


def signal_of(change: CallChange) -> Signal | None:
    """Say what a change means to a call; None for the one that opens it."""
    match change:
        case Open():
            return None
        case Claim():
            return "claim"
        case Accept():
            return "accept"
        case Requeue():
            return "requeue"
        case MarkCanceling():
            return "cancel"
        case Settle():
            return "settle"
        case Progressed():
            return "progress"
        case Redriven() | Dismissed():
            return "clear"
        case CameLate():
            return "late"


def moved(state: str | None, change: CallChange) -> CallState:
    """Say in which state a change leaves a call; None is the state of one that does not exist.

    Raises:
        Stale: the call is not, or no longer, in a state that the change is allowed in.
    """
    call_id, signal = change.call_id, signal_of(change)
    if isinstance(change, Open):
        if state is not None:
            raise Stale(f"call {call_id!r} exists")
        # One that only a newer release knows is not of this table.
        if change.state in TRANSITIONS and change.state not in BORN:
            raise Stale(f"call {call_id!r} cannot begin as {change.state}")
        return change.state
    # A state that only a newer release knows is left by nothing that this one knows.
    allowed = _WAYS.get(state or "", {}).get(signal) if signal is not None else None
    if not allowed:
        raise Stale(f"call {call_id!r} is {state or 'not there'}, which no {signal} can follow")
    if not isinstance(change, Settle):
        (after,) = allowed
        return after
    if change.state not in allowed:
        raise Stale(f"call {call_id!r} is {state} and cannot be settled as {change.state}")
    return change.state


def settled_state(outcome: OutcomeKind) -> CallState:
    """Name the state that an outcome leads to."""
    return _SETTLED[outcome]


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """Hash what was asked, so that a reused id with other arguments is told from a repeat."""
    return _sha([tool, dict(arguments)])


def outcome_fingerprint(outcome: Outcome) -> str:
    """Hash what was answered, so that the same outcome again is told from a different one."""
    return _sha([outcome.outcome, outcome.result, outcome.error])


def outcome_digest(outcome: Outcome) -> str:
    """Hash what was answered, to be compared with what a backend has kept: SHA-256 of [result, error] as JSON."""
    return _digest([outcome.result, outcome.error])


def _sha(value: object) -> str:
    return _digest(value)[:32]


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).hexdigest()


@frozen
class RetryPolicy:
    """How an executor is asked again, and how long all of it may take."""

    attempts: int = 3
    idempotent: bool = False
    timeout: timedelta = timedelta(seconds=20)
    deadline: timedelta = timedelta(seconds=120)
    accepted_deadline: timedelta = timedelta(seconds=600)
    initial: timedelta = timedelta(milliseconds=500)
    maximum: timedelta = timedelta(seconds=10)

    def delay(self, attempt: int, jitter: float) -> timedelta:
        """Wait before the next attempt: exponential, full jitter; `dice` is uniform in [0, 1)."""
        ceiling = min(self.maximum, self.initial * 2 ** min(attempt - 1, 20))
        return ceiling * jitter


@frozen
class End:
    """The call ends with this."""

    answered: Answered
    dead: bool = False
    """Whether that is for want of an answer, so that an operator may want to try it again."""


@frozen
class Retry:
    """The call is tried again."""

    due_at: datetime
    reason: str
    unsure: bool
    """Whether this attempt may have done the work."""


@frozen
class Wait:
    """The executor accepted; its outcome comes by callback."""

    deadline_at: datetime


def failure(error: str, *, unknown: bool = False) -> Answered:
    """Make a failure that the agent can read."""
    return Answered(outcome=Outcome(outcome="failure", error=error, unknown=unknown))


def turned_away(reason: str, *, tried: bool = False, unsure: bool = False) -> Answered:
    """Make the failure of a call whose executor is not asked now; an earlier attempt may have reached it."""
    what = "it is not asked again for this call" if tried else "the tool was not called"
    return failure(f"{reason}; {what}, try again later", unknown=unsure)


def judge(
    answer: Answer,
    *,
    policy: RetryPolicy,
    attempt: int,
    deadline_at: datetime,
    now: datetime,
    jitter: float,
    unsure: bool = False,
) -> End | Retry | Wait:
    """Decide what an executor's answer to one attempt leads to (gateway/executors/README.md#answers).

    `unsure` says that an earlier attempt may have done the work.
    """
    match answer:
        case Answered():
            return End(answer)
        case Replied():
            return End(failure("the executor answered with something that is no outcome"))
        case Accepted():
            return Wait(now + policy.accepted_deadline)
        case NeverSent(reason):
            wait, unknown, again = policy.delay(attempt, jitter), False, True
        case NotProcessed(reason, retry_after):
            wait, unknown, again = retry_after or policy.delay(attempt, jitter), False, True
        case Uncertain(reason):
            wait, unknown, again = policy.delay(attempt, jitter), True, policy.idempotent
    if not again:
        text = f"outcome unknown: {reason}; the tool may have run and was not tried again"
        return End(failure(text, unknown=True), dead=True)
    if attempt >= policy.attempts:
        return End(failure(f"{reason} (after {attempt} attempts)", unknown=unknown or unsure), dead=True)
    if now + wait >= deadline_at:
        return End(failure(f"{reason} (no time left for another attempt)", unknown=unknown or unsure), dead=True)
    return Retry(now + wait, reason, unknown)
