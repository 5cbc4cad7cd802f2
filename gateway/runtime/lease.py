"""This process's lease on the store: acquires it, renews it, and ends it by the local clock if renewal fails.

While a lease is valid, no other instance acts for its sessions. The local deadline is computed before each beat and
lies before the lease's end, so a process that is cut off from the store stops before another one takes over. The
deadline uses a clock that also runs while the machine sleeps. After losing a lease, a process acquires one under a new
id and first resumes the sessions that the old id still owns.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf

import structlog

from gateway.clock import describe_stall
from gateway.errors import EngineUnavailable, Fenced
from gateway.events import SessionId, instance_id
from gateway.guard import guard, guard_call
from gateway.runtime.services import Services
from gateway.store.rows import Instance, Regained, SessionRow

log = structlog.get_logger(__name__)

_CHECK_AGAIN, _CHECK_SUSPENDED = 0.05, 0.5
"""Seconds until a session without a lease looks again."""
_FOREVER = timedelta(days=3_650)
_BEATS = 6
"""Beats in the time of one lease; the time of one beat is the margin before its end."""
_RETRY = 0.25
"""Longest pause between attempts in seconds, while there is no lease."""


@dataclass(eq=False, slots=True)
class Lease:
    """One lease; `deadline` is the local time at which it ends without another beat."""

    instance: str
    deadline: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


class LeaseKeeper:
    """Keeps the lease, and acquires sessions and names under it."""

    def __init__(
        self,
        services: Services,
        *,
        url: str,
        ttl: timedelta | None,
        lost: Callable[[], None],
        regained: Callable[[Sequence[Regained]], Awaitable[None]],
    ) -> None:
        """Prepare; without a `ttl` only this process uses the store, and the lease cannot be lost.

        `lost` is called when the lease is lost, `regained` under the next lease with the sessions that are still owned.
        """
        self.shared = ttl is not None
        self.url = url
        self.ttl = ttl or _FOREVER
        self.interval = self.ttl.total_seconds() / _BEATS if self.shared else 1.0
        self._lost, self._regained = lost, regained
        self._tasks = services.tasks
        self._engine = services.engine
        self._clock = services.clock
        self._ids = services.ids
        self._metrics = services.metrics
        self._lease: Lease | None = None
        self._beating: asyncio.Task[None] | None = None
        self._former: set[str] = set()
        """Earlier instance ids of this process whose sessions the current one has not resumed yet."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lease(self) -> Lease | None:
        """The current lease, if there is one."""
        return self._lease

    @property
    def remaining_seconds(self) -> float:
        """The seconds until the lease ends without another beat."""
        lease = self._lease
        return 0.0 if lease is None else max(0.0, lease.deadline - self._clock.timestamp())

    @property
    def speaks(self) -> bool:
        """Whether this process may act for its sessions."""
        lease = self._lease
        return not self.shared or (lease is not None and lease.deadline > self._clock.timestamp())

    @property
    def settled(self) -> bool:
        """Whether there is a lease, and the sessions of earlier ones have been resumed."""
        return self._lease is not None and not self._former

    # The lease -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def keep_lease(self) -> AsyncGenerator[None]:
        """Acquire a lease and keep or replace it; on exit release everything that is owned or held.

        Raises:
            EngineUnavailable: the store grants no lease.
        """
        await self._begin()
        if self.shared:
            self._beating = guard("lease", self._keep, self._tasks)
        try:
            yield
        finally:
            await self.resign()

    async def resign(self) -> None:
        """Release everything that is owned or held, and the lease; acquire no other one."""
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
        lease = Lease(instance_id(self._ids.token()), inf)
        if not await self._engine.beat(lease.instance, url=self.url, ttl=self.ttl):
            raise EngineUnavailable("the store did not grant a new lease")
        self._lease = lease
        self._prolong(lease, began)
        log.info("lease acquired", instance=lease.instance, url=self.url)

    async def _keep(self) -> None:
        warned = False
        while True:
            await asyncio.sleep(self.interval if self.settled else min(self.interval, _RETRY))
            try:
                async with asyncio.timeout(self.ttl.total_seconds()):
                    await self._beat()
            except (EngineUnavailable, TimeoutError) as exc:
                # Without a lease, one warning is enough.
                if not warned or self._lease is not None:
                    log.warning(
                        "lease renewal failed",
                        reason=str(exc) or "no answer",
                        remaining_seconds=round(self.remaining_seconds, 2),
                    )
                warned = self._lease is None
            else:
                warned = False

    async def _beat(self) -> None:
        lease = self._lease
        if lease is not None:
            began = self._clock.timestamp()
            lives = await self._engine.beat(lease.instance, url=self.url, ttl=self.ttl)
            if not lives:
                self._lose(lease, "it had expired before its renewal")
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
        remaining = lease.deadline - self._clock.timestamp()
        expire = guard_call("lease", self._expire)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, remaining), expire, lease)

    def _expire(self, lease: Lease) -> None:
        late = self._clock.timestamp() - lease.deadline
        self._lose(lease, describe_stall(late) or "it was not renewed in time")

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

    # Under the lease -------------------------------------------------------------------------------------

    async def take(self, session_id: SessionId) -> SessionRow | None:
        """Acquire one session; None if another instance owns it or there is no lease."""
        lease = self._lease
        row = None if lease is None else await self._engine.take(lease.instance, session_id)
        return row if lease is self._lease else None

    async def take_over(self, runtimes: Collection[str], *, limit: int) -> Sequence[SessionRow]:
        """Acquire sessions without a live owner; none while there is no lease."""
        lease = self._lease
        if lease is None or self._former:
            return ()
        rows = await self._engine.take_over(lease.instance, runtimes=runtimes, limit=limit)
        return rows if lease is self._lease else ()

    async def release(self, session_ids: Collection[SessionId]) -> None:
        """Release these sessions for other instances; they must have ended here."""
        if self._lease is not None and session_ids:
            await self._engine.release(self._lease.instance, session_ids)

    async def hold(self, name: str) -> bool:
        """Acquire or keep a name that only one instance may hold; False also without a lease."""
        lease = self._lease
        held = lease is not None and await self._engine.hold(lease.instance, name)
        return held and lease is self._lease

    async def release_name(self, name: str) -> None:
        """Release a held name; without a lease it is free already."""
        if self._lease is not None:
            await self._engine.release_name(self._lease.instance, name)

    async def others(self) -> Sequence[Instance]:
        """List the other live instances."""
        mine = None if self._lease is None else self._lease.instance
        return [one for one in await self._engine.instances() if one.alive and one.instance_id != mine]


