"""This process's lease on the store: begun, renewed, and given up by its own clock when it cannot be renewed.

While a lease runs nobody else speaks for what its instance owns. The deadline is set before each beat and lies
before the lease's end, so that a process which is cut off from the store has fallen silent before another one may
speak; it is a time of the clock that goes on while the machine sleeps. Who lost a lease begins again under a new id,
and first of all goes on with what the old one still owns.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from uuid import uuid4

import structlog

from gateway.errors import EngineUnavailable
from gateway.events import SessionId
from gateway.guard import guard, guard_call
from gateway.runtime.services import Services
from gateway.store.rows import Instance, Regained, SessionRow

log = structlog.get_logger(__name__)

_FOREVER = timedelta(days=3_650)
_BEATS = 6
"""Beats in the time of one lease; the last one's time is the margin before its end."""
_AGAIN = 0.25
"""Seconds between tries at most while no lease runs."""


@dataclass(eq=False, slots=True)
class Lease:
    """One lease, from its first beat to its end."""

    instance: str
    deadline: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


class LeaseKeeper:
    """Keeps the lease; asks the store for sessions and names under it."""

    def __init__(
        self,
        services: Services,
        *,
        url: str,
        ttl: timedelta | None,
        lost: Callable[[], None],
        regained: Callable[[Sequence[Regained]], Awaitable[None]],
    ) -> None:
        """Prepare; without a `ttl` the store is this process's alone, and nothing can be lost.

        `lost` is called the moment the lease is lost, `regained` when another one has begun after that, with what is
        still one's own.
        """
        self.shared = ttl is not None
        self.url = url
        self.ttl = ttl or _FOREVER
        self.interval = self.ttl.total_seconds() / _BEATS if self.shared else 1.0
        self._lost, self._regained = lost, regained
        self._tasks = services.tasks
        self._engine = services.engine
        self._clock = services.clock
        self._metrics = services.metrics
        self._lease: Lease | None = None
        self._beating: asyncio.Task[None] | None = None
        self._former: set[str] = set()
        """Instances of this process whose sessions have not been taken over by the present one yet."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease that runs, if one does."""
        return self._lease

    @property
    def remaining_seconds(self) -> float:
        """How long the lease runs without another beat."""
        lease = self._lease
        return 0.0 if lease is None else max(0.0, lease.deadline - self._clock.timestamp())

    @property
    def speaks(self) -> bool:
        """Whether this process may speak for what it carries."""
        lease = self._lease
        return not self.shared or (lease is not None and lease.deadline > self._clock.timestamp())

    @property
    def settled(self) -> bool:
        """Whether a lease runs, and what an earlier one of this process owned has been seen to."""
        return self._lease is not None and not self._former

    # The lease -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Begin the first lease and keep it, or the next one; on the way out all that is owned or held is given up.

        Raises:
            EngineUnavailable: the store takes no lease.
        """
        await self._begin()
        if self.shared:
            self._beating = guard("lease", self._keep, self._tasks)
        try:
            yield
        finally:
            await self.resign()

    async def resign(self) -> None:
        """Give up everything that is still owned or held, and the lease; no other one begins."""
        if self._beating is not None:
            self._beating.cancel()
        lease = self._lease
        if lease is None:
            return
        self._end(lease)
        if not self.shared:
            return
        try:
            await self._engine.release(lease.instance)
        except EngineUnavailable as exc:
            log.warning("lease release failed; the sessions become free when it expires", reason=str(exc))

    async def _begin(self) -> None:
        began = self._clock.timestamp()
        lease = Lease(str(uuid4()), inf)
        if not await self._engine.beat(lease.instance, url=self.url, ttl=self.ttl):
            raise EngineUnavailable("the store did not take a new lease")
        self._lease = lease
        self._prolong(lease, began)
        log.info("lease acquired", instance=lease.instance, url=self.url)

    async def _keep(self) -> None:
        told = False
        while True:
            await asyncio.sleep(self.interval if self.settled else min(self.interval, _AGAIN))
            try:
                async with asyncio.timeout(self.ttl.total_seconds()):
                    await self._beat()
            except (EngineUnavailable, TimeoutError) as exc:
                # Once is enough where nothing is left of it.
                if not told or self._lease is not None:
                    log.warning(
                        "lease renewal failed",
                        reason=str(exc) or "no answer",
                        remaining_seconds=round(self.remaining_seconds, 2),
                    )
                told = self._lease is None
            else:
                told = False

    async def _beat(self) -> None:
        lease = self._lease
        if lease is not None:
            began = self._clock.timestamp()
            lives = await self._engine.beat(lease.instance, url=self.url, ttl=self.ttl)
            if not lives:
                self._lose(lease, "it had run out when it was to be renewed")
            elif self._lease is lease:
                self._prolong(lease, began)
        if self._lease is None:
            await self._begin()
        if self._former:
            await self._regain(self._lease)

    async def _regain(self, lease: Lease | None) -> None:
        if lease is None:
            return
        former = frozenset(self._former)
        mine = await self._engine.regain(lease.instance, former=former)
        if self._lease is lease and self.remaining_seconds > 0:
            self._former -= former
            log.info("sessions resumed under a new lease", instance=lease.instance, count=len(mine))
            await self._regained(mine)

    def _prolong(self, lease: Lease, began: float) -> None:
        if not self.shared:
            return
        lease.deadline = began + self.ttl.total_seconds() - self.interval
        if self._timer is not None:
            self._timer.cancel()
        left = lease.deadline - self._clock.timestamp()
        reason = "it could not be renewed in time"
        lose = guard_call("lease", self._lose)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), lose, lease, reason)

    def _lose(self, lease: Lease, reason: str) -> None:
        if self._lease is not lease:
            return
        self._end(lease)
        self._former.add(lease.instance)
        self._metrics.lease_lost()
        log.error("lease lost; all sessions are suspended", instance=lease.instance, reason=reason)
        self._lost()

    def _end(self, lease: Lease) -> None:
        self._lease = None
        if self._timer is not None:
            self._timer.cancel()
        lease.over.set()

    # Under it --------------------------------------------------------------------------------------------

    async def take(self, session_id: SessionId) -> SessionRow | None:
        """Own one session; None where another instance does, or no lease runs."""
        lease = self._lease
        row = None if lease is None else await self._engine.take(lease.instance, session_id)
        return row if lease is self._lease else None

    async def take_over(self, runtimes: Collection[str], *, limit: int) -> Sequence[SessionRow]:
        """Own what nobody living owns; nothing while no lease runs."""
        lease = self._lease
        if lease is None or self._former:
            return ()
        rows = await self._engine.take_over(lease.instance, runtimes=runtimes, limit=limit)
        return rows if lease is self._lease else ()

    async def release(self, session_ids: Collection[SessionId]) -> None:
        """Let others own these sessions; whoever carried them has stopped."""
        if self._lease is not None and session_ids:
            await self._engine.release(self._lease.instance, session_ids)

    async def hold(self, name: str) -> bool:
        """Take or keep what only one instance may have; False also while no lease runs."""
        lease = self._lease
        held = lease is not None and await self._engine.hold(lease.instance, name)
        return held and lease is self._lease

    async def let_go(self, name: str) -> None:
        """Leave to others what was held; without a lease it is theirs already."""
        if self._lease is not None:
            await self._engine.let_go(self._lease.instance, name)

    async def others(self) -> Sequence[Instance]:
        """List the other instances that live."""
        mine = None if self._lease is None else self._lease.instance
        return [one for one in await self._engine.instances() if one.alive and one.instance_id != mine]
