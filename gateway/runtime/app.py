"""The gateway as one object, used by the HTTP API and the command line."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path

import aiohttp
import structlog

from gateway.adapter.port import Adapter, Capabilities, RuntimeOptions
from gateway.clock import Clock, Ids
from gateway.errors import Conflict, Gone, Truncated
from gateway.events import FINISHING_KINDS, Envelope, Event, SessionId
from gateway.executors.port import Destination, Executor
from gateway.guard import Faults, Tasks, guard_call, in_thread, loop_faults, suppress_faults
from gateway.runtime.ambient import Ambient
from gateway.runtime.bounds import breaker_rules, executor_limits, session_limit
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks, keep_key
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.offered import OfferedTool, offered
from gateway.runtime.calls.secret_scanner import SecretScanner
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tickets import Tickets
from gateway.runtime.calls.tool_tokens import ToolTokens
from gateway.runtime.calls.tool_watch import ToolWatch
from gateway.runtime.clients.callers import Callers
from gateway.runtime.clients.calls import Calls
from gateway.runtime.clients.dead_letters import DeadLetters
from gateway.runtime.clients.deduplicator import CallDeduplicator
from gateway.runtime.clients.interactions import Interactions
from gateway.runtime.clients.redriving import Redriving
from gateway.runtime.cluster.forwarding import make_peer_client
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.hops import Hops
from gateway.runtime.cluster.member import ClusterMember
from gateway.runtime.configuration import Configuration, Configured
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.delivery.links import Links
from gateway.runtime.delivery.notices import Notices
from gateway.runtime.drain import Drain, InFlight, describe
from gateway.runtime.feeds.all_sessions import EVERY_SESSION, AllSessionsFeed
from gateway.runtime.feeds.follow import PAGES, JournalReader, follow
from gateway.runtime.feeds.follower_budget import FollowerBudget
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.feeds.linked import with_links
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.maintenance import Maintenance
from gateway.runtime.metrics import Metrics
from gateway.runtime.notifications import Notifications
from gateway.runtime.observe import label_session
from gateway.runtime.services import Services
from gateway.runtime.session.due import Reviews
from gateway.runtime.session.native_frames import NativeReader
from gateway.runtime.session.opening import Opening
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.session.runtimes import Runtimes
from gateway.runtime.session.shared import Shared
from gateway.runtime.signals import Post, Signal
from gateway.runtime.status import Status
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import CalledSession, Reloaded, SessionItem, StreamItem
from gateway.settings.model import DestinationSpec, ExecutorSpec, Settings, WebhookSpec
from gateway.store.encoding import is_erased
from gateway.store.port import Engine, Report, report_nothing
from gateway.store.rows import (
    ANY_SESSION,
    EventFilter,
    Generation,
    Instance,
    Page,
    Position,
    Regained,
    SessionFilter,
    SessionRow,
    StoredAnswer,
)
from gateway.store.step import Keep
from gateway.traces.queue import Traces

log = structlog.get_logger(__name__)

_CHECK_WORK = 0.02
"""Seconds between a drain's checks of the work in flight."""
_CLOSE_TRACES = 10.0
_CHECK_INSTANCES = 1.0
"""Seconds between a drain's checks for another instance that takes the sessions."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The concrete parts of a gateway, which `serve` selects."""

    engine: Engine
    adapters: Mapping[str, Adapter]
    make_executor: Callable[[ExecutorSpec], Executor]
    make_destination: Callable[[DestinationSpec], Destination]
    clock: Clock
    ids: Ids
    metrics: Metrics
    reread: Callable[[], Settings]
    """Reads the configuration again; raises InvalidConfiguration."""
    version: str
    url: str
    """The URL of this instance's API for other instances."""
    shared: bool
    """Whether other instances may share the store."""
    local_url: str | None = None
    """The URL for backends on this machine, if the gateway listens on a loopback address only."""
    tuning: Tuning = field(default_factory=Tuning)
    file: Path | None = None
    """The configuration file, for errors."""
    report: Report = report_nothing
    """Takes the progress of the start."""
    traces: Traces | None = None
    """Takes spans and is closed with the gateway; None if traces are off."""