class Permit:
    """The permit of one session; each of its steps carries the fence."""

    __slots__ = ("_is_lent", "_keeper", "_regained", "_suspended", "fence", "is_overtaken")

    def __init__(self, keeper: LeaseKeeper, fence: int) -> None:
        self.fence = fence
        self.is_overtaken = False
        """Whether this process regained the session, but another instance has written to it."""
        self._keeper = keeper
        self._is_lent = keeper.shared
        """Whether other instances may own the session; a single gateway checks no lease."""
        self._suspended: asyncio.Future[None] | None = None
        """Completed by `resume`; None while the session is not suspended."""
        self._regained: int | None = None
        """The last sequence in the store under a new fence, until `holds_for` compares it."""

    @property
    def holds(self) -> bool:
        """Whether the session may act; compares the clock, because a timer may fire late."""
        return self._suspended is None and (not self._is_lent or self._keeper.speaks)

    def holds_for(self, last_sequence: int) -> bool:
        """Return whether the session may act; its history is known up to `last_sequence`.

        Raises:
            Fenced: another instance has written.
        """
        if not self.holds:
            return False
        regained, self._regained = self._regained, None
        if regained is not None and regained != last_sequence:
            self.is_overtaken = True
            raise Fenced("another instance has written to the session meanwhile")
        return True

    @property
    def patience(self) -> float:
        """The seconds until the session looks again; only `resume` lets a suspended one act earlier."""
        return _CHECK_AGAIN if self._suspended is None else _CHECK_SUSPENDED

    def suspend(self) -> None:
        """Pause the session until `resume`."""
        if self._suspended is None:
            self._suspended = asyncio.get_running_loop().create_future()

    def resume(self, row: Regained) -> None:
        """Resume under a new fence; `holds_for` detects writes of other instances."""
        self.fence, self._regained = row.fence, row.last_sequence
        suspended, self._suspended = self._suspended, None
        if suspended is not None:
            suspended.set_result(None)

    async def wait_held(self) -> None:
        """Wait until the session may act."""
        while not self.holds:
            if self._suspended is not None:
                await asyncio.wait({self._suspended})
            else:
                # After a stall of the process this runs before the timer of the lease.
                await asyncio.sleep(_CHECK_AGAIN)
