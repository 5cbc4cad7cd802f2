"""This process among the instances on one store: its lease and rings, what it adopts, follows and passes on."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from gateway.envelope import InteractionId, SessionId
from gateway.errors import EngineUnavailable
from gateway.guard import Tasks, guard
from gateway.ports.clock import Clock
from gateway.ports.engine import Engine
from gateway.runtime.adoption import Adoption
from gateway.runtime.bulletin import Bulletin, watch_others
from gateway.runtime.feed import Feed
from gateway.runtime.handover import Handover
from gateway.runtime.metrics import Metrics
from gateway.runtime.mirrors import Mirrors
from gateway.runtime.pump import Pump
from gateway.runtime.relay import Relay
from gateway.runtime.rings import Rings
from gateway.runtime.sessions import Sessions
from gateway.runtime.tenure import Tenure

log = structlog.get_logger(__name__)


class Membership:
    """Entered when the sessions' group of tasks runs; left behind everything that needs the store."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        metrics: Metrics,
        *,
        tenure: Tenure,
        rings: Rings,
        sessions: Sessions,
        handover: Handover,
        bulletin: Bulletin,
        tasks: Tasks,
        dice: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._tenure = tenure
        self._rings = rings
        self._sessions = sessions
        self._handover = handover
        self._bulletin = bulletin
        self._tasks = tasks
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.adoption = Adoption(engine, tenure, sessions, rings, metrics=metrics, dice=dice)
        self.mirrors = Mirrors(engine, _Here(sessions), rings, tasks)
        self.relay = Relay(engine, clock, tenure, sessions, metrics)
        metrics.watch_lease(lambda: tenure.seconds_left, lambda: len(sessions.all()))
        tenure.lost = sessions.suspend_all
        tenure.regained = self.adoption.go_on
        rings.on("interaction", lambda names: bulletin.hear([InteractionId(name) for name in names]))
        rings.on_missed(bulletin.miss)

    async def start(self) -> None:
        """Begin the lease; nothing is owned or held before that.

        Raises:
            EngineUnavailable: the store takes no lease.
        """
        await self.relay.__aenter__()
        await self._tenure.begin(self._tasks)
        self._rings.start()

    async def take_part(self) -> None:
        """Take up what nobody carries, now and from now on; the runtimes are known."""
        await self.adoption.take_all()
        self.adoption.start(self._tasks)
        look = partial(self._handover.keep_looking, self._pumps, shared=self._tenure.shared)
        self._looking = guard("handover", look, self._tasks)
        if self._tenure.shared:
            self._watching = guard("bulletin", partial(watch_others, self._engine, self._bulletin), self._tasks)

    def _pumps(self) -> dict[SessionId, Pump]:
        return {carried.pump.view.session_id: carried.pump for carried in self._sessions.all()}

    async def hands_over(self) -> bool:
        """Take up nothing more; says whether another instance lives that can go on with what is carried here."""
        self.adoption.stop()
        self._sessions.stop_taking_up()
        try:
            return self._tenure.shared and bool(await self._tenure.others())
        except EngineUnavailable as exc:
            log.warning("other instances cannot be looked for", reason=str(exc))
            return False

    async def leave(self) -> None:
        """Give up everything that is still owned or held."""
        if self._tenure.shared:
            await self._sessions.hand_over(self._sessions.all(), force=True)
        await self._tenure.resign()
        # Whoever hears it adopts what a lost answer may have left behind.
        self._rings.tell("orphans", ["-"])

    async def stop(self) -> None:
        """End what still runs."""
        self.mirrors.stop()
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()
        self._rings.stop()
        await self._tenure.resign()
        await self.relay.__aexit__(None, None, None)


class _Here:
    """Shows the feeds of the sessions that are carried here."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def feed(self, session_id: SessionId) -> Feed | None:
        carried = self._sessions.carried(session_id)
        return None if carried is None else carried.pump.feed
