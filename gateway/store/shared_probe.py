"""One try of the store at a time, whose answer everybody shares who asks meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.errors import EngineUnavailable, EngineUnusable
from gateway.guard import FAULTS, Tasks, spawn
from gateway.store.rows import EngineHealth


class SharedProbe:
    """Answers within `patience` seconds of the try's beginning, also while the store hangs; the try itself goes on."""

    def __init__(self, place: str, probe: Callable[[], Awaitable[EngineHealth]], *, patience: float) -> None:
        self._place = place
        self._probe = probe
        self._patience = patience
        self._tasks = Tasks()
        self._running: asyncio.Task[EngineHealth] | None = None
        self._late_at = 0.0

    async def ask(self) -> EngineHealth:
        """Say whether the store takes writes."""
        loop = asyncio.get_running_loop()
        running = self._running
        if running is None or running.done():
            running = self._running = spawn("probe", self._try(), self._tasks)
            self._late_at = loop.time() + self._patience
        # Not awaited itself, so that nobody who gives up breaks it off for the others.
        await asyncio.wait({running}, timeout=max(0.0, self._late_at - loop.time()))
        if running.done() and not running.cancelled():
            return running.result()
        return EngineHealth(writable=False, detail=f"{self._place} did not answer in {self._patience:g} s")

    async def _try(self) -> EngineHealth:
        try:
            return await self._probe()
        except (EngineUnavailable, EngineUnusable) as exc:
            return EngineHealth(writable=False, detail=str(exc))
        except Exception as exc:  # noqa: BLE001 - noted: it says that the store is not well, and must not break who asks
            FAULTS.note("probe", exc)
            return EngineHealth(
                writable=False, detail=f"{self._place} failed in a way that nobody foresaw; see the log"
            )

    async def close(self) -> None:
        """Break off what still runs."""
        tasks, self._tasks = self._tasks, Tasks()
        await tasks.close()
