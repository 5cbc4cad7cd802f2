"""The gateway as one object: what the HTTP face and the command line may ask of it."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
import structlog

from gateway.adapter.options import McpClient
from gateway.adapter.port import Adapter, Capabilities
from gateway.clock import Clock, Ids
from gateway.errors import (
    Conflict,
    Elsewhere,
    EngineUnavailable,
    Gone,
    InvalidRequest,
    Overloaded,
    Truncated,
    Unconfigured,
)
from gateway.events import Envelope, Event, SessionId, session_id as name_session
from gateway.executors.port import Destination, Executor
from gateway.guard import FAULTS, Tasks, count_what_is_left, guard_call, tried
from gateway.runtime.bounds import breaker_rules, executor_limits, session_limit
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks, keep_key
from gateway.runtime.calls.callers import Callers
from gateway.runtime.calls.calls import Calls
from gateway.runtime.calls.dead_letters import DeadLetters
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.offered import OfferedTool, offered
from gateway.runtime.calls.quotes import Quotes
from gateway.runtime.calls.redriving import Redriving
from gateway.runtime.calls.repeats import Repeats
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tickets import Ticket, Tickets
from gateway.runtime.calls.tool_tokens import ToolTokens
from gateway.runtime.cluster.forwarding import make_peer_client
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.runtime.cluster.member import ClusterMember
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.configuration import Configuration, Configured
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.delivery.maintenance import Maintenance
from gateway.runtime.feeds.follow import PAGES, follow
from gateway.runtime.feeds.interactions import InteractionFeed
from gateway.runtime.feeds.linked import with_links
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.interactions import Interactions
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.closing import Closing
from gateway.runtime.session.directory import SessionDirectory, reply_slot
from gateway.runtime.session.due import Reviews
from gateway.runtime.session.runtimes import Runtimes
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.signals import (
    CloseOrdered,
    Post,
)
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import (
    CalledSession,
    LinkStatus,
    Readiness,
    Reloaded,
    RuntimeStatus,
    StreamItem,
    UnconnectedRuntime,
)
from gateway.settings.model import DestinationSpec, ExecutorSpec, Limits, Settings, WebhookSpec
from gateway.store.port import Engine
from gateway.store.rows import ANY_SESSION, Instance, Page, Regained, SessionFilter, SessionRow, StoredAnswer
from gateway.store.step import Keep

_UNCONNECTED = "it is not connected so far; that is tried again, and the log says why it fails"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The concrete pieces a gateway is made of; bootstrap picks them."""

    engine: Engine
    adapters: Mapping[str, Adapter]
    make_executor: Callable[[ExecutorSpec], Executor]
    make_destination: Callable[[DestinationSpec], Destination]
    clock: Clock
    ids: Ids
    metrics: Metrics
    reread: Callable[[], Settings]
    """Read the configuration again; raises InvalidConfiguration."""
    version: str
    url: str
    """Where other instances reach this one's API."""
    shared: bool
    """Whether other instances may be on the same store."""
    tuning: Tuning = field(default_factory=Tuning)


