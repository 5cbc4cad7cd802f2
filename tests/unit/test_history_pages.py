"""How much of a session's history a follower holds at once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.events import Envelope, Gap, Live, SessionId, TypingChanged
from gateway.guard import Tasks
from gateway.runtime.feeds.all_sessions import AllSessionsFeed
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.follow import JournalReader, follow
from gateway.runtime.feeds.follower_budget import FollowerBudget
from gateway.runtime.feeds.remote_feeds import RemoteFeeds
from gateway.runtime.metrics import Metrics
from gateway.runtime.notifications import Notifications
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import News, StreamItem
from gateway.runtime.wakeup import Ending
from gateway.store.rows import RetentionPolicy, Rows
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said
from tests.pace import PATIENCE


class Watched(TemporaryEngine):
    """A store that notes how many events were asked for at once."""

    asked: list[int]
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What happens before the next page is read."""

    async def read(
        self, session_id: SessionId, *, after: int = 0, limit: int = 500, excerpts: bool = False
    ) -> Rows[Envelope]:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        self.asked.append(limit)
        return await super().read(session_id, after=after, limit=limit, excerpts=excerpts)


@pytest.mark.parametrize(
    ("length", "pages"),
    [(10, [4, 8, 16, 32, 64, 128, 144]), (400_000, [4, 1])],
    ids=["small events", "large events"],
)
async def test_pages_grow_where_events_are_small_and_shrink_where_they_are_large(length: int, pages: list[int]) -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        await open_session(engine)
        for number in range(500 if length < 1_000 else 60):
            await engine.commit(Step(ALICE, (said(f"{number} " + "x" * length),)))
        await engine.commit(Step(ALICE, state="closed"))
        engine.asked.clear()
        async with Tasks() as tasks:
            feeds = remote_feeds(engine, lambda: None, tasks)
            items = follow(
                JournalReader(engine, asyncio.Semaphore(), FollowerBudget()),
                ALICE,
                feeds,
                after=0,
                heartbeat=5,
                ended=Ending(),
            )
            told = [one async for item in items if isinstance(item, News) for one in item.items]
    sequences = [one.sequence for one in told if isinstance(one, Envelope)]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) > 60
    assert engine.asked[: len(pages)] == pages
    assert max(engine.asked[1:]) <= max(pages)


async def test_who_is_at_the_end_reads_no_page_and_is_told_what_is_recorded_from_then_on() -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed, ended = await a_followed_session(engine, 3), Ending()
        items = follows(engine, feed, after=None, ended=ended)
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        feed.extend(await recorded(engine, 4))
        assert sequences_of(await first) == [4]
        await items.aclose()
        late = follows(engine, feed, after=3, ended=ended)
        assert sequences_of(await anext(late)) == [4]
        await late.aclose()
    # The second one alone was behind.
    assert engine.asked == [4]


async def test_what_the_journal_has_told_is_left_out_of_the_news_and_what_is_only_live_is_not() -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed = await a_followed_session(engine, 2)

        async def meanwhile() -> None:
            # Behind the place where the follower joined, and in the page that it is about to read.
            feed.extend(await recorded(engine, 3))
            feed.tell(Live(TypingChanged(typing=True), 3))
            feed.extend(await recorded(engine, 4))

        engine.meanwhile = meanwhile
        items = follows(engine, feed, after=1, ended=Ending())
        told = [await anext(items), await anext(items)]
        feed.extend(await recorded(engine, 5))
        told.append(await anext(items))
        await items.aclose()
    assert [sequences_of(item) for item in told] == [[2, 3, 4], ["live"], [5]]


