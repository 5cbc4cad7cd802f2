"""One session at work, with its link and the runtime that it belongs to."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.adapter.port import Adapter, Connector, RuntimeOptions, Tool
from gateway.core.session import RuntimeContext
from gateway.runtime.session.link import Supervisor
from gateway.runtime.session.worker import SessionWorker

STOP = 5.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime of the YAML, connected."""

    name: str
    adapter: Adapter
    options: RuntimeOptions
    connector: Connector | None
    """None where the protocol is not linked."""
    context: RuntimeContext
    stack: AsyncExitStack
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """One session at work."""

    worker: SessionWorker
    supervisor: Supervisor | None
    """None where the protocol is not linked."""
    runtime: Runtime
    working: asyncio.Task[None]
    links: tuple[asyncio.Task[None], ...] = ()
    """What keeps its link, where it has one."""

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """Its work, then its link."""
        return (self.working, *self.links)


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks, and wait for that, but no longer than they may take."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending, timeout=STOP)