class Gateway:
    """Drives every session; `running` makes one, before the HTTP face takes requests.

    Errors are those of `gateway.errors`: NotFound, Conflict, Gone, Inexpressible, InvalidRequest,
    Overloaded, EngineUnavailable, InvalidConfiguration.
    """

    def __init__(self, settings: Settings, parts: Parts, *, key: bytes, client: aiohttp.ClientSession) -> None:
        """Put the parts together; `key` is what the store keeps for tokens, `client` reaches other instances."""
        self.version = parts.version
        self.tuning = parts.tuning
        self._parts = parts
        self._engine = parts.engine
        self._draining = Ending()
        self._history_pages = asyncio.Semaphore(PAGES)
        # For jitter only: nobody gains from guessing it.
        jitter = random.random
        engine, clock, ids, metrics, tuning = parts.engine, parts.clock, parts.ids, parts.metrics, parts.tuning
        self._tasks = Tasks()
        self._notifications = Notifications(engine)
        self._keeper = LeaseKeeper(
            engine,
            clock,
            metrics,
            self._tasks,
            url=parts.url,
            ttl=settings.instance.lease if parts.shared else None,
            lost=self._fall_silent,
            regained=self._go_on,
        )
        self._interaction_feed = InteractionFeed(lambda changed: self._notifications.tell("interaction", changed))
        self._backends = Backends(
            parts.make_executor,
            parts.make_destination,
            engine,
            clock,
            jitter,
            keeper=self._keeper,
            notifications=self._notifications,
            tasks=self._tasks,
            tuning=tuning,
        )
        breakers = Breakers(clock, metrics, jitter, rules=breaker_rules(settings), specs=settings.executors)
        self._slots = Slots(breakers, executor_limits(settings), session=session_limit(settings))
        self._callbacks = Callbacks(key)
        self.tool_tokens = ToolTokens(engine, ids, key=key, shared=parts.shared)
        self.tickets = Tickets(engine, clock, ids, key=key)
        quotes = Quotes(metrics, settings.executors)
        self._dispatcher = Dispatcher(
            clock=clock,
            metrics=metrics,
            slots=self._slots,
            breakers=breakers,
            jitter=jitter,
            callbacks=self._callbacks,
            quotes=quotes,
            backends=self._backends,
            tasks=self._tasks,
        )
        shared = Shared(
            engine=engine,
            clock=clock,
            ids=ids,
            metrics=metrics,
            slots=self._slots,
            dispatcher=self._dispatcher,
            jitter=jitter,
            backends=self._backends,
            keeper=self._keeper,
            notifications=self._notifications,
            interaction_feed=self._interaction_feed,
            tuning=tuning,
            reviews=Reviews(),
            tasks=self._tasks,
        )
        handover = Handover(engine, clock, ids, self._notifications)
        self._sessions = Sessions(shared, handover, settings.limits)
        self._runtimes = Runtimes(shared, self._sessions, self.tickets, self._offered)
        self._closing = Closing(shared, self._sessions)
        self._member = ClusterMember(shared, self._sessions, handover, client=client)
        self._directory = SessionDirectory(engine, self._sessions, patience=tuning.reply)
        self._redriving = Redriving(engine, self._directory, clock, ids, wake=self._backends.wake)
        self.calls = Calls(
            engine,
            self._directory,
            self._dispatcher,
            self._callbacks,
            self._redriving,
            late=tuning.late,
            largest=self._largest_answer,
        )
        self.interactions = Interactions(
            engine,
            self._directory,
            self._interaction_feed,
            heartbeat=self._heartbeat,
            ended=self._draining,
        )
        self._maintenance = Maintenance(engine, metrics, self._sessions, self._keeper, tuning)
        self.forwarder = self._member.forwarder
        self.callers = Callers(
            engine,
            self._directory,
            ids,
            lambda session_id, after, heartbeat: self.follow(session_id, after=after, heartbeat=heartbeat),
            beat=tuning.beat,
            ended=self._draining,
        )
        self.repeats = Repeats(engine, clock, ids, self._keeper, self._tasks, read_only=self._is_read_only)
        self._configuration = Configuration(
            settings,
            self._reread,
            Configured(
                adapters=parts.adapters,
                metrics=metrics,
                backends=self._backends,
                quotes=quotes,
                breakers=breakers,
                slots=self._slots,
                callbacks=self._callbacks,
                tickets=self.tickets,
                sessions=self._sessions,
                runtimes=self._runtimes,
                takeover=self._member.takeover,
                tasks=self._tasks,
                reread_within=tuning.reread,
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

    # Life ------------------------------------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def running(cls, settings: Settings, parts: Parts) -> AsyncGenerator["Gateway"]:
        """Open the store, connect every runtime and take part in the cluster; what was begun is left in the end.

        Raises:
            EngineUnavailable, EngineUnusable: the store cannot be used, or takes no lease.
        """
        count_what_is_left()
        # Whatever it is that cannot start: everything that did is left again, in the opposite order.
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(parts.engine)
            key = await keep_key(parts.engine, parts.ids)
            client = await stack.enter_async_context(make_peer_client())
            gateway = cls(settings, parts, key=key, client=client)
            await gateway._start(stack)
            log.info("gateway started", version=gateway.version, runtimes=len(settings.runtimes))
            yield gateway
        log.info("gateway stopped")

    async def _start(self, stack: AsyncExitStack) -> None:
        """Begin everything, in the order in which one needs the other; what ends it goes on the stack."""
        settings = self.settings
        stack.push_async_callback(self._tasks.close)
        stack.push_async_callback(lambda: tried("repeats", self.repeats.write()))
        await _enter(stack, "cluster member", self._member.joined())
        stack.callback(guard_call("dispatcher", self._dispatcher.stop))
        await _enter(stack, "backends", self._backends.opened(settings))
        self._configuration.use(settings)
        stack.push_async_callback(lambda: tried("sessions", self._sessions.end()))
        for name in settings.runtimes:
            await self._configuration.start_runtime(name)
        await _enter(stack, "cluster member", self._member.taking_part())
        stack.enter_context(self._maintenance.running(self._tasks, lambda: self.settings.retention))
        stack.push_async_callback(lambda: tried("drain", self.drain()))

    async def drain(self) -> None:
        """Start nothing new, let calls in flight end and their outcomes leave, then close the links.

        Calls that arrive meanwhile are put on record and start with the next process. Where another instance
        lives, each session goes to it as soon as it has nothing under way.
        """
        if self._draining.is_set():
            return
        self._draining.set()
        self._slots.pause()
        log.info("draining", in_flight=self._dispatcher.in_flight)
        patience = self.settings.limits.drain.total_seconds()
        started = self._parts.clock.monotonic()
        hands_over = await self._member.hands_over()
        while self._parts.clock.monotonic() - started < patience:
            if hands_over:
                await self._sessions.hand_over(self._sessions.ready_to_go())
            if self._dispatcher.in_flight == 0 and all(c.worker.settled for c in self._sessions.all()):
                break
            # Behind the look, since what it puts in is under way itself until the next one.
            self._sessions.write_marks()
            await asyncio.sleep(0.02)
        else:
            log.warning("drain ended with calls in flight", in_flight=self._dispatcher.in_flight)
        await self._sessions.let_go_of_links()
        await self._backends.finish()
        await self._member.leave()

    def call_when_reloaded(self, call: Callable[[Limits], None]) -> None:
        """Have something called with the limits of each configuration that is reloaded, once it is in force."""
        self._configuration.call_when_reloaded(call)

    async def reload(self) -> Reloaded:
        """Read the configuration file again; a bad one changes nothing and raises InvalidConfiguration.

        Raises:
            Conflict: the gateway drains, and what a change would cut off is what the drain waits for.
        """
        return await self._configuration.reload()

    def _reread(self) -> Settings:
        self._refuse_while_draining()
        settings = self._parts.reread()
        # It may have begun meanwhile.
        self._refuse_while_draining()
        return settings

    def _refuse_while_draining(self) -> None:
        if self._draining.is_set():
            raise Conflict("the gateway is leaving; the next process reads the configuration when it starts")

    # Sessions --------------------------------------------------------------------------------------------

    async def open_session(
        self,
        runtime: str,
        *,
        native_id: str | None,
        labels: Mapping[str, str],
        name: str | None = None,
        instructions: str | None = None,
    ) -> tuple[SessionRow, bool, Sequence[str]]:
        """Attach to a native session, or create one where no id is given; says whether it is new.

        Beside it are the tools that the runtime was told on creation.
        """
        options = self._sessions.runtime(runtime).options
        if options.mcp_clients is not None:
            raise InvalidRequest(f"clients open the sessions of runtime {runtime!r} themselves", pointer="/runtime")
        merged = {**options.labels, **labels}
        self._have_room(runtime, native_id)
        if native_id is not None:
            row, is_new = await self._runtimes.open(runtime, native_id, labels=merged)
            return row, is_new, ()
        if not options.creates:
            raise InvalidRequest(
                f"runtime {runtime!r} is not configured to create sessions; give a native_id", pointer="/native_id"
            )
        return await self._runtimes.create(runtime, labels=merged, name=name, instructions=instructions)

    async def called_session(self, session_id: SessionId) -> CalledSession:
        """Find the session whose tools somebody asks for; what is carried here is found without the store."""
        return self._called_here(session_id) or _called(await self.session(session_id))

    def _called_here(self, session_id: SessionId) -> CalledSession | None:
        carried = self._sessions.carried(session_id)
        if carried is None or carried.worker.view.memory.closed:
            return None
        view = carried.worker.view
        return CalledSession(session_id, view.runtime, view.native_id, view.memory.labels)

    async def session_of_client(self, runtime: str, client: McpClient) -> CalledSession:
        """Find the session of a client that came to us; where there is none, or a closed one, it is opened.

        Raises:
            Elsewhere: the runtime is not taken up here yet.
        """
        session_id = name_session(runtime=runtime, native_session_id=client.name)
        if (here := self._called_here(session_id)) is not None:
            return here
        row = await self._engine.session(session_id)
        if row is not None and row.state != "closed":
            return _called(row)
        taken_up = self._sessions.runtimes.get(runtime)
        if taken_up is None or taken_up.connector is not None:
            raise Elsewhere(session_id, f"the runtime {runtime!r} is being taken up")
        self._have_room(runtime, client.name)
        labels = {**taken_up.options.labels, **client.labels}
        row, _ = await self._runtimes.open(runtime, client.name, labels=labels)
        return _called(row)

    def _have_room(self, runtime: str, native_id: str | None) -> None:
        known = native_id is not None and self._sessions.carries(runtime, native_id)
        if not known and self._sessions.count >= self.settings.limits.sessions:
            raise Overloaded(f"{self._sessions.count} sessions are carried here already; close some")

    async def session_of_ticket(self, ticket: Ticket, native_id: str | None) -> CalledSession | None:
        """Find the session that a ticket was issued for; None where that is not on record yet.

        A gateway that has died between creating it and putting it on record has left that to whoever hears first from
        its runtime which one it is.
        """
        if ticket.session_id is not None:
            return await self.called_session(ticket.session_id)
        if native_id is None:
            return None
        row, _ = await self._runtimes.open(ticket.runtime, native_id, labels=dict(ticket.labels), ticket=ticket)
        return _called(row)

    def capabilities(self, runtime: str) -> Capabilities:
        """Say what the protocol of a runtime can do.

        Raises:
            NotFound: the configuration has no such runtime.
        """
        return self._sessions.runtime(runtime).adapter.capabilities

    async def session(self, session_id: SessionId) -> SessionRow:
        return await self._directory.session(session_id)

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._engine.sessions(page, which, newest_first=newest_first)

    async def close_session(self, session_id: SessionId, *, erase: bool) -> None:
        row = await self.session(session_id)
        carried = self._sessions.carried(session_id)
        if carried is not None:
            await self._directory.ask(carried.worker, CloseOrdered("closed by a client", reply_slot()))
            await asyncio.wait(carried.tasks, timeout=self._directory.patience)
        elif row.state != "closed":
            missing = await self._directory.not_here(row)
            if not isinstance(missing, Unconfigured):
                raise missing
            await self._closing.close(row, self._configuration.policy, reason="closed by a client")
        if erase:
            await self._engine.erase(session_id)
            await self.tickets.forget(session_id)

    async def post(
        self, session_id: SessionId, events: Sequence[Event], *, by: str, keep: Keep | None = None
    ) -> Sequence[Envelope]:
        """Record client events and send them on; nothing is recorded where one cannot be expressed.

        `by` names the API key. With `keep`, the answer is on record in the same moment as the events.
        """
        worker = await self._directory.worker(session_id)
        return await self._directory.ask(worker, Post(events, reply_slot(), by, keep))

    async def read(self, session_id: SessionId, *, after: int, limit: int) -> Sequence[Envelope]:
        try:
            page = await self._engine.read(session_id, after=after, limit=limit)
            return await with_links(self._engine, session_id, page, more=len(page) == limit)
        except Truncated as exc:
            text = f"the events behind {after} were removed by retention; history begins at {exc.first_sequence}"
            raise Gone(text, first_sequence=exc.first_sequence) from exc

    async def redeliver(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send one event copy or outbound event again."""
        await self._redriving.delivery(session_id, sequence, target)

    def follow(
        self, session_id: SessionId, *, after: int | None, heartbeat: float | None = None
    ) -> AsyncGenerator[StreamItem]:
        """Yield history behind `after`, then what happens; None begins with what happens next.

        Ends when the session is closed or the gateway stops. What is only live is shown by the instance that
        carries the session.
        """
        heartbeat, feeds = heartbeat or self._heartbeat(), self._member.remote_feeds
        return follow(
            self._engine,
            session_id,
            feeds,
            after=after,
            heartbeat=heartbeat,
            ended=self._draining,
            pages=self._history_pages,
        )

    def _heartbeat(self) -> float:
        return self.settings.api.heartbeat.total_seconds()

    def _largest_answer(self, executor: str | None) -> int | None:
        spec = self.settings.executors.get(executor or "")
        return int(spec.max_response) if isinstance(spec, WebhookSpec) else None

    def _is_read_only(self, tool: str) -> bool:
        spec = self.settings.tools.get(tool)
        return spec is not None and spec.read_only

    def offered(self, session: CalledSession) -> Sequence[OfferedTool]:
        """List the tools that callers of a session may call: those of the catalog that a route leads somewhere."""
        return self._offered(session.runtime, session.labels)

    def _offered(self, runtime: str, labels: Mapping[str, str]) -> Sequence[OfferedTool]:
        return offered(self.settings, self._configuration.policy, runtime=runtime, labels=labels)

    # Surroundings ----------------------------------------------------------------------------------------

    async def instances(self) -> Sequence[Instance]:
        """List the processes on this store."""
        return await self._engine.instances()

    async def enable_destination(self, name: str) -> None:
        """Switch a destination on again that had answered 410."""
        await self._backends.enable(name)

    async def sessions_without_tools(self) -> Collection[SessionId]:
        """Find the sessions at work here that were given a ticket to the tools, and have not asked for their list."""
        told = [name for name, runtime in self._sessions.runtimes.items() if runtime.options.takes_mcp]
        carried = [one.worker.view.session_id for name in told for one in self._sessions.of_runtime(name)]
        return {session_id for session_id in carried if await self.tickets.lacks_tools(session_id)}

    def runtimes(self) -> Sequence[RuntimeStatus]:
        """Show the runtimes that are connected; the others of the configuration are `unconnected`."""
        shown: list[RuntimeStatus] = []
        for name, runtime in self._sessions.runtimes.items():
            links = tuple(
                LinkStatus(
                    session_id=c.worker.view.session_id,
                    native_id=c.worker.view.native_id,
                    state=c.supervisor.state,
                    since=c.supervisor.since,
                    reason=c.supervisor.reason,
                )
                for c in self._sessions.of_runtime(name)
                if c.supervisor is not None
            )
            adapter = runtime.adapter
            shown.append(RuntimeStatus(name, adapter.name, adapter.protocol, adapter.capabilities, links))
        return shown

    def unconnected(self) -> Sequence[UnconnectedRuntime]:
        """Show the runtimes of the configuration that are not connected so far, most likely as their adapters fail."""
        adapters, connected = self._parts.adapters, self._sessions.runtimes
        return [
            UnconnectedRuntime(name, adapter.name, adapter.protocol, _UNCONNECTED)
            for name, options in self.settings.runtimes.items()
            if name not in connected
            for adapter in [adapters[options.adapter]]
        ]

    async def ready(self) -> Readiness:
        try:
            health = await self._engine.health()
            engine = "ok" if health.writable else health.detail or "takes no writes"
        except EngineUnavailable as exc:
            engine = str(exc)
        process = "draining" if self._draining.is_set() else "ok"
        checks = {"engine": engine, "configuration": "ok", "process": process}
        if self._keeper.shared:
            checks["lease"] = "ok" if self._keeper.lease is not None else "no lease runs, so no session is carried"
        lease = self._keeper.lease if self._keeper.shared else None
        return Readiness(
            ready=all(value == "ok" for value in checks.values()),
            checks=checks,
            sessions=self._sessions.count,
            instance_id=None if lease is None else lease.instance,
            failing=FAULTS.failing(asyncio.get_running_loop().time()),
        )

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        return await self._engine.recall(key=key, scope=scope)

    def keep(self, *, key: str, scope: str, request_sha: str, keep: timedelta) -> Keep:
        """Make the place under which `post` keeps its answer together with the events."""
        return Keep(key, scope, request_sha, self._parts.clock.now() + keep, events=())

    async def remember(self, *, key: str, scope: str, request_sha: str, response: bytes, keep: timedelta) -> bool:
        answer = StoredAnswer(request_sha, response, self._parts.clock.now() + keep)
        return await self._engine.remember(key=key, scope=scope, answer=answer)

    async def hold(self, name: str) -> bool:
        """Take or keep what only one instance may have; False while another living one has it, or no lease runs."""
        return await self._keeper.hold(name)

    async def let_go(self, name: str) -> None:
        """Leave to others at once what was held."""
        await self._keeper.let_go(name)

    def render_metrics(self) -> bytes:
        """Write all metrics in the Prometheus text format."""
        return self._parts.metrics.render()

    # Inside ----------------------------------------------------------------------------------------------

    def _fall_silent(self) -> None:
        self._sessions.suspend_all()

    async def _go_on(self, mine: Sequence[Regained]) -> None:
        await self._member.takeover.go_on(mine)


def _called(row: SessionRow) -> CalledSession:
    return CalledSession(row.session_id, row.runtime, row.native_id, row.labels)


async def _enter(stack: AsyncExitStack, name: str, part: AbstractAsyncContextManager[None]) -> None:
    """Enter a part; what it raises on the way out is logged with its name, and the others are left all the same."""
    await part.__aenter__()
    stack.push_async_callback(lambda: tried(name, part.__aexit__(None, None, None)))
