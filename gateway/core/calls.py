"""What each answer of an executor leads to, and how answers are compared. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import orjson

from gateway.events import Outcome
from gateway.events.frozen import frozen
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, NotProcessed, Replied, Uncertain

OVERLOADED = "The gateway is overloaded; try again later."


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
