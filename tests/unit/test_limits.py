"""Slots, rates and the queues behind them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from gateway.events import CallId, SessionId
from gateway.executors.port import NeverSent, Uncertain
from gateway.runtime.calls.breaker import Breakers, Rule
from gateway.runtime.calls.slots import Slots
from gateway.runtime.metrics import Metrics
from gateway.runtime.signals import Signal, SlotFree, TurnedAway
from gateway.runtime.system_clock import SystemClock
from tests.pace import PATIENCE


class Session:
    """A session whose calls wait; it says in `order` which got their slot."""

    known: ClassVar[dict[SessionId, "Session"]] = {}

    def __init__(self, order: list[str] | None = None) -> None:
        self.id = SessionId(f"s-{len(self.known)}")
        self.known[self.id] = self
        self.order: list[str] = [] if order is None else order
        self.granted = deque[str]()
        self.turned: list[str] = []

    @classmethod
    def signal(cls, session_id: SessionId, signal: Signal) -> None:
        session = cls.known[session_id]
        match signal:
            case SlotFree(call_id):
                session.order.append(call_id)
                session.granted.append(call_id)
            case TurnedAway(call_id, reason):
                session.turned.append(f"{call_id}: {reason}")
            case _:
                raise AssertionError(signal)


class TickingClock:
    """A clock that every look moves."""

    def __init__(self, tick: timedelta) -> None:
        self._now, self._tick = datetime(2026, 11, 28, tzinfo=UTC), tick

    def now(self) -> datetime:
        self._now += self._tick
        return self._now

    def timestamp(self) -> float:
        return self.now().timestamp()

    def monotonic(self) -> float:
        return self.timestamp()


def slots(
    *, most: int = 1, rate: float | None = None, per_session: int = 16, session_rate: float | None = None
) -> Slots:
    breakers = Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={}, specs={})
    limits = {"cards": (most, rate), "other": (most, None)}
    return Slots(breakers, limits, session=(per_session, session_rate), signal=Session.signal)


def breakers_of(*, failures: int = 1, reconnect_within: timedelta = timedelta(minutes=1)) -> Breakers:
    """Make the breakers of one executor, `cards`, which is probed at once."""
    rule = Rule(failures, timedelta(minutes=1), reconnect_within, lambda _away, _jitter: timedelta(0))
    return Breakers(SystemClock(), Metrics(version="0"), lambda: 0.0, rules={"cards": rule}, specs={})


def wait(made: Slots, session: Session, *names: str, executor: str = "cards") -> None:
    for name in names:
        made.wait(executor, session.id, CallId(name))


def stop_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Awaitable[None]]:
    """Stop the clock of the loop, so that no stall fills a bucket; answers what turns it on."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds
        # Rounds in which all timers that are due by now go off.
        for _ in range(20):
            await asyncio.sleep(0)

    return pass_time


async def test_a_free_slot_goes_to_the_sessions_in_turn() -> None:
    made, order = slots(), list[str]()
    busy, quiet, late = (Session(order) for _ in range(3))
    wait(made, busy, *(f"b{n}" for n in range(5)))
    wait(made, quiet, "q0", "q1")
    wait(made, late, "l0")
    for _ in range(7):
        made.release("cards", busy.id)
    assert order == ["b0", "b1", "q0", "l0", "b2", "q1", "b3", "b4"]


async def test_a_call_that_ends_while_it_waits_takes_no_slot_and_leaves_nothing_behind() -> None:
    made = slots()
    session = Session()
    assert made.take("cards", session.id)
    wait(made, session, *(f"c{n}" for n in range(1000)))
    for number in range(1000):
        made.withdraw("cards", session.id, CallId(f"c{number}"))
    made.withdraw("cards", session.id, CallId("never there"))
    made.withdraw("gone", session.id, CallId("c1"))
    assert (made.waiting, made.held) == (0, 1)
    made.release("cards", session.id)
    assert (session.order, made.held) == ([], 0)
    assert made.take("cards", session.id)


async def test_a_session_that_ends_leaves_all_queues() -> None:
    made = slots()
    first, second = Session(), Session()
    assert made.take("cards", first.id)
    assert made.take("other", first.id)
    wait(made, second, "x")
    wait(made, second, "y", executor="other")
    made.forget(second.id)
    made.release("cards", first.id)
    made.release("other", first.id)
    assert (second.order, made.waiting, made.held) == ([], 0, 0)


