"""Every session this process carries: its pump, its link, and the runtime it belongs to."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import structlog

from gateway.core.council import Council, Policy
from gateway.core.state import SessionView
from gateway.envelope import SessionId, SessionOpened, session_id as name_session
from gateway.errors import DragomanError, EngineUnavailable, NotFound
from gateway.ports.adapter import Adapter, Connector, RuntimeOptions, Tool
from gateway.ports.engine import NewEvent, Page, SessionRow
from gateway.runtime.pump import Pump
from gateway.runtime.recovery import load_view, read_unconfirmed
from gateway.runtime.shared import Shared
from gateway.runtime.signals import LinkDown, Recover
from gateway.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

_PAGE = 200
_STOP = 5.0
_PAUSE = 1.0
_FAULT_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime of the YAML, connected."""

    name: str
    adapter: Adapter
    options: RuntimeOptions
    connector: Connector
    council: Council
    stack: AsyncExitStack


@dataclass(frozen=True, slots=True)
class Carried:
    """One session at work."""

    pump: Pump
    supervisor: Supervisor
    runtime: Runtime
    tasks: tuple[asyncio.Task[None], ...]


class Sessions:
    """Starts and stops runtimes and their sessions; all tasks run in the gateway's group."""

    def __init__(
        self,
        shared: Shared,
        *,
        tasks: asyncio.TaskGroup,
        inbound_frames: int,
        inbound_bytes: int,
        changed: Callable[[str], None],
    ) -> None:
        self.runtimes: dict[str, Runtime] = {}
        self._shared = shared
        self._tasks = tasks
        self._inbound_frames = inbound_frames
        self._inbound_bytes = inbound_bytes
        self._changed = changed
        self._carried: dict[SessionId, Carried] = {}
        self._starting = asyncio.Lock()

    # Runtimes --------------------------------------------------------------------------------------------

    async def start_runtime(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> None:
        """Connect a runtime and take up all its open sessions, the one its options name among them."""
        runtime = await self._connect(name, adapter, options, tools=tools, policy=policy)
        await self._populate(runtime)

    async def renew_runtime(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> None:
        """Connect a runtime anew, with other options; its sessions go on, and with them the calls in flight."""
        old = self.runtimes[name]
        runtime = await self._connect(name, adapter, options, tools=tools, policy=policy)
        for carried in list(self.of_runtime(name)):
            pump, (working, linked) = carried.pump, carried.tasks
            linked.cancel()
            await asyncio.wait({linked}, timeout=_STOP)
            pump.reconfigure(runtime.council)
            pump.put(LinkDown("the runtime's options have changed"))
            supervisor = self._supervisor(runtime, pump)
            tasks = (working, self._tasks.create_task(self._keep_linked(supervisor)))
            if self._carried.get(pump.view.session_id) is carried:
                self._carried[pump.view.session_id] = Carried(pump, supervisor, runtime, tasks)
        await old.stack.aclose()
        await self._populate(runtime)

    async def _connect(
        self, name: str, adapter: Adapter, options: RuntimeOptions, *, tools: tuple[Tool, ...], policy: Policy
    ) -> Runtime:
        stack = AsyncExitStack()
        connector = await stack.enter_async_context(adapter.connector(options, tools))
        council = Council(
            adapter=adapter.name,
            protocol=adapter.protocol,
            runtime=name,
            capabilities=adapter.capabilities,
            codec=adapter.codec(options),
            options=options,
            policy=policy,
        )
        runtime = Runtime(name, adapter, options, connector, council, stack)
        self.runtimes[name] = runtime
        self._changed(name)
        return runtime

    async def _populate(self, runtime: Runtime) -> None:
        name, options = runtime.name, runtime.options
        if options.native_id is not None:
            await self.open(name, options.native_id, labels=options.labels)
        after: str | None = None
        while True:
            rows, after = await self._shared.engine.sessions(
                Page(limit=_PAGE, after=after), runtime=name, open_only=True
            )
            for row in rows:
                await self._take_up(runtime, row)
            if after is None:
                break
        if options.autostart and options.creates and not any(self.of_runtime(name)):
            self._tasks.create_task(self._autostart(runtime))

    async def _autostart(self, runtime: Runtime) -> None:
        """Create the runtime's one session; a failure is told and left to the operator's next try."""
        try:
            created = await runtime.connector.create(runtime.options.labels)
            await self.open(runtime.name, created.native_id, labels=runtime.options.labels)
        except DragomanError as exc:
            # The reason is the peer's or the operator's; a traceback of ours would tell them nothing.
            log.error("a session could not be created at start", runtime=runtime.name, reason=str(exc))  # noqa: TRY400

    async def stop_runtime(self, name: str) -> None:
        """Let go of a runtime's links; its sessions stay on record."""
        runtime = self.runtimes.pop(name)
        for carried in list(self.of_runtime(name)):
            await self._let_go(carried)
        await runtime.stack.aclose()
        self._changed(name)

    def change_policy(self, policy: Policy) -> None:
        """Use another configuration for calls from now on."""
        for name, runtime in self.runtimes.items():
            council = replace(runtime.council, policy=policy)
            self.runtimes[name] = replace(runtime, council=council)
            for carried in self.of_runtime(name):
                carried.pump.reconfigure(council)

    # Sessions --------------------------------------------------------------------------------------------

    async def open(self, runtime_name: str, native_id: str, *, labels: dict[str, str]) -> tuple[SessionRow, bool]:
        """Attach to a native session, once; labels of an open one stay as they are."""
        runtime = self.runtime(runtime_name)
        session_id = name_session(runtime=runtime_name, native_session_id=native_id)
        protocol = runtime.adapter.protocol
        opened = SessionOpened(
            runtime=runtime_name,
            protocol=protocol,
            native_id=native_id,
            labels=labels,
            echoes=runtime.adapter.capabilities.echoes,
            delegates=runtime.adapter.capabilities.delegates,
        )
        row, new = await self._shared.engine.open_session(
            session_id=session_id,
            runtime=runtime_name,
            protocol=protocol,
            native_id=native_id,
            labels=labels,
            first=NewEvent(
                event_id=self._shared.ids.event_id(),
                event=opened,
                direction="to_runtime",
                recorded_at=self._shared.clock.now(),
                origin=None,
            ),
        )
        await self._take_up(runtime, row)
        return row, new

    async def create(self, runtime_name: str, *, labels: dict[str, str]) -> tuple[SessionRow, bool]:
        """Make a native session as the options say, and attach to it."""
        runtime = self.runtime(runtime_name)
        created = await runtime.connector.create(labels)
        for loss in created.losses:
            log.warning("not all could be told on creation", runtime=runtime_name, path=loss.path, note=loss.note)
        return await self.open(runtime_name, created.native_id, labels=labels)

    async def _take_up(self, runtime: Runtime, row: SessionRow) -> None:
        async with self._starting:
            if row.session_id in self._carried:
                return
            view = await load_view(self._shared.engine, row.session_id)
            recover = Recover(await read_unconfirmed(self._shared.engine, view))
            self._carry(runtime, view, recover)

    def _carry(self, runtime: Runtime, view: SessionView, recover: Recover) -> None:
        session_id = view.session_id
        pump = Pump(
            view,
            council=runtime.council,
            shared=self._shared,
            inbound_frames=self._inbound_frames,
            inbound_bytes=self._inbound_bytes,
            # Looked up when it is needed: the supervisor is made after the pump, and again with new options.
            drop_link=lambda reason: self._carried[session_id].supervisor.drop(reason),  # noqa: PLW0108
        )
        supervisor = self._supervisor(runtime, pump)
        pump.put(recover)
        guarded = self._guard(runtime.name, pump)
        tasks = (self._tasks.create_task(guarded), self._tasks.create_task(self._keep_linked(supervisor)))
        self._carried[session_id] = Carried(pump, supervisor, runtime, tasks)
        tasks[0].add_done_callback(lambda _: self._ended(session_id))

    def _supervisor(self, runtime: Runtime, pump: Pump) -> Supervisor:
        return Supervisor(
            pump,
            connector=runtime.connector,
            clock=self._shared.clock,
            metrics=self._shared.metrics,
            dice=self._shared.dice,
            changed=lambda: self._changed(runtime.name),
        )

    async def _keep_linked(self, supervisor: Supervisor) -> None:
        """Run a supervisor; a fault of ours or of an adapter costs this link a pause, not the process."""
        while True:
            try:
                await supervisor.run()
            except Exception:
                # As for pumps: every other session shares the process.
                log.exception("a link failed unexpectedly and is made again")
                await asyncio.sleep(_FAULT_PAUSE)
            else:
                return

    async def _guard(self, runtime: str, pump: Pump) -> None:
        """Run a pump; a fault of ours ends this session's work, which is then taken up anew from the store."""
        try:
            await pump.run()
        except Exception:
            # One session's fault must not end the process, which every other session shares.
            log.exception("a session failed and is taken up again", session_id=pump.view.session_id)
            self._tasks.create_task(self._take_up_again(runtime, pump.view.session_id))

    async def _take_up_again(self, name: str, session_id: SessionId) -> None:
        while True:
            await asyncio.sleep(_PAUSE)
            # Looked up by name: each reload makes the runtime anew.
            runtime = self.runtimes.get(name)
            if runtime is None:
                return
            try:
                row = await self._shared.engine.session(session_id)
                if row is not None:
                    await self._take_up(runtime, row)
            except EngineUnavailable as exc:
                log.warning("a session cannot be taken up yet", session_id=session_id, reason=str(exc))
            else:
                return

    def _ended(self, session_id: SessionId) -> None:
        carried = self._carried.get(session_id)
        if carried is not None and carried.pump.closed.is_set():
            del self._carried[session_id]
            self._changed(carried.runtime.name)

    async def _let_go(self, carried: Carried) -> None:
        for task in reversed(carried.tasks):
            task.cancel()
        await asyncio.wait(carried.tasks, timeout=_STOP)

    async def let_go_of_links(self) -> None:
        """Close every link, for the end of the process; pumps go on until they are told to end."""
        links = [carried.tasks[1] for carried in self._carried.values()]
        for task in links:
            task.cancel()
        if links:
            await asyncio.wait(links, timeout=_STOP)

    async def end(self) -> None:
        """End all tasks and close all connectors."""
        # Nothing is taken up any more without its runtime.
        runtimes, self.runtimes = self.runtimes, {}
        everyone = [task for carried in list(self._carried.values()) for task in carried.tasks]
        for task in everyone:
            task.cancel()
        if everyone:
            await asyncio.wait(everyone, timeout=_STOP)
        for runtime in runtimes.values():
            await runtime.stack.aclose()

    # Looking ---------------------------------------------------------------------------------------------

    def runtime(self, name: str) -> Runtime:
        """Find a runtime by its name in the YAML."""
        runtime = self.runtimes.get(name)
        if runtime is None:
            known = ", ".join(sorted(self.runtimes)) or "none"
            raise NotFound(f"no runtime is named {name!r}; configured: {known}")
        return runtime

    def carried(self, session_id: SessionId) -> Carried | None:
        """Find a session that is at work here."""
        return self._carried.get(session_id)

    def of_runtime(self, name: str) -> Iterator[Carried]:
        """All sessions of a runtime that are at work here."""
        return (carried for carried in list(self._carried.values()) if carried.runtime.name == name)

    def all(self) -> list[Carried]:
        """All sessions that are at work here."""
        return list(self._carried.values())
