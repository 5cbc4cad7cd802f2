"""When sessions are told that something is due."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from gateway.guard import FAULTS
from gateway.runtime.session.due import AT_ONCE, DueTimer, Reviews
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.signals import Tick
from gateway.runtime.system_clock import SystemClock
from tests.pace import PATIENCE

CLOCK = SystemClock()


class Session:
    """A session with something due, or nothing."""

    def __init__(self, reviews: Reviews, next_due: Callable[[], datetime | None] | None = None) -> None:
        self.at: datetime | None = None
        self.asked = 0
        self.reviews = reviews
        self.filled = asyncio.Event()
        self.inbox = Inbox(
            frames=1,
            size=1,
            resumes=True,
            is_live=lambda _: False,
            overflow=lambda _: None,
            filled=self.filled.set,
        )
        self.timer = DueTimer(self.inbox, CLOCK, next_due or self._next_due)

    def _next_due(self) -> datetime | None:
        self.asked += 1
        return self.at

    def due_in(self, seconds: float | None) -> None:
        self.at = None if seconds is None else CLOCK.now() + timedelta(seconds=seconds)
        self.reviews.add(self.timer)

    async def ticks(self) -> list[object]:
        async with asyncio.timeout(PATIENCE):
            while self.inbox.empty:
                await self.filled.wait()
        return list(self.inbox.take(10, size=1))


async def test_a_session_is_told_when_something_is_due_and_not_before():
    session = Session(Reviews())
    session.due_in(0.2)
    assert await session.ticks() == [Tick()]
    assert session.at is not None
    assert CLOCK.now() >= session.at


async def test_a_postponed_review_rings_once_at_its_new_time():
    session = Session(Reviews())
    session.timer.set()
    session.at = CLOCK.now() + timedelta(seconds=0.05)
    session.timer.set()
    session.due_in(0.3)
    assert await session.ticks() == [Tick()]
    assert session.at is not None
    assert CLOCK.now() >= session.at


async def test_a_review_that_is_due_earlier_rings_earlier():
    session = Session(Reviews())
    session.at = CLOCK.now() + timedelta(hours=1)
    session.timer.set()
    session.due_in(0.01)
    assert await session.ticks() == [Tick()]


async def test_a_review_that_is_no_longer_due_does_not_ring():
    reviews = Reviews()
    session, other = Session(reviews), Session(reviews)
    session.at = CLOCK.now() + timedelta(seconds=0.02)
    session.timer.set()
    session.at = None
    other.due_in(0.1)
    assert await other.ticks() == [Tick()]
    assert session.inbox.empty


async def test_a_session_with_a_failing_review_costs_no_other_its_timer():
    def fails() -> datetime:
        raise RuntimeError("nobody foresaw this")

    reviews, before = Reviews(), FAULTS.get().total["session"]
    broken, session = Session(reviews, fails), Session(reviews)
    reviews.add(broken.timer)
    session.due_in(0.01)
    assert await session.ticks() == [Tick()]
    assert FAULTS.get().total["session"] == before + 1


async def test_the_loop_does_other_things_while_the_timers_of_many_sessions_are_set():
    reviews = Reviews()
    sessions = [Session(reviews) for _ in range(2 * AT_ONCE + 1)]
    for session in sessions:
        session.due_in(None)
    asked = set[int]()
    async with asyncio.timeout(PATIENCE):
        while len(asked) < 3 or not sessions[-1].asked:
            asked.add(sum(session.asked for session in sessions))
            await asyncio.sleep(0)
    assert sorted(asked)[:3] == [0, AT_ONCE, 2 * AT_ONCE]


async def test_a_session_that_has_ended_is_not_told_anything():
    reviews = Reviews()
    ended, session = Session(reviews), Session(reviews)
    ended.due_in(0.01)
    ended.timer.cancel()
    session.due_in(0.02)
    assert await session.ticks() == [Tick()]
    assert ended.inbox.empty
