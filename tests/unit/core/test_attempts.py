"""The attempts of a call: recorded with other changes of the row, bounded, and derived if nothing was written."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gateway.events import CallId, SessionId
from gateway.events.frozen import replace
from gateway.events.response import Response
from gateway.store.attempts import LONGEST_REASON, NEWEST, OLDEST, CallAttempt
from gateway.store.call import (
    Accept,
    Call,
    CallChange,
    Claim,
    MarkCanceling,
    Progressed,
    Requeue,
    Settle,
    attempts_of,
    changed,
)

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ID = CallId("call-1")
LEFT_AT_ONCE = Call(
    call_id=ID,
    session_id=SessionId("s"),
    runtime="finn",
    native_call_id="n",
    n=0,
    tool="ask",
    args_sha="a",
    state="dispatched",
    attempt=1,
    created_at=START,
    deadline_at=START + 600 * SECOND,
    request_sequence=1,
)
WAITED = replace(LEFT_AT_ONCE, state="queued", attempt=0)


def after(call: Call, changes: Sequence[CallChange]) -> Call:
    """Make a change every second."""
    for n, change in enumerate(changes, start=1):
        call = changed(call, change, now=START + SECOND * n, numbers=())
    return call


def settle(status: int | None = None, *, error: str | None = None, unknown: bool = False) -> Settle:
    response = None if status is None else Response(status)
    return Settle(ID, "succeeded" if error is None else "failed", "sha", None, unknown, error, unknown, response)


@pytest.mark.parametrize("status", [None, 200, 204])
@pytest.mark.parametrize("error", [None, "No card is left."])
def test_a_call_that_its_first_attempt_ends_at_once_writes_nothing(status: int | None, error: str | None) -> None:
    call = after(LEFT_AT_ONCE, [Progressed(ID, 10), MarkCanceling(ID, START), settle(status, error=error)])
    assert call.attempts is None
    assert attempts_of(call) == (CallAttempt(1, START, START + 3 * SECOND, None, error),)


def test_the_status_of_a_first_response_without_an_outcome_is_kept() -> None:
    call = after(LEFT_AT_ONCE, [settle(500, error="executor answered 500", unknown=True)])
    assert attempts_of(call) == (CallAttempt(1, START, START + SECOND, 500, "executor answered 500", unsure=True),)


def test_an_attempt_under_way_has_no_end() -> None:
    assert attempts_of(LEFT_AT_ONCE) == (CallAttempt(1, START),)
    assert attempts_of(WAITED) == ()
    assert attempts_of(after(WAITED, [Claim(ID, 1)])) == (CallAttempt(1, START + SECOND),)


def test_the_end_of_a_waiting_call_ends_no_attempt_again() -> None:
    again = Requeue(ID, START + 9 * SECOND, "executor answered 503", response=Response(503))
    tried = after(LEFT_AT_ONCE, [again])
    assert attempts_of(after(tried, [settle(error="the deadline has passed")])) == attempts_of(tried)
    accepted = after(LEFT_AT_ONCE, [Accept(ID, START + 600 * SECOND, response=Response(202))])
    assert attempts_of(after(accepted, [settle()])) == (CallAttempt(1, START, START + SECOND, 202),)


def test_a_change_of_times_ends_no_repeat_of_an_accepted_call() -> None:
    due = START + 60 * SECOND
    accepted = after(LEFT_AT_ONCE, [Accept(ID, due, due, response=Response(202)), Claim(ID, 2, due)])
    later = after(accepted, [Accept(ID, due, due + SECOND, ended=False)])
    assert attempts_of(later)[-1] == CallAttempt(2, START + 2 * SECOND)
    refused = after(accepted, [Accept(ID, due, due, response=Response(401), reason="executor answered 401")])
    assert attempts_of(refused)[-1] == CallAttempt(
        2, START + 2 * SECOND, START + SECOND, 401, "executor answered 401", due_at=due
    )


def test_the_first_and_the_newest_attempts_are_kept() -> None:
    call, many = LEFT_AT_ONCE, OLDEST + NEWEST + 25
    for n in range(2, many + 1):
        call = after(call, [Requeue(ID, START + SECOND, "no"), Claim(ID, n)])
    kept = [attempt.n for attempt in attempts_of(call)]
    assert kept == [*range(1, OLDEST + 1), *range(many - NEWEST + 1, many + 1)]


def test_a_reason_is_cut_and_can_be_stored() -> None:
    (attempt,) = attempts_of(after(LEFT_AT_ONCE, [Requeue(ID, START, "\ud800" + "x" * 1_000)]))
    assert attempt.reason == "?" + "x" * (LONGEST_REASON - 1)


def test_a_call_of_an_older_release_shows_only_certain_attempts() -> None:
    third = replace(LEFT_AT_ONCE, attempt=3)
    assert attempts_of(third) == ()
    assert after(third, [Requeue(ID, START, "no")]).attempts is None
    later = after(third, [Requeue(ID, START, "no"), Claim(ID, 4), settle(500, error="no")])
    assert attempts_of(later) == (CallAttempt(4, START + 2 * SECOND, START + 3 * SECOND, 500, "no"),)
    accepted = replace(LEFT_AT_ONCE, state="accepted")
    assert after(accepted, [settle()]).attempts is None
