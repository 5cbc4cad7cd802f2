"""Agents that ask one call after the other while something is done to the gateway and what it depends on."""

import asyncio
from collections.abc import Iterator
from itertools import cycle
from time import monotonic
from types import TracebackType
from typing import Any

from tests.faults.environment import until
from tests.faults.observed import observed
from tests.faults.scene import Scene

WORKERS = 8


class Load:
    """Some askers that go on and on; the longest wait of any of them is noted."""

    def __init__(self, scene: Scene, **arguments: Any) -> None:
        self._scene = scene
        self._arguments = arguments
        self._over = False
        self._group = asyncio.TaskGroup()
        self.done = 0
        self.longest = 0.0

    async def __aenter__(self) -> "Load":
        await self._group.__aenter__()
        tools = cycle(["again", "once"])
        for _ in range(WORKERS):
            self._group.create_task(self._work(tools))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        await self._group.__aexit__(kind, exc, trace)
        observed().waited(self.longest)

    async def more(self, count: int, *, within: float = 30.0) -> None:
        """Wait until so many more calls have ended."""
        goal = self.done + count

        async def so() -> bool:
            return self.done >= goal

        await until(so, within=within)

    async def _work(self, tools: Iterator[str]) -> None:
        while not self._over:
            started = monotonic()
            await self._scene.agent.wait_connected(30)
            await self._scene.ask(next(tools), within=60, **self._arguments)
            self.done += 1
            self.longest = max(self.longest, monotonic() - started)
            await asyncio.sleep(0.02)
