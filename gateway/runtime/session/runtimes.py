"""Connects the configured runtimes, and opens their configured sessions and those that clients request."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec

import structlog

from gateway.adapter.port import (
    Adapter,
    Capabilities,
    Codec,
    Connector,
    McpEndpoint,
    Order,
    RuntimeOptions,
    Tool,
    ToolRegistry,
)
from gateway.core.session import Policy, RuntimeContext
from gateway.core.state import first_state
from gateway.errors import DragomanError, EngineUnavailable, LinkRefused, OperatorError
from gateway.events import Envelope, Loss, SessionOpened, session_id as name_session
from gateway.guard import FAULTS, guard, in_time, is_fault, is_to_end, suppress_faults
from gateway.runtime.calls.offered import OfferedTool
from gateway.runtime.calls.tickets import Ticket, Tickets
from gateway.runtime.drain import Drain
from gateway.runtime.observe import warn_unserved
from gateway.runtime.session.codec import CheckedCodec
from gateway.runtime.session.link import LinkState, stopped
from gateway.runtime.session.native_frames import keep_frame
from gateway.runtime.session.registry import Sessions
from gateway.runtime.session.shared import Shared
from gateway.runtime.views import FailingAutostart
from gateway.store.port import NewSession
from gateway.store.rows import Page, SessionFilter, SessionRow
from gateway.strict_json import pointer

log = structlog.get_logger(__name__)

Offer = Callable[[str, Mapping[str, str]], Sequence[OfferedTool]]
_LONGEST_AFTER_FAULTS = 600.0
"""The longest back-off after an adapter fault, because each attempt may have created a session that stays unused."""
_CHECK_AGAIN = 1.0
"""Seconds between checks while another instance creates the session."""
_MOST_LOGGED = 100
"""Distinct reasons logged for one autostart."""
_UNREPORTED = "the adapter does not say whether the runtime was told"


class AdapterFailed(Exception):
    """An adapter raised an unexpected exception or hung before its runtime was connected."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A configured runtime that is connected."""

    name: str
    adapter: Adapter
    options: RuntimeOptions
    connector: Connector | None
    """None if the protocol has no links."""
    context: RuntimeContext
    stack: AsyncExitStack
    """Closes the connection."""
    tools: tuple[Tool, ...] = ()

    async def disconnect(self) -> None:
        """Close its connector, within the time limit for connecting."""
        await disconnected(self.name, self.stack, self.options)


async def disconnected(name: str, stack: AsyncExitStack, options: RuntimeOptions) -> None:
    """Close a connector; third-party code may raise or hang."""

    async def close() -> None:
        async with in_time(options.connect_timeout.total_seconds(), "closing the adapter's connector"):
            await stack.aclose()

    await suppress_faults("connector", close(), runtime=name)


