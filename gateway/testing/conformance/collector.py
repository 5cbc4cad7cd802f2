"""What the suites for links and connectors wait with: a receiver that collects frames, and timeouts."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from gateway.adapter.port import Frame

BOUND = 15.0
"""The timeout in seconds of each wait in the suites."""


class Collector:
    """A receiver that collects the frames of a link and lets tests wait for them."""

    def __init__(self) -> None:
        self.times_caught_up = 0
        self.frames: list[Frame] = []
        self.cursors: list[str | None] = []
        self.is_caught_up = False
        self.is_starting: bool | None = None
        self.before_caught_up: list[Frame] = []
        """The frames that arrived before the link had caught up."""
        self._changed = asyncio.Event()

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        self.frames.append(frame)
        self.cursors.append(cursor)
        self._changed.set()

    def caught_up(self, *, starting: bool | None = False) -> None:
        self.is_caught_up, self.is_starting = True, starting
        self.times_caught_up += 1
        self.before_caught_up = list(self.frames)
        self._changed.set()

    async def wait_for(self, count: int, *, otherwise: str = "") -> list[Frame]:
        """Wait until `count` frames have arrived; `otherwise` explains the failure."""
        fault = otherwise or "the link did not pass on every frame that the peer has sent"
        await self._wait(lambda: len(self.frames) >= count, fault)
        return self.frames

    async def wait_for_frame(self, frame: Frame, *, otherwise: str = "") -> None:
        """Wait until this frame has arrived."""
        await self._wait(lambda: frame in self.frames, otherwise or f"the link did not pass on {frame}")

    async def wait_until_caught_up(self) -> None:
        """Wait until the link has called `caught_up`."""
        await self._wait(
            lambda: self.is_caught_up,
            "the link never called `receiver.caught_up()`, so no call would be executed: call it once after the"
            " history, even if the history is empty",
        )

    async def _wait(self, done: Callable[[], bool], fault: str) -> None:
        try:
            async with asyncio.timeout(BOUND):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"{fault} (after {BOUND:g} s and {len(self.frames)} frames)")


async def within(awaitable: Any) -> Any:
    """Await with the suite's timeout."""
    async with asyncio.timeout(BOUND):
        return await awaitable


async def enter(link: AbstractAsyncContextManager[Any]) -> None:
    """Open a link and close it at once."""
    async with asyncio.timeout(BOUND), link:
        pass
