"""A database server that several gateways share: the real SQLite engine behind a network.

An instance that the server cannot hear gets EngineUnavailable, and nothing is written. If the answer is lost, the
instance waits for it until the network heals, as the PostgreSQL engine asks for the fate of its transaction.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from gateway.clock import Clock
from gateway.errors import EngineUnavailable
from gateway.store.outage import StoreOutage
from gateway.store.port import Settled
from gateway.store.rows import EngineHealth
from gateway.store.step import Step
from tests.simulation.clock import SimClock
from tests.simulation.loop import PROCESS, Process, acts
from tests.simulation.network import Network
from tests.simulation.store import Disk, SimEngine

_PATIENCE = 5.0
"""Seconds in which an instance tries to reach the server."""
_LOOK = 0.05

Heard = Callable[[str | None], None]


class StoreServer:
    """The server, which no fault of an instance reaches."""

    def __init__(self, net: Network, path: Path, disk: Disk) -> None:
        self.net = net
        self.engine = SimEngine(path, SimClock(net.loop, Process("store")), loop=net.loop, disk=disk)
        self.listeners: dict[Heard, RemoteEngine] = {}
        self.instances: dict[str, Process] = {}
        """The process of each instance that has asked for a lease."""
        self.read: Callable[..., list[Any]] = lambda *_: []
        """Asks the database file."""
        self.on_foreign_write: Callable[[str], None] = lambda _: None
        """Takes what a process has written to a session that another one holds."""

    def holder(self, session_id: str) -> Process | None:
        """Return the process that holds a session."""
        for (owner,) in self.read("SELECT owner FROM sessions WHERE session_id = ?", session_id):
            return self.instances.get(owner)
        return None

    def note_foreign_write(self, session_id: str, writer: Process, holder: Process) -> None:
        """Tell of a write, if the session was the other one's until its end."""
        if self.holder(session_id) is holder:
            self.on_foreign_write(f"{writer.name} writes to {session_id}, which {holder.name} holds")

    def tell(self, topic: str, sender: "RemoteEngine") -> None:
        """Pass a notification on to the other instances, after the commits that were sent before it."""
        for heard, engine in tuple(self.listeners.items()):
            if engine is not sender:
                self.net.loop.call_later(self.net.delay(), engine.hear, heard, topic, context=engine.context)


class RemoteEngine:
    """The engine of one instance: each method of the port is a request to the server."""

    def __init__(self, server: StoreServer, clock: Clock) -> None:
        process = PROCESS.get()
        assert process is not None
        self._server, self._process = server, process
        self.context = process.context
        self.outage = StoreOutage(clock)
        self.is_away = False
        """Whether the network between the instance and the server is down."""
        self.slow = 0.0
        """The longest time that a request, and its answer, take besides."""
        self.late = 0.0
        """The time after which each answer arrives; requests do not take longer."""
        self.held_until = 0.0
        """Until when no request arrives."""
        self._missed: dict[Heard, None] = {}

    async def __aenter__(self) -> Self:
        await self._ask("health")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._forget()

    def die(self) -> None:
        """Close its connections, as the end of a process does."""
        self._forget()

    def _forget(self) -> None:
        for heard in [heard for heard, engine in self._server.listeners.items() if engine is self]:
            del self._server.listeners[heard]

    def __getattr__(self, name: str) -> Any:
        if name == "generation":
            return self._server.engine.generation
        return partial(self._ask, name)

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        """Accept all steps; each is a request of its own, as the others are."""
        for step in steps:
            self._server.net.loop.create_task(self._submit(step, settled), context=self.context)
        return len(steps)

    async def _submit(self, step: Step, settled: Settled) -> None:
        try:
            result = await self._ask("commit", step)
        except Exception as exc:  # noqa: BLE001 - the submitter receives it
            result = exc
        self._server.net.loop.call_soon(settled, [(step, result)], context=self.context)

    async def health(self) -> EngineHealth:
        """Report the server as unwritable if it cannot be reached."""
        try:
            return await self._ask("health")
        except EngineUnavailable as exc:
            return EngineHealth(writable=False, detail=str(exc))

    async def _ask(self, name: str, *args: Any, **named: Any) -> Any:
        net = self._server.net
        acts()
        until = net.loop.now + _PATIENCE
        await asyncio.sleep(max(0.0, self.held_until - net.loop.now) + self._delay())
        while self.is_away:
            if net.loop.now >= until:
                raise EngineUnavailable("the database server is unreachable (simulated)")
            await asyncio.sleep(_LOOK)
        answer: asyncio.Future[Any] = net.loop.create_future()
        net.loop.create_task(self._serve(answer, name, args, named), context=net.world)
        return await answer

    async def _serve(self, answer: asyncio.Future[Any], name: str, args: Any, named: Any) -> None:
        result, error = None, None
        if name == "beat":
            self._server.instances[args[0]] = self._process
        late, step = self.late, args[0] if name == "commit" else None
        # A step without a fence is one that any instance may write.
        session_id = None if step is None or step.fence is None else step.session_id
        holder = None if session_id is None else self._server.holder(session_id)
        try:
            result = await getattr(self._server.engine, name)(*args, **named)
            if session_id is not None and holder is not None and holder is not self._process:
                self._server.note_foreign_write(session_id, self._process, holder)
        except Exception as exc:  # noqa: BLE001 - the caller receives it
            error = exc
        await asyncio.sleep(self._delay() + late)
        while self.is_away and not self._process.dead:  # noqa: ASYNC110 - the world has no event for it
            await asyncio.sleep(_LOOK)
        if answer.done() or self._process.dead:
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _delay(self) -> float:
        return self._server.net.delay() + self.slow * self._server.net.loop.random.random()

    # Notifications

    def notify(self, topic: str) -> None:
        """Tell the others; what cannot be sent is lost."""
        if not self.is_away and acts():
            self._server.tell(topic, self)

    def listen(self, heard: Heard) -> Callable[[], None]:
        """Call `heard` with each topic of another instance, and with None after a broken connection."""
        self._server.listeners[heard] = self
        return lambda: self._server.listeners.pop(heard, None) and None

    def hear(self, heard: Heard, topic: str) -> None:
        """Take a notification, unless the connection is broken."""
        if heard not in self._server.listeners:
            return
        if self.is_away:
            self._missed[heard] = None
        else:
            heard(topic)

    def reach(self) -> None:
        """The network works again: listeners may have missed something."""
        self.is_away = False
        missed, self._missed = self._missed, {}
        for heard in missed:
            self._server.net.loop.call_soon(heard, None, context=self.context)