class Runtimes:
    """Connects runtimes, and reconnects them with changed options; `Sessions` runs their sessions."""

    def __init__(self, shared: Shared, sessions: Sessions, tickets: Tickets, offer: Offer, drain: Drain) -> None:
        """Prepare; `offer` returns the tools that a session of a runtime gets, by its labels."""
        self._autostarts = Autostarts(shared, self._create_own, drain)
        self._shared = shared
        self._sessions = sessions
        self._tickets = tickets
        self._offer = offer
        self._unfinished: set[str] = set()
        """Runtimes with changed options whose connector or links are still old."""
        self.creating = Counter[str]()
        """The number of native sessions in creation, by runtime."""
        self._unopened: set[str] = set()
        """Connected runtimes whose configured session is not open yet."""
        shared.metrics.watch_links(self._update_gauges)

    async def start(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> None:
        """Connect a runtime and open its configured session; the takeover acquires the others.

        Raises:
            AdapterFailed: the runtime is not connected, and is listed in `unconnected` until it is.
        """
        try:
            runtime = await self._connect(name, adapter, options, tools=tools, policy=policy)
        except AdapterFailed:
            self._sessions.unconnected.add(name)
            raise
        self._sessions.unconnected.discard(name)
        await self._populate(runtime)

    async def renew(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> None:
        """Reconnect a runtime with other options; sessions and calls in flight continue."""
        old = self._sessions.runtimes[name]
        self._unfinished.add(name)
        await self._autostarts.stop(name)
        runtime = await self._connect(name, adapter, options, tools=tools, policy=policy)
        try:
            await self._sessions.relink(runtime)
        finally:
            await old.disconnect()
        self._unfinished.discard(name)
        await self._populate(runtime)

    async def populate(self, name: str) -> None:
        """Open the configured session of a connected runtime, after an earlier attempt failed."""
        await self._populate(self._sessions.runtimes[name])

    async def _connect(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> Runtime:
        stack = AsyncExitStack()
        try:
            connector, capabilities, codec = await _open_connector(adapter, options, stack)
        except BaseException:
            await disconnected(name, stack, options)
            raise
        context = RuntimeContext(
            adapter=adapter.name,
            protocol=adapter.protocol,
            name=name,
            capabilities=capabilities,
            codec=CheckedCodec(codec, runtime=name),
            options=options,
            policy=policy,
            keep_frame=keep_frame if options.keep_native else None,
        )
        runtime = Runtime(name, adapter, options, connector, context, stack, tools)
        self._sessions.runtimes[name] = runtime
        return runtime

    async def _populate(self, runtime: Runtime) -> None:
        name, options = runtime.name, runtime.options
        self._unopened.add(name)
        if options.shares_tools and (endpoint := await self._shared_endpoint(runtime)) is not None:
            # Started before the first link, because a link may start an agent, which reads the settings.
            register = partial(self._register, runtime, endpoint)
            guard("tools", register, self._shared.tasks, times=1, runtime=name)
        if options.native_id is not None:
            await self.open(name, options.native_id, labels=options.labels)
        self._unopened.discard(name)
        if options.autostart and options.creates:
            await self._autostarts.start(runtime)

    async def stop(self, name: str, *, returns: bool) -> None:
        """Disconnect a runtime and release its sessions; they wait in the store unless it `returns` at once."""
        await self._autostarts.stop(name)
        runtime = self._sessions.runtimes.pop(name)
        if not returns:
            sessions = list(self._sessions.of_runtime(name))
            calls = sum(len(actor.view.calls) for actor in sessions)
            warn_unserved(name, sessions=len(sessions), calls=calls)
        self._unfinished.discard(name)
        self._unopened.discard(name)
        stopped_sessions = await self._sessions.stop_sessions(name)
        await runtime.disconnect()
        await self._sessions.release(stopped_sessions)

    @property
    def failing_autostarts(self) -> Mapping[str, FailingAutostart]:
        """The last failure of each runtime whose configured session is not created yet."""
        return self._autostarts.failing

    async def _create_own(self, runtime: Runtime) -> None:
        await self.create(runtime.name, labels=runtime.options.labels)

    def is_unfinished(self, name: str) -> bool:
        """Return whether a runtime still runs with old options."""
        return name in self._unfinished

    def is_unopened(self, name: str) -> bool:
        """Return whether a runtime is connected without its configured session."""
        return name in self._unopened

    def gave_up(self, name: str) -> bool:
        """Return whether links of a runtime are retried only after a reload."""
        links = (actor.link for actor in self._sessions.of_runtime(name))
        return any(link is not None and link.gave_up for link in links)

    def change_policy(self, policy: Policy, tools: tuple[Tool, ...]) -> None:
        """Replace the routes, tools and limits for calls and new native sessions."""
        for name, runtime in self._sessions.runtimes.items():
            context = replace(runtime.context, policy=policy)
            self._sessions.runtimes[name] = replace(runtime, context=context, tools=tools)
            for actor in self._sessions.of_runtime(name):
                actor.reconfigure(context)
            self._share_soon(name)

    def _share_soon(self, name: str) -> None:
        if self._sessions.runtimes[name].options.shares_tools:
            guard("tools", partial(self.share_tools, name), self._shared.tasks, times=1, runtime=name)

    async def share_tools(self, name: str) -> McpEndpoint | None:
        """Store the endpoint of the tools in the runtime's own settings; return None if they are not used."""
        runtime = self._sessions.runtimes.get(name)
        if runtime is None or not runtime.options.shares_tools:
            return None
        endpoint = await self._shared_endpoint(runtime)
        return endpoint if endpoint is not None and await self._register(runtime, endpoint) else None

    async def _shared_endpoint(self, runtime: Runtime) -> McpEndpoint | None:
        """Return the endpoint for the runtime's settings; None if it cannot reach us or has no tools."""
        offered = self._offer(runtime.name, runtime.options.labels)
        base = runtime.options.mcp_base or self._tickets.public_url
        if base is None or not offered or find_spec("mcp") is None:
            return None
        longest = max(tool.longest for tool in offered)
        return await self._tickets.shared(runtime.name, base=base, longest=longest)

    async def _register(self, runtime: Runtime, endpoint: McpEndpoint) -> bool:
        registry: object = runtime.connector
        if not isinstance(registry, ToolRegistry):
            return False
        before = registry.tools_problem
        async with in_time(self._shared.tuning.adapter, "the adapter's register_tools"):
            await registry.register_tools(endpoint)
        problem = registry.tools_problem
        if problem is not None:
            log.warning("tools are not in the runtime's settings", runtime=runtime.name, reason=problem)
        elif before is not None:
            log.info("tools are in the runtime's settings", runtime=runtime.name)
        return problem is None

    def _update_gauges(self) -> None:
        """Update the gauges of sessions and links by runtime; counted on each scrape."""
        states: dict[str, list[LinkState]] = {name: [] for name in self._sessions.runtimes}
        sessions = Counter[str]()
        for actor in self._sessions.all():
            name = actor.view.runtime
            sessions[name] += 1
            if actor.link is not None and name in states:
                states[name].append(actor.link.state)
        for name in self._sessions.unconnected:
            self._shared.metrics.link(name, up=False, asleep=0)
        for name, links in states.items():
            # A stopped session without waiting events needs no link.
            up = all(state in {"up", "asleep"} for state in links) if links else None
            if name in self._autostarts.failing:
                up = False
            self._shared.metrics.link(name, up=up, asleep=links.count("asleep"))
            self._shared.metrics.sessions(name, sessions[name])

    # Their sessions --------------------------------------------------------------------------------------

    async def open(
        self,
        runtime_name: str,
        native_id: str,
        *,
        labels: dict[str, str],
        losses: tuple[Loss, ...] = (),
        ticket: Ticket | None = None,
        since: datetime | None = None,
    ) -> tuple[SessionRow, bool]:
        """Attach to a native session; the labels of an open session stay unchanged.

        `losses` and `ticket` belong to its creation and are recorded with it. Its agent started at `since` or later.
        """
        runtime = self._sessions.runtime(runtime_name)
        session_id = name_session(runtime=runtime_name, native_session_id=native_id)
        protocol = runtime.adapter.protocol
        opened = SessionOpened(
            runtime=runtime_name,
            protocol=protocol,
            native_id=native_id,
            labels=labels,
            echoes=runtime.adapter.capabilities.echoes,
            delegates=runtime.options.delegates,
        )
        row, new = await self._shared.engine.open_session(
            NewSession(
                session_id=session_id,
                runtime=runtime_name,
                protocol=protocol,
                native_id=native_id,
                labels=labels,
                first=Envelope(
                    event_id=self._shared.ids.event_id(),
                    session_id=session_id,
                    sequence=0,
                    recorded_at=self._shared.clock.now(),
                    direction="to_runtime",
                    event=opened,
                    losses=losses,
                    synthetic=True,
                ),
                state=first_state(runtime.adapter.capabilities),
                notes=self._tickets.notes(ticket, session_id),
            )
        )
        if new and runtime.options.takes_mcp:
            began = since or (self._shared.clock.now() if ticket is None else ticket.given_at)
            self._shared.tool_watch.opened(session_id, runtime_name, since=began)
        if self._sessions.leaving:
            return row, new
        try:
            taken = await self._shared.keeper.take(session_id)
        except EngineUnavailable:
            # It is recorded, and a single gateway runs no takeover that would find it.
            self._sessions.restart(session_id)
            raise
        if taken is None:
            # Another instance runs it, or was the last owner of the closed session, and must be notified.
            self._shared.notifications.tell("orphans", [session_id])
        else:
            await self._sessions.take_up([taken])
        return taken or row, new

    async def create(
        self, runtime_name: str, *, labels: dict[str, str], name: str | None = None, instructions: str | None = None
    ) -> tuple[SessionRow, bool, Sequence[str]]:
        """Create a native session and attach to it; return also the tools that its runtime got."""
        runtime = self._sessions.runtime(runtime_name)
        assert runtime.connector is not None
        began = self._shared.clock.now()
        wanted = Order(labels, runtime.tools, name, instructions, key=self._shared.ids.event_id())
        ticket, order = await self._order(runtime, wanted)
        self.creating[runtime_name] += 1
        try:
            return await self._create(runtime, runtime.connector, order, ticket, labels, since=began)
        finally:
            self.creating[runtime_name] -= 1
            if not self.creating[runtime_name]:
                del self.creating[runtime_name]

    async def _create(
        self,
        runtime: Runtime,
        connector: Connector,
        order: Order,
        ticket: Ticket | None,
        labels: dict[str, str],
        *,
        since: datetime,
    ) -> tuple[SessionRow, bool, Sequence[str]]:
        runtime_name = runtime.name
        try:
            async with in_time(self._shared.tuning.adapter, "the adapter's create"):
                created = await connector.create(order)
        except LinkRefused:
            if ticket is not None:
                await self._tickets.withdraw(ticket)
            raise
        unreported = [
            Loss(how="dropped", path=pointer("/tools", tool), note=_UNREPORTED) for tool in created.unaccounted(order)
        ]
        losses = (*created.losses, *unreported)
        for loss in losses:
            log.warning("session created with a loss", runtime=runtime_name, path=loss.path, note=loss.note)
            self._shared.metrics.loss(runtime.adapter.name, loss.how)
        row, is_new = await self.open(
            runtime_name, created.native_id, labels=labels, losses=losses, ticket=ticket, since=since
        )
        return row, is_new, created.tools

    async def _order(self, runtime: Runtime, order: Order) -> tuple[Ticket | None, Order]:
        """Add the address of the tools to an order, if the runtime accepts one and can reach us."""
        base, offered = runtime.options.mcp_base or self._tickets.public_url, self._offer(runtime.name, order.labels)
        if not runtime.options.takes_mcp or base is None or not offered or find_spec("mcp") is None:
            return None, order
        names = {tool.name for tool in offered}
        listed = tuple(tool for tool in order.tools if tool.name in names)
        if (endpoint := await self.share_tools(runtime.name)) is not None:
            return None, replace(order, tools=listed, mcp=endpoint)
        longest = max(tool.longest for tool in offered)
        ticket, endpoint = await self._tickets.issue(runtime.name, order.labels, base=base, longest=longest)
        return ticket, replace(order, tools=listed, mcp=endpoint)


async def _open_connector(
    adapter: Adapter, options: RuntimeOptions, stack: AsyncExitStack
) -> tuple[Connector | None, Capabilities, Codec]:
    """Build the parts of a runtime with its adapter, which may be third-party code.

    Raises:
        AdapterFailed: the adapter raised an unexpected exception or hung.
        OperatorError: the adapter rejected its options.
    """
    try:
        async with asyncio.timeout(options.connect_timeout.total_seconds()):
            # The clients of the other runtimes connect to the gateway.
            connects = options.mcp_clients is None
            connector = await stack.enter_async_context(adapter.connector(options)) if connects else None
            return connector, adapter.capabilities, adapter.codec(options)
    except BaseException as exc:
        if not is_fault(exc) or isinstance(exc, OperatorError):
            raise
        raise AdapterFailed(f"the adapter failed inside the gateway ({type(exc).__name__})") from exc


class Autostarts:
    """Runs one task for each runtime without its session; a hold in the store lets one instance create it."""

    def __init__(self, shared: Shared, create: Callable[[Runtime], Awaitable[object]], drain: Drain) -> None:
        """Prepare; `create` creates the native session and opens it."""
        self._shared = shared
        self._create = create
        self._drain = drain
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failing: dict[str, FailingAutostart] = {}

    @property
    def failing(self) -> Mapping[str, FailingAutostart]:
        """The last failure of each runtime without a session, by runtime name."""
        return self._failing

    async def start(self, runtime: Runtime) -> None:
        """Start to create the session of a runtime unless it has one; an earlier task is canceled."""
        await self.stop(runtime.name)
        run = partial(self._run, runtime)
        task = guard("autostart", run, self._shared.tasks, again=False, runtime=runtime.name)
        self._running[runtime.name] = task

    async def stop(self, name: str) -> None:
        """Stop the attempts for a runtime."""
        task = self._running.pop(name, None)
        if task is not None:
            await stopped([task])
        self._failing.pop(name, None)

    async def _run(self, runtime: Runtime) -> None:
        name = runtime.name
        attempts, longest, logged = 0, self._shared.tuning.autostart_longest, set[str]()
        try:
            while not self._drain.begun.happened:
                try:
                    if await self._is_done(runtime):
                        return
                    # Another instance holds the right to create it.
                    self._failing.pop(name, None)
                    attempts = 0
                    await asyncio.sleep(_CHECK_AGAIN * (0.5 + self._shared.jitter()))
                    continue
                except DragomanError as exc:
                    reason, longest = str(exc), self._shared.tuning.autostart_longest
                except BaseException as exc:
                    if not is_fault(exc) or is_to_end():
                        raise
                    FAULTS.get().note("autostart", exc, runtime=name)
                    reason = f"the adapter failed inside the gateway ({type(exc).__name__})"
                    longest = _LONGEST_AFTER_FAULTS
                attempts += 1
                if reason not in logged and len(logged) < _MOST_LOGGED:
                    logged.add(reason)
                    log.warning("autostart failed; retrying", runtime=name, reason=reason)
                await asyncio.sleep(self._note_failure(name, reason, attempts, longest=longest))
        finally:
            self._failing.pop(name, None)
            await self._release_hold(runtime)

    async def _is_done(self, runtime: Runtime) -> bool:
        """Create the session unless it exists; return False while another instance may create it."""
        if await self._has_session(runtime.name):
            return True
        if not await self._shared.keeper.hold(_hold_of(runtime)):
            return False
        # Another instance may have created it before it released the hold.
        if not await self._has_session(runtime.name):
            await self._create(runtime)
        return True

    def _note_failure(self, name: str, reason: str, attempts: int, *, longest: float) -> float:
        """Record a failed attempt; return the seconds until the next one."""
        before, now = self._failing.get(name), self._shared.clock.now()
        ceiling = min(longest, self._shared.tuning.autostart_first * 2 ** min(attempts - 1, 20))
        wait = ceiling * (0.5 + 0.5 * self._shared.jitter())
        since = now if before is None else before.since
        self._failing[name] = FailingAutostart(reason, since, attempts, now + timedelta(seconds=wait))
        return wait

    async def _has_session(self, runtime: str) -> bool:
        rows, _ = await self._shared.engine.sessions(Page(limit=1), SessionFilter(runtime, open_only=True))
        return bool(rows)

    async def _release_hold(self, runtime: Runtime) -> None:
        try:
            await self._shared.keeper.release_name(_hold_of(runtime))
        except EngineUnavailable as exc:
            log.warning("autostart hold not released; it expires with the lease", reason=str(exc))


def _hold_of(runtime: Runtime) -> str:
    return f"autostart:{runtime.name}"
