"""How much of a session's history a follower holds at once."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.events import Envelope, SessionId
from gateway.guard import Tasks
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.cluster.remote_feeds import RemoteFeeds
from gateway.runtime.feeds.follow import follow
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.tuning import Tuning
from gateway.store.memory import MemoryEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said


class Watched(MemoryEngine):
    """A store that notes how many events were asked for at once."""

    asked: list[int]

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        self.asked.append(limit)
        return await super().read(session_id, after=after, limit=limit)


@pytest.mark.parametrize(
    ("length", "pages"),
    [(10, [4, 8, 16, 32, 64, 128, 200]), (400_000, [4, 1])],
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
            feeds = RemoteFeeds(engine, lambda _: None, Notifications(engine), tasks, Tuning())
            items = follow(engine, ALICE, feeds, after=0, heartbeat=5, ended=Ending(), pages=asyncio.Semaphore())
            sequences = [item.sequence async for item in items if isinstance(item, Envelope)]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) > 60
    assert engine.asked[: len(pages)] == pages
    assert max(engine.asked[1:]) <= max(pages)
