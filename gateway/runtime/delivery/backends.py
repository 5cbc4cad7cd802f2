"""Opens the configured executors and destinations, replaces them on reload, and closes them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from gateway.core.session import RetryPolicy
from gateway.errors import EngineUnavailable, InvalidConfiguration, NotFound, OperatorError, Problem
from gateway.events import Live
from gateway.executors.port import Destination, Executor
from gateway.guard import Tasks, guard, guard_call, spawn, suppress_faults
from gateway.runtime.delivery.live_copies import LiveCopies
from gateway.runtime.delivery.notices import Notices
from gateway.runtime.delivery.subscriptions import DeliveryRules, EventDelivery, note_of, target_of
from gateway.runtime.lease import Lease, LeaseKeeper
from gateway.runtime.notifications import Notifications
from gateway.runtime.policy import copying_of, retry_of
from gateway.runtime.services import Services
from gateway.settings.model import DestinationSpec, ExecutorSpec, Settings
from gateway.store.rows import SessionName

log = structlog.get_logger(__name__)

_OVERLAP = 10.0
_HOLD_AGAIN = 1.0
_FINISH = 5.0
_Spec = TypeVar("_Spec")
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class _Executor:
    spec: ExecutorSpec
    executor: Executor
    policy: RetryPolicy


@dataclass(frozen=True, slots=True)
class _Delivery:
    spec: DestinationSpec
    destination: Destination
    delivery: EventDelivery
    task: asyncio.Task[None]
    live: LiveCopies


class Backends:
    """Owns the executors and the deliveries to destinations."""

    def __init__(
        self,
        services: Services,
        *,
        make_executor: Callable[[ExecutorSpec], Executor],
        make_destination: Callable[[DestinationSpec], Destination],
        keeper: LeaseKeeper,
        notifications: Notifications,
        notices: Notices,
    ) -> None:
        self._services = services
        self._notices = notices
        self._tuning = services.tuning
        self._keeper = keeper
        self._notifications = notifications
        self._make_executor = make_executor
        self._make_destination = make_destination
        self._engine = services.engine
        self._clock = services.clock
        self._jitter = services.jitter
        self._tasks = services.tasks
        self._executors: dict[str, _Executor] = {}
        self._deliveries: dict[str, _Delivery] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._held: set[str] = set()
        """The destinations that only this instance delivers to."""

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        """Open the configured executors and destinations; close all current ones on exit.

        Raises:
            InvalidConfiguration: an executor or destination rejected its settings.
        """
        try:
            await self.configure(settings)
            yield
        finally:
            await self._close()

    def executor(self, name: str) -> tuple[Executor, RetryPolicy] | None:
        """Return an executor and its retry policy; None if it is not configured."""
        found = self._executors.get(name)
        return None if found is None else (found.executor, found.policy)

    async def configure(self, settings: Settings) -> None:
        """Open new and changed parts, and close removed ones; attempts in flight keep their executor until they end.

        Raises:
            InvalidConfiguration: an executor or destination rejected its settings; nothing was changed.
        """
        executors = {
            name: (spec, _make("executors", name, self._make_executor, spec))
            for name, spec in settings.executors.items()
            if name not in self._executors or self._executors[name].spec != spec
        }
        destinations = {
            name: (spec, _make("destinations", name, self._make_destination, spec))
            for name, spec in settings.destinations.items()
            if name not in self._deliveries or self._deliveries[name].spec != spec
        }
        async with AsyncExitStack() as opened:
            for _, part in (*executors.values(), *destinations.values()):
                await opened.enter_async_context(part)
            # All new parts are open, so nothing fails from here on.
            for name in [one for one in self._deliveries if one in destinations or one not in settings.destinations]:
                await self._end(self._deliveries.pop(name))
            opened.pop_all()
        # No await from here on: the caller changes limits and rules at the same time.
        self._notices.use(settings)
        for name in [name for name in self._executors if name in executors or name not in settings.executors]:
            self._close_later(self._executors.pop(name))
        for name, (spec, executor) in executors.items():
            self._executors[name] = _Executor(spec, executor, retry_of(spec))
        self._deliver_to(destinations)

    def _deliver_to(self, fresh: Mapping[str, tuple[DestinationSpec, Destination]]) -> None:
        for name, (spec, destination) in fresh.items():
            rules = DeliveryRules(
                policy=copying_of(spec),
                concurrency=spec.concurrency,
                longest_sleep=self._tuning.delivery_look if self._keeper.shared else self._tuning.delivery_look_alone,
                reconnect_within=spec.reconnect_within,
            )
            delivery = EventDelivery(
                name, destination, rules, self._notices, engine=self._engine, clock=self._clock, jitter=self._jitter
            )
            task = guard("destination", partial(self._deliver, name, delivery), self._tasks, destination=name)
            live = LiveCopies(name, destination, self._services)
            self._deliveries[name] = _Delivery(spec, destination, delivery, task, live)

    async def _deliver(self, name: str, delivery: EventDelivery) -> None:
        """Deliver while this instance holds the lock of the destination."""
        while not delivery.finishing:
            lease = self._keeper.lease
            if lease is not None and await self._may_hold(name):
                self._held.add(name)
                try:
                    await self._while_held(name, lease, delivery)
                finally:
                    self._held.discard(name)
            if not delivery.finishing:
                await asyncio.sleep(_HOLD_AGAIN * (0.5 + self._jitter()))

    async def _while_held(self, name: str, lease: Lease, delivery: EventDelivery) -> None:
        async with Tasks() as group:
            working, expired = spawn("copies", delivery.run(), group), spawn("copies", lease.over.wait(), group)
            patience = _HOLD_AGAIN if self._keeper.shared else None
            held = True
            while held:
                done, _ = await asyncio.wait({working, expired}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                held = not done and await self._may_hold(name)
            await group.close()
            if not working.cancelled():
                # Raise its fault; the guard counts it for this destination.
                working.result()

    async def _may_hold(self, name: str) -> bool:
        try:
            return await self._keeper.hold(target_of(name))
        except EngineUnavailable as exc:
            self._engine.outage.failed(exc, "lock of a destination")
            # A lock lasts as long as the lease.
            return name in self._held

    async def finish(self) -> None:
        """Start no more copies and wait up to 5 s for those in flight; the next process delivers the others."""
        for delivery in self._deliveries.values():
            delivery.delivery.finish()
        if tasks := [self._deliveries[name].task for name in self._held & self._deliveries.keys()]:
            await asyncio.wait(tasks, timeout=_FINISH)

    def wake(self) -> None:
        """Wake the deliveries, here or at the instances that hold the locks, because copies were written."""
        for name, delivery in self._deliveries.items():
            if name in self._held:
                delivery.delivery.wake()
            elif self._keeper.shared:
                self._notifications.tell("copies", [name])

    def copy_live(self, names: Iterable[str], session: SessionName, live: Live) -> None:
        """Send a live event to these destinations in the background, once."""
        for name in names:
            if name in self._deliveries:
                self._deliveries[name].live.add(session, live)

    def hear(self, names: Iterable[str]) -> None:
        """Wake these deliveries, because another instance has written copies."""
        for name in names:
            if name in self._held and name in self._deliveries:
                self._deliveries[name].delivery.wake()

    def look_all(self) -> None:
        """Wake all deliveries, because notifications may be missing."""
        self.hear(tuple(self._deliveries))

    async def enable(self, name: str) -> None:
        """Enable a destination again after it answered 410."""
        if name not in self._deliveries:
            known = ", ".join(sorted(self._deliveries)) or "none"
            raise NotFound(f"no destination is named {name!r}; configured: {known}")
        await self._engine.set_note(note_of(name), None)
        self._deliveries[name].live.wake()
        self.wake()
        log.info("destination enabled", destination=name)

    async def _close(self) -> None:
        for task in list(self._closing):
            task.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        for delivery in self._deliveries.values():
            await self._end(delivery)
        for name, one in self._executors.items():
            await suppress_faults("executor", one.executor.__aexit__(None, None, None), executor=name)
        self._deliveries.clear()
        self._executors.clear()

    async def _end(self, delivery: _Delivery) -> None:
        delivery.task.cancel()
        await asyncio.wait({delivery.task})
        await delivery.live.close()
        await suppress_faults("destination", delivery.destination.__aexit__(None, None, None))

    def _close_later(self, one: _Executor) -> None:
        patience = one.policy.timeout.total_seconds() + _OVERLAP
        task = guard("executor", partial(_close_after, one.executor, patience), self._tasks, again=False)
        self._closing[task] = None
        task.add_done_callback(guard_call("backends", self._closing.pop))


def _make(section: str, name: str, factory: Callable[[_Spec], _Part], spec: _Spec) -> _Part:
    try:
        return factory(spec)
    except OperatorError as exc:
        fault = Problem(path=f"{section}.{name}", message=str(exc))
        raise InvalidConfiguration("configuration", (fault,)) from exc


async def _close_after(executor: Executor, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        await executor.__aexit__(None, None, None)
