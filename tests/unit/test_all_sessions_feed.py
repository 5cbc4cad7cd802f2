"""The feed of all sessions: what it reads for its followers, and how much at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from gateway.errors import EngineUnavailable
from gateway.events import Envelope, Live, Missed, TypingChanged
from gateway.guard import Tasks
from gateway.runtime.feeds.all_sessions import AllSessionsFeed
from gateway.runtime.feeds.follower_budget import FollowerBudget
from gateway.runtime.metrics import Metrics
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import Heartbeat, Passed, Selected, SessionItem
from gateway.runtime.wakeup import Ending
from gateway.store.rows import ANY_EVENT, FROM_THE_START, EventFilter, PlacedPage, Position, RetentionPolicy
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said
from tests.pace import PATIENCE

NOTHING = EventFilter(kinds=frozenset({"tool.requested"}))


class Counted(TemporaryEngine):
    """Counts its reads, with their limits."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.asked: list[tuple[int, int]] = []
        self.fails = False

    async def read_all(self, after: Position, which: EventFilter, *, limit: int, searched: int) -> PlacedPage:
        try:
            if self.fails:
                raise EngineUnavailable("the disk is full")
            return await super().read_all(after, which, limit=limit, searched=searched)
        finally:
            # A read that is counted has the events before it only.
            self.asked.append((limit, searched))


@pytest.fixture
async def engine() -> AsyncIterator[Counted]:
    async with Counted() as engine:
        await open_session(engine)
        yield engine


@pytest.fixture
async def feed(engine: Counted) -> AsyncIterator[AllSessionsFeed]:
    async with Tasks() as tasks:
        yield feed_of(engine, tasks, FollowerBudget())


def feed_of(engine: Counted, tasks: Tasks, budget: FollowerBudget) -> AllSessionsFeed:
    tuning = Tuning(stream_look=60, feed_look=0.02)
    return AllSessionsFeed(engine, tasks, tuning, budget, Metrics(version="0"), ask_others=lambda: None)


async def commit(engine: Counted, *texts: str) -> None:
    await engine.commit(Step(ALICE, tuple(map(said, texts))))


async def asked(engine: Counted, times: int) -> None:
    """Wait until the engine was read so many times."""
    async with asyncio.timeout(PATIENCE):
        # A read tells nobody.
        while len(engine.asked) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Follower:
    """One follower with its items."""

    def __init__(
        self, feed: AllSessionsFeed, which: EventFilter = ANY_EVENT, after: Position | None = None, beat: float = 60
    ) -> None:
        self.items = feed.follow(which, after=after, heartbeat=beat, ended=Ending())

    async def next(self) -> SessionItem:
        async with asyncio.timeout(PATIENCE):
            return await anext(self.items)

    async def sequences(self, count: int) -> list[int]:
        """Read the sequences of so many recorded events."""
        found: list[int] = []
        while len(found) < count:
            item = await self.next()
            if isinstance(item, Selected):
                found += [one.item.sequence for one in item.items if isinstance(one.item, Envelope)]
        return found


async def test_a_filter_without_matches_is_searched_in_bounded_parts(engine: Counted, feed: AllSessionsFeed) -> None:
    for _ in range(30):
        await commit(engine, *["x"] * 1_000)
    follower = Follower(feed, NOTHING, FROM_THE_START, beat=0.05)
    places: list[Position] = []
    async with aclosing(follower.items):
        while not places or places[-1] != await engine.end():
            item = await follower.next()
            assert isinstance(item, Passed)
            places.append(item.position)
    assert places == sorted(set(places))
    searched = [searched for _, searched in engine.asked]
    assert max(searched) <= 20_000
    assert len([one for one in searched if one >= 1_000]) < 10


async def test_followers_share_one_reader(engine: Counted, feed: AllSessionsFeed) -> None:
    followers = [Follower(feed) for _ in range(50)]
    for follower in followers:
        assert isinstance(await follower.next(), Passed)
    waiting = [asyncio.create_task(follower.sequences(3)) for follower in followers]
    # Each follower has read the store once by itself; from then on only the shared task does.
    await asked(engine, len(followers) + 1)
    engine.asked.clear()
    await commit(engine, "a", "b", "c")
    feed.look()
    assert [await one for one in waiting] == [[2, 3, 4]] * 50
    assert len(engine.asked) < 10
    for follower in followers:
        await follower.items.aclose()
    assert not feed.is_followed
    assert not feed.is_wanted


