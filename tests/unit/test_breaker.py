"""The breaker's states, without executors and without waiting."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from gateway.core.session import RetryPolicy
from gateway.events import Outcome
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, Replied, Uncertain
from gateway.executors.webhook.answers import read_answer, refusal
from gateway.executors.webhook.reader import ConnectionBroken, Exchange, HttpAnswer, NotSent
from gateway.runtime.calls.breaker import Breaker, Breakers, Rule, Sign, read
from gateway.runtime.metrics import Metrics
from gateway.runtime.system_clock import SystemClock

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WITHIN = 30 * SECOND
NONE = timedelta(0)


def rule(failures: int | None = 3, *, open_for: timedelta = 10 * SECOND, within: timedelta = WITHIN) -> Rule:
    return Rule(failures, open_for, within, RetryPolicy().reconnect_pause)


RULE = rule()


def end(breaker: Breaker, sign: Sign, *, epoch: int | None = None, after: float = 0, jitter: float = 0.0) -> bool:
    """Let one attempt begin and end."""
    begun = breaker.start_attempt() if epoch is None else epoch
    return breaker.end_attempt(begun, sign, reason="no connection", now=NOW + after * SECOND, jitter=jitter)


def opened() -> Breaker:
    breaker = Breaker(RULE)
    assert [end(breaker, "failing") for _ in range(3)] == [False, False, True]
    assert breaker.state == "open"
    return breaker


def test_it_opens_after_so_many_failures_in_a_row_and_remembers_the_first() -> None:
    breaker = Breaker(RULE)
    for after in (1, 2, 3):
        end(breaker, "failing", after=after)
    assert (breaker.state, breaker.since, breaker.reason) == ("open", NOW + SECOND, "no connection")


def test_an_answer_between_failures_begins_the_row_anew() -> None:
    breaker = Breaker(RULE)
    for sign in ("failing", "failing", "responsive", "failing", "nothing", "failing"):
        end(breaker, sign)
    assert breaker.state == "closed"
    end(breaker, "failing")
    assert breaker.state == "open"


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 10), (1.0, 12.5)])
def test_it_admits_one_trial_when_its_time_is_up_and_a_little_later_for_some(jitter: float, wait: float) -> None:
    breaker = Breaker(RULE)
    for _ in range(3):
        end(breaker, "failing", jitter=jitter)
    assert breaker.wait(NOW + (wait - 0.1) * SECOND) != NONE
    due = NOW + wait * SECOND
    assert breaker.wait(due) == NONE
    breaker.reserve(due)
    assert breaker.state == "half_open"
    assert breaker.wait(due) != NONE
    breaker.start_attempt()
    assert breaker.wait(due + 60 * SECOND) != NONE


def test_a_trial_that_never_begins_frees_its_place() -> None:
    breaker = opened()
    breaker.reserve(NOW + 10 * SECOND)
    assert breaker.wait(NOW + 10.9 * SECOND) != NONE
    assert breaker.wait(NOW + 11 * SECOND) == NONE


@pytest.mark.parametrize(
    ("sign", "state", "moved"),
    [("responsive", "closed", True), ("failing", "open", True), ("nothing", "half_open", False)],
)
def test_the_trial_decides(sign: Sign, state: str, moved: bool) -> None:
    breaker = opened()
    breaker.reserve(NOW + 10 * SECOND)
    assert end(breaker, sign, after=11) is moved
    assert breaker.state == state
    assert (breaker.wait(NOW + 11 * SECOND) == NONE) is (sign != "failing")
    assert breaker.since == (None if sign == "responsive" else NOW)


def test_failures_of_attempts_from_before_say_nothing_but_an_answer_closes_it() -> None:
    breaker = Breaker(RULE)
    before = breaker.start_attempt()
    for _ in range(3):
        end(breaker, "failing")
    assert not end(breaker, "failing", epoch=before)
    breaker.reserve(NOW + 10 * SECOND)
    breaker.start_attempt()
    assert not end(breaker, "failing", epoch=before)
    assert breaker.state == "half_open"
    # The trial still runs.
    assert breaker.wait(NOW + 20 * SECOND) is None
    assert end(breaker, "responsive", epoch=before)
    assert (breaker.state, breaker.failures) == ("closed", 0)
    assert not end(breaker, "failing", epoch=before)
    assert breaker.failures == 0


def test_an_attempt_that_begins_while_it_is_open_is_no_trial_and_its_failure_says_nothing() -> None:
    breaker = opened()
    late = breaker.start_attempt()
    assert breaker.wait(NOW + 10 * SECOND) == NONE
    assert not end(breaker, "failing", epoch=late, after=9)
    assert (breaker.failures, breaker.wait(NOW + 10 * SECOND)) == (3, NONE)


def test_an_executor_refuses_until_it_answers_and_a_reason_has_a_limit() -> None:
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": RULE}, specs={})
    breaker = breakers.of("cards")
    assert breaker is not None
    breakers.end_attempt("cards", 0, refusal("executor answered 401 Unauthorized"))
    assert breaker.refuses
    breakers.end_attempt("cards", 0, Answered(Outcome(outcome="success")))
    assert not breaker.refuses
    breakers.end_attempt("cards", 0, Uncertain("x" * 1_000))
    assert breaker.reason == "x" * 200


def _received(status: int, *, body: bytes = b"", retry_after: str | None = None) -> HttpAnswer:
    headers = {} if retry_after is None else {b"retry-after": retry_after.encode()}
    return HttpAnswer(status, body, headers)


@pytest.mark.parametrize(
    ("exchange", "sign"),
    [
        (NotSent("refused"), "unreachable"),
        (ConnectionBroken("time is up"), "failing"),
        (_received(500), "failing"),
        (_received(502), "failing"),
        (_received(503), "failing"),
        (_received(503, retry_after="1"), "failing"),
        (_received(200, body=b'{"outcome": "success"}'), "responsive"),
        (_received(200, body=b'{"outcome": "failure", "error": "no"}'), "responsive"),
        (_received(200, body=b"{"), "responsive"),
        (_received(202), "responsive"),
        (_received(302), "responsive"),
        *(
            (_received(status, retry_after="1"), "responsive")
            for status in (400, 401, 404, 408, 409, 410, 422, 425, 429)
        ),
    ],
    ids=repr,
)
def test_only_an_executor_that_is_not_there_counts(exchange: Exchange, sign: str) -> None:
    assert read(read_answer(exchange, "tool.requested", now=lambda: NOW))[0] == sign


def test_every_kind_of_answer_has_its_sign() -> None:
    assert read(Answered(Outcome(outcome="failure", error="no"))) == ("responsive", "")
    assert read(Replied({})) == ("responsive", "")
    assert read(Accepted()) == ("responsive", "")
    assert read(NeverSent("nobody there")) == ("unreachable", "nobody there")


_STEPS = st.sampled_from([*["begin", "failing"] * 4, "responsive", "nothing", "again", "gone"])


@given(st.lists(_STEPS, min_size=6, max_size=30))
def test_the_executors_to_look_at_are_those_whose_breaker_is_not_closed(steps: list[str]) -> None:
    made, answers = (
        rule(2, open_for=0 * SECOND),
        {"responsive": Accepted(), "failing": Uncertain("lost"), "nothing": None},
    )
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": made}, specs={})
    model: Breaker | None = Breaker(made)
    epoch = 0
    for step in steps:
        if step in {"again", "gone"}:
            # One whose spec has changed begins anew.
            model = Breaker(made) if step == "again" else None
            breakers.configure({"cards": made} if model else {}, {"cards": object()})
        elif step == "begin" and breakers.wait("cards") == 0:
            breakers.reserve("cards")
            epoch = breakers.start_attempt("cards")
            if model is not None:
                assert model.wait(NOW) == NONE
                model.reserve(NOW)
                assert epoch == model.start_attempt()
        elif step == "begin":
            assert model is not None
            assert model.wait(NOW) != NONE
        else:
            answer = answers[step]
            breakers.end_attempt("cards", epoch, answer)
            if model is not None:
                sign, reason = ("nothing", "") if answer is None else read(answer)
                model.end_attempt(epoch, sign, reason=reason, now=NOW, jitter=0.0)
        closed = model is None or model.state == "closed"
        assert breakers.moved == (set() if closed else {"cards"})
        assert (breakers.refusal("cards") is None) == closed


@pytest.mark.parametrize("answer", [Answered(Outcome(outcome="success")), Replied({}), Accepted()])
def test_any_answer_between_failures_begins_the_row_of_an_executor_anew(answer: Answer) -> None:
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": rule(2)}, specs={})
    moved = [
        breakers.end_attempt("cards", breakers.start_attempt("cards"), one)
        for one in (Uncertain("no"), answer, Uncertain("no"), Uncertain("no"))
    ]
    assert moved == [False, False, False, True]


def probe(breaker: Breaker, sign: Sign, *, after: float) -> bool:
    """Let a probe begin and end."""
    now = NOW + after * SECOND
    assert breaker.wait(now) == NONE
    breaker.reserve(now)
    return breaker.end_attempt(breaker.start_attempt(), sign, reason="no connection", now=now, jitter=1.0)


def test_an_unreachable_executor_opens_it_at_once_and_holds_calls_from_the_first_time_on() -> None:
    breaker = Breaker(RULE)
    assert end(breaker, "unreachable", jitter=1.0)
    assert (breaker.state, breaker.since, breaker.unreachable) == ("open", NOW, True)
    # Back-off that doubles: half a second, then as long as it has been away, ten seconds at most.
    for after, pause in ((0.5, 0.5), (1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0), (16.0, 10.0), (26.0, 10.0)):
        assert breaker.holds_calls(NOW + after * SECOND)
        assert breaker.wait(NOW + (after - 0.1) * SECOND) != NONE
        assert probe(breaker, "unreachable", after=after)
        assert breaker.wait(NOW + after * SECOND) == pause * SECOND
        assert breaker.patience(NOW + after * SECOND) == WITHIN - after * SECOND
    assert not breaker.holds_calls(NOW + WITHIN)
    assert breaker.since == NOW
    # From now on it is probed once every `open_for`.
    assert probe(breaker, "unreachable", after=40)
    assert not breaker.holds_calls(NOW + 40 * SECOND)
    assert breaker.wait(NOW + 40 * SECOND) == 12.5 * SECOND
    assert probe(breaker, "responsive", after=60)
    assert (breaker.state, breaker.since, breaker.holds_calls(NOW + 60 * SECOND)) == ("closed", None, True)


def test_an_answer_begins_the_wait_for_an_unreachable_executor_anew() -> None:
    breaker = Breaker(RULE)
    end(breaker, "unreachable")
    assert probe(breaker, "responsive", after=29)
    assert end(breaker, "unreachable", after=30)
    assert breaker.holds_calls(NOW + 59 * SECOND)
    assert not breaker.holds_calls(NOW + 60 * SECOND)


def test_a_probe_that_reaches_an_executor_which_fails_counts_as_its_first_failure() -> None:
    breaker = Breaker(RULE)
    end(breaker, "unreachable")
    assert probe(breaker, "failing", after=1)
    assert (breaker.state, breaker.failures, breaker.unreachable) == ("closed", 1, False)
    end(breaker, "failing", after=2)
    assert end(breaker, "failing", after=3)
    assert (breaker.state, breaker.holds_calls(NOW + 3 * SECOND)) == ("open", False)


def test_one_that_failures_have_opened_holds_no_calls_although_its_probe_finds_nobody() -> None:
    breaker = opened()
    assert probe(breaker, "unreachable", after=13)
    assert not breaker.holds_calls(NOW + 13 * SECOND)


def test_without_a_number_of_failures_only_an_unreachable_executor_opens_it() -> None:
    breaker = Breaker(rule(None))
    assert not any(end(breaker, "failing") for _ in range(100))
    assert end(breaker, "unreachable")


def test_a_probe_that_never_begins_is_looked_for_again_when_its_place_is_free() -> None:
    breaker = Breaker(RULE)
    end(breaker, "unreachable")
    now = NOW + SECOND
    breaker.reserve(now)
    assert breaker.wait(now) == SECOND
    breaker.start_attempt()
    assert breaker.wait(now) is None
    assert breaker.patience(now) == WITHIN - SECOND
