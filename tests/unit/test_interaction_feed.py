"""Following the questions to people: what waits first, then each change, and a fresh start for who was too slow."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.events import InteractionId, Missed, QuestionAsked
from gateway.runtime.feeds.interactions import TAIL, InteractionFeed, follow_interactions
from gateway.runtime.views import Heartbeat, InteractionItem, InteractionShown
from gateway.runtime.wakeup import Ending
from gateway.store.port import Engine
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import InteractionChange, InteractionState, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, new, open_session, row_of
from tests.pace import PATIENCE

LONG = 60.0


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with TemporaryEngine(FakeClock()) as made:
        await open_session(made)
        yield made


async def ask(engine: Engine, name: str) -> InteractionId:
    sequence = (await row_of(engine)).last_sequence + 1
    change = InteractionChange(InteractionId(name), "waiting", "question.asked", sequence)
    await engine.commit(Step(ALICE, (new(QuestionAsked(id=name, text="Which?")),), interactions=(change,)))
    return InteractionId(name)


async def move(engine: Engine, name: str, state: InteractionState) -> InteractionId:
    await engine.commit(Step(ALICE, interactions=(InteractionChange(InteractionId(name), state),)))
    return InteractionId(name)


async def next_of(items: AsyncIterator[InteractionItem]) -> InteractionItem:
    async with asyncio.timeout(PATIENCE):
        return await anext(items)


async def shown(items: AsyncIterator[InteractionItem]) -> tuple[str, str]:
    item = await next_of(items)
    assert isinstance(item, InteractionShown), item
    assert isinstance(item.asked.event, QuestionAsked)
    assert item.asked.event.id == item.row.interaction_id
    return item.row.interaction_id, item.row.state


async def test_one_that_comes_while_those_that_wait_are_listed_is_shown_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interaction_feed, ended = InteractionFeed(), Ending()
    listing = engine.interactions_with_events

    async def listing_late(*asked: Any, **more: Any) -> Any:
        monkeypatch.setattr(engine, "interactions_with_events", listing)
        interaction_feed.tell([await ask(engine, "q")])
        return await listing(*asked, **more)

    monkeypatch.setattr(engine, "interactions_with_events", listing_late)
    items = follow_interactions(engine, interaction_feed, heartbeat=LONG, ended=ended)
    assert await shown(items) == ("q", "waiting")
    coming = asyncio.create_task(shown(items))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not coming.done()
    interaction_feed.tell([await move(engine, "q", "answered")])
    assert await coming == ("q", "answered")
    await items.aclose()


async def test_it_begins_with_all_that_wait_and_goes_on_with_each_change(engine: Engine) -> None:
    interaction_feed, ended = InteractionFeed(), Ending()
    await ask(engine, "old")
    await move(engine, "old", "answered")
    for number in range(250):
        await ask(engine, f"q-{number}")
    items = follow_interactions(engine, interaction_feed, heartbeat=LONG, ended=ended)
    assert {await shown(items) for _ in range(250)} == {(f"q-{number}", "waiting") for number in range(250)}
    coming = asyncio.create_task(shown(items))
    await asyncio.sleep(0)
    interaction_feed.tell([await ask(engine, "new")])
    assert await coming == ("new", "waiting")
    interaction_feed.tell([await move(engine, "q-1", "answered"), await move(engine, "q-2", "moot")])
    assert [await shown(items), await shown(items)] == [("q-1", "answered"), ("q-2", "moot")]


async def test_what_changed_twice_is_shown_once_as_it_stands(engine: Engine) -> None:
    interaction_feed = InteractionFeed()
    items = follow_interactions(engine, interaction_feed, heartbeat=0.01, ended=Ending())
    assert isinstance(await next_of(items), Heartbeat)
    interaction_feed.tell([await ask(engine, "q")])
    interaction_feed.tell([await move(engine, "q", "expired")])
    assert await shown(items) == ("q", "expired")
    assert isinstance(await next_of(items), Heartbeat)


async def test_what_changes_while_the_list_is_read_is_not_missed(engine: Engine) -> None:
    interaction_feed = InteractionFeed()
    await ask(engine, "a")
    items = follow_interactions(engine, interaction_feed, heartbeat=LONG, ended=Ending())
    assert await shown(items) == ("a", "waiting")
    interaction_feed.tell([await move(engine, "a", "answered"), await ask(engine, "b")])
    assert [await shown(items), await shown(items)] == [("a", "answered"), ("b", "waiting")]


async def test_a_follower_that_falls_behind_is_told_and_sent_all_that_wait_again(engine: Engine) -> None:
    interaction_feed = InteractionFeed()
    await ask(engine, "a")
    await ask(engine, "b")
    items = follow_interactions(engine, interaction_feed, heartbeat=LONG, ended=Ending())
    assert [await shown(items), await shown(items)] == [("a", "waiting"), ("b", "waiting")]
    interaction_feed.tell([await move(engine, "a", "moot")])
    interaction_feed.tell([InteractionId("b")] * TAIL)
    assert isinstance(await next_of(items), Missed)
    assert await shown(items) == ("b", "waiting")


async def test_it_ends_with_the_gateway(engine: Engine) -> None:
    ended = Ending()
    items = follow_interactions(engine, InteractionFeed(), heartbeat=LONG, ended=ended)
    coming = asyncio.create_task(next_of(items))
    await asyncio.sleep(0)
    ended.set()
    with pytest.raises(StopAsyncIteration):
        await coming


async def test_many_followers_are_woken_by_one_change(engine: Engine) -> None:
    interaction_feed = InteractionFeed()
    coming = [
        asyncio.create_task(shown(follow_interactions(engine, interaction_feed, heartbeat=LONG, ended=Ending())))
        for _ in range(20)
    ]
    await asyncio.sleep(0)
    interaction_feed.tell([await ask(engine, "q")])
    assert await asyncio.gather(*coming) == [("q", "waiting")] * 20