async def test_a_follower_that_falls_behind_reads_the_store(engine: Counted, feed: AllSessionsFeed) -> None:
    slow, quick = Follower(feed), Follower(feed)
    for follower in (slow, quick):
        assert isinstance(await follower.next(), Passed)
    for _ in range(30):
        await commit(engine, *["x" * 100] * 100)
    feed.look()
    assert await quick.sequences(3_000) == list(range(2, 3_002))
    assert await slow.sequences(3_000) == list(range(2, 3_002))
    await slow.items.aclose()
    await quick.items.aclose()


async def test_a_store_that_fails_delays_the_reader_only(engine: Counted, feed: AllSessionsFeed) -> None:
    follower = Follower(feed)
    assert isinstance(await follower.next(), Passed)
    reading = asyncio.create_task(follower.sequences(1))
    await asked(engine, 2)
    engine.fails = True
    await commit(engine, "a")
    feed.look()
    await asked(engine, len(engine.asked) + 3)
    engine.fails = False
    assert await reading == [2]
    await follower.items.aclose()


async def test_live_events_come_before_the_events_after_them(engine: Counted, feed: AllSessionsFeed) -> None:
    follower = Follower(feed)
    assert isinstance(await follower.next(), Passed)
    seen: list[str] = []

    async def read() -> None:
        while len(seen) < 4:
            item = await follower.next()
            if isinstance(item, Selected):
                seen.extend(one.item.event.kind for one in item.items)

    reading = asyncio.create_task(read())
    await asked(engine, 2)
    await commit(engine, "a", "b")
    for after in (3, 2, 3):
        feed.tell(ALICE, Live(TypingChanged(typing=True), after))
    await reading
    assert seen[0] == "message.posted"
    assert seen.index("typing.changed") < len(seen) - 1 - seen[::-1].index("message.posted")
    await follower.items.aclose()


async def test_a_quiet_stream_has_heartbeats(engine: Counted, feed: AllSessionsFeed) -> None:
    follower = Follower(feed, beat=0.01)
    assert isinstance(await follower.next(), Passed)
    assert [await follower.next() for _ in range(3)] == [Heartbeat()] * 3
    await follower.items.aclose()


async def test_the_rest_of_a_heavy_page_is_read_next(engine: Counted, feed: AllSessionsFeed) -> None:
    for _ in range(3):
        await commit(engine, "x" * 100_000, "y" * 100_000)
    follower = Follower(feed, after=FROM_THE_START)
    assert await follower.sequences(7) == list(range(1, 8))
    await follower.items.aclose()


async def test_a_follower_without_room_for_a_large_event_gets_it_when_another_gives_its_room_up(
    engine: Counted,
) -> None:
    async with Tasks() as tasks:
        feed = feed_of(engine, tasks, FollowerBudget(3 * 200_000))
        slow, quick = Follower(feed), Follower(feed)
        for follower in (slow, quick):
            assert isinstance(await follower.next(), Passed)
        firsts = [asyncio.create_task(follower.sequences(1)) for follower in (slow, quick)]
        # Both wait for news of the shared reader.
        await asked(engine, 3)
        await commit(engine, "2" * 200_000)
        feed.look()
        assert [await first for first in firsts] == [[2], [2]]
        # The slow one keeps the room of the first event.
        second = asyncio.create_task(quick.sequences(1))
        await commit(engine, "3" * 200_000)
        feed.look()
        # Time enough for an event that must not arrive.
        await asyncio.sleep(0.1)
        assert not second.done()
        following = asyncio.create_task(slow.sequences(1))
        assert await second == [3]
        await quick.items.aclose()
        assert await following == [3]
        await slow.items.aclose()


async def test_followers_are_told_of_events_that_were_removed_before_the_shared_reader_has_read_them(
    engine: Counted, feed: AllSessionsFeed
) -> None:
    follower = Follower(feed)
    assert isinstance(await follower.next(), Passed)
    waiting = asyncio.create_task(follower.next())
    await asked(engine, 2)
    engine.fails = True
    await commit(engine, "a", "b", "c")
    assert (await engine.sweep(RetentionPolicy(open_events=1))).events == 3
    feed.look()
    engine.fails = False
    assert isinstance(await waiting, Missed)
    assert await follower.sequences(1) == [4]
    await follower.items.aclose()


async def test_changes_are_wanted_while_other_instances_ask_for_them(feed: AllSessionsFeed) -> None:
    feed.notify_others(lambda _, __: None, seconds=60)
    follower = Follower(feed)
    assert isinstance(await follower.next(), Passed)
    await follower.items.aclose()
    assert (feed.is_followed, feed.is_wanted) == (False, True)
