"""How long a session stays away that had to make room for another, and what wakes one that its runtime has ended."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gateway.adapter.port import Resting, RestTimes
from gateway.errors import EngineUnavailable, LinkLost
from gateway.runtime.session.link import STOPPED, Rest
from tests.pace import PATIENCE

MINUTE = timedelta(seconds=60)


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 20, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def timestamp(self) -> float:
        return self.now().timestamp()

    def monotonic(self) -> float:
        return self.seconds


class Server:
    """A runtime that has ended the session, or not."""

    rest_times = RestTimes()

    def __init__(self) -> None:
        self.stopped = True
        self.asked = 0

    async def is_stopped(self, native_id: str) -> bool:
        assert native_id == "c1"
        self.asked += 1
        return self.stopped


class Session:
    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.said = False
        self.broken = False
        self._wake: Callable[[], None] | None = None

    async def has_work(self) -> bool:
        if self.broken:
            raise EngineUnavailable("disk full")
        return self.said

    def call_when_queued(self, call: Callable[[], None] | None) -> None:
        self._wake = call

    def say(self) -> None:
        self.said = True
        if self._wake is not None:
            self._wake()


class Scene:
    def __init__(self) -> None:
        self.clock, self.server, self.session = Hand(), Server(), Session()
        self.shown: list[tuple[str, str]] = []
        self.rest = Rest(
            self.server,
            native_id="c1",
            closed=self.session.closed,
            has_work=self.session.has_work,
            call_when_queued=self.session.call_when_queued,
            clock=self.clock,
            jitter=lambda: 0.0,
            show=self._show,
        )
        self._news = asyncio.Event()

    def _show(self, state: str, reason: str) -> None:
        self.shown.append((state, reason))
        self._news.set()

    async def sleeps(self) -> "asyncio.Task[None]":
        """Begin to wait, and come back when that is shown."""
        self._news.clear()
        waiting = asyncio.ensure_future(self.rest.wait())
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()
        return waiting


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    assert isinstance(made.server, Resting)
    return made


async def test_a_session_that_has_something_to_say_or_to_hear_is_linked(scene: Scene) -> None:
    scene.session.said = True
    await scene.rest.wait()
    assert scene.server.asked == 0


async def test_one_that_runs_is_linked_and_one_that_was_ended_sleeps_until_something_is_said(scene: Scene) -> None:
    scene.server.stopped = False
    await scene.rest.wait()
    scene.server.stopped = True
    waiting = await scene.sleeps()
    assert scene.shown == [("asleep", STOPPED)]
    scene.session.say()
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_the_end_of_the_session_ends_the_sleep(scene: Scene) -> None:
    waiting = await scene.sleeps()
    scene.session.closed.set_result(None)
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_one_that_made_room_stays_away_for_a_minute_and_twice_as_long_each_time_up_to_ten(scene: Scene) -> None:
    scene.session.said = True
    for minutes in (1, 2, 4, 8, 10, 10):
        scene.rest.back_off("TOO_MANY", stood=timedelta(seconds=5))
        waiting = await scene.sleeps()
        assert scene.shown[-1] == ("refused", "TOO_MANY")
        scene.clock.seconds += 60 * minutes - 1
        scene.session.say()
        # It has time to look at the clock.
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        scene.clock.seconds += 1
        waiting.cancel()
        async with asyncio.timeout(PATIENCE):
            await scene.rest.wait()
    assert scene.server.asked == 0


async def test_one_that_stood_for_long_begins_with_a_minute_again(scene: Scene) -> None:
    scene.session.said = True
    for stood in (timedelta(seconds=5), timedelta(seconds=5), 5 * MINUTE):
        scene.rest.back_off("TOO_MANY", stood=stood)
    waiting = await scene.sleeps()
    waiting.cancel()
    scene.clock.seconds += 60
    async with asyncio.timeout(PATIENCE):
        await scene.rest.wait()


async def test_one_that_has_nothing_to_say_sleeps_and_the_reason_stays_until_it_is_linked(scene: Scene) -> None:
    scene.rest.back_off("TOO_MANY", stood=MINUTE)
    (await scene.sleeps()).cancel()
    scene.clock.seconds += 61
    (await scene.sleeps()).cancel()
    assert scene.shown == [("asleep", "TOO_MANY")] * 2
    scene.rest.connected()
    (await scene.sleeps()).cancel()
    assert scene.shown[-1] == ("asleep", STOPPED)


async def test_a_store_that_cannot_be_read_wakes_nobody(scene: Scene) -> None:
    scene.session.broken = True
    with pytest.raises(LinkLost, match="disk full"):
        await scene.rest.wait()
    assert scene.server.asked == 0