async def test_a_follower_that_leaves_takes_its_timer_along(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, armed = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noting(*given: Any) -> asyncio.TimerHandle:
        armed.append(call_later(*given))
        return armed[-1]

    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed = await a_followed_session(engine, 2)
        items = follows(engine, feed, after=2, ended=Ending())
        monkeypatch.setattr(loop, "call_later", noting)
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        feed.extend(await recorded(engine, 3))
        await first
        assert feed.followed
        await items.aclose()
        assert not feed.followed
    assert [timer.cancelled() for timer in armed] == [True]


async def a_followed_session(engine: Watched, length: int) -> Feed:
    await open_session(engine)
    row = await engine.session(ALICE)
    assert row is not None
    for _ in range(length - row.last_sequence):
        await engine.commit(Step(ALICE, (said("x"),)))
    return Feed(length)


def remote_feeds(engine: TemporaryEngine, here: Callable[[], Feed | None], tasks: Tasks) -> RemoteFeeds:
    everyone = AllSessionsFeed(engine, tasks, Tuning(), FollowerBudget(), Metrics(version="0"), ask_others=lambda: None)
    return RemoteFeeds(engine, lambda _: here(), Notifications(engine), tasks, Tuning(), all_sessions=everyone)


async def recorded(engine: TemporaryEngine, sequence: int, *, size: int = 0) -> Sequence[Envelope]:
    await engine.commit(Step(ALICE, (said(f"number {sequence}".ljust(size)),)))
    return await TemporaryEngine.read(engine, ALICE, after=sequence - 1)


def follows(engine: Watched, feed: Feed, *, after: int | None, ended: Ending) -> AsyncGenerator[StreamItem]:
    feeds = remote_feeds(engine, lambda: feed, Tasks())
    return follow(
        JournalReader(engine, asyncio.Semaphore(), FollowerBudget()),
        ALICE,
        feeds,
        after=after,
        heartbeat=5,
        ended=ended,
    )


def sequences_of(item: StreamItem) -> list[int | str]:
    assert isinstance(item, News)
    return [one.sequence if isinstance(one, Envelope) else "live" for one in item.items]


async def test_the_last_page_of_large_events_is_read_to_its_end() -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed = await a_followed_session(engine, 1)
        feed.extend(await recorded(engine, 2, size=100_000))
        feed.extend(await recorded(engine, 3, size=100_000))
        items = follows(engine, feed, after=0, ended=Ending())
        assert [sequences_of(await anext(items)) for _ in range(3)] == [[1], [2], [3]]
        await items.aclose()


async def test_news_that_begin_with_the_last_event_of_the_journal_are_not_repeated() -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed = await a_followed_session(engine, 2)

        async def meanwhile() -> None:
            feed.extend(await recorded(engine, 3))

        engine.meanwhile = meanwhile
        items = follows(engine, feed, after=1, ended=Ending())
        told = [await anext(items)]
        following = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        feed.extend(await recorded(engine, 4))
        told.append(await following)
        await items.aclose()
    assert [sequences_of(item) for item in told] == [[2, 3], [4]]


async def test_a_follower_whose_session_closes_reads_on_behind_what_it_was_told() -> None:
    async with Watched(FakeClock()) as engine, Tasks() as tasks:
        engine.asked = []
        here: list[Feed] = [await a_followed_session(engine, 2)]
        feeds = remote_feeds(engine, lambda: here[0] if here else None, tasks)
        reader = JournalReader(engine, asyncio.Semaphore(), FollowerBudget())
        items = follow(reader, ALICE, feeds, after=0, heartbeat=5, ended=Ending())
        assert sequences_of(await anext(items)) == [1, 2]
        await recorded(engine, 3)
        await engine.commit(Step(ALICE, state="closed"))
        here.pop().close()
        assert [sequences_of(item) async for item in items] == [[3]]


async def test_a_follower_that_is_ended_does_not_look_for_its_session_again() -> None:
    async with Watched(FakeClock()) as engine, Tasks() as tasks:
        engine.asked = []
        here, ended = [await a_followed_session(engine, 2)], Ending()
        feeds = remote_feeds(engine, here.pop, tasks)
        reader = JournalReader(engine, asyncio.Semaphore(), FollowerBudget())
        items = follow(reader, ALICE, feeds, after=2, heartbeat=PATIENCE, ended=ended)
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        ended.set()
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(PATIENCE):
                await waiting


async def test_followers_of_a_session_share_the_room_of_a_large_event_and_give_it_up() -> None:
    async with Watched(FakeClock()) as engine, Tasks() as tasks:
        engine.asked = []
        feed = await a_followed_session(engine, 2)
        reader = JournalReader(engine, asyncio.Semaphore(), FollowerBudget(3 * 200_000))
        feeds = remote_feeds(engine, lambda: feed, tasks)
        slow, quick = (follow(reader, ALICE, feeds, after=2, heartbeat=PATIENCE, ended=Ending()) for _ in range(2))
        firsts = [asyncio.ensure_future(anext(items)) for items in (slow, quick)]
        await asyncio.sleep(0)
        feed.extend(await recorded(engine, 3, size=200_000))
        assert [sequences_of(await first) for first in firsts] == [[3], [3]]
        feed.extend(await recorded(engine, 4, size=200_000))
        # The slow one keeps the room of the first event.
        second = asyncio.ensure_future(anext(quick))
        # Time enough for an event that must not arrive.
        await asyncio.sleep(0.1)
        assert not second.done()
        following = asyncio.ensure_future(anext(slow))
        assert sequences_of(await second) == [4]
        await quick.aclose()
        assert sequences_of(await following) == [4]
        await slow.aclose()


async def test_the_first_event_after_a_gap_at_the_end_is_not_left_out() -> None:
    async with Watched(FakeClock()) as engine:
        engine.asked = []
        feed = await a_followed_session(engine, 3)
        assert (await engine.sweep(RetentionPolicy(open_events=0))).events == 3
        items = follows(engine, feed, after=0, ended=Ending())
        assert await anext(items) == Gap(4)
        following = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        feed.extend(await recorded(engine, 4))
        assert sequences_of(await following) == [4]
        await items.aclose()
