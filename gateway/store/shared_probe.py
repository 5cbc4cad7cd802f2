"""A health probe of the store: one runs at a time, and concurrent callers share its result."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.clock import describe_stall
from gateway.errors import EngineUnavailable, EngineUnusable
from gateway.guard import FAULTS, Tasks, spawn
from gateway.store.rows import EngineHealth


class SharedProbe:
    """Return a result within `patience` seconds of the probe's start, even if the store hangs; the probe continues."""

    def __init__(self, place: str, probe: Callable[[], Awaitable[EngineHealth]], *, patience: float) -> None:
        self._place = place
        self._probe = probe
        self._patience = patience
        self._tasks = Tasks()
        self._running: asyncio.Task[EngineHealth] | None = None
        self._late_at = 0.0

    async def ask(self) -> EngineHealth:
        """Return whether the store accepts writes."""
        loop = asyncio.get_running_loop()
        running = self._running
        if running is None or running.done():
            running = self._running = spawn("probe", self._try(), self._tasks)
            self._late_at = loop.time() + self._patience
        # Not awaited directly, so that a canceled caller does not cancel the probe of the others.
        await asyncio.wait({running}, timeout=max(0.0, self._late_at - loop.time()))
        if running.done() and not running.cancelled():
            return running.result()
        why = describe_stall(loop.time() - self._late_at)
        why = why and f": {why}"
        return EngineHealth(writable=False, detail=f"{self._place} did not answer in {self._patience:g} s{why}")

    async def _try(self) -> EngineHealth:
        try:
            return await self._probe()
        except (EngineUnavailable, EngineUnusable) as exc:
            return EngineHealth(writable=False, detail=str(exc))
        except Exception as exc:  # noqa: BLE001 - recorded as a fault; the caller gets an unhealthy store
            FAULTS.get().note("probe", exc)
            return EngineHealth(writable=False, detail=f"{self._place} failed unexpectedly; see the log")

    async def close(self) -> None:
        """Cancel a running probe."""
        tasks, self._tasks = self._tasks, Tasks()
        await tasks.close()
