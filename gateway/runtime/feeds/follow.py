"""Following a session: history from the journal, then what happens, then heartbeats in between.

Where the session is carried may change in the middle: the place in the journal is what a follower keeps.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from gateway.errors import Truncated
from gateway.events import Envelope, Gap, SessionId
from gateway.events.weight import weight
from gateway.runtime.cluster.remote_feeds import RemoteFeeds
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.linked import with_links
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.views import Heartbeat, News, StreamItem
from gateway.store.port import Engine

_FIRST_PAGE, _LARGEST_PAGE = 4, 200
_PAGE_BYTES = 128 * 1024
"""Weight that a follower holds of a page of history, or one event; a heavier page makes the next ones smaller."""
PAGES = 64
"""How many pages of history are read at a time."""


@dataclass(frozen=True, slots=True)
class JournalReader:
    """Reads the journal for followers."""

    engine: Engine
    pages: asyncio.Semaphore
    """Limits the pages that are read at a time."""

    async def read(self, session_id: SessionId, after: int) -> AsyncGenerator[StreamItem]:
        """Yield the events behind a sequence."""
        limit = _FIRST_PAGE
        while True:
            async with self.pages:
                try:
                    page = await self.engine.read(session_id, after=after, limit=limit)
                    page = await with_links(self.engine, session_id, page, more=len(page) == limit)
                    gap = None
                except Truncated as exc:
                    page, gap = (), Gap(exc.first_sequence)
            if gap is not None:
                yield gap
                after = gap.first_sequence - 1
                continue
            count, heavy, taken, is_whole = 0, 0, [News()], True
            for count, envelope in enumerate(page, 1):
                size = weight(envelope.event)
                heavy += size
                if count > 1 and heavy > _PAGE_BYTES:
                    # From here on it is read again: a follower that stops reading holds no more than this.
                    is_whole = False
                    break
                if not taken[-1].takes(size):
                    taken.append(News())
                taken[-1].add(envelope, size)
                after = envelope.sequence
            is_last = is_whole and len(page) < limit
            del page
            for news in taken:
                if news.items:
                    yield news
            if is_last:
                return
            limit = max(1, min(limit * 2, count * _PAGE_BYTES // heavy, _LARGEST_PAGE))


async def follow(
    history: JournalReader,
    session_id: SessionId,
    feeds: RemoteFeeds,
    *,
    after: int | None,
    heartbeat: float,
    ended: Ending,
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
                async with aclosing(history.read(session_id, last)) as items:
                    async for item in items:
                        yield item
            return
        if last is None:
            # What is recorded from this moment on is news, also before the first read of the journal.
            last = feed.last_sequence
        # The feed is joined here, before anybody else runs.
        news = _from_feed(history, session_id, feed, last, heartbeat=heartbeat, ended=ended)
        async with aclosing(news):
            async for item in news:
                last = _place_of(item, last)
                yield item
        if ended.is_set():
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
    """Yield what is behind `last` until the feed is closed."""
    place = feed.join()
    waiting = feed.waiting(ended, within=heartbeat)
    try:
        # What was recorded up to now stands in the journal alone, everything else is still to come.
        missed = last < feed.last_sequence
        while True:
            some, place, behind = feed.since(place)
            if missed or behind:
                async with aclosing(history.read(session_id, last)) as items:
                    async for item in items:
                        last = _place_of(item, last)
                        yield item
            if some is not None:
                fresh = some if some.first is None or some.first > last else _newer_than(some, last)
                if fresh.items:
                    last = _place_of(fresh, last)
                    yield fresh
            elif not (missed or behind):
                if feed.closed or ended.is_set():
                    return
                if not await feed.wait(place, waiting):
                    yield Heartbeat()
            missed = False
    finally:
        waiting.end()
        feed.leave()


def _newer_than(news: News, last: int) -> News:
    """Leave out what the journal has told already; what was only live is told nowhere else."""
    return News(item for item in news.items if not isinstance(item, Envelope) or item.sequence > last)


def _place_of(item: StreamItem, last: int) -> int:
    match item:
        case News(last=int(sequence)):
            return sequence
        case Gap():
            return item.first_sequence - 1
        case _:
            return last
