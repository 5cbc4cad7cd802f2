"""This process as one instance on a store: its lease, takeovers, remote feeds and forwarded requests."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

import aiohttp
import structlog

from gateway.errors import EngineUnavailable
from gateway.events import InteractionId, SessionId
from gateway.guard import guard, running
from gateway.runtime.cluster.forwarding import Forwarder
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.hops import Hops
from gateway.runtime.cluster.takeover import Takeover
from gateway.runtime.feeds.interactions import watch_others
from gateway.runtime.feeds.remote_feeds import RemoteFeeds
from gateway.runtime.notifications import Listeners
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.registry import Sessions
from gateway.runtime.session.shared import Shared

log = structlog.get_logger(__name__)


class ClusterMember:
    """Joins the cluster when the store is open; takes sessions over when the runtimes are connected."""

    def __init__(
        self, shared: Shared, sessions: Sessions, handover: Handover, *, client: aiohttp.ClientSession, hops: Hops
    ) -> None:
        self._shared = shared
        self._sessions = sessions
        self._handover = handover
        engine, keeper, metrics = shared.engine, shared.keeper, shared.metrics
        self.takeover = Takeover(engine, keeper, sessions, metrics=metrics, jitter=shared.jitter, tuning=shared.tuning)
        self.remote_feeds = RemoteFeeds(
            engine, sessions.feed, shared.notifications, shared.tasks, shared.tuning, all_sessions=shared.all_sessions
        )
        self.forwarder = Forwarder(shared, keeper, sessions, client=client, hops=hops)
        metrics.watch_lease(lambda: keeper.remaining_seconds, lambda: len(sessions.all()))

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """Hold a lease and receive notifications; outside this context nothing is owned or held.

        Raises:
            EngineUnavailable: the store grants no lease.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._shared.keeper.keep_lease())
            stack.enter_context(self._shared.notifications.deliver_to(self._listeners()))
            stack.callback(self.remote_feeds.stop)
            yield

    def _listeners(self) -> Listeners:
        feed, feeds = self._shared.interaction_feed, self.remote_feeds
        return Listeners(
            named={
                "orphans": self.takeover.prioritize,
                "session": feeds.look_at,
                "follow": feeds.notify_of,
                "interaction": lambda names: feed.record([InteractionId(name) for name in names]),
                "copies": self._shared.backends.hear,
                "handover": lambda _: self._handover.wake(),
            },
            live=feeds.show,
            missed=(self.takeover.wake, feeds.look_all, feed.miss, self._shared.backends.look_all, self._handover.wake),
        )

    @asynccontextmanager
    async def taking_over(self) -> AsyncGenerator[None]:
        """Look regularly for sessions without an owner; the runtimes must be known."""
        shared = self._shared
        guard("takeover", self.takeover.warn_unserved, shared.tasks, again=False)
        with ExitStack() as stack:
            look = partial(self._handover.keep_looking, self._actors, shared=shared.keeper.shared)
            stack.enter_context(running("handover", look, shared.tasks))
            if shared.keeper.shared:
                watch = partial(watch_others, shared.engine, shared.interaction_feed, shared.tuning)
                stack.enter_context(running("interaction feed", watch, shared.tasks))
                stack.enter_context(running("takeover", self.takeover.keep_looking, shared.tasks))
            yield

    def _actors(self) -> dict[SessionId, Actor]:
        return {actor.session_id: actor for actor in self._sessions.all()}

    async def stop_taking_over(self) -> bool:
        """Stop taking over sessions; return whether a live instance can continue those of this one."""
        self._sessions.stop_taking_up()
        try:
            return self._shared.keeper.shared and bool(await self._shared.keeper.others())
        except EngineUnavailable as exc:
            log.warning("instance query failed", reason=str(exc))
            return False

    async def leave(self) -> None:
        """Release everything that is still owned or held."""
        if self._shared.keeper.shared:
            await self._sessions.hand_over(self._sessions.all(), force=True)
        await self._shared.keeper.resign()
        # A lost answer may have hidden a release; this makes the others look for sessions without an owner.
        self._shared.notifications.tell("orphans", ["-"])
