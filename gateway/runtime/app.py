"""The gateway as one object: what the HTTP face and the command line may ask of it."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any

import structlog

from gateway.adapter.port import Adapter
from gateway.clock import Clock, Ids
from gateway.core.calls import outcome_fingerprint
from gateway.errors import (
    CallOver,
    Conflict,
    EngineUnavailable,
    Gone,
    InvalidConfiguration,
    InvalidRequest,
    NotFound,
    Overloaded,
    Problem,
    TooLarge,
    Truncated,
)
from gateway.events import CallId, Envelope, Event, InteractionId, SessionId
from gateway.executors.port import Answered, Destination, Executor
from gateway.guard import FAULTS, Tasks, count_what_is_left, guard_call, tried
from gateway.json_members import MEMBERS
from gateway.runtime.bounds import breaker_rules, executor_limits, session_limit
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.dead_letters import DeadLetters
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.calls.history import load_history
from gateway.runtime.calls.quotes import Quotes
from gateway.runtime.calls.redriving import Redriving
from gateway.runtime.calls.slots import Slots
from gateway.runtime.cluster.handover import Handover
from gateway.runtime.cluster.lease import LeaseKeeper
from gateway.runtime.cluster.member import ClusterMember
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.delivery.maintenance import Maintenance
from gateway.runtime.feeds.follow import PAGES, follow
from gateway.runtime.feeds.interactions import InteractionFeed, follow_interactions, show
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.log import configure
from gateway.runtime.metrics import Metrics
from gateway.runtime.policy import changed_paths, declared_tools, policy_of
from gateway.runtime.session.directory import SessionDirectory, reply_slot
from gateway.runtime.session.sessions import Runtime, Sessions
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.signals import (
    AnswerGiven,
    CancelOrdered,
    CloseOrdered,
    OutcomeGiven,
    OutcomeLate,
    Post,
    ProgressGiven,
)
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import (
    CallHistory as CallHistory,
    Gap as Gap,
    Heartbeat as Heartbeat,
    InteractionItem as InteractionItem,
    InteractionShown as InteractionShown,
    LinkStatus as LinkStatus,
    Missed as Missed,
    Readiness as Readiness,
    Reloaded as Reloaded,
    RuntimeStatus as RuntimeStatus,
    StreamItem as StreamItem,
)
from gateway.settings.model import DestinationSpec, ExecutorSpec, Settings, WebhookSpec
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, Instance, InteractionRow, Page, Regained, SessionRow, StoredAnswer
from gateway.store.step import InteractionState, Keep

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
    """Drives every session; entered once, before the HTTP face takes requests.

    Errors are those of `gateway.errors`: NotFound, Conflict, Gone, Inexpressible, InvalidRequest,
    Overloaded, EngineUnavailable, InvalidConfiguration.
    """

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self.settings = settings
        self.version = parts.version
        self.tuning = parts.tuning
        self._parts = parts
        self._engine = parts.engine
        self._stack = AsyncExitStack()
        self._draining = Ending()
        self._history_pages = asyncio.Semaphore(PAGES)
        self._reloading = asyncio.Lock()
        self._policy = policy_of(settings)
        self._unfinished: tuple[str, ...] = ()
        """What a reload was to change that it could not finish."""
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
        self._breakers = Breakers(clock, metrics, jitter, rules=breaker_rules(settings), specs=settings.executors)
        self._slots = Slots(self._breakers, executor_limits(settings), session=session_limit(settings))
        self._callbacks = Callbacks(engine, ids)
        self._quotes = Quotes(metrics, settings.executors)
        self._dispatcher = Dispatcher(
            clock=clock,
            metrics=metrics,
            slots=self._slots,
            breakers=self._breakers,
            jitter=jitter,
            callbacks=self._callbacks,
            quotes=self._quotes,
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
            tasks=self._tasks,
        )
        handover = Handover(engine, clock, ids, self._notifications)
        self._sessions = Sessions(
            shared,
            handover,
            inbound_frames=settings.limits.inbound_frames,
            inbound_bytes=settings.limits.inbound_bytes,
        )
        self._member = ClusterMember(shared, self._sessions, handover)
        self._directory = SessionDirectory(engine, self._sessions, patience=tuning.reply)
        self._redriving = Redriving(engine, self._directory, clock, ids, wake=self._backends.wake)
        self._maintenance = Maintenance(engine, metrics, self._sessions, self._keeper, tuning)
        self.forwarder = self._member.forwarder
        self.dead_letters = DeadLetters(
            engine,
            redrive=self._redriving.dead_call,
            redeliver=self._redriving.dead_delivery,
            dismiss=self._redriving.dismiss,
        )

    # Life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Gateway":
        count_what_is_left()
        settings = self.settings
        # Whatever it is that cannot start: everything that did is left again, in the opposite order.
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._engine)
            stack.push_async_callback(self._tasks.close)
            await stack.enter_async_context(self._callbacks)
            await _enter(stack, "cluster member", self._member.joined())
            stack.callback(guard_call("dispatcher", self._dispatcher.stop))
            await _enter(stack, "backends", self._backends.opened(settings))
            self._use(settings)
            stack.push_async_callback(lambda: tried("sessions", self._sessions.end()))
            for name in settings.runtimes:
                await self._start_runtime(name)
            await _enter(stack, "cluster member", self._member.taking_part())
            stack.enter_context(self._maintenance.running(self._tasks, lambda: self.settings.retention))
            stack.push_async_callback(lambda: tried("drain", self.drain()))
            self._stack = stack.pop_all()
        log.info("gateway started", version=self.version, runtimes=len(settings.runtimes))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        log.info("gateway stopped")

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
            self._sessions.write_marks()
            if hands_over:
                await self._sessions.hand_over(self._sessions.ready_to_go())
            if self._dispatcher.in_flight == 0 and all(c.worker.settled for c in self._sessions.all()):
                break
            await asyncio.sleep(0.02)
        else:
            log.warning("drain ended with calls in flight", in_flight=self._dispatcher.in_flight)
        await self._sessions.let_go_of_links()
        await self._backends.finish()
        await self._member.leave()

    def _use(self, settings: Settings) -> None:
        """Take over what is the process's: names of metrics, the bound of members, its address, logging."""
        self._parts.metrics.learn(
            runtimes=tuple(settings.runtimes),
            tools=tuple(settings.tools),
            executors=tuple(settings.executors),
            adapters=tuple({options.adapter for options in settings.runtimes.values()}),
            destinations=tuple(settings.destinations),
        )
        MEMBERS.most = settings.limits.members
        self._callbacks.public_url = None if settings.public_url is None else str(settings.public_url)
        configure(level=settings.logging.level, format=settings.logging.format)
        self.settings = settings

    async def _change(self, settings: Settings) -> None:
        """Take over what may change while running: executors, destinations, routes, tools, limits, logging.

        Raises:
            InvalidConfiguration: something of it can never work; nothing was changed.
        """
        policy, rules, limits = policy_of(settings), breaker_rules(settings), executor_limits(settings)
        await self._backends.configure(settings)
        self._quotes.configure(settings.executors)
        self._breakers.configure(rules, settings.executors)
        self._slots.configure(limits, session=session_limit(settings))
        self._policy = policy
        self._sessions.change_policy(policy)
        self._use(settings)

    async def _start_runtime(self, name: str) -> None:
        options = self.settings.runtimes[name]
        adapter = self._parts.adapters[options.adapter]
        await self._sessions.start_runtime(
            name, adapter, options, tools=declared_tools(self.settings), policy=self._policy
        )

    async def reload(self) -> Reloaded:
        """Read the configuration file again; a bad one changes nothing and raises InvalidConfiguration."""
        async with self._reloading:
            old, new = self.settings, self._parts.reread()
            for fixed in ("engine", "instance"):
                if getattr(new, fixed) != getattr(old, fixed):
                    fault = Problem(path=fixed, message="cannot change while the gateway runs; restart it")
                    raise InvalidConfiguration("reload", (fault,))
            if old.api.keys and not new.api.keys:
                # The address was bound for an API behind keys; without them it would be open to whoever reaches it.
                fault = Problem(path="api.keys", message="cannot all be taken away while the gateway runs; restart it")
                raise InvalidConfiguration("reload", (fault,))
            # What an earlier reload has begun and could not finish is finished by this one.
            changed = tuple(dict.fromkeys((*self._unfinished, *changed_paths(old, new))))
            self._unfinished = changed
            await self._change(new)
            for name, runtime in list(self._sessions.runtimes.items()):
                await self._change_runtime(name, runtime)
            for name in new.runtimes:
                if name not in self._sessions.runtimes:
                    await self._start_runtime(name)
            await self._member.takeover.take_all()
            self._unfinished = ()
            log.info("configuration reloaded", changed=list(changed))
            return Reloaded(changed)

    async def _change_runtime(self, name: str, carried: Runtime) -> None:
        """Change what is carried, whatever configuration it was made of, into what is wanted now."""
        new, old, tools = self.settings.runtimes.get(name), carried.options, declared_tools(self.settings)
        if new is None or new.adapter != old.adapter:
            await self._sessions.stop_runtime(name)
            return
        retooled = old.creates and carried.tools != tools
        if new != old or retooled or self._sessions.gave_up(name) or self._sessions.is_unfinished(name):
            adapter = self._parts.adapters[new.adapter]
            await self._sessions.renew_runtime(name, adapter, new, tools=tools, policy=self._policy)

    # Sessions --------------------------------------------------------------------------------------------

    async def open_session(
        self, runtime: str, *, native_id: str | None, labels: Mapping[str, str]
    ) -> tuple[SessionRow, bool]:
        """Attach to a native session, or create one where no id is given; says whether it is new."""
        merged = {**self._sessions.runtime(runtime).options.labels, **labels}
        known = native_id is not None and self._sessions.carries(runtime, native_id)
        if not known and self._sessions.count >= self.settings.limits.sessions:
            raise Overloaded(f"{self._sessions.count} sessions are carried here already; close some")
        if native_id is not None:
            return await self._sessions.open(runtime, native_id, labels=merged)
        if not self._sessions.runtime(runtime).options.creates:
            raise InvalidRequest(
                f"runtime {runtime!r} is not configured to create sessions; give a native_id", pointer="/native_id"
            )
        return await self._sessions.create(runtime, labels=merged)

    async def session(self, session_id: SessionId) -> SessionRow:
        return await self._directory.session(session_id)

    async def sessions(self, page: Page, *, runtime: str | None = None) -> tuple[Sequence[SessionRow], str | None]:
        return await self._engine.sessions(page, runtime=runtime)

    async def close_session(self, session_id: SessionId, *, erase: bool) -> None:
        row = await self.session(session_id)
        carried = self._sessions.carried(session_id)
        if carried is not None:
            await self._directory.ask(carried.worker, CloseOrdered("closed by a client", reply_slot()))
            await asyncio.wait(carried.tasks, timeout=self._directory.patience)
        elif row.state != "closed":
            raise await self._directory.not_here(row)
        if erase:
            await self._engine.erase(session_id)

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
            return await self._engine.read(session_id, after=after, limit=limit)
        except Truncated as exc:
            text = f"the events behind {after} were removed by retention; history begins at {exc.first_sequence}"
            raise Gone(text, first_sequence=exc.first_sequence) from exc

    def follow(self, session_id: SessionId, *, after: int | None) -> AsyncGenerator[StreamItem]:
        """Yield history behind `after`, then what happens; None begins with what happens next.

        Ends when the session is closed or the gateway stops. What is only live is shown by the instance that
        carries the session.
        """
        heartbeat, feeds = self.settings.api.heartbeat.total_seconds(), self._member.remote_feeds
        return follow(
            self._engine,
            session_id,
            feeds,
            after=after,
            heartbeat=heartbeat,
            ended=self._draining,
            pages=self._history_pages,
        )

    # Calls -----------------------------------------------------------------------------------------------

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        return await self._engine.calls(which, page)

    async def call_story(self, call_id: CallId) -> CallHistory:
        return await load_history(self._engine, await self._directory.call(call_id))

    def callback_allowed(self, call_id: CallId, token: str) -> bool:
        """Whether a callback token belongs to a call, in constant time."""
        return self._callbacks.allowed(call_id, token)

    async def settle(self, call_id: CallId, answer: Answered, *, size: int = 0) -> Call:
        """Record an outcome that came by callback or API, of so many bytes; the same one again is fine.

        Raises:
            Conflict: the call has already ended otherwise; the first such outcome is recorded as ignored.
            CallOver: it ended too long ago. TooLarge: its executor may not answer so much.
        """
        row = await self._answerable(call_id, size)
        answer = self._dispatcher.look_through(row.executor, answer)
        worker = await self._directory.worker(row.session_id)
        if await self._directory.ask(worker, OutcomeGiven(call_id, answer, reply_slot())):
            return await self._directory.call(call_id)
        row = await self._directory.call(call_id)
        if row.outcome_sha == outcome_fingerprint(answer.outcome):
            return row
        if row.late:
            raise Conflict(f"the call has already {row.state}; another late outcome is on record")
        await self._directory.ask(worker, OutcomeLate(row, answer, reply_slot()))
        raise Conflict(f"the call has already {row.state}; this outcome was recorded as ignored")

    async def _answerable(self, call_id: CallId, size: int) -> Call:
        row = await self._directory.call(call_id)
        ended = None if row.finished_at is None else await self._engine.ended_for(call_id)
        late = self._parts.tuning.late
        if ended is not None and ended > late:
            raise CallOver(f"the call has {row.state}, over {late.seconds // 60} minutes ago")
        spec = self.settings.executors.get(row.executor or "")
        if isinstance(spec, WebhookSpec) and size > spec.max_response:
            raise TooLarge(f"the body has {size} bytes; its executor's `max_response` allows {int(spec.max_response)}")
        return row

    async def progress(self, call_id: CallId, data: dict[str, Any], *, size: int = 0) -> None:
        """Record how far a call is; what one call may say is bounded.

        Raises:
            Conflict: the call has ended. CallOver: too long ago. TooLarge: this is too much, or all together is.
        """
        row = await self._answerable(call_id, size)
        worker = await self._directory.worker(row.session_id)
        if not await self._directory.ask(worker, ProgressGiven(call_id, data, reply_slot())):
            raise Conflict(f"the call has already {(await self._directory.call(call_id)).state}")

    async def cancel(self, call_id: CallId, *, reason: str | None) -> Call:
        row = await self._directory.call(call_id)
        worker = await self._directory.worker(row.session_id)
        if not await self._directory.ask(worker, CancelOrdered(call_id, reason, reply_slot())):
            raise Conflict(f"the call has already {(await self._directory.call(call_id)).state}")
        return await self._directory.call(call_id)

    async def redrive(self, call_id: CallId, *, new_key: bool, deliver: bool) -> Call:
        return await self._redriving.call(await self._directory.call(call_id), new_key=new_key, deliver=deliver)

    async def redeliver(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send one event copy or outbound event again."""
        await self._redriving.delivery(session_id, sequence, target)

    # People and surroundings -----------------------------------------------------------------------------

    async def interactions(
        self, page: Page, *, session_id: SessionId | None, state: InteractionState | None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        rows, following = await self._engine.interactions(page, session_id=session_id, state=state)
        shown = [await show(self._engine, row) for row in rows]
        return [(one.row, one.asked) for one in shown if one is not None], following

    def follow_interactions(self) -> AsyncGenerator[InteractionItem]:
        """Yield all questions that wait for a person, then each that changes; ends when the gateway stops."""
        heartbeat = self.settings.api.heartbeat.total_seconds()
        return follow_interactions(self._engine, self._interaction_feed, heartbeat=heartbeat, ended=self._draining)

    async def answer(self, interaction_id: InteractionId, body: Mapping[str, Any], *, by: str) -> InteractionRow:
        """Answer a question to a person: `{"decision", "scope"}`, `{"answer"}` or `{"value"}`; `by` names the key."""
        row = await self._engine.interaction(interaction_id)
        if row is None:
            raise NotFound(f"no interaction {interaction_id!r}")
        if row.state != "waiting":
            raise Conflict(f"this question is {row.state} and takes no answer any more")
        asked = await show(self._engine, row)
        if asked is not None and asked.asked.stored_kind is not None:
            raise Conflict("this question was written by a newer release, and waits for it")
        worker = await self._directory.worker(row.session_id)
        await self._directory.ask(worker, AnswerGiven(interaction_id, body, by, reply_slot()))
        answered = await self._engine.interaction(interaction_id)
        assert answered is not None
        return answered

    async def instances(self) -> Sequence[Instance]:
        """List the processes on this store."""
        return await self._engine.instances()

    async def enable_destination(self, name: str) -> None:
        """Switch a destination on again that had answered 410."""
        await self._backends.enable(name)

    def runtimes(self) -> Sequence[RuntimeStatus]:
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
            )
            adapter = runtime.adapter
            shown.append(RuntimeStatus(name, adapter.name, adapter.protocol, adapter.capabilities, links))
        return shown

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


async def _enter(stack: AsyncExitStack, name: str, part: AbstractAsyncContextManager[None]) -> None:
    """Enter a part; what it raises on the way out is logged with its name, and the others are left all the same."""
    await part.__aenter__()
    stack.push_async_callback(lambda: tried(name, part.__aexit__(None, None, None)))
