"""Many sessions of one runtime in memory, and a store that reports on their steps when a test lets it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gateway.adapter.port import Frame, Link, Receipt, Receiver
from gateway.errors import EngineUnavailable
from gateway.events import Event, MessagePosted, SessionId, Text, ToolRequested, dump_event
from gateway.runtime.system_clock import SystemClock
from gateway.store.port import Settled
from gateway.store.rows import SessionRow
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Committed, Step
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import PlainRuntime

Results = Sequence[tuple[Step, Committed | Exception]]


@dataclass
class AgentLink:
    """The link of one session, and the frames of its agent."""

    crowd: "CrowdRuntime"
    receiver: Receiver
    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def send_all(self, frames: Sequence[Frame]) -> Receipt | Awaitable[Receipt]:
        return self.crowd.take(self, frames)

    async def prove(self) -> None:
        return

    async def wait_closed(self) -> str:
        await asyncio.Event().wait()
        return "never"


@dataclass
class CrowdRuntime(PlainRuntime):
    """A runtime with a link for each session."""

    links: dict[str, AgentLink] = field(default_factory=dict[str, AgentLink])
    taken: int = 0
    """The number of frames that all agents heard."""

    def connect(self, native_id: str, receiver: Receiver, *, resume_after: str | None = None) -> Any:
        del resume_after
        return self._sit(native_id, receiver)

    @asynccontextmanager
    async def _sit(self, native_id: str, receiver: Receiver) -> AsyncGenerator[Link]:
        before = self.links.get(native_id)
        self.links[native_id] = link = AgentLink(self, receiver, [] if before is None else before.heard)
        self.change.tell()
        yield link

    def take(self, link: AgentLink, frames: Sequence[Frame]) -> Receipt | Awaitable[Receipt]:
        """Answer a send."""
        link.heard.extend(frame.payload for frame in frames)
        self.taken += len(frames)
        self.change.tell()
        return Receipt("delivered")

    def says(self, name: str, event: Event) -> None:
        self.links[name].receiver.frame(Frame("event", dump_event(event)))

    def asks(self, name: str, call: str, **arguments: Any) -> None:
        self.says(name, ToolRequested(native_call_id=call, tool="ask", arguments=arguments))

    def floods(self, names: Sequence[str], count: int) -> None:
        for name in names:
            for number in range(count):
                self.says(name, text(str(number)))

    def results_of(self, name: str) -> list[str]:
        return [one["native_call_id"] for one in self.links[name].heard if one["kind"] == "tool.finished"]

    async def wait(self, look: Callable[[], bool], what: str) -> None:
        await self.change.until(lambda: look() or None, PATIENCE, what=lambda: what)


class HeldEngine(SqliteEngine):
    """A store that takes `most` submitted steps at once, and holds its reports while `held` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "crowd.db", SystemClock())
        self.most: int | None = None
        self.held = False
        self.cut_off = False
        """Whether it renews and grants no lease, and lets nobody take a session."""
        self.reports: Callable[[Results], Results] = lambda results: results
        """Makes each report."""
        self.in_store = 0
        self.highest = 0
        """The highest number of steps that were in the store at once."""
        self.offered = 0
        """The highest number of steps of one submission."""
        self.linked: set[SessionId] = set()
        """The sessions with a recorded link."""
        self._waiting: list[tuple[Settled, Results]] = []

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        self.offered = max(self.offered, len(steps))
        room = len(steps) if self.most is None else max(0, self.most - self.in_store)
        # A full store gets no step, like a full engine.
        accepted = super().submit(steps[:room], partial(self._pass_on, settled)) if room else 0
        self.in_store += accepted
        self.highest = max(self.highest, self.in_store)
        return accepted

    def _pass_on(self, settled: Settled, results: Results) -> None:
        if self.held:
            self._waiting.append((settled, results))
            return
        self.in_store -= len(results)
        settled(self.reports(results))
        self.linked.update(step.session_id for step, _ in results if _says_up(step))

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        if self.cut_off:
            raise EngineUnavailable("the store is out of reach")
        return await super().beat(instance, url=url, ttl=ttl)

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        if self.cut_off:
            raise EngineUnavailable("the store is out of reach")
        return await super().take(instance, session_id)

    def let_go(self) -> None:
        """Report all held results, and hold none."""
        self.held = False
        kept, self._waiting = self._waiting, []
        for settled, results in kept:
            self._pass_on(settled, results)

    @property
    def kept(self) -> int:
        """The number of results that are held."""
        return sum(len(results) for _, results in self._waiting)


def _says_up(step: Step) -> bool:
    return any(one.event.kind == "link.changed" and one.event.state == "up" for one in step.events)


def text(words: str) -> MessagePosted:
    return MessagePosted(content=(Text(text=words),))


async def opened(running: Running, engine: HeldEngine, names: Sequence[str]) -> dict[str, SessionId]:
    """Open sessions and wait for their links."""
    gate, ids = asyncio.Semaphore(64), dict[str, SessionId]()

    async def one(name: str) -> None:
        async with gate:
            row, _, _ = await running.gateway.opening.open("finn", native_id=name, labels={})
            ids[name] = row.session_id

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    # Until then the step of a new link is in the store.
    await until(lambda: _are_linked(engine, ids))
    return ids


async def _are_linked(engine: HeldEngine, ids: Mapping[str, SessionId]) -> bool:
    return engine.linked.issuperset(ids.values())
