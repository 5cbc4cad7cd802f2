"""One session at work, with its link and the runtime that it belongs to."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.adapter.port import Adapter, Connector, RuntimeOptions, Tool
from gateway.core.session import RuntimeContext
from gateway.guard import in_time, suppress_faults
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
    """What ends its connection."""
    tools: tuple[Tool, ...] = ()

    async def disconnect(self) -> None:
        """Close its connector, and wait for that no longer than for its being opened."""
        await disconnected(self.name, self.stack, self.options)


async def disconnected(name: str, stack: AsyncExitStack, options: RuntimeOptions) -> None:
    """Close a connector, which is somebody else's code; it may raise, or hang."""

    async def close() -> None:
        async with in_time(options.connect_timeout.total_seconds(), "closing the adapter's connector"):
            await stack.aclose()

    await suppress_faults("connector", close(), runtime=name)


@dataclass(frozen=True, slots=True)
class OwnedSession:
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
