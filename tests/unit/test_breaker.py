"""The breaker's states, without executors and without waiting."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from gateway.events import Outcome
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, Replied
from gateway.executors.webhook.answers import read_answer
from gateway.executors.webhook.reader import ConnectionBroken, Exchange, HttpAnswer, NotSent
from gateway.runtime.calls.breaker import Breaker, Breakers, Rule, Sign, read
from gateway.runtime.metrics import Metrics
from gateway.runtime.system_clock import SystemClock

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RULE = Rule(3, 10 * SECOND)


def end(breaker: Breaker, sign: Sign, *, epoch: int | None = None, after: float = 0, jitter: float = 0.0) -> bool:
    """Let one attempt begin and end."""
    begun = breaker.began() if epoch is None else epoch
    return breaker.ended(begun, sign, reason="no connection", now=NOW + after * SECOND, jitter=jitter)


def opened() -> Breaker:
    breaker = Breaker(RULE)
    assert [end(breaker, "missing") for _ in range(3)] == [False, False, True]
    assert breaker.state == "open"
    return breaker


def test_it_opens_after_so_many_failures_in_a_row_and_remembers_the_first() -> None:
    breaker = Breaker(RULE)
    for after in (1, 2, 3):
        end(breaker, "missing", after=after)
    assert (breaker.state, breaker.since, breaker.reason) == ("open", NOW + SECOND, "no connection")


def test_an_answer_between_failures_begins_the_row_anew() -> None:
    breaker = Breaker(RULE)
    for sign in ("missing", "missing", "there", "missing", "nothing", "missing"):
        end(breaker, sign)
    assert breaker.state == "closed"
    end(breaker, "missing")
    assert breaker.state == "open"


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 10), (1.0, 12.5)])
def test_it_admits_one_trial_when_its_time_is_up_and_a_little_later_for_some(jitter: float, wait: float) -> None:
    breaker = Breaker(RULE)
    for _ in range(3):
        end(breaker, "missing", jitter=jitter)
    assert not breaker.admits(NOW + (wait - 0.1) * SECOND)
    due = NOW + wait * SECOND
    assert breaker.admits(due)
    breaker.reserve(due)
    assert breaker.state == "half_open"
    assert not breaker.admits(due)
    breaker.began()
    assert not breaker.admits(due + 60 * SECOND)


def test_a_trial_that_never_begins_frees_its_place() -> None:
    breaker = opened()
    breaker.reserve(NOW + 10 * SECOND)
    assert not breaker.admits(NOW + 10.9 * SECOND)
    assert breaker.admits(NOW + 11 * SECOND)


@pytest.mark.parametrize(
    ("sign", "state", "moved"), [("there", "closed", True), ("missing", "open", True), ("nothing", "half_open", False)]
)
def test_the_trial_decides(sign: Sign, state: str, moved: bool) -> None:
    breaker = opened()
    breaker.reserve(NOW + 10 * SECOND)
    assert end(breaker, sign, after=11) is moved
    assert breaker.state == state
    assert breaker.admits(NOW + 11 * SECOND) is (sign != "missing")
    assert breaker.since == (None if sign == "there" else NOW)


def test_failures_of_attempts_from_before_say_nothing_but_an_answer_closes_it() -> None:
    breaker = Breaker(RULE)
    before = breaker.began()
    for _ in range(3):
        end(breaker, "missing")
    assert not end(breaker, "missing", epoch=before)
    breaker.reserve(NOW + 10 * SECOND)
    breaker.began()
    assert not end(breaker, "missing", epoch=before)
    assert breaker.state == "half_open"
    assert end(breaker, "there", epoch=before)
    assert (breaker.state, breaker.failures) == ("closed", 0)
    assert not end(breaker, "missing", epoch=before)
    assert breaker.failures == 0


def _received(status: int, *, body: bytes = b"", retry_after: str | None = None) -> HttpAnswer:
    headers = {} if retry_after is None else {b"retry-after": retry_after.encode()}
    return HttpAnswer(status, body, headers)


@pytest.mark.parametrize(
    ("exchange", "sign"),
    [
        (NotSent("refused"), "missing"),
        (ConnectionBroken("time is up"), "missing"),
        (_received(500), "missing"),
        (_received(502), "missing"),
        (_received(503), "missing"),
        (_received(503, retry_after="1"), "missing"),
        (_received(200, body=b'{"outcome": "success"}'), "there"),
        (_received(200, body=b'{"outcome": "failure", "error": "no"}'), "there"),
        (_received(200, body=b"{"), "there"),
        (_received(202), "there"),
        (_received(302), "there"),
        *((_received(status, retry_after="1"), "there") for status in (400, 401, 404, 408, 409, 410, 422, 425, 429)),
    ],
    ids=repr,
)
def test_only_an_executor_that_is_not_there_counts(exchange: Exchange, sign: str) -> None:
    assert read(read_answer(exchange, "tool.requested", now=lambda: NOW))[0] == sign


def test_every_kind_of_answer_has_its_sign() -> None:
    assert read(Answered(Outcome(outcome="failure", error="no"))) == ("there", "")
    assert read(Replied({})) == ("there", "")
    assert read(Accepted()) == ("there", "")
    assert read(NeverSent("nobody there")) == ("missing", "nobody there")


_STEPS = st.sampled_from([*["begin", "missing"] * 4, "there", "nothing", "again", "gone"])


@given(st.lists(_STEPS, min_size=6, max_size=30))
def test_the_executors_to_look_at_are_those_whose_breaker_is_not_closed(steps: list[str]) -> None:
    rule, answers = Rule(2, 0 * SECOND), {"there": Accepted(), "missing": NeverSent("no connection"), "nothing": None}
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": rule}, specs={})
    model: Breaker | None = Breaker(rule)
    epoch = 0
    for step in steps:
        if step in {"again", "gone"}:
            # One whose spec has changed begins anew.
            model = Breaker(rule) if step == "again" else None
            breakers.configure({"cards": rule if model else None}, {"cards": object()})
        elif step == "begin" and breakers.admits("cards"):
            breakers.reserve("cards")
            epoch = breakers.began("cards")
            if model is not None:
                assert model.admits(NOW)
                model.reserve(NOW)
                assert epoch == model.began()
        elif step == "begin":
            assert model is not None
            assert not model.admits(NOW)
        else:
            answer = answers[step]
            breakers.ended("cards", epoch, answer)
            if model is not None:
                sign, reason = ("nothing", "") if answer is None else read(answer)
                model.ended(epoch, sign, reason=reason, now=NOW, jitter=0.0)
        closed = model is None or model.state == "closed"
        assert breakers.moved == (set() if closed else {"cards"})
        assert (breakers.reason("cards") is None) == closed


@pytest.mark.parametrize("answer", [Answered(Outcome(outcome="success")), Replied({}), Accepted()])
def test_any_answer_between_failures_begins_the_row_of_an_executor_anew(answer: Answer) -> None:
    rule = Rule(failures=2, open_for=timedelta(seconds=30))
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": rule}, specs={})
    moved = [
        breakers.ended("cards", breakers.began("cards"), one)
        for one in (NeverSent("no"), answer, NeverSent("no"), NeverSent("no"))
    ]
    assert moved == [False, False, False, True]
