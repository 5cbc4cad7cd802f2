"""Following a session: history from the journal, then what happens, then heartbeats in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.envelope import Live, SessionId
from gateway.errors import Truncated
from gateway.ports.engine import Engine
from gateway.runtime.feed import Feed
from gateway.runtime.views import Gap, Heartbeat, StreamItem

_PAGE = 200


async def follow(
    engine: Engine,
    session_id: SessionId,
    feed: Feed | None,
    *,
    after: int | None,
    heartbeat: float,
    ended: asyncio.Event,
) -> AsyncIterator[StreamItem]:
    """Yield everything on record behind `after` without gap or repeat, and live events as they come.

    A session without a feed (closed, or not carried here) yields its history and ends.
    """
    place = feed.join() if feed is not None else 0
    try:
        if after is not None:
            last = after
        elif feed is not None:
            # What is recorded from this moment on is news, also before the first read of the journal.
            last = feed.last_sequence
        else:
            row = await engine.session(session_id)
            last = row.last_sequence if row is not None else 0
        async for item in _history(engine, session_id, last):
            last = item.first_sequence - 1 if isinstance(item, Gap) else last
            last = getattr(item, "sequence", last)
            yield item
        while feed is not None:
            items, place, missed = feed.since(place)
            if missed:
                async for item in _history(engine, session_id, last):
                    last = getattr(item, "sequence", last)
                    yield item
            for item in items:
                if isinstance(item, Live):
                    yield item
                elif item.sequence > last:
                    last = item.sequence
                    yield item
            if feed.closed or ended.is_set():
                return
            if not await something_new(feed, place, heartbeat, ended):
                yield Heartbeat()
    finally:
        if feed is not None:
            feed.leave()


async def _history(engine: Engine, session_id: SessionId, after: int) -> AsyncIterator[StreamItem]:
    while True:
        try:
            page = await engine.read(session_id, after=after, limit=_PAGE)
        except Truncated as exc:
            yield Gap(exc.first_sequence)
            after = exc.first_sequence - 1
            continue
        for envelope in page:
            yield envelope
        if len(page) < _PAGE:
            return
        after = page[-1].sequence


class Bell(Protocol):
    """Whatever tells its followers that there is more behind a place."""

    async def wait(self, place: int) -> None: ...


async def something_new(bell: Bell, place: int, patience: float, ended: asyncio.Event) -> bool:
    """Wait for news or the end; False when neither came in time."""
    waits = {asyncio.ensure_future(bell.wait(place)), asyncio.ensure_future(ended.wait())}
    try:
        done, _ = await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
