"""This process's lease on the store: begun, renewed, and given up by its own clock when it cannot be renewed.

While a lease runs nobody else speaks for what its instance owns. The deadline is set before each beat and lies
before the lease's end, so that a process which is cut off from the store has fallen silent before another one may
speak. Who lost a lease begins again under a new id, and first of all goes on with what the old one still owns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from uuid import uuid4

import structlog

from gateway.envelope import SessionId
from gateway.errors import EngineUnavailable
from gateway.guard import Tasks, guard, guard_call
from gateway.ports.clock import Clock
from gateway.ports.engine import Engine
from gateway.ports.rows import Instance, Regained, SessionRow
from gateway.runtime.metrics import Metrics

log = structlog.get_logger(__name__)

_FOREVER = timedelta(days=3_650)
_BEATS = 6
"""Beats in the time of one lease; the last one's time is the margin before its end."""
_AGAIN = 0.25
"""Seconds between tries at most while no lease runs."""


@dataclass(eq=False, slots=True)
class Term:
    """One lease, from its first beat to its end."""

    instance: str
    deadline: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Tenure:
    """Keeps the lease; asks the store for sessions and names under it."""

    def __init__(self, engine: Engine, clock: Clock, metrics: Metrics, *, url: str, lease: timedelta | None) -> None:
        """Prepare; without a `lease` the store is this process's alone, and nothing can be lost."""
        self.shared = lease is not None
        self.url = url
        self.lease = lease or _FOREVER
        self.interval = self.lease.total_seconds() / _BEATS if self.shared else 1.0
        self.lost: Callable[[], None] = _nothing
        """Called the moment the lease is lost."""
        self.regained: Callable[[Sequence[Regained]], Awaitable[None]] = _take_nothing
        """Called when another one has begun after that, with what is still one's own."""
        self._engine = engine
        self._clock = clock
        self._metrics = metrics
        self._term: Term | None = None
        self._former: set[str] = set()
        """Instances of this process whose sessions have not been taken over by the present one yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def term(self) -> Term | None:
        """The lease that runs, if one does."""
        return self._term

    @property
    def seconds_left(self) -> float:
        """How long the lease runs without another beat."""
        term = self._term
        return 0.0 if term is None else max(0.0, term.deadline - self._clock.monotonic())

    @property
    def speaks(self) -> bool:
        """Whether this process may speak for what it carries."""
        return not self.shared or self.seconds_left > 0

    @property
    def settled(self) -> bool:
        """Whether a lease runs, and what an earlier one of this process owned has been seen to."""
        return self._term is not None and not self._former

    # The lease -------------------------------------------------------------------------------------------

    async def begin(self, tasks: Tasks) -> None:
        """Begin the first lease and keep it in this group.

        Raises:
            EngineUnavailable: the store takes no lease.
        """
        await self._begin()
        if self.shared:
            self._beating = guard("lease", self._keep, tasks)

    async def resign(self) -> None:
        """Give up everything that is still owned or held, and the lease."""
        if self._beating is not None:
            self._beating.cancel()
        term = self._term
        if term is None:
            return
        self._end(term)
        if not self.shared:
            return
        try:
            await self._engine.release(term.instance)
        except EngineUnavailable as exc:
            log.warning("what was owned is free when the lease has run out", reason=str(exc))

    async def _begin(self) -> None:
        began = self._clock.monotonic()
        term = Term(str(uuid4()), inf)
        if not await self._engine.beat(term.instance, url=self.url, ttl=self.lease):
            raise EngineUnavailable("the store did not take a new lease")
        self._term = term
        self._prolong(term, began)
        log.info("a lease has begun", instance=term.instance, url=self.url)

    async def _keep(self) -> None:
        told = False
        while True:
            await asyncio.sleep(self.interval if self.settled else min(self.interval, _AGAIN))
            try:
                async with asyncio.timeout(self.lease.total_seconds()):
                    await self._beat()
            except (EngineUnavailable, TimeoutError) as exc:
                # Once is enough where nothing is left of it.
                if not told or self._term is not None:
                    log.warning(
                        "the lease cannot be renewed",
                        reason=str(exc) or "no answer",
                        seconds_left=round(self.seconds_left, 2),
                    )
                told = self._term is None
            else:
                told = False

    async def _beat(self) -> None:
        term = self._term
        if term is not None:
            began = self._clock.monotonic()
            lives = await self._engine.beat(term.instance, url=self.url, ttl=self.lease)
            if not lives:
                self._lose(term, "it had run out when it was to be renewed")
            elif self._term is term:
                self._prolong(term, began)
        if self._term is None:
            await self._begin()
        if self._former:
            await self._regain(self._term)

    async def _regain(self, term: Term | None) -> None:
        if term is None:
            return
        former = frozenset(self._former)
        mine = await self._engine.regain(term.instance, former=former)
        if self._term is term and self.seconds_left > 0:
            self._former -= former
            log.info("sessions go on under the new lease", instance=term.instance, count=len(mine))
            await self.regained(mine)

    def _prolong(self, term: Term, began: float) -> None:
        if not self.shared:
            return
        term.deadline = began + self.lease.total_seconds() - self.interval
        if self._timer is not None:
            self._timer.cancel()
        left = term.deadline - self._clock.monotonic()
        reason = "it could not be renewed in time"
        lose = guard_call("lease", self._lose)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), lose, term, reason)

    def _lose(self, term: Term, reason: str) -> None:
        if self._term is not term:
            return
        self._end(term)
        self._former.add(term.instance)
        self._metrics.lease_lost()
        log.error("the lease is lost, and all sessions fall silent", instance=term.instance, reason=reason)
        self.lost()

    def _end(self, term: Term) -> None:
        self._term = None
        if self._timer is not None:
            self._timer.cancel()
        term.over.set()

    # Under it --------------------------------------------------------------------------------------------

    async def take(self, session_id: SessionId) -> SessionRow | None:
        """Own one session; None where another instance does, or no lease runs."""
        term = self._term
        row = None if term is None else await self._engine.take(term.instance, session_id)
        return row if term is self._term else None

    async def adopt(self, runtimes: Collection[str], *, limit: int) -> Sequence[SessionRow]:
        """Own what nobody living owns; nothing while no lease runs."""
        term = self._term
        if term is None or self._former:
            return ()
        rows = await self._engine.adopt(term.instance, runtimes=runtimes, limit=limit)
        return rows if term is self._term else ()

    async def release(self, session_ids: Collection[SessionId]) -> None:
        """Let others own these sessions; whoever carried them has stopped."""
        if self._term is not None and session_ids:
            await self._engine.release(self._term.instance, session_ids)

    async def hold(self, name: str) -> bool:
        """Take or keep what only one instance may have; False also while no lease runs."""
        term = self._term
        held = term is not None and await self._engine.hold(term.instance, name)
        return held and term is self._term

    async def let_go(self, name: str) -> None:
        """Leave to others what was held; without a lease it is theirs already."""
        if self._term is not None:
            await self._engine.let_go(self._term.instance, name)

    async def others(self) -> Sequence[Instance]:
        """List the other instances that live."""
        mine = None if self._term is None else self._term.instance
        return [one for one in await self._engine.instances() if one.alive and one.instance_id != mine]


def _nothing() -> None:
    return


async def _take_nothing(mine: Sequence[Regained]) -> None:
    del mine
