"""The executors and destinations of the configuration: opened, swapped on reload, closed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.errors import NotFound
from gateway.ports.clock import Clock
from gateway.ports.engine import Engine
from gateway.ports.executor import Destination, Executor
from gateway.runtime.copies import Courier, note_of
from gateway.runtime.policy import copying_of
from gateway.settings.model import DestinationSpec, ExecutorSpec, Settings

log = structlog.get_logger(__name__)

_OVERLAP = 30.0


@dataclass(frozen=True, slots=True)
class _Delivery:
    spec: DestinationSpec
    destination: Destination
    courier: Courier
    task: asyncio.Task[None]


class Hands:
    """Owns everything that talks to the user's side."""

    def __init__(
        self,
        make_executor: Callable[[ExecutorSpec], Executor],
        make_destination: Callable[[DestinationSpec], Destination],
        engine: Engine,
        clock: Clock,
        dice: Callable[[], float],
    ) -> None:
        self._make_executor = make_executor
        self._make_destination = make_destination
        self._engine = engine
        self._clock = clock
        self._dice = dice
        self._tasks: asyncio.TaskGroup | None = None
        self._executors: dict[str, tuple[ExecutorSpec, Executor]] = {}
        self._deliveries: dict[str, _Delivery] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run couriers in this group."""
        self._tasks = tasks

    @property
    def executors(self) -> Mapping[str, Executor]:
        """The executors by name."""
        return {name: executor for name, (_, executor) in self._executors.items()}

    async def configure(self, settings: Settings) -> None:
        """Open what is new or changed and close what is gone; attempts under way keep theirs for a while."""
        for name, spec in settings.executors.items():
            known = self._executors.get(name)
            if known is not None and known[0] == spec:
                continue
            executor = self._make_executor(spec)
            await executor.__aenter__()
            if known is not None:
                self._close_later(known[1])
            self._executors[name] = (spec, executor)
        for name in [name for name in self._executors if name not in settings.executors]:
            self._close_later(self._executors.pop(name)[1])
        await self._configure_destinations(settings)

    async def _configure_destinations(self, settings: Settings) -> None:
        assert self._tasks is not None
        for name, delivery in list(self._deliveries.items()):
            if settings.destinations.get(name) != delivery.spec:
                await self._end(self._deliveries.pop(name))
        for name, spec in settings.destinations.items():
            if name in self._deliveries:
                continue
            destination = self._make_destination(spec)
            await destination.__aenter__()
            courier = Courier(
                name,
                destination,
                policy=copying_of(spec),
                concurrency=spec.concurrency,
                engine=self._engine,
                clock=self._clock,
                dice=self._dice,
            )
            self._deliveries[name] = _Delivery(spec, destination, courier, self._tasks.create_task(courier.run()))

    def ring(self) -> None:
        """There may be new copies to deliver."""
        for delivery in self._deliveries.values():
            delivery.courier.ring()

    async def enable(self, name: str) -> None:
        """Switch a destination on again."""
        if name not in self._deliveries:
            known = ", ".join(sorted(self._deliveries)) or "none"
            raise NotFound(f"no destination is named {name!r}; configured: {known}")
        await self._engine.set_note(note_of(name), None)
        self._deliveries[name].courier.ring()
        log.info("destination enabled", destination=name)

    async def stop(self) -> None:
        """Close everything."""
        for task in list(self._closing):
            task.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        for delivery in self._deliveries.values():
            await self._end(delivery)
        for _, executor in self._executors.values():
            await executor.__aexit__(None, None, None)
        self._deliveries.clear()
        self._executors.clear()

    async def _end(self, delivery: _Delivery) -> None:
        delivery.task.cancel()
        await asyncio.wait({delivery.task})
        await delivery.destination.__aexit__(None, None, None)

    def _close_later(self, executor: Executor) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(_close_after(executor, _OVERLAP))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close_after(executor: Executor, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        await executor.__aexit__(None, None, None)
