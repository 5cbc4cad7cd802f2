"""Starts, restarts and releases the sessions that this process owns, and finds them for signals."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

import structlog

from gateway.core.state import SessionView, first_state
from gateway.errors import Elsewhere, EngineUnavailable, Fenced, LinkLost, NotFound
from gateway.events import SessionId, session_id as name_session
from gateway.guard import FAULTS, Tasks, guard, guard_call, is_fault
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.lease import Lease
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.observe import label_session
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.batch import PendingInputs, worth_deciding
from gateway.runtime.session.link import Supervisor
from gateway.runtime.session.load import load_view, read_unconfirmed
from gateway.runtime.session.owned_session import STOP, OwnedSession, Runtime, stopped
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.signals import LinkDown, Recover, Signal, SlotFree, fail
from gateway.runtime.session.turn import Turn
from gateway.settings.model import Limits
from gateway.store.rows import Regained, SessionRow

log = structlog.get_logger(__name__)

_AT_ONCE = 16
"""Sessions that are loaded concurrently."""
_END = 30.0
"""Seconds until the tasks of a session end, even if the store does not respond."""
_PAUSE = 1.0
_RELINK_INTERVAL = 0.1
"""Seconds between two links of a reloaded runtime: ten per second."""


class Sessions:
    """The registry of owned sessions; their tasks belong to the gateway's group."""

    def __init__(self, shared: Shared, handover: Handover, limits: Limits) -> None:
        self.runtimes: dict[str, Runtime] = {}
        """Connected runtimes by their names in the YAML."""
        self.unconnected: set[str] = set()
        """Names of runtimes that are not connected yet and are retried."""
        self._shared = shared
        self._turn = Turn(shared.engine, shared.clock, shared.tasks)
        self._keeper = shared.keeper
        self._handover = handover
        self._tasks = shared.tasks
        self._entrance = asyncio.Lock()
        """Admits one new link per turn of the loop."""
        self._limits = limits
        self._owned: dict[SessionId, OwnedSession] = {}
        self._starting: set[SessionId] = set()
        self._ending: dict[SessionId, dict[asyncio.Task[None], None]] = {}
        """Closing links of released sessions."""
        self._pending: dict[SessionId, PendingInputs] = {}
        """The undecided inputs of failed sessions until they restart."""
        self.leaving = False
        """Whether sessions are no longer acquired, because the process ends."""
        shared.metrics.watch_queues(lambda: sum(session.actor.inbox.bytes for session in self._owned.values()))

    # Runtimes --------------------------------------------------------------------------------------------

    async def relink(self, runtime: Runtime) -> None:
        """Move a runtime's sessions to links of its new connector, ten per second; calls in flight continue."""
        for number, session in enumerate(self.of_runtime(runtime.name)):
            if number:
                await asyncio.sleep(_RELINK_INTERVAL)
            actor, session_id = session.actor, session.actor.view.session_id
            if self._owned.get(session_id) is not session:
                continue
            await stopped(session.links)
            actor.reconfigure(runtime.context)
            actor.inbox.put(LinkDown("the runtime's options have changed"))
            relinked = self._link(runtime, actor)
            if self._owned.get(session_id) is session:
                self._owned[session_id] = relinked

    async def stop_sessions(self, name: str) -> list[SessionId]:
        """Stop the links of a runtime's sessions, then the sessions; return their ids."""
        mine = list(self.of_runtime(name))
        await self._stop(mine)
        return [session.actor.view.session_id for session in mine]

    async def _stop(self, some: Sequence[OwnedSession]) -> None:
        """End sessions that continue later, and wait until the store has reported on their last steps."""
        await stopped(link for session in some for link in session.links)
        for session in some:
            if self._owned.get(session.actor.view.session_id) is session:
                del self._owned[session.actor.view.session_id]
            guard_call("session", session.actor.end)()
        async with Tasks() as group:
            for session in some:
                guard("session", partial(session.actor.wait_settled, within=STOP), group, again=False)

    def configure(self, limits: Limits) -> None:
        """Replace the limits, also of owned sessions."""
        self._limits = limits
        for session in self._owned.values():
            session.actor.inbox.bound(frames=limits.inbound_frames, size=limits.inbound_bytes)

    # Acquiring -------------------------------------------------------------------------------------------

    def without_links(self) -> AbstractAsyncContextManager[None]:
        """Block new links while many sessions are acquired and the process is not ready."""
        return self._entrance

    async def take_up(self, rows: Sequence[SessionRow]) -> None:
        """Start sessions that this instance has acquired; retry later if one cannot be loaded."""
        gate, lease = asyncio.Semaphore(_AT_ONCE), self._keeper.lease

        async def one(row: SessionRow) -> None:
            async with gate:
                await self._start_or_retry(row, lease)

        async with Tasks() as group:
            for row in rows:
                guard("session", partial(one, row), group, again=False, session_id=row.session_id)

    async def _start_or_retry(self, row: SessionRow, lease: Lease | None) -> None:
        try:
            await self._load_and_start(row, lease)
        except EngineUnavailable as exc:
            self._shared.engine.outage.failed(exc, "load of a session")
            pause = _PAUSE
        except BaseException as exc:
            if not is_fault(exc):
                raise
            # A fault of one session must not affect the others or the process.
            pause = self._failed(row.session_id, exc, "session cannot be started")
        else:
            return
        self.restart(row.session_id, after=pause)

    def _failed(self, session_id: SessionId, exc: BaseException, text: str) -> float:
        """Note a fault of a session; return the seconds until it restarts."""
        FAULTS.get().note("session", exc, text=text, session_id=session_id)
        return FAULTS.get().pause("session", session_id, now=asyncio.get_running_loop().time())

    def restart(self, session_id: SessionId, *, after: float = _PAUSE) -> None:
        """Restart a session after a pause, in a guarded task."""
        again = partial(self._acquire_and_start, session_id, after=after)
        guard("session", again, self._tasks, session_id=session_id)

    async def _load_and_start(self, row: SessionRow, lease: Lease | None) -> None:
        """Load a session under its fence, which excludes other writers, and start it.

        A session whose lease has ended since its acquisition is not started.
        """
        session_id = row.session_id
        if session_id in self._owned or session_id in self._starting:
            return
        self._starting.add(session_id)
        try:
            if leftover := self._ending.get(session_id):
                await asyncio.wait(leftover, timeout=STOP)
            view = await load_view(self._shared.engine, session_id)
            recover = Recover(await read_unconfirmed(self._shared.engine, view))
            # By name, because each reload replaces the runtime.
            runtime = self.runtimes.get(row.runtime)
            if lease is None or lease is not self._keeper.lease:
                return
            if runtime is None or self.leaving:
                await self.release([session_id])
            else:
                view = replace(view, first_state=first_state(runtime.adapter.capabilities))
                self._start(runtime, view, recover, fence=row.fence)
        finally:
            self._starting.discard(session_id)

    def _start(self, runtime: Runtime, view: SessionView, recover: Recover, *, fence: int) -> None:
        session_id = view.session_id
        pending = self._pending.pop(session_id, None)
        results, frames = worth_deciding(pending, view)
        actor = Actor(
            view,
            fence=fence,
            runtime=runtime.context,
            shared=self._shared,
            turn=self._turn,
            limits=self._limits,
            drop_link=partial(self._drop_link, session_id),
            ended=self._handle_end,
            # Results come before recovery, which would otherwise guess them; new calls come after it.
            retained=(*results, (recover, 0), *frames),
            replayed=() if pending is None else pending.replayed,
        )
        self._owned[session_id] = self._link(runtime, actor)
        self._handover.wake()

    def _drop_link(self, session_id: SessionId, reason: str) -> None:
        # Looked up late: the supervisor is created after the session, and again with new options.
        session = self._owned.get(session_id)
        if session is not None and session.supervisor is not None:
            session.supervisor.drop(reason)

    def _link(self, runtime: Runtime, actor: Actor) -> OwnedSession:
        """Keep a session linked to its runtime, if the runtime has links."""
        if runtime.connector is None:
            return OwnedSession(actor, None, runtime)
        supervisor = Supervisor(actor, connector=runtime.connector, services=self._shared, entrance=self._entrance)
        linked = guard("link", supervisor.run, self._tasks, session_id=actor.view.session_id)
        return OwnedSession(actor, supervisor, runtime, (linked,))

    def signal(self, session_id: SessionId, signal: Signal) -> None:
        """Put a signal into the inbox of a session; without one, drop it and return its slot."""
        session = self._owned.get(session_id)
        if session is not None:
            session.actor.inbox.put(signal)
        elif isinstance(signal, SlotFree):
            self._shared.slots.release(signal.executor, session_id)
        else:
            fail(signal, Elsewhere(session_id, "the session does not run here"))

    def _handle_end(self, actor: Actor, exc: BaseException | None) -> None:
        """Forget a closed session; after a fault restart it from the store, or release it to its new owner."""
        session, session_id = self._session_of(actor), actor.view.session_id
        if exc is None:
            self._owned.pop(session_id, None)
        elif isinstance(exc, Fenced):
            self._shared.metrics.fenced()
            if session is not None:
                self.lose(session, str(exc))
            if actor.permit.is_overtaken:
                self.restart(session_id, after=_PAUSE)
        else:
            # A fault of one session must not end the process.
            pause = self._failed(session_id, exc, "session failed; restarting from the store")
            if session is not None:
                del self._owned[session_id]
                # Running attempts would report to no session; recovery uses the rows of the calls instead.
                self._drop(session)
                again = partial(self._restart_failed, session, after=pause)
                guard("session", again, self._tasks, session_id=session_id)

    async def _restart_failed(self, session: OwnedSession, *, after: float) -> None:
        await session.actor.wait_settled()
        pending = session.actor.take_pending()
        if pending is not None:
            self._pending[session.actor.view.session_id] = pending
        await self._acquire_and_start(session.actor.view.session_id, after=after)

    async def _acquire_and_start(self, session_id: SessionId, *, after: float) -> None:
        row: SessionRow | None = None
        while row is None:
            await asyncio.sleep(after)
            if self.leaving:
                return
            try:
                row = await self._keeper.take(session_id)
            except EngineUnavailable as exc:
                self._shared.engine.outage.failed(exc, "acquisition of a session")
            else:
                if row is None:
                    self._hand_over_pending(session_id)
                    return
        await self._start_or_retry(row, self._keeper.lease)

    def _session_of(self, actor: Actor) -> OwnedSession | None:
        """Return the owned session of an actor, unless it was released or has another actor."""
        session = self._owned.get(actor.view.session_id)
        return session if session is not None and session.actor is actor else None

    # Releasing ------------------------------------------------------------------------------------------

    def lose(self, session: OwnedSession, reason: str) -> None:
        """Release a session at once, because another instance may own it."""
        session_id = session.actor.view.session_id
        if self._session_of(session.actor) is session:
            del self._owned[session_id]
        log.warning("session released", reason=reason, session=label_session(session.actor.view))
        self._drop(session)
        hand_over = partial(self._hand_over_frames, session)
        guard("handover", hand_over, self._tasks, again=False, session_id=session_id)

    def _hand_over_pending(self, session_id: SessionId) -> None:
        """Hand the undecided inputs of a failed session over to its owner."""
        pending = self._pending.pop(session_id, None)
        if pending is not None:
            leave = partial(self._handover.leave, session_id, pending)
            guard("handover", leave, self._tasks, again=False, session_id=session_id)

    async def _hand_over_frames(self, session: OwnedSession) -> None:
        """Hand the frames that arrived before the link closed over to the new owner."""
        if session.links:
            await asyncio.wait(session.links, timeout=_END)
        await session.actor.wait_settled()
        pending = session.actor.take_pending()
        if pending is not None:
            await self._handover.leave(session.actor.view.session_id, pending)

    def suspend_all(self) -> None:
        """Pause all sessions at once, because the lease is lost."""
        for session in self.all():
            guard_call("session", session.actor.permit.suspend)()

    def resume_all(self, mine: Mapping[SessionId, Regained]) -> None:
        """Resume these sessions under new fences; release the others, which have new owners."""
        for session_id in self._pending.keys() - mine.keys():
            self._hand_over_pending(session_id)
        for session in self.all():
            # Each resumes or is released independently.
            guard_call("session", self._resume)(session, mine.get(session.actor.view.session_id))

    def _resume(self, session: OwnedSession, row: Regained | None) -> None:
        if row is None:
            self.lose(session, "another instance has taken it over")
        else:
            session.actor.resume(row)

    def _drop(self, session: OwnedSession) -> None:
        session_id = session.actor.view.session_id
        guard_call("session", partial(session.actor.end, lost=True))()
        self._shared.dispatcher.abandon(session_id)
        running = [task for task in session.links if not task.done()]
        if running:
            self._ending.setdefault(session_id, {}).update(dict.fromkeys(running))
        for task in running:
            task.cancel()
            task.add_done_callback(guard_call("session", partial(self._forget_task, session_id)))

    def _forget_task(self, session_id: SessionId, task: asyncio.Task[None]) -> None:
        running = self._ending.get(session_id, {})
        running.pop(task, None)
        if not running:
            self._ending.pop(session_id, None)

    def stop_taking_up(self) -> None:
        """Acquire no more sessions, because the process ends."""
        self.leaving = True

    async def hand_over(self, some: Sequence[OwnedSession], *, force: bool = False) -> int:
        """Close the links of sessions and release them; return the number of released sessions.

        A session with new work is not released without `force`.
        """
        await stopped(link for session in some for link in session.links)
        ready = [session for session in some if force or self._is_idle(session)]
        for session in ready:
            self._owned.pop(session.actor.view.session_id, None)
            self._drop(session)
        if ready:
            try:
                async with asyncio.timeout(STOP):
                    for session in ready:
                        await self._hand_over_frames(session)
            except TimeoutError:
                log.warning("frames not handed over in time", sessions=len(ready))
            await self.release([session.actor.view.session_id for session in ready])
        return len(ready)

    def idle(self) -> list[OwnedSession]:
        """Return the sessions without work in progress."""
        return [session for session in self.all() if self._is_idle(session)]

    def write_marks(self) -> None:
        """Let each session commit its delivery marks soon."""
        for session in self.all():
            session.actor.sender.post_marks()

    def _is_idle(self, session: OwnedSession) -> bool:
        return session.actor.in_flight is None and not self._shared.dispatcher.busy(session.actor.view.session_id)

    async def release(self, session_ids: Sequence[SessionId]) -> None:
        """Release the ownership of sessions."""
        try:
            await self._keeper.release(session_ids)
        except EngineUnavailable as exc:
            log.warning("session release failed; the sessions become free when the lease expires", reason=str(exc))
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.get().note(
                "lease", exc, text="session release failed; the sessions become free when the lease expires"
            )
        self._shared.notifications.tell("orphans", session_ids)

    async def close_links(self) -> None:
        """Close every link at the end of the process; sessions continue until they are stopped."""
        await stopped(link for session in self._owned.values() for link in session.links)

    async def end(self) -> None:
        """End all tasks and close all connectors."""
        # No session is acquired without its runtime.
        runtimes, self.runtimes = self.runtimes, {}
        await self._stop(self.all())
        for runtime in runtimes.values():
            await runtime.disconnect()

    # Lookups ---------------------------------------------------------------------------------------------

    def runtime(self, name: str) -> Runtime:
        """Return a connected runtime by its configured name.

        Raises:
            NotFound: no such runtime is configured.
            LinkLost: it is not connected yet.
        """
        runtime = self.runtimes.get(name)
        if name in self.unconnected:
            raise LinkLost(f"the adapter of runtime {name!r} failed and is retried; see the log")
        if runtime is None:
            known = ", ".join(sorted(self.runtimes)) or "none"
            raise NotFound(f"no runtime is named {name!r}; configured: {known}")
        return runtime

    @property
    def count(self) -> int:
        """The number of owned sessions."""
        return len(self._owned)

    def owns(self, runtime: str, native_id: str) -> bool:
        """Return whether this process owns a native session."""
        return name_session(runtime=runtime, native_session_id=native_id) in self._owned

    def owned(self, session_id: SessionId) -> OwnedSession | None:
        """Return a session if this process owns it."""
        return self._owned.get(session_id)

    def feed(self, session_id: SessionId) -> Feed | None:
        """Return the feed of a session if this process owns it."""
        session = self._owned.get(session_id)
        return None if session is None else session.actor.feed

    def of_runtime(self, name: str) -> Iterator[OwnedSession]:
        """Return the owned sessions of a runtime."""
        return (session for session in list(self._owned.values()) if session.runtime.name == name)

    def all(self) -> list[OwnedSession]:
        """Return all owned sessions."""
        return list(self._owned.values())