async def test_a_session_at_its_own_limit_does_not_hold_up_others_nor_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_time = stop_time(monkeypatch)
    made = slots(most=4, rate=100.0, per_session=1)
    order = list[str]()
    full, other = Session(order), Session(order)
    assert made.take("cards", full.id)
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, callback)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", noted)
        wait(made, full, "f1")
        wait(made, other, "o1")
    await pass_time(0.05)
    assert order == ["o1"]
    assert [delay for delay in timers if delay < 0.02] == []
    made.release("cards", full.id)
    assert order == ["o1", "f1"]


async def test_a_rate_lets_a_second_s_worth_come_at_once_and_then_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_time = stop_time(monkeypatch)
    made = slots(most=1000, rate=20.0)
    session = Session()
    made.configure({"cards": (1000, 20.0)}, session=(1000, None))
    wait(made, session, *(f"c{n}" for n in range(30)))
    assert len(session.order) == 20
    await pass_time(0.26)
    assert len(session.order) == 25


async def test_an_idle_hour_saves_up_no_more_than_a_second_s_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_time(monkeypatch)
    made, session = slots(most=1000, rate=5.0, per_session=1000), Session()
    await pass_time(3_600)
    wait(made, session, *(f"c{n}" for n in range(20)))
    assert len(session.order) == 5