class Gateway:
    """Runs all sessions; `running` creates it before the HTTP API accepts requests.

    Errors are those of `gateway.errors`: NotFound, Conflict, Gone, Inexpressible, InvalidRequest,
    Overloaded, EngineUnavailable, InvalidConfiguration.
    """

    def __init__(self, settings: Settings, parts: Parts, *, key: bytes, client: aiohttp.ClientSession) -> None:
        """Assemble the parts; `key` signs tokens, `client` sends requests to other instances."""
        self.clock, self.ids, self.traces = parts.clock, parts.ids, parts.traces
        self.ambient = Ambient.here()
        self.version = parts.version
        self.tuning = parts.tuning
        self._parts = parts
        self._engine = parts.engine
        self.draining = Drain()
        """The progress of this gateway's stop."""
        budget = FollowerBudget()
        self._history = JournalReader(parts.engine, asyncio.Semaphore(PAGES), budget)
        engine, clock, ids, metrics, tuning = parts.engine, parts.clock, parts.ids, parts.metrics, parts.tuning
        self._tasks = Tasks()
        services = Services(engine, clock, ids, metrics, tuning, ids.jitter, self._tasks, self.draining, parts.traces)
        self._notifications = Notifications(engine)
        self._keeper = LeaseKeeper(
            services,
            url=parts.url,
            ttl=settings.instance.lease if parts.shared else None,
            lost=self._suspend,
            regained=self._resume,
        )
        self._interaction_feed = InteractionFeed(lambda changed: self._notifications.tell("interaction", changed))
        self._all_sessions = AllSessionsFeed(
            engine,
            self._tasks,
            tuning,
            budget,
            metrics,
            ask_others=lambda: self._notifications.tell("follow", [EVERY_SESSION]),
        )
        self.links = Links(engine, clock, ids, key=key)
        self._backends = Backends(
            services,
            make_executor=parts.make_executor,
            make_destination=parts.make_destination,
            keeper=self._keeper,
            notifications=self._notifications,
            notices=Notices(engine, clock, self.links, local_url=parts.local_url),
        )
        breakers = Breakers(clock, metrics, ids.jitter, rules=breaker_rules(settings), specs=settings.executors)
        self._slots = Slots(breakers, executor_limits(settings), session=session_limit(settings), signal=self._signal)
        self._callbacks = Callbacks(key)
        self.tool_tokens = ToolTokens(engine, ids, key=key, shared=parts.shared)
        self.tickets = Tickets(engine, clock, ids, key=key)
        self.tool_watch = ToolWatch(engine, clock, self.tickets, self._tasks, late=tuning.tools_late)
        scanner = SecretScanner(metrics, settings.executors)
        self._dispatcher = Dispatcher(
            services,
            slots=self._slots,
            breakers=breakers,
            callbacks=self._callbacks,
            scanner=scanner,
            backends=self._backends,
            signal=self._signal,
            may_start=self._may_start,
        )
        shared = Shared(
            engine=engine,
            clock=clock,
            ids=ids,
            metrics=metrics,
            slots=self._slots,
            dispatcher=self._dispatcher,
            jitter=ids.jitter,
            backends=self._backends,
            keeper=self._keeper,
            notifications=self._notifications,
            interaction_feed=self._interaction_feed,
            all_sessions=self._all_sessions,
            tuning=tuning,
            reviews=Reviews(),
            signal=self._signal,
            tool_watch=self.tool_watch,
            tasks=self._tasks,
            drain=self.draining,
            traces=parts.traces,
        )
        handover = Handover(engine, clock, ids, self._notifications)
        self._sessions = Sessions(shared, settings.limits, leave=handover.leave, started=handover.wake)
        self._runtimes = Runtimes(shared, self._sessions, self.tickets, self._offered, self.draining)
        self.hops = Hops(key, clock, ids)
        self._member = ClusterMember(shared, self._sessions, handover, client=client, hops=self.hops)
        self.opening = Opening(engine, self._sessions, self._runtimes, lambda: self.settings.limits, self.draining)
        self.status = Status(
            shared,
            self._sessions,
            self._runtimes,
            offer=self._offered,
            adapters=parts.adapters,
            settings=lambda: self.settings,
        )
        self.native = NativeReader(engine, parts.adapters, lambda: self.settings.runtimes)
        self._redriving = Redriving(engine, self._sessions, clock, ids, wake=self._backends.wake, drain=self.draining)
        self.calls = Calls(
            services, self._sessions, self._dispatcher, self._callbacks, self._redriving, largest=self._largest_answer
        )
        self.interactions = Interactions(
            engine, self._sessions, self._interaction_feed, heartbeat=self._heartbeat, ended=self.draining.over
        )
        self._maintenance = Maintenance(engine, metrics, self._sessions, self._keeper, tuning, self.status)
        self.forwarder = self._member.forwarder
        self.callers = Callers(
            engine,
            self._sessions,
            ids,
            lambda session_id, after, heartbeat: self.follow(session_id, after=after, heartbeat=heartbeat),
            beat=tuning.beat,
            drain=self.draining,
        )
        self.deduplicator = CallDeduplicator(engine, self._sessions, clock, ids, self._keeper)
        self._configuration = Configuration(
            settings,
            self._reread,
            Configured(
                adapters=parts.adapters,
                ambient=self.ambient,
                metrics=metrics,
                backends=self._backends,
                scanner=scanner,
                breakers=breakers,
                slots=self._slots,
                callbacks=self._callbacks,
                tickets=self.tickets,
                sessions=self._sessions,
                runtimes=self._runtimes,
                takeover=self._member.takeover,
                tasks=self._tasks,
                local_url=parts.local_url,
                file=parts.file,
                tuning=tuning,
            ),
        )
        self.dead_letters = DeadLetters(
            engine,
            redrive=self._redriving.dead_call,
            redeliver=self._redriving.dead_delivery,
            dismiss=self._redriving.dismiss,
        )

    @property
    def settings(self) -> Settings:
        """The configuration in force."""
        return self._configuration.settings

    @property
    def generation(self) -> Generation:
        """The name of the store's history, which is part of every position in it."""
        return self._engine.generation

    # Lifecycle --------------------------------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def running(cls, settings: Settings, parts: Parts) -> AsyncGenerator["Gateway"]:
        """Open the store, connect all runtimes and join the cluster; undo all of it on exit.

        Raises:
            EngineUnavailable: the store does not respond, or grants no lease.
            EngineUnusable: the store cannot be used.
        """
        # If a part cannot start, the parts before it are closed in reverse order.
        async with AsyncExitStack() as stack:
            stack.callback(Ambient.here().bind)
            Ambient(Faults(parts.metrics.faults, parts.ids.jitter)).bind()
            stack.enter_context(loop_faults())
            if (traces := parts.traces) is not None:
                closing = partial(in_thread, "traces", traces.close, within=_CLOSE_TRACES, what="exporting spans")
                stack.push_async_callback(lambda: suppress_faults("traces", closing()))
            await stack.enter_async_context(parts.engine)
            key = await keep_key(parts.engine, parts.ids)
            client = await stack.enter_async_context(make_peer_client())
            gateway = cls(settings, parts, key=key, client=client)
            await gateway._start(stack)
            log.info("gateway started", version=gateway.version, runtimes=len(settings.runtimes))
            yield gateway
        log.info("gateway stopped")

    async def _start(self, stack: AsyncExitStack) -> None:
        """Start all parts in the order of their dependencies; their exits go onto the stack."""
        settings = self.settings
        stack.push_async_callback(self._tasks.close)
        await _enter(stack, "cluster member", self._member.joined())
        stack.callback(guard_call("dispatcher", self._dispatcher.stop))
        await _enter(stack, "backends", self._backends.opened(settings))
        self._configuration.use(settings)
        stack.push_async_callback(lambda: suppress_faults("sessions", self._sessions.end()))
        for name in settings.runtimes:
            await self._configuration.start_runtime(name)
        await self._configuration.start_sessions(self._parts.report)
        await _enter(stack, "cluster member", self._member.taking_over())
        stack.enter_context(self._maintenance.running(self._tasks, lambda: self.settings.retention))
        stack.push_async_callback(lambda: suppress_faults("drain", self._stop()))

    async def drain(self) -> None:
        """Refuse new work and wait until nothing is in flight, at most `limits.drain`; then end held requests.

        Queued and accepted calls and waiting messages are recorded and continue with the next process. If another
        instance is alive, it takes over each session that has nothing in flight.
        """
        if self.draining.begun.happened:
            return
        self.draining.begun.set()
        self._slots.pause()
        log.info("draining", in_flight=self._in_flight().total())
        monotonic = self._parts.clock.monotonic
        ends, checked, can_hand_over = monotonic() + self.settings.limits.drain.total_seconds(), -inf, False
        while True:
            # A store or a link that does not respond must not delay the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, ends - monotonic())):
                    if not can_hand_over and monotonic() - checked > _CHECK_INSTANCES:
                        can_hand_over, checked = await self._member.stop_taking_over(), monotonic()
                    if can_hand_over:
                        await self._sessions.hand_over(self._sessions.idle())
            in_flight = self._in_flight()
            if not in_flight:
                break
            if monotonic() >= ends:
                text = f"drain timed out: {describe(in_flight)}"
                log.warning(text)
                break
            # Uncommitted marks count as work in flight until the next check.
            self._sessions.write_marks()
            await asyncio.sleep(_CHECK_WORK)
        self.draining.over.set()

    def _in_flight(self) -> InFlight:
        """Count the work that a drain waits for."""
        work = InFlight()
        for actor in self._sessions.all():
            session = f"session {label_session(actor.view)}"
            for executor, count in self._dispatcher.attempts(actor.view).items():
                work["attempt", f"at executor {executor!r} for {session}"] += count
            if actor.in_flight is not None:
                work[actor.in_flight, f"for {session}"] += 1
        for session_id, count in self.callers.held_by_session.items():
            here = self._sessions.owned(session_id)
            name = session_id if here is None else label_session(here.view)
            work["held request", f"for session {name}"] += count
        for runtime, count in self._runtimes.creating.items():
            work["session creation", f"at runtime {runtime!r}"] += count
        return work

    async def _stop(self) -> None:
        """Drain unless that is done, close the links, and release all sessions and locks."""
        await self.drain()
        await self._sessions.close_links()
        await self._backends.finish()
        await self._member.leave()

    def call_when_reloaded(self, call: Callable[[Settings], None]) -> None:
        """Call a function with each reloaded configuration after it takes effect."""
        self._configuration.call_when_reloaded(call)

    async def reload(self, *, force: bool = False, dry_run: bool = False) -> Reloaded:
        """Read the configuration file again and apply it; a dry run only reports the differences.

        Raises:
            InvalidConfiguration: the file has errors; nothing was changed.
            Conflict: the gateway drains, or a runtime that cannot replay would restart without `force`.
        """
        return await self._configuration.reload(force=force, dry_run=dry_run)

    def _reread(self) -> Settings:
        self._refuse_while_draining()
        settings = self._parts.reread()
        # The drain may have started meanwhile.
        self._refuse_while_draining()
        return settings

    def _refuse_while_draining(self) -> None:
        if self.draining.begun.happened:
            raise Conflict("the gateway is stopping; the next process reads the configuration when it starts")

    # Sessions --------------------------------------------------------------------------------------------

    def capabilities(self, runtime: str) -> Capabilities:
        """Return the capabilities of a runtime's protocol.

        Raises:
            NotFound: no such runtime is configured.
        """
        return self._sessions.runtime(runtime).adapter.capabilities

    def options(self, runtime: str) -> RuntimeOptions:
        """Return the options of a connected runtime.

        Raises:
            NotFound: no such runtime is configured.
        """
        return self._sessions.runtime(runtime).options

    def _signal(self, session_id: SessionId, signal: Signal) -> None:
        self._sessions.signal(session_id, signal)

    def _may_start(self, session_id: SessionId) -> bool:
        """Whether this process may start work for a session: it owns it, and does not stop."""
        actor = self._sessions.owned(session_id)
        return actor is not None and actor.permit.holds and not self.draining.begun.happened

    async def session(self, session_id: SessionId) -> SessionRow:
        return await self._sessions.session(session_id)

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._engine.sessions(page, which, newest_first=newest_first)

    async def close_session(self, session_id: SessionId, *, erase: bool) -> None:
        row = await self.session(session_id)
        await self._sessions.close(row, self._configuration.policy, reason="closed by a client")
        if erase:
            await self._engine.erase(session_id)
            await self.tickets.forget(session_id)
            await self.tool_watch.erase(session_id)

    async def rotate_ticket(self, session_id: SessionId) -> None:
        """Revoke the ticket of a native session, or replace that of its runtime if its sessions share one.

        Raises:
            Conflict: the session has no ticket.
        """
        row = await self.session(session_id)
        options = self.settings.runtimes.get(row.runtime)
        if options is not None and options.shares_tools:
            await self.tickets.rotate_shared(row.runtime)
            await self._runtimes.share_tools(row.runtime)
        else:
            await self.tickets.rotate(session_id)

    async def post(
        self, session_id: SessionId, events: Sequence[Event], *, by: str, keep: Keep | None = None
    ) -> Sequence[Envelope]:
        """Record client events and send them to the runtime; if one cannot be expressed, none is recorded.

        `by` is the name of the API key. With `keep`, the response is committed with the events.

        Raises:
            Draining: the gateway is stopping, and the events include more than answers and interrupts.
        """
        actor = await self._sessions.actor(session_id)
        if not all(event.kind in FINISHING_KINDS for event in events):
            self.draining.refuse_new()
        return await self._sessions.ask(actor, Post(events, reply_slot(), by, keep))

    async def page_of_events(
        self, session_id: SessionId, kinds: Collection[str] = (), *, after: int, limit: int, excerpts: bool = False
    ) -> tuple[Sequence[Envelope], int | None]:
        """List events, all or those of some kinds; return the sequence after which the next page starts as well.

        Raises:
            Gone: retention removed events right after `after`, or the session ends before it.
        """
        try:
            if kinds:
                found, following = await self._engine.read_kinds(
                    session_id, kinds, after=after, limit=limit, excerpts=excerpts
                )
            else:
                found = await self._engine.read(session_id, after=after, limit=limit, excerpts=excerpts)
                following = found[-1].sequence if found.more else None
            page = await with_links(self._engine, session_id, found, more=bool(kinds) or following is not None)
        except Truncated as exc:
            raise _removed(after, exc) from exc
        if not page and following is None and after > (last := (await self.session(session_id)).last_sequence):
            text = f"the session ends at {last}, before {after}: was its store restored? Continue with `after={last}`"
            raise Gone(text, first_sequence=last + 1)
        return page, following

    async def last_context(self, session_id: SessionId) -> tuple[Envelope | None, int]:
        """Find the last context of a session, and the oldest sequence that was searched; None if it was erased."""
        found, searched_from = await self._engine.latest_event(session_id, "context.updated")
        return None if found is None or is_erased(found.event) else found, searched_from

    async def redeliver(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send one event copy or outbound event again."""
        await self._redriving.delivery(session_id, sequence, target)

    def follow(
        self, session_id: SessionId, *, after: int | None, heartbeat: float | None = None
    ) -> AsyncGenerator[StreamItem]:
        """Yield the history after `after`, then new events; None starts with new events.

        Ends when the session is closed or the gateway stops. Only the instance that owns the session yields live
        events.
        """
        heartbeat, feeds = heartbeat or self._heartbeat(), self._member.remote_feeds
        return follow(self._history, session_id, feeds, after=after, heartbeat=heartbeat, ended=self.draining.over)

    def follow_all(
        self, which: EventFilter, *, after: Position | None, is_gap: bool = False
    ) -> AsyncGenerator[SessionItem]:
        """Yield the matching events of all sessions after a position, then new ones; None starts with new events.

        With `is_gap`, the first item says that events are missing.
        """
        heartbeat, ended = self._heartbeat(), self.draining.over
        return self._all_sessions.follow(which, after=after, is_gap=is_gap, heartbeat=heartbeat, ended=ended)

    def _heartbeat(self) -> float:
        return self.settings.api.heartbeat.total_seconds()

    def _largest_answer(self, executor: str | None) -> int | None:
        spec = self.settings.executors.get(executor or "")
        return int(spec.max_response) if isinstance(spec, WebhookSpec) else None

    def offered(self, session: CalledSession) -> Sequence[OfferedTool]:
        """List the tools that callers of a session may call: the configured ones with a route."""
        return self._offered(session.runtime, session.labels)

    def _offered(self, runtime: str, labels: Mapping[str, str]) -> Sequence[OfferedTool]:
        return offered(self.settings, self._configuration.policy, runtime=runtime, labels=labels)

    # Instances, locks and responses -----------------------------------------------------------------------

    async def instances(self) -> Sequence[Instance]:
        """List the processes that use this store."""
        return await self._engine.instances()

    async def enable_destination(self, name: str) -> None:
        """Enable a destination again after it answered 410."""
        await self._backends.enable(name)

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        return await self._engine.recall(key=key, scope=scope)

    def keep(self, *, key: str, scope: str, request_sha: str, keep: timedelta) -> Keep:
        """Return the key under which `post` stores its response with the events."""
        return Keep(key, scope, request_sha, self._parts.clock.now() + keep, events=())

    async def remember(self, *, key: str, scope: str, request_sha: str, response: bytes, keep: timedelta) -> bool:
        answer = StoredAnswer(request_sha, response, self._parts.clock.now() + keep)
        return await self._engine.remember(key=key, scope=scope, answer=answer)

    async def hold(self, name: str) -> bool:
        """Take or renew a lock across instances; return False if another one holds it or the lease has expired."""
        return await self._keeper.hold(name)

    async def release_name(self, name: str) -> None:
        """Release a lock across instances."""
        await self._keeper.release_name(name)

    def render_metrics(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return self._parts.metrics.render()

    # Lease ------------------------------------------------------------------------------------------------

    def _suspend(self) -> None:
        self._sessions.suspend_all()

    async def _resume(self, mine: Sequence[Regained]) -> None:
        await self._member.takeover.resume(mine)


def _removed(after: int, exc: Truncated) -> Gone:
    text = f"events after {after} were removed by retention; the history starts at {exc.first_sequence}"
    return Gone(text, first_sequence=exc.first_sequence)


async def _enter(stack: AsyncExitStack, name: str, part: AbstractAsyncContextManager[None]) -> None:
    """Enter a part; an exception at its exit is logged with its name and does not stop the other exits."""
    await part.__aenter__()
    stack.push_async_callback(lambda: suppress_faults(name, part.__aexit__(None, None, None)))
