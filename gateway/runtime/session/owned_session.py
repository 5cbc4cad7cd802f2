"""An owned session with its link and runtime, and the connection of a runtime."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.adapter.port import Adapter, Connector, RuntimeOptions, Tool
from gateway.core.session import RuntimeContext
from gateway.guard import in_time, suppress_faults
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.link import Supervisor

STOP = 5.0


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


@dataclass(frozen=True, slots=True)
class OwnedSession:
    """A session that this process owns and runs."""

    actor: Actor
    supervisor: Supervisor | None
    """None if the protocol has no links."""
    runtime: Runtime
    links: tuple[asyncio.Task[None], ...] = ()
    """The task that maintains its link, if the protocol has links."""


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, at most `STOP` seconds."""
    canceled = list(tasks)
    for task in canceled:
        task.cancel()
    if canceled:
        await asyncio.wait(canceled, timeout=STOP)