async def test_a_new_call_does_not_overtake_one_whose_time_has_just_come(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    made, session = slots(most=9, rate=1.0), Session()
    assert made.take("cards", session.id)
    wait(made, session, "first")
    now += 2
    assert not made.take("cards", session.id)


async def test_a_session_that_returns_a_slot_keeps_to_its_limit() -> None:
    made, session = slots(most=9, per_session=2), Session()
    assert [made.take("cards", session.id) for _ in range(3)] == [True, True, False]
    made.release("cards", session.id)
    assert [made.take("cards", session.id) for _ in range(2)] == [True, False]


async def test_a_session_that_ends_is_forgotten_with_its_rate() -> None:
    made, session = slots(most=9, session_rate=1.0), Session()
    assert [made.take("cards", session.id) for _ in range(2)] == [True, False]
    made.release("cards", session.id)
    made.forget(session.id)
    assert made.take("cards", session.id)


async def test_a_process_that_is_about_to_exit_starts_no_call_and_turns_none_away() -> None:
    breakers = breakers_of(reconnect_within=timedelta(0))
    made, session = Slots(breakers, {"cards": (1, None)}, session=(16, None), signal=Session.signal), Session()
    made.pause()
    assert not made.take("cards", session.id)
    breakers.end_attempt("cards", breakers.start_attempt("cards"), NeverSent("refused"))
    assert made.refusal("cards")
    wait(made, session, "a")
    assert (session.order, session.turned, made.waiting) == ([], [], 1)


async def test_only_one_call_at_a_time_probes_and_those_behind_it_are_turned_away_in_time() -> None:
    breakers = breakers_of(reconnect_within=timedelta(milliseconds=300))
    made, first, second = (
        Slots(breakers, {"cards": (9, None)}, session=(16, None), signal=Session.signal),
        Session(),
        Session(),
    )
    breakers.end_attempt("cards", breakers.start_attempt("cards"), NeverSent("refused"))
    wait(made, first, "a")
    assert not made.take("cards", second.id)
    # The end of a running probe is no time to wait for.
    breakers.start_attempt("cards")
    wait(made, second, "b")
    assert (first.order, second.order) == (["a"], [])
    async with asyncio.timeout(PATIENCE):
        while not second.turned:  # noqa: ASYNC110 - a slot has no event
            await asyncio.sleep(0.001)
    assert second.turned[0].startswith("b: 'cards' has been unreachable since ")


async def test_a_closed_breaker_has_no_beginning() -> None:
    breakers = breakers_of(failures=2)
    made = Slots(breakers, {"cards": (1, None)}, session=(16, None), signal=Session.signal)
    breakers.end_attempt("cards", breakers.start_attempt("cards"), Uncertain("500"))
    (one,) = made.executors()
    assert (one.breaker, one.since, one.reason) == ("closed", None, "500")
    breakers.end_attempt("cards", breakers.start_attempt("cards"), Uncertain("500"))
    (one,) = made.executors()
    assert one.breaker == "open"
    assert one.since is not None


async def test_a_faster_rate_after_a_reload_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_time(monkeypatch)
    made = slots(most=1000, rate=0.01)
    session = Session()
    wait(made, session, *(f"c{n}" for n in range(3)))
    assert len(session.order) == 1
    made.configure({"cards": (1000, 1000.0)}, session=(16, None))
    await pass_time(0.05)
    assert len(session.order) == 3


@pytest.mark.parametrize("most", [1, 5])
async def test_fewer_slots_after_a_reload_are_kept_to_and_more_are_used_at_once(most: int) -> None:
    made = slots(most=3)
    session = Session()
    wait(made, session, *(f"c{n}" for n in range(9)))
    assert len(session.order) == 3
    made.configure({"cards": (most, None)}, session=(16, None))
    assert len(session.order) == max(3, most)
    for _ in range(3):
        made.release("cards", session.id)
    assert made.held == most


async def test_a_call_for_an_executor_that_is_gone_is_told_so() -> None:
    made, session = slots(), Session()
    wait(made, session, "c", executor="gone")
    assert session.turned == ["c: executor 'gone' is no longer configured"]


async def test_a_session_s_rate_holds_over_all_executors_and_holds_nobody_else_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_time = stop_time(monkeypatch)
    made, order = slots(most=1000, per_session=1000, session_rate=20.0), list[str]()
    hasty, calm = Session(order), Session(order)
    wait(made, hasty, *(f"h{n}" for n in range(15)))
    wait(made, hasty, *(f"o{n}" for n in range(15)), executor="other")
    wait(made, calm, "c0")
    assert len(order) == 21
    assert order[-1] == "c0"
    await pass_time(0.26)
    assert len(order) == 26
    made.forget(hasty.id)
    await pass_time(0.2)
    assert len(order) == 26


async def test_a_session_s_rate_set_or_lifted_by_a_reload_counts_at_once() -> None:
    made = slots(most=1000, per_session=1000)
    session = Session()
    for _ in range(5):
        assert made.take("cards", session.id)
    made.configure({"cards": (1000, None)}, session=(1000, 0.01))
    assert made.take("cards", session.id)
    assert not made.take("cards", session.id)
    wait(made, session, "c1", "c2")
    assert session.order == []
    made.configure({"cards": (1000, None)}, session=(1000, None))
    assert session.order == ["c1", "c2"]


async def test_a_call_that_two_rates_hold_up_begins_when_both_let_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_time(monkeypatch)
    made = slots(most=1000, rate=10.0, per_session=1000, session_rate=5.0)
    first, second = Session(), Session()
    wait(made, first, *(f"a{n}" for n in range(8)))
    wait(made, second, *(f"b{n}" for n in range(8)))
    assert (len(first.order), len(second.order)) == (5, 5)
    await pass_time(0.55)
    assert (len(first.order), len(second.order)) == (7, 7)


@pytest.mark.parametrize("microseconds", range(200, 1_000, 200))
@pytest.mark.parametrize("ticks", range(1, 9))
async def test_a_probe_that_is_due_between_two_looks_at_the_clock_starts_at_once(ticks: int, microseconds: int) -> None:
    tick = timedelta(milliseconds=1)
    due = ticks * tick - timedelta(microseconds=microseconds)
    minute = timedelta(minutes=1)

    def pause(_away: timedelta, _jitter: float) -> timedelta:
        return due

    rule = Rule(failures=1, open_for=minute, reconnect_within=minute, pause=pause)
    breakers = Breakers(TickingClock(tick), Metrics(version="0"), lambda: 0.0, rules={"cards": rule}, specs={})
    made, session = Slots(breakers, {"cards": (1, None)}, session=(16, None), signal=Session.signal), Session()
    breakers.end_attempt("cards", breakers.start_attempt("cards"), NeverSent("refused"))
    wait(made, session, "a")
    async with asyncio.timeout(PATIENCE):
        while not session.granted:  # noqa: ASYNC110 - a slot has no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("parts", range(1, 12))
async def test_a_call_whose_rate_allows_it_between_two_looks_at_the_clock_starts_at_once(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    loop, tick = asyncio.get_running_loop(), 0.0008
    now = loop.time()

    def look() -> float:
        nonlocal now
        now += tick
        return now

    made, session = slots(most=9, rate=1.0), Session()
    made.take("cards", session.id)
    now += 1.0 - parts * tick / 4
    monkeypatch.setattr(loop, "time", look)
    wait(made, session, "a")
    for _ in range(5_000):
        if session.granted:
            return
        await asyncio.sleep(0)
    raise AssertionError("no timer was set")
