"""This process among the instances on one store: its lease, what it takes over, follows and forwards."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from gateway.clock import Clock
from gateway.errors import EngineUnavailable
from gateway.events import InteractionId, SessionId
from gateway.guard import Tasks, guard
from gateway.runtime.cluster.forwarding import Forwarder
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.cluster.remote_feeds import RemoteFeeds
from gateway.runtime.cluster.takeover import Takeover
from gateway.runtime.feeds.interactions import InteractionFeed, watch_others
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.session.worker import SessionWorker
from gateway.store.port import Engine

log = structlog.get_logger(__name__)


class ClusterMember:
    """Entered when the sessions' group of tasks runs; left behind everything that needs the store."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        metrics: Metrics,
        *,
        keeper: LeaseKeeper,
        notifications: Notifications,
        sessions: Sessions,
        handover: Handover,
        interaction_feed: InteractionFeed,
        tasks: Tasks,
        jitter: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._notifications = notifications
        self._sessions = sessions
        self._handover = handover
        self._interaction_feed = interaction_feed
        self._tasks = tasks
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.takeover = Takeover(engine, keeper, sessions, notifications, metrics=metrics, jitter=jitter)
        self.remote_feeds = RemoteFeeds(engine, sessions.feed, notifications, tasks)
        self.forwarder = Forwarder(engine, clock, keeper, sessions, metrics)
        metrics.watch_lease(lambda: keeper.seconds_left, lambda: len(sessions.all()))
        keeper.lost = sessions.suspend_all
        keeper.regained = self.takeover.go_on
        notifications.on("interaction", lambda names: interaction_feed.hear([InteractionId(name) for name in names]))
        notifications.on_missed(interaction_feed.miss)

    async def start(self) -> None:
        """Begin the lease; nothing is owned or held before that.

        Raises:
            EngineUnavailable: the store takes no lease.
        """
        await self.forwarder.__aenter__()
        await self._keeper.begin(self._tasks)
        self._notifications.start()

    async def take_part(self) -> None:
        """Take up what nobody carries, now and from now on; the runtimes are known."""
        await self.takeover.take_all()
        self.takeover.start(self._tasks)
        look = partial(self._handover.keep_looking, self._workers, shared=self._keeper.shared)
        self._looking = guard("handover", look, self._tasks)
        if self._keeper.shared:
            self._watching = guard("bulletin", partial(watch_others, self._engine, self._interaction_feed), self._tasks)

    def _workers(self) -> dict[SessionId, SessionWorker]:
        return {carried.worker.view.session_id: carried.worker for carried in self._sessions.all()}

    async def hands_over(self) -> bool:
        """Take up nothing more; says whether another instance lives that can go on with what is carried here."""
        self.takeover.stop()
        self._sessions.stop_taking_up()
        try:
            return self._keeper.shared and bool(await self._keeper.others())
        except EngineUnavailable as exc:
            log.warning("other instances cannot be looked for", reason=str(exc))
            return False

    async def leave(self) -> None:
        """Give up everything that is still owned or held."""
        if self._keeper.shared:
            await self._sessions.hand_over(self._sessions.all(), force=True)
        await self._keeper.resign()
        # Whoever hears it takes over what a lost answer may have left behind.
        self._notifications.tell("orphans", ["-"])

    async def stop(self) -> None:
        """End what still runs."""
        self.remote_feeds.stop()
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()
        self._notifications.stop()
        await self._keeper.resign()
        await self.forwarder.__aexit__(None, None, None)
