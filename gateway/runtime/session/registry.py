"""Starts, restarts, closes and releases the sessions that this process owns, and finds them for signals."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from gateway.adapter.port import Capabilities, RuntimeOptions
from gateway.core.holding import Restored
from gateway.core.session import Policy, RuntimeContext
from gateway.core.state import SessionView, first_state
from gateway.errors import Conflict, Elsewhere, EngineUnavailable, Fenced, LinkLost, NotFound, Overloaded, Unconfigured
from gateway.events import CallId, SessionId, session_id as name_session
from gateway.guard import FAULTS, Tasks, guard, guard_call, is_fault
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.lease import Lease
from gateway.runtime.observe import label_session
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.codec import NullCodec
from gateway.runtime.session.inbox import PendingInputs, Tried, worth_deciding
from gateway.runtime.session.link import STOP, Supervisor, stopped
from gateway.runtime.session.load import load_view, read_unconfirmed
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.turn import Turns
from gateway.runtime.signals import ClientSignal, CloseOrdered, LinkDown, Recover, Signal, SlotFree, fail
from gateway.settings.model import Limits
from gateway.store.call import Call
from gateway.store.rows import Regained, SessionRow

if TYPE_CHECKING:
    from gateway.runtime.session.runtimes import Runtime

log = structlog.get_logger(__name__)

Leave = Callable[[SessionId, PendingInputs], Awaitable[None]]
"""Leaves the inputs of a lost session to its owner."""

_AT_ONCE = 16
"""Sessions that are loaded concurrently."""
_END = 30.0
"""Seconds until the tasks of a session end, even if the store does not respond."""
_PAUSE = 1.0
_RELINK_INTERVAL = 0.1
"""Seconds between two links of a reloaded runtime: ten per second."""
_NOT_OWNED = "the session is starting, or another instance owns it"
_MOVED = "the session has moved to another instance"
_RESTARTS = "the session restarts on this instance"
_NOTHING = Capabilities(accepts=frozenset(), emits=frozenset(), turns="signalled", delivery="response")


class Sessions:
    """The registry of owned sessions; the tasks of their links belong to the gateway's group."""

    def __init__(self, shared: Shared, limits: Limits, *, leave: Leave, started: Callable[[], None]) -> None:
        """Prepare; `started` is called when a session runs here, since frames may have been left for it."""
        self.runtimes: dict[str, Runtime] = {}
        """Connected runtimes by their names in the YAML."""
        self.unconnected: set[str] = set()
        """Names of runtimes that are not connected yet and are retried."""
        self._shared = shared
        self._turns = Turns(shared.engine, shared.clock, shared.tasks)
        self._keeper = shared.keeper
        self._leave = leave
        self._started = started
        self._tasks = shared.tasks
        self._entrance = asyncio.Lock()
        """Admits one new link per turn of the loop."""
        self._limits = limits
        self._owned: dict[SessionId, Actor] = {}
        self._starting: set[SessionId] = set()
        self._ending: dict[SessionId, dict[asyncio.Task[None], None]] = {}
        """Closing links of released sessions."""
        self._pending: dict[SessionId, PendingInputs] = {}
        """The undecided inputs of failed sessions until they restart."""
        self.leaving = False
        """Whether sessions are no longer acquired, because the process ends."""
        shared.metrics.watch_queues(lambda: sum(one.inbox.bytes for one in self._owned.values()))

    # Runtimes --------------------------------------------------------------------------------------------

    async def relink(self, runtime: "Runtime") -> None:
        """Move a runtime's sessions to links of its new connector, ten per second; calls in flight continue."""
        for number, actor in enumerate(self.of_runtime(runtime.name)):
            if number:
                await asyncio.sleep(_RELINK_INTERVAL)
            if not self._is_here(actor):
                continue
            await stopped(actor.links)
            actor.reconfigure(runtime.context)
            actor.inbox.put(LinkDown("the runtime's options have changed"))
            if self._is_here(actor):
                self._link(runtime, actor)

    async def stop_sessions(self, name: str) -> list[SessionId]:
        """Stop the links of a runtime's sessions, then the sessions; return their ids."""
        mine = list(self.of_runtime(name))
        await self._stop(mine)
        return [actor.session_id for actor in mine]

    async def _stop(self, some: Sequence[Actor]) -> None:
        """End sessions that continue later, and wait until the store has reported on their last steps."""
        await stopped(link for actor in some for link in actor.links)
        for actor in some:
            self._forget(actor)
            guard_call("session", actor.end)()
        async with Tasks() as group:
            for actor in some:
                guard("session", partial(actor.wait_settled, within=STOP), group, again=False)

    def configure(self, limits: Limits) -> None:
        """Replace the limits, also of owned sessions."""
        self._limits = limits
        for actor in self._owned.values():
            actor.inbox.bound(frames=limits.inbound_frames, size=limits.inbound_bytes)

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
            backup_at = self._shared.engine.generation.backup_at
            restored = None if backup_at is None else Restored(backup_at, row.shared_sequence)
            recover = Recover(await read_unconfirmed(self._shared.engine, view), restored)
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

    def _start(self, runtime: "Runtime", view: SessionView, recover: Recover, *, fence: int) -> None:
        pending = self._pending.pop(view.session_id, None)
        results, frames = worth_deciding(pending, view)
        # Results come before recovery, which would otherwise guess them; new calls come after it.
        retained = (*results, (recover, 0), *frames)
        replayed = () if pending is None else pending.replayed
        self._link(runtime, self._own(view, runtime.context, fence, retained, replayed))
        self._started()

    def _own(
        self,
        view: SessionView,
        context: RuntimeContext,
        fence: int,
        retained: Iterable[Tried] = (),
        replayed: Iterable[Tried] = (),
    ) -> Actor:
        actor = self._owned[view.session_id] = Actor(
            view,
            fence=fence,
            runtime=context,
            shared=self._shared,
            turns=self._turns,
            limits=self._limits,
            ended=self._handle_end,
            retained=retained,
            replayed=replayed,
        )
        return actor

    def _link(self, runtime: "Runtime", actor: Actor) -> None:
        """Keep a session linked to its runtime, if the runtime has links."""
        if runtime.connector is not None:
            actor.link = Supervisor(actor, runtime.connector, self._shared, self._entrance)

    def signal(self, session_id: SessionId, signal: Signal) -> None:
        """Put a signal into the inbox of a session; without one, drop it and return its slot."""
        actor = self._owned.get(session_id)
        if actor is not None:
            actor.inbox.put(signal)
        elif isinstance(signal, SlotFree):
            self._shared.slots.release(signal.executor, session_id)
        else:
            fail(signal, Elsewhere(session_id, "the session does not run here"))

    def _handle_end(self, actor: Actor, exc: BaseException | None) -> None:
        """Forget a closed session; after a fault restart it from the store, or release it to its new owner."""
        session_id, is_here = actor.session_id, self._is_here(actor)
        if exc is None:
            self._forget(actor)
        elif isinstance(exc, Fenced):
            self._shared.metrics.fenced()
            if is_here:
                self.lose(actor, str(exc), gone=_RESTARTS if actor.permit.is_overtaken else _MOVED)
            if actor.permit.is_overtaken:
                self.restart(session_id, after=_PAUSE)
        else:
            # A fault of one session must not end the process.
            pause = self._failed(session_id, exc, "session failed; restarting from the store")
            if is_here:
                # Running attempts would report to no session; recovery uses the rows of the calls instead.
                self._drop(actor, _RESTARTS)
                again = partial(self._restart_failed, actor, after=pause)
                guard("session", again, self._tasks, session_id=session_id)

    async def _restart_failed(self, actor: Actor, *, after: float) -> None:
        await actor.wait_settled()
        pending = actor.take_pending()
        if pending is not None:
            self._pending[actor.session_id] = pending
        await self._acquire_and_start(actor.session_id, after=after)

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

    def _is_here(self, actor: Actor) -> bool:
        """Return whether an actor's session was not released and has no other actor."""
        return self._owned.get(actor.session_id) is actor

    def _forget(self, actor: Actor) -> None:
        if self._is_here(actor):
            del self._owned[actor.session_id]

    # Releasing ------------------------------------------------------------------------------------------

    def lose(self, actor: Actor, reason: str, *, gone: str = _MOVED) -> None:
        """Release a session at once, because another instance may own it; clients are told that it is `gone`."""
        log.warning("session released", reason=reason, session=label_session(actor.view))
        self._drop(actor, gone)
        hand_over = partial(self._hand_over_frames, actor)
        guard("handover", hand_over, self._tasks, again=False, session_id=actor.session_id)

    def _hand_over_pending(self, session_id: SessionId) -> None:
        """Hand the undecided inputs of a failed session over to its owner."""
        pending = self._pending.pop(session_id, None)
        if pending is not None:
            leave = partial(self._leave, session_id, pending)
            guard("handover", leave, self._tasks, again=False, session_id=session_id)

    async def _hand_over_frames(self, actor: Actor) -> None:
        """Hand the frames that arrived before the link closed over to the new owner."""
        if actor.links:
            await asyncio.wait(actor.links, timeout=_END)
        await actor.wait_settled()
        pending = actor.take_pending()
        if pending is not None:
            await self._leave(actor.session_id, pending)

    def suspend_all(self) -> None:
        """Pause all sessions at once, because the lease is lost."""
        for actor in self.all():
            guard_call("session", actor.permit.suspend)()

    def resume_all(self, mine: Mapping[SessionId, Regained]) -> None:
        """Resume these sessions under new fences; release the others, which have new owners."""
        for session_id in self._pending.keys() - mine.keys():
            self._hand_over_pending(session_id)
        for actor in self.all():
            # Each resumes or is released independently.
            guard_call("session", self._resume)(actor, mine.get(actor.session_id))

    def _resume(self, actor: Actor, row: Regained | None) -> None:
        if row is None:
            self.lose(actor, "another instance has taken it over")
        else:
            actor.resume(row)

    def _drop(self, actor: Actor, gone: str) -> None:
        session_id = actor.session_id
        self._forget(actor)
        guard_call("session", partial(actor.end, gone=gone))()
        self._shared.dispatcher.abandon(session_id)
        running = [task for task in actor.links if not task.done()]
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

    async def hand_over(self, some: Sequence[Actor], *, force: bool = False) -> int:
        """Close the links of sessions and release them; return the number of released sessions.

        A session with new work is not released without `force`.
        """
        await stopped(link for actor in some for link in actor.links)
        ready = [actor for actor in some if force or self._is_idle(actor)]
        for actor in ready:
            self._drop(actor, _MOVED)
        if ready:
            try:
                async with asyncio.timeout(STOP):
                    for actor in ready:
                        await self._hand_over_frames(actor)
            except (TimeoutError, asyncio.CancelledError) as exc:
                log.warning("frames not handed over in time", sessions=len(ready))
                if isinstance(exc, asyncio.CancelledError):
                    raise
            await self.release([actor.session_id for actor in ready])
        return len(ready)

    def idle(self) -> list[Actor]:
        """Return the sessions without work in progress."""
        return [actor for actor in self.all() if self._is_idle(actor)]

    def write_marks(self) -> None:
        """Let each session commit its delivery marks soon."""
        for actor in self.all():
            actor.sender.post_marks()

    def _is_idle(self, actor: Actor) -> bool:
        return actor.in_flight is None and not self._shared.dispatcher.busy(actor.session_id)

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
        await stopped(link for actor in self._owned.values() for link in actor.links)

    async def end(self) -> None:
        """End all tasks and close all connectors."""
        # No session is acquired without its runtime.
        runtimes, self.runtimes = self.runtimes, {}
        await self._stop(self.all())
        for runtime in runtimes.values():
            await runtime.disconnect()

    # Lookups ---------------------------------------------------------------------------------------------

    def runtime(self, name: str) -> "Runtime":
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

    def owned(self, session_id: SessionId) -> Actor | None:
        """Return the actor of a session if this process owns it."""
        return self._owned.get(session_id)

    def feed(self, session_id: SessionId) -> Feed | None:
        """Return the feed of a session if this process owns it."""
        actor = self._owned.get(session_id)
        return None if actor is None else actor.feed

    def of_runtime(self, name: str) -> Iterator[Actor]:
        """Return the owned sessions of a runtime."""
        return (actor for actor in self.all() if actor.view.runtime == name)

    def all(self) -> list[Actor]:
        """Return the actors of all owned sessions."""
        return list(self._owned.values())

    async def session(self, session_id: SessionId) -> SessionRow:
        """Find a session, or raise NotFound."""
        row = await self._shared.engine.session(session_id)
        if row is None:
            raise NotFound(f"no session {session_id!r}")
        return row

    async def call(self, call_id: CallId) -> Call:
        """Find a call, or raise NotFound."""
        row = await self._shared.engine.call(call_id)
        if row is None:
            raise NotFound(f"no call {call_id!r}")
        return row

    async def actor(self, session_id: SessionId) -> Actor:
        """Return the actor of an open session.

        Raises:
            NotFound: there is no such session.
            Conflict: the session is closed.
            Unconfigured: its runtime is not in the configuration.
            Elsewhere: this process does not own it.
        """
        if (actor := self._owned.get(session_id)) is not None:
            return actor
        row = await self.session(session_id)
        if row.state == "closed":
            raise Conflict("the session is closed")
        raise await self.not_here(row)

    async def not_here(self, row: SessionRow) -> Unconfigured | Elsewhere:
        """Return the error for an open session that this process does not own."""
        known = self.runtimes.keys() | self.unconnected
        if row.runtime not in known and await self._shared.engine.owner(row.session_id) is None:
            return Unconfigured(
                f"the runtime {row.runtime!r} of this session is not in the configuration: "
                "put it back and reload, or close the session"
            )
        return Elsewhere(row.session_id, _NOT_OWNED)

    # Requests of clients ---------------------------------------------------------------------------------

    async def ask(self, actor: Actor, signal: ClientSignal) -> Any:
        """Send a client request to an actor and return the reply.

        Raises:
            Conflict: the session was closed first.
            Elsewhere: the session was released or stopped first.
            Overloaded: the reply took too long.
        """
        reply, patience = signal.reply, self._shared.tuning.reply
        actor.inbox.put(signal)
        await asyncio.wait({reply, actor.closed}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        if actor.closed.done():
            if actor.view.memory.closed:
                raise Conflict("the session is closed")
            raise Elsewhere(actor.session_id, actor.gone)
        reply.cancel()
        raise Overloaded(f"the session did not process the request within {patience:.0f} s")

    async def close(self, row: SessionRow, policy: Policy, *, reason: str) -> None:
        """Close a session: cancel its open calls and notify their executors."""
        actor = self._owned.get(row.session_id)
        if actor is not None:
            await self.ask(actor, CloseOrdered(reason, reply_slot()))
            await asyncio.wait({actor.closed, *actor.links}, timeout=self._shared.tuning.reply)
        elif row.state != "closed":
            missing = await self.not_here(row)
            if not isinstance(missing, Unconfigured):
                raise missing
            await self._close_unserved(row, policy, reason)

    async def _close_unserved(self, row: SessionRow, policy: Policy, reason: str) -> None:
        """Own a session without its runtime only until it is closed.

        Raises:
            Elsewhere: another instance owns it, or this one is starting it.
        """
        session_id = row.session_id
        # A new fence excludes writes of the previous owner.
        taken = await self._keeper.take(session_id)
        if taken is None:
            raise Elsewhere(session_id, _NOT_OWNED)
        actor: Actor | None = None
        try:
            view = await load_view(self._shared.engine, session_id)
            if row.runtime in self.runtimes or session_id in self._owned:
                raise Elsewhere(session_id, "the session is starting")
            if view.memory.closed:
                return
            options = RuntimeOptions(adapter="", url="")
            context = RuntimeContext("", row.protocol, row.runtime, _NOTHING, NullCodec(), options, policy)
            actor = self._own(view, context, taken.fence)
            await self.ask(actor, CloseOrdered(reason, reply_slot()))
            log.info("session closed without its runtime", session=label_session(row), calls=len(view.calls))
        except BaseException:
            if actor is not None:
                self._drop(actor, _NOT_OWNED)
            # Starts the session if its runtime is configured by now, and otherwise releases it.
            await self.take_up([taken])
            raise


def reply_slot() -> "asyncio.Future[Any]":
    """Return a future for the reply to a signal."""
    return asyncio.get_running_loop().create_future()
