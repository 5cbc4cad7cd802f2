"""Following a session: history from the journal, then what happens, then heartbeats in between.

Where the session is carried may change in the middle: the place in the journal is what a follower keeps.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.errors import Truncated
from gateway.events import Envelope, Live, SessionId
from gateway.events.weight import weight
from gateway.runtime.cluster.remote_feeds import RemoteFeeds
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.views import Gap, Heartbeat, StreamItem
from gateway.store.port import Engine

_FIRST_PAGE, _LARGEST_PAGE = 4, 200
_PAGE_BYTES = 128 * 1024
"""A page of history that weighs more makes the next ones smaller."""
PAGES = 64
"""How many followers may have a page of history at a time; one that does not read it gives it up."""


async def follow(
    engine: Engine,
    session_id: SessionId,
    feeds: RemoteFeeds,
    *,
    after: int | None,
    heartbeat: float,
    ended: Ending,
    pages: asyncio.Semaphore,
) -> AsyncGenerator[StreamItem]:
    """Yield everything on record behind `after` without gap or repeat, and live events as they come.

    A closed session yields its history and ends.
    """
    last = after
    while True:
        # Without a wait where it is carried here, so that nothing that is only live is missed.
        feed = feeds.here(session_id) or await feeds.elsewhere(session_id)
        if feed is None:
            if last is not None:
                async with aclosing(_history(engine, session_id, last, pages)) as history:
                    async for item in history:
                        yield item
            return
        if last is None:
            # What is recorded from this moment on is news, also before the first read of the journal.
            last = feed.last_sequence
        # The feed is joined here, before anybody else runs.
        news = _from_feed(engine, session_id, feed, last, heartbeat=heartbeat, ended=ended, pages=pages)
        async with aclosing(news):
            async for item in news:
                last = _place_of(item, last)
                yield item
        if ended.is_set():
            return


async def _from_feed(
    engine: Engine,
    session_id: SessionId,
    feed: Feed,
    last: int,
    *,
    heartbeat: float,
    ended: Ending,
    pages: asyncio.Semaphore,
) -> AsyncGenerator[StreamItem]:
    """Yield what is behind `last` until the feed is closed."""
    place = feed.join()
    try:
        missed = True
        while True:
            items, place, behind = feed.since(place)
            if missed or behind:
                async with aclosing(_history(engine, session_id, last, pages)) as history:
                    async for item in history:
                        last = _place_of(item, last)
                        yield item
                missed = False
            for item in items:
                if isinstance(item, Live) or item.sequence > last:
                    last = _place_of(item, last)
                    yield item
            if feed.closed or ended.is_set():
                return
            if not await feed.wait(place, ended=ended, within=heartbeat):
                yield Heartbeat()
    finally:
        feed.leave()


def _place_of(item: StreamItem, last: int) -> int:
    match item:
        case Envelope():
            return item.sequence
        case Gap():
            return item.first_sequence - 1
        case _:
            return last


async def _history(
    engine: Engine, session_id: SessionId, after: int, pages: asyncio.Semaphore
) -> AsyncGenerator[StreamItem]:
    limit = _FIRST_PAGE
    while True:
        async with pages:
            try:
                page = await engine.read(session_id, after=after, limit=limit)
            except Truncated as exc:
                yield Gap(exc.first_sequence)
                after = exc.first_sequence - 1
                continue
            for envelope in page:
                yield envelope
            if len(page) < limit:
                return
            after = page[-1].sequence
            heavy = sum(weight(envelope.event) for envelope in page) / _PAGE_BYTES
            del page
        limit = max(1, int(limit / heavy)) if heavy > 1 else min(limit * 2, _LARGEST_PAGE)
