"""Maintains the link of one session: connects, waits, and reconnects with back-off and jitter."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from gateway.adapter.port import Connector, Link, Resting
from gateway.clock import Clock
from gateway.errors import EngineUnavailable, LinkCrowded, LinkLost, LinkRefused
from gateway.guard import FAULTS, guard, guard_call, in_time, is_fault, is_to_end, spawn
from gateway.runtime.observe import label_session
from gateway.runtime.services import Services
from gateway.runtime.session.actor import Actor
from gateway.runtime.signals import LinkDown, LinkUp
from gateway.runtime.wakeup import finish

STOP = 5.0
STOPPED = "the runtime has stopped the session; it is connected when an event waits for it"
_STABLE = 10.0
_WAKE_AFTER = 1.0
"""Queued events shorten a back-off, but to no less than these seconds."""

LinkState = Literal["connecting", "up", "down", "refused", "asleep"]
"""`asleep`: the runtime has stopped the session, and no event waits for it."""


class Supervisor:
    """Owns the connection of one session; its task keeps the link up until it is canceled or the session is closed."""

    def __init__(self, actor: Actor, connector: Connector, services: Services, entrance: asyncio.Lock) -> None:
        """Start; `entrance` admits one new link per turn of the loop."""
        self._tasks = services.tasks
        self._tuning = services.tuning
        self.state: LinkState = "connecting"
        self.since: datetime = services.clock.now()
        self.reason: str | None = None
        self.gave_up = False
        """Whether the address is wrong, so that only a reload retries the link."""
        self._same_refusal: tuple[str, float] | None = None
        """The code that every attempt has been refused with, and the monotonic time of the first."""
        self._actor = actor
        self._connector = connector
        self._clock = services.clock
        self._metrics = services.metrics
        self._jitter = services.jitter
        self._entrance = entrance
        self._cut: asyncio.Future[str] | None = None
        """Completed with the reason to close the current link."""
        self._work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed when an event is queued after the last wait."""
        self._wake_rest: Callable[[], None] | None = None
        actor.sender.call_when_queued(self._note_work)
        self._rest: Rest | None = None
        if isinstance(connector, Resting):
            self._rest = Rest(
                connector,
                native_id=actor.view.native_id,
                closed=actor.closed,
                has_work=actor.has_work,
                call_when_queued=self._call_when_queued,
                clock=services.clock,
                jitter=services.jitter,
                show=self._move,
            )
        self.task = guard("link", self._run, services.tasks, session_id=actor.session_id)

    def drop(self, reason: str) -> None:
        """Close the link, e.g. because the inbox is full; the task opens it again."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(reason)

    def _note_work(self) -> None:
        """End the wait for the next attempt, because an event needs a link."""
        if self.state == "up" and self._cut is not None and not self._cut.done():
            return
        finish(self._work)
        if self._wake_rest is not None:
            self._wake_rest()

    def _call_when_queued(self, call: Callable[[], None] | None) -> None:
        self._wake_rest = call

    async def _run(self) -> None:
        tries, full_at = 0, self._actor.view.cursor
        started = self._clock.monotonic()
        while not self._actor.closed.done():
            # A full inbox would close the new link again.
            await self._actor.inbox.has_capacity()
            await self._actor.permit.wait_held()
            # One per turn of the loop, so that thousands of new links do not block other work.
            async with self._entrance:
                await asyncio.sleep(0)
            # Also without an attempt to connect, so that one event shortens one wait.
            self._work = asyncio.get_running_loop().create_future()
            try:
                if not await self._wait_until_needed():
                    continue
                self._move("connecting", self.reason)
                started = self._clock.monotonic()
                reason = await self._connect()
            except LinkCrowded as exc:
                self._down(str(exc))
                if self._rest is not None:
                    self._rest.back_off(str(exc), stood=timedelta(seconds=self._clock.monotonic() - started))
                wait = self._backoff(tries)
            except LinkRefused as exc:
                self._refused(exc)
                self.gave_up = self._lasts(exc) and exc.until_reload
                if self.gave_up:
                    self._give_up(exc)
                    await asyncio.wait({self._actor.closed})
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
                # A long history arrives over several links; each that makes progress reconnects without back-off.
                progressed = self._actor.inbox.shut and self._actor.view.cursor != full_at
                full_at = self._actor.view.cursor
                if progressed or self._clock.monotonic() - started > _STABLE:
                    tries = 0
                wait = self._backoff(tries)
                self._metrics.reconnected(self._actor.view.runtime)
            tries += 1
            await self._wait(wait)

    async def _wait_until_needed(self) -> bool:
        """Wait until a link is needed; return whether the session may still connect."""
        if self._rest is not None:
            await self._rest.wait()
        return self._actor.permit.holds and not self._actor.closed.done()

    async def _connect(self) -> str:
        """Open a link and keep it until it ends; return the reason."""
        self._cut = cut = asyncio.get_running_loop().create_future()
        native_id = self._actor.view.native_id
        self._actor.connecting()
        connecting = self._connector.connect(native_id, self._actor, resume_after=self._actor.view.cursor)
        # Entered by hand, so that no deadline stays in memory while the link is up.
        async with in_time(self._tuning.adapter, "to connect"):
            link = await connecting.__aenter__()
        try:
            return cut.result() if cut.done() else await self._run_link(link, cut)
        finally:
            async with in_time(self._tuning.adapter, "to close a link"):
                await connecting.__aexit__(*sys.exc_info())

    async def _run_link(self, link: Link, cut: "asyncio.Future[str]") -> str:
        """Use a link until it ends; return the reason."""
        self._move("up", None)
        if self._rest is not None:
            self._rest.connected()
        self._actor.log.info("link up")
        self._actor.inbox.put(LinkUp(link))
        lost = spawn("link", link.wait_closed(), self._tasks)
        warning = self._warn_of_replay_later() if self._actor.replaying else None
        try:
            await asyncio.wait({lost, cut, self._actor.closed}, return_when=asyncio.FIRST_COMPLETED)
            # The link's own reason is more precise than the reason to close it.
            await asyncio.sleep(0)
            if lost.cancelled():
                raise RuntimeError("the adapter canceled wait_closed of its link")
            if lost.done():
                return lost.result()
            return cut.result() if cut.done() else "the session has ended here"
        finally:
            if warning is not None:
                warning.cancel()
            lost.cancel()

    def _warn_of_replay_later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(
            self._tuning.replay_warning, guard_call("link", self._warn_of_replay)
        )

    def _warn_of_replay(self) -> None:
        """Warn of a replay that the adapter does not end; the session shows no other symptom."""
        if self._actor.replaying:
            seconds = self._tuning.replay_warning
            self._actor.log.warning("replay still running; calls wait until it ends", seconds=seconds)

    def _down(self, reason: str) -> None:
        self._same_refusal = None
        if self.state == "up" or self.reason != reason:
            self._actor.log.warning("link down", reason=reason)
        self._move("down", reason)
        self._actor.inbox.put(LinkDown(reason))

    def _failed(self, exc: BaseException) -> float:
        """Drop the link after an unexpected exception of the adapter; return the seconds until the next attempt."""
        FAULTS.get().note("link", exc, session=label_session(self._actor.view))
        self._down(f"the adapter failed inside the gateway ({type(exc).__name__})")
        return FAULTS.get().pause("link", self, now=asyncio.get_running_loop().time())

    def _refused(self, problem: LinkRefused) -> None:
        if self.reason != str(problem):
            self._actor.log.error(
                "link refused by the runtime", code=problem.code, reason=str(problem), terminal=problem.terminal
            )
        self._move("refused", str(problem))
        self._actor.inbox.put(LinkDown(str(problem), refused=True))

    def _lasts(self, problem: LinkRefused) -> bool:
        """Return whether every attempt was refused with this code for `link_gives_up` seconds."""
        now = self._clock.monotonic()
        if self._same_refusal is None or self._same_refusal[0] != problem.code:
            self._same_refusal = (problem.code, now)
        return now - self._same_refusal[1] >= self._tuning.link_gives_up

    def _give_up(self, problem: LinkRefused) -> None:
        reason = f"{problem}; unchanged for {self._tuning.link_gives_up:g} s, only a reload tries again"
        self._actor.log.error("gave up on the link; reload to reconnect", code=problem.code, reason=reason)
        self._move("refused", reason)

    def _move(self, state: LinkState, reason: str | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self.since = state, reason, self._clock.now()

    def _backoff(self, tries: int) -> float:
        ceiling = min(self._tuning.link_longest, self._tuning.link_first * 2 ** min(tries, 10))
        return ceiling * (0.5 + 0.5 * self._jitter())

    async def _wait(self, seconds: float) -> None:
        """Wait before the next attempt; a queued event ends the wait after its first second."""
        closed = self._actor.closed
        await asyncio.wait({closed}, timeout=min(seconds, _WAKE_AFTER))
        if seconds > _WAKE_AFTER and not closed.done():
            await asyncio.wait({closed, self._work}, timeout=seconds - _WAKE_AFTER, return_when=asyncio.FIRST_COMPLETED)


class Rest:
    """Decides when one session needs a link; lives as long as its supervisor."""

    def __init__(
        self,
        connector: Resting,
        *,
        native_id: str,
        closed: "asyncio.Future[None]",
        has_work: Callable[[], Awaitable[bool]],
        call_when_queued: Callable[[Callable[[], None] | None], None],
        clock: Clock,
        jitter: Callable[[], float],
        show: Callable[[Literal["asleep", "refused"], str], None],
    ) -> None:
        """Prepare; `has_work` returns whether a link is needed, `call_when_queued` signals that it may have changed."""
        self._closed = closed
        self._has_work = has_work
        self._call_when_queued = call_when_queued
        self._connector = connector
        self._native_id = native_id
        self._clock = clock
        self._jitter = jitter
        self._show = show
        self._reason = STOPPED
        self._away_until: float | None = None
        self._away = connector.rest_times.crowded

    def back_off(self, reason: str, *, stood: timedelta) -> None:
        """Back off: the runtime stopped the session for another one after its link was up for `stood`."""
        times = self._connector.rest_times
        if stood > self._away:
            self._away = times.crowded
        # Sessions that were stopped together must not reconnect together.
        wait = self._away.total_seconds() * (1 + 0.1 * self._jitter())
        self._away_until = self._clock.monotonic() + wait
        self._away = min(2 * self._away, times.crowded_most)
        self._reason = reason

    def connected(self) -> None:
        """Forget the reason for the wait, because a link is up."""
        self._reason = STOPPED

    async def wait(self) -> None:
        """Wait until a link is needed or the session is closed.

        Raises:
            LinkLost: the runtime or the store cannot be queried.
            LinkRefused: the runtime refused the query.
        """
        loop = asyncio.get_running_loop()
        try:
            while not self._closed.done():
                queued: asyncio.Future[None] = loop.create_future()
                self._call_when_queued(partial(finish, queued))
                has_work = await self._query_work()
                remaining = 0.0 if self._away_until is None else self._away_until - self._clock.monotonic()
                if remaining > 0:
                    self._show("refused" if has_work else "asleep", self._reason)
                elif has_work or not await self._connector.is_stopped(self._native_id):
                    return
                else:
                    self._show("asleep", self._reason)
                    remaining = self._connector.rest_times.look_again.total_seconds() * (1 - 0.25 * self._jitter())
                await asyncio.wait({queued, self._closed}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call_when_queued(None)

    async def _query_work(self) -> bool:
        try:
            return await self._has_work()
        except EngineUnavailable as exc:
            raise LinkLost(f"the waiting events cannot be read: {exc}") from exc


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, at most `STOP` seconds."""
    canceled = list(tasks)
    for task in canceled:
        task.cancel()
    if canceled:
        await asyncio.wait(canceled, timeout=STOP)
