"""Feeds of sessions that another instance owns: one journal reader serves all local followers of a session.

A reader subscribes to the owner's notifications and also polls: every second while there is news, every five seconds
on a quiet session. Live events (message chunks, typing) are not in the journal. The owner sends them with its
notifications as far as they fit, so some are lost under load.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
import structlog

from gateway.errors import EngineUnavailable, Truncated
from gateway.events import EVENT, Live, SessionId, dump_event
from gateway.guard import Tasks, guard, guard_call
from gateway.runtime.feeds.all_sessions import EVERY_SESSION, AllSessionsFeed
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.notifications import Notifications
from gateway.runtime.tuning import Tuning
from gateway.store.port import Engine

log = structlog.get_logger(__name__)

_PAGE = 200
_IDLE_AFTER = 30.0
_RENEW = 10.0
_INTEREST = 25.0
"""Seconds for which an owner notifies after a request; readers renew the request earlier."""


class RemoteFeeds:
    """Keeps a feed for each session that is followed here and does not run here."""

    def __init__(
        self,
        engine: Engine,
        own: Callable[[SessionId], Feed | None],
        notifications: Notifications,
        tasks: Tasks,
        tuning: Tuning,
        *,
        all_sessions: AllSessionsFeed,
    ) -> None:
        """Prepare; `own` returns the feed of a session that runs here."""
        self._engine = engine
        self._own = own
        self._notifications = notifications
        self._tasks = tasks
        self._tuning = tuning
        self._all_sessions = all_sessions
        self._remote_feeds: dict[SessionId, tuple[Feed, asyncio.Event]] = {}
        self._running: dict[asyncio.Task[None], None] = {}

    def here(self, session_id: SessionId) -> Feed | None:
        """Find the feed of a session that runs here."""
        feed = self._own(session_id)
        return None if feed is None or feed.closed else feed

    async def elsewhere(self, session_id: SessionId) -> Feed | None:
        """Find or make the feed of a session that does not run here; None if it is closed or unknown."""
        found = self._remote_feeds.get(session_id)
        if found is None:
            row = await self._engine.session(session_id)
            if row is None or row.state == "closed":
                return None
            found = self._remote_feeds.get(session_id)
            if found is None:
                found = Feed(row.last_sequence), asyncio.Event()
                self._remote_feeds[session_id] = found
                task = guard("remote feed", partial(self._read, session_id, *found), self._tasks, session_id=session_id)
                self._running[task] = None
                task.add_done_callback(guard_call("remote feed", self._running.pop))
                task.add_done_callback(guard_call("remote feed", partial(self._forget, session_id, found[0])))
        return found[0]

    def _forget(self, session_id: SessionId, feed: Feed, _ended: "asyncio.Task[None]") -> None:
        del self._remote_feeds[session_id]
        feed.close()

    def stop(self) -> None:
        """End all readers."""
        for task in self._running:
            task.cancel()

    # Notifications -----------------------------------------------------------------------------------------------

    def look_at(self, names: Sequence[str]) -> None:
        """Read these sessions now, since another instance has written to them."""
        self._all_sessions.look()
        for name in names:
            if found := self._remote_feeds.get(SessionId(name)):
                found[1].set()

    def show(self, name: str, text: str) -> None:
        """Show a live event to the local followers."""
        found = self._remote_feeds.get(SessionId(name))
        if found is None and not self._all_sessions.is_followed:
            return
        try:
            data: dict[str, Any] = orjson.loads(text)
            live = Live(EVENT.validate_python(data["event"]), int(data["after_sequence"]))
        except (ValueError, KeyError, TypeError) as exc:
            # An instance of another release may send events that this one does not know.
            log.debug("live item not shown", session_id=name, reason=type(exc).__name__)
        else:
            self._all_sessions.hear(SessionId(name), live)
            if found is not None:
                found[0].tell(live)

    def look_all(self) -> None:
        """Read all sessions now, since notifications may have been missed."""
        self._all_sessions.look()
        for _, wake in self._remote_feeds.values():
            wake.set()

    def notify_of(self, names: Sequence[str]) -> None:
        """Notify other instances of these sessions for `_INTEREST` seconds, if they run here."""
        for name in names:
            if name == EVERY_SESSION:
                self._all_sessions.notify_others(self._notify, seconds=_INTEREST)
                continue
            feed = self._own(SessionId(name))
            if feed is not None:
                feed.notify_others(partial(self._notify, SessionId(name)), seconds=_INTEREST)

    def _notify(self, name: SessionId, live: Live | None) -> None:
        if live is None:
            self._notifications.tell("session", [name])
        else:
            data = {"after_sequence": live.after_sequence, "event": dump_event(live.event)}
            self._notifications.show(name, orjson.dumps(data, default=str).decode())

    # Reading ---------------------------------------------------------------------------------------------

    async def _read(self, session_id: SessionId, feed: Feed, wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        news_at, subscribed_at = loop.time(), 0.0
        while feed.followed and self.here(session_id) is None:
            if loop.time() - subscribed_at > _RENEW:
                self._notifications.tell("follow", [session_id])
                subscribed_at = loop.time()
            wake.clear()
            try:
                if await self._catch_up(session_id, feed):
                    news_at = loop.time()
                    if await self._is_closed(session_id, feed):
                        return
            except EngineUnavailable as exc:
                self._engine.outage.failed(exc, "read of a followed session")
            try:
                quiet = loop.time() - news_at >= _IDLE_AFTER
                async with asyncio.timeout(self._tuning.feed_look_idle if quiet else self._tuning.feed_look):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _catch_up(self, session_id: SessionId, feed: Feed) -> bool:
        began = feed.last_sequence
        while True:
            try:
                page = await self._engine.read(session_id, after=feed.last_sequence, limit=_PAGE)
            except Truncated as exc:
                feed.skip_to(exc.first_sequence - 1)
                continue
            feed.extend(page)
            if not page.more:
                return feed.last_sequence > began

    async def _is_closed(self, session_id: SessionId, feed: Feed) -> bool:
        if not feed.is_closed():
            return False
        row = await self._engine.session(session_id)
        return row is None or row.state == "closed"
