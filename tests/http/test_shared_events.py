"""A large event is in memory once for all that follow it, and a bounded number of large ones wait to be written."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator

import pytest

from gateway.events import Envelope, SessionId
from gateway.http.routes.all_events import _encoded  # pyright: ignore[reportPrivateUsage] - the pieces of a stream
from gateway.runtime.feeds.follow import JournalReader
from gateway.runtime.feeds.follower_budget import FollowerBudget
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.views import News, Selected, SessionEvent, SessionItem
from gateway.store.rows import SessionName
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, open_session, said
from tests.pace import PATIENCE

LARGE = "x" * 1_000_000
FOLLOWERS = 50


def placed(envelope: Envelope, place: int) -> SessionEvent:
    return SessionEvent(envelope, SessionName(ALICE, "finn", "native", {}), (place, 0, 0))


async def one_batch(events: list[SessionEvent]) -> AsyncGenerator[SessionItem]:
    yield Selected(events)


async def test_followers_of_all_sessions_share_a_large_event_and_add_their_own_ids() -> None:
    events = [placed(said("small", sequence=2), 1), placed(said(LARGE, sequence=3), 2), placed(said("end"), 3)]
    tracemalloc.start()
    try:
        streams = [_encoded(one_batch(events), "0" * 8, f"{number:08x}") for number in range(FOLLOWERS)]
        pieces = [[piece async for piece in stream] for stream in streams]
        assert tracemalloc.get_traced_memory()[0] < 4 * len(LARGE)
    finally:
        tracemalloc.stop()
    texts = [b"".join(piece for piece in some if isinstance(piece, bytes)) for some in pieces]
    assert len({len(text) for text in texts}) == 1
    assert len(set(texts)) == FOLLOWERS
    assert [text.count(b"\nid: ") + text.startswith(b"id: ") for text in texts] == [3] * FOLLOWERS


async def take(items: AsyncGenerator[object]) -> list[int]:
    async with asyncio.timeout(PATIENCE):
        item = await anext(items)
    assert isinstance(item, News)
    return [one.sequence for one in item.items if isinstance(one, Envelope)]


@pytest.fixture
async def engine() -> AsyncGenerator[TemporaryEngine]:
    async with TemporaryEngine(SystemClock()) as made:
        await open_session(made)
        for text in (LARGE, LARGE, "small"):
            await made.commit(Step(ALICE, (said(text),)))
        yield made


async def test_a_reader_waits_without_its_large_event_while_others_hold_the_room(engine: TemporaryEngine) -> None:
    reader = JournalReader(engine, asyncio.Semaphore(4), FollowerBudget(5 * len(LARGE)))
    slow, other, last = (reader.read(SessionId(ALICE), 1) for _ in range(3))
    assert (await take(slow), await take(other)) == ([2], [2])
    waits = asyncio.ensure_future(take(last))
    # Those that read small events do not wait.
    small = reader.read(SessionId(ALICE), 3)
    assert await take(small) == [4]
    assert not waits.done()
    # Who has written one gives its room up for another, here or as soon as the other reader has left too.
    following = asyncio.ensure_future(take(slow))
    await asyncio.wait((waits, following), return_when=asyncio.FIRST_COMPLETED)
    await other.aclose()
    assert (await waits, await following) == ([2], [3])
    for one in (slow, last, small):
        await one.aclose()


async def test_shared_news_take_room_once_until_the_last_follower_goes_on() -> None:
    first, second = News([said(LARGE)]), News([said(LARGE)])
    budget = FollowerBudget(3 * len(LARGE))
    assert [budget.shares(first) for _ in range(FOLLOWERS)] == [True] * FOLLOWERS
    assert not budget.shares(second)
    for _ in range(FOLLOWERS - 1):
        budget.leave_shared(first)
    assert not budget.shares(second)
    budget.leave_shared(first)
    assert budget.shares(second)
