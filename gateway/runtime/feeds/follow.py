"""Follows a session: history from the journal, then new events, with heartbeats in between.

The session may move to another instance meanwhile; the follower keeps its place in the journal.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from gateway.errors import Truncated
from gateway.events import Envelope, Gap, SessionId
from gateway.events.weight import weight
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.follower_budget import LARGE, FollowerBudget
from gateway.runtime.feeds.linked import with_links
from gateway.runtime.feeds.remote_feeds import RemoteFeeds
from gateway.runtime.views import Heartbeat, News, StreamItem
from gateway.runtime.wakeup import Ending
from gateway.store.port import Engine

_FIRST_PAGE, _LARGEST_PAGE = 4, 200
PAGES = 16
"""Pages of history that are read concurrently."""


@dataclass(frozen=True, slots=True)
class JournalReader:
    """Reads the journal for followers."""

    engine: Engine
    pages: asyncio.Semaphore
    """Limits the pages that are read concurrently."""
    budget: FollowerBudget

    async def read(self, session_id: SessionId, after: int) -> AsyncGenerator[StreamItem]:
        """Yield the events after a sequence."""
        limit, reserved = _FIRST_PAGE, 0
        try:
            while True:
                async with self.pages:
                    try:
                        page = await self.engine.read(session_id, after=after, limit=limit)
                        more = page.more
                        page = await with_links(self.engine, session_id, page, more=more)
                        gap = None
                    except Truncated as exc:
                        page, more, gap = (), True, Gap(exc.first_sequence)
                if gap is not None:
                    yield gap
                    after = gap.first_sequence - 1
                    continue
                heavy = weight(page[0].event) if page else 0
                if heavy > LARGE and not reserved:
                    if not self.budget.takes(heavy):
                        # Waits without the page, and reads it again.
                        del page
                        await self.budget.enter(heavy)
                        limit, reserved = 1, heavy
                        continue
                    reserved = heavy
                count, heavy, taken = 0, 0, [News()]
                for count, envelope in enumerate(page, 1):
                    size = weight(envelope.event)
                    heavy += size
                    if count > 1 and heavy > LARGE:
                        # The rest is read again later, so that a follower that stops reading holds no more than this.
                        more = True
                        break
                    if not taken[-1].takes(size):
                        taken.append(News())
                    taken[-1].add(envelope, size)
                    after = envelope.sequence
                del page
                for news in taken:
                    if news.items:
                        yield news
                if reserved:
                    self.budget.leave(reserved)
                    reserved = 0
                if not more:
                    return
                limit = max(1, min(limit * 2, count * LARGE // heavy, _LARGEST_PAGE))
        finally:
            if reserved:
                self.budget.leave(reserved)


async def follow(
    history: JournalReader,
    session_id: SessionId,
    feeds: RemoteFeeds,
    *,
    after: int | None,
    heartbeat: float,
    ended: Ending,
) -> AsyncGenerator[StreamItem]:
    """Yield all recorded events after `after` without gap or repeat, and live events as they arrive.

    Ends after the history of a closed session.
    """
    last = after
    while True:
        # No await if the session runs here, so that no live event is missed.
        feed = feeds.here(session_id) or await feeds.elsewhere(session_id)
        if feed is None:
            if last is not None:
                async with aclosing(history.read(session_id, last)) as items:
                    async for item in items:
                        yield item
            return
        if last is None:
            # Every event recorded from now on is news, even before the first read of the journal.
            last = feed.last_sequence
        # The feed is joined before any other task runs.
        news = _from_feed(history, session_id, feed, last, heartbeat=heartbeat, ended=ended)
        async with aclosing(news):
            async for item in news:
                last = _place_of(item, last)
                yield item
        if ended.happened:
            return


async def _from_feed(
    history: JournalReader,
    session_id: SessionId,
    feed: Feed,
    last: int,
    *,
    heartbeat: float,
    ended: Ending,
) -> AsyncGenerator[StreamItem]:
    """Yield the events after `last` until the feed closes."""
    place = feed.join()
    waiting = feed.waiting(ended, within=heartbeat)
    try:
        # Events recorded before joining are only in the journal.
        missed = last < feed.last_sequence
        while True:
            some, place, is_behind = feed.since(place)
            if missed or is_behind:
                async with aclosing(history.read(session_id, last)) as items:
                    async for item in items:
                        last = _place_of(item, last)
                        yield item
            if some is not None:
                fresh = some if some.first is None or some.first > last else _newer_than(some, last)
                if not fresh.items:
                    pass
                elif history.budget.shares(fresh):
                    try:
                        last = _place_of(fresh, last)
                        yield fresh
                    finally:
                        history.budget.leave_shared(fresh)
                else:
                    # Recorded events are read again when the budget allows.
                    missed = True
                    continue
            elif not (missed or is_behind):
                if feed.closed or ended.happened:
                    return
                if not await feed.wait(place, waiting):
                    yield Heartbeat()
            missed = False
    finally:
        waiting.end()
        feed.leave()


def _newer_than(news: News, last: int) -> News:
    """Remove recorded events that the journal has yielded already; live events stay."""
    return News(item for item in news.items if not isinstance(item, Envelope) or item.sequence > last)


def _place_of(item: StreamItem, last: int) -> int:
    match item:
        case News(last=int(sequence)):
            return sequence
        case Gap():
            return item.first_sequence - 1
        case _:
            return last
