"""Keeps the link of one session: connects, waits, tries again with backoff and jitter."""

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

from gateway.adapter.port import Connector, Link, Resting
from gateway.errors import LinkCrowded, LinkLost, LinkRefused
from gateway.guard import FAULTS, guard_call, in_time, is_fault, is_to_end, spawn
from gateway.runtime.feeds.wakeup import finish
from gateway.runtime.observe import label_session
from gateway.runtime.services import Services
from gateway.runtime.session.resting import Rest
from gateway.runtime.session.signals import LinkDown, LinkUp
from gateway.runtime.session.worker import SessionWorker

_STABLE = 10.0
_WAKE_AFTER = 1.0
"""Seconds of a back-off that work does not cut short: work makes a session connect at most once a second."""

LinkState = Literal["connecting", "up", "down", "refused", "asleep"]
"""`asleep`: the runtime has ended the session, and nobody has anything to say to it."""


class Supervisor:
    """Owns one session's connection; `run` is its only task."""

    def __init__(
        self,
        worker: SessionWorker,
        *,
        connector: Connector,
        services: Services,
        entrance: asyncio.Lock,
    ) -> None:
        self._tasks = services.tasks
        self._tuning = services.tuning
        self.state: LinkState = "connecting"
        self.since: datetime = services.clock.now()
        self.reason: str | None = None
        self.gave_up = False
        """Whether the address itself is at fault: only a reload, which makes the link anew, may try it again."""
        self._same_refusal: tuple[str, float] | None = None
        """The code of the refusal that has been the only answer, and since when by the monotonic clock."""
        self._worker = worker
        self._connector = connector
        self._clock = services.clock
        self._metrics = services.metrics
        self._jitter = services.jitter
        self._entrance = entrance
        self._cut: asyncio.Future[str] | None = None
        """Why the present link has ended, or is to end."""
        self._work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when an event is queued that no attempt to connect has been made for."""
        self._wake_rest: Callable[[], None] | None = None
        worker.call_when_queued(self._note_work)
        self._rest: Rest | None = None
        if isinstance(connector, Resting):
            self._rest = Rest(
                connector,
                native_id=worker.view.native_id,
                closed=worker.closed,
                has_work=worker.has_work,
                call_when_queued=self._call_when_queued,
                clock=services.clock,
                jitter=services.jitter,
                show=self._move,
            )

    def drop(self, reason: str) -> None:
        """Cut the link, e.g. because the inbox is full; it is made anew."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(reason)

    def _note_work(self) -> None:
        """Let an event that needs a link end the wait for the next attempt."""
        if self.state == "up" and self._cut is not None and not self._cut.done():
            return
        finish(self._work)
        if self._wake_rest is not None:
            self._wake_rest()

    def _call_when_queued(self, call: Callable[[], None] | None) -> None:
        self._wake_rest = call

    async def run(self) -> None:
        """Keep the link up until the task is canceled or the session is closed."""
        tries, full_at = 0, self._worker.cursor
        started = self._clock.monotonic()
        while not self._worker.closed.done():
            # A link to a session that cannot decide about what is there already would only be cut again.
            await self._worker.has_capacity()
            # One each turn of the loop, so that thousands that begin together leave room for everything else.
            async with self._entrance:
                await asyncio.sleep(0)
            try:
                if not await self._rested():
                    continue
                self._move("connecting", self.reason)
                started = self._clock.monotonic()
                reason = await self._live()
            except LinkCrowded as exc:
                self._down(str(exc))
                if self._rest is not None:
                    self._rest.crowded(str(exc), stood=timedelta(seconds=self._clock.monotonic() - started))
                wait = self._backoff(tries)
            except LinkRefused as exc:
                self._refused(exc)
                self.gave_up = self._lasts(exc) and exc.until_reload
                if self.gave_up:
                    self._give_up(exc)
                    await asyncio.wait({self._worker.closed})
                    return
                wait = self._tuning.link_refused if exc.terminal else self._backoff(tries)
            except LinkLost as exc:
                self._down(str(exc))
                wait = self._backoff(tries)
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                wait = self._failed(exc)
                if is_to_end():
                    raise asyncio.CancelledError from exc
            else:
                self._down(reason)
                # A long history comes in portions: what was too much of it is asked for as soon as there is room.
                gets_on = self._worker.inbox.shut and self._worker.cursor != full_at
                full_at = self._worker.cursor
                if gets_on or self._clock.monotonic() - started > _STABLE:
                    tries = 0
                wait = self._backoff(tries)
                self._metrics.reconnected(self._worker.view.runtime)
            tries += 1
            await self._wait(wait)

    async def _rested(self) -> bool:
        """Wait until there is a reason for a link; says whether one may be made: the lease may run out meanwhile."""
        if self._rest is not None:
            await self._rest.wait()
        return self._worker.leased and not self._worker.closed.done()

    async def _live(self) -> str:
        self._cut = cut = asyncio.get_running_loop().create_future()
        self._work = asyncio.get_running_loop().create_future()
        native_id = self._worker.view.native_id
        self._worker.connecting()
        connecting = self._connector.connect(native_id, self._worker, resume_after=self._worker.cursor)
        # Not around all of it: whatever bounds it would be kept for as long as the link stands.
        async with in_time(self._tuning.adapter, "to connect"):
            link = await connecting.__aenter__()
        try:
            return cut.result() if cut.done() else await self._stand(link, cut)
        finally:
            async with in_time(self._tuning.adapter, "to close a link"):
                await connecting.__aexit__(*sys.exc_info())

    async def _stand(self, link: Link, cut: "asyncio.Future[str]") -> str:
        """Let the session speak by a link until that ends; says why it did."""
        self._move("up", None)
        if self._rest is not None:
            self._rest.connected()
        self._worker.log.info("link up")
        self._worker.put(LinkUp(link))
        lost = spawn("link", link.wait_closed(), self._tasks)
        telling = self._tell_replay_late() if self._worker.replaying else None
        try:
            await asyncio.wait({lost, cut, self._worker.closed}, return_when=asyncio.FIRST_COMPLETED)
            # The reason that the link itself gives says more than the reason for which it was cut.
            await asyncio.sleep(0)
            if lost.cancelled():
                raise RuntimeError("wait_closed of the link was canceled, and not by the gateway")
            if lost.done():
                return lost.result()
            return cut.result() if cut.done() else "the session is closed"
        finally:
            if telling is not None:
                telling.cancel()
            lost.cancel()

    def _tell_replay_late(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._tuning.replay_told, guard_call("link", self._tell_replay))

    def _tell_replay(self) -> None:
        """Let an adapter that never says the end of a replay be seen: to its session nothing else looks wrong."""
        if self._worker.replaying:
            seconds = self._tuning.replay_told
            self._worker.log.warning("replay still running; calls wait for its end", seconds=seconds)

    def _down(self, reason: str) -> None:
        self._same_refusal = None
        if self.state == "up" or self.reason != reason:
            self._worker.log.warning("link down", reason=reason)
        self._move("down", reason)
        self._worker.put(LinkDown(reason))

    def _failed(self, exc: BaseException) -> float:
        """Somebody else's code raised what nobody foresaw: the link is dropped; says when it is made again."""
        FAULTS.note("link", exc, session=label_session(self._worker.view))
        self._down(f"the adapter failed inside the gateway ({type(exc).__name__})")
        return FAULTS.pause("link", self, now=asyncio.get_running_loop().time())

    def _refused(self, problem: LinkRefused) -> None:
        if self.reason != str(problem):
            self._worker.log.error(
                "link refused by the runtime", code=problem.code, reason=str(problem), terminal=problem.terminal
            )
        self._move("refused", str(problem))
        self._worker.put(LinkDown(str(problem), refused=True))

    def _lasts(self, problem: LinkRefused) -> bool:
        """Return whether this refusal has been the only answer for `link_gives_up` seconds."""
        now = self._clock.monotonic()
        if self._same_refusal is None or self._same_refusal[0] != problem.code:
            self._same_refusal = (problem.code, now)
        return now - self._same_refusal[1] >= self._tuning.link_gives_up

    def _give_up(self, problem: LinkRefused) -> None:
        reason = f"{problem}; it stayed so for {self._tuning.link_gives_up:g} s, only a reload tries again"
        self._worker.log.error("link given up", code=problem.code, reason=reason)
        self._move("refused", reason)

    def _move(self, state: LinkState, reason: str | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self.since = state, reason, self._clock.now()

    def _backoff(self, tries: int) -> float:
        ceiling = min(self._tuning.link_longest, self._tuning.link_first * 2 ** min(tries, 10))
        return ceiling * (0.5 + 0.5 * self._jitter())

    async def _wait(self, seconds: float) -> None:
        """Wait before the next attempt; work for the link ends the wait, but not its first second."""
        closed = self._worker.closed
        await asyncio.wait({closed}, timeout=min(seconds, _WAKE_AFTER))
        if seconds > _WAKE_AFTER and not closed.done():
            await asyncio.wait({closed, self._work}, timeout=seconds - _WAKE_AFTER, return_when=asyncio.FIRST_COMPLETED)
