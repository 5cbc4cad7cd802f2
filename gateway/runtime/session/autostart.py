"""Creates the session of a runtime that has `autostart`, and retries with back-off until there is one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial

import structlog

from gateway.errors import DragomanError, EngineUnavailable
from gateway.guard import FAULTS, guard, is_fault, is_to_end
from gateway.runtime.drain import Drain
from gateway.runtime.session.owned_session import Runtime, stopped
from gateway.runtime.session.shared import Shared
from gateway.runtime.views import FailingAutostart
from gateway.store.rows import Page, SessionFilter

log = structlog.get_logger(__name__)

_LONGEST_AFTER_FAULTS = 600.0
"""At most after faults of an adapter: each attempt may have created a session that nothing uses."""
_LOOK = 1.0
"""Seconds between two looks while another instance creates the session."""
_MOST_LOGGED = 100
"""Different reasons that are logged for one runtime."""


class Autostarts:
    """One task for each runtime whose session is not created yet; across instances, one of them creates it."""

    def __init__(self, shared: Shared, create: Callable[[Runtime], Awaitable[object]], drain: Drain) -> None:
        """Prepare; `create` makes the native session and opens it."""
        self._shared = shared
        self._create = create
        self._drain = drain
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failing: dict[str, FailingAutostart] = {}

    @property
    def failing(self) -> Mapping[str, FailingAutostart]:
        """Map the names of runtimes whose session could not be created so far to the last failure."""
        return self._failing

    async def start(self, runtime: Runtime) -> None:
        """Create the session of a runtime unless it has one; replaces an earlier attempt at once."""
        await self.stop(runtime.name)
        run = partial(self._run, runtime)
        task = guard("autostart", run, self._shared.tasks, again=False, runtime=runtime.name)
        self._running[runtime.name] = task

    async def stop(self, name: str) -> None:
        """End the attempts for a runtime."""
        task = self._running.pop(name, None)
        if task is not None:
            await stopped([task])
        self._failing.pop(name, None)

    async def _run(self, runtime: Runtime) -> None:
        name = runtime.name
        attempts, longest, logged = 0, self._shared.tuning.autostart_longest, set[str]()
        try:
            while not self._drain.begun.is_set():
                try:
                    if await self._is_done(runtime):
                        return
                    # Another instance has the turn.
                    self._failing.pop(name, None)
                    attempts = 0
                    await asyncio.sleep(_LOOK * (0.5 + self._shared.jitter()))
                    continue
                except DragomanError as exc:
                    reason, longest = str(exc), self._shared.tuning.autostart_longest
                except BaseException as exc:
                    if not is_fault(exc) or is_to_end():
                        raise
                    FAULTS.note("autostart", exc, runtime=name)
                    reason = f"the adapter failed inside the gateway ({type(exc).__name__})"
                    longest = _LONGEST_AFTER_FAULTS
                attempts += 1
                if reason not in logged and len(logged) < _MOST_LOGGED:
                    logged.add(reason)
                    log.warning("autostart failed and is retried", runtime=name, reason=reason)
                await asyncio.sleep(self._note_failure(name, reason, attempts, longest=longest))
        finally:
            self._failing.pop(name, None)
            await self._let_go(runtime)

    async def _is_done(self, runtime: Runtime) -> bool:
        """Create the session unless there is one; False while another instance has the turn to create it."""
        if await self._has_session(runtime.name):
            return True
        if not await self._shared.keeper.hold(_hold_of(runtime)):
            return False
        # Another instance may have created it before the hold was free.
        if not await self._has_session(runtime.name):
            await self._create(runtime)
        return True

    def _note_failure(self, name: str, reason: str, attempts: int, *, longest: float) -> float:
        """Record a failed attempt; returns the seconds until the next one."""
        before, now = self._failing.get(name), self._shared.clock.now()
        ceiling = min(longest, self._shared.tuning.autostart_first * 2 ** min(attempts - 1, 20))
        wait = ceiling * (0.5 + 0.5 * self._shared.jitter())
        since = now if before is None else before.since
        self._failing[name] = FailingAutostart(reason, since, attempts, now + timedelta(seconds=wait))
        return wait

    async def _has_session(self, runtime: str) -> bool:
        rows, _ = await self._shared.engine.sessions(Page(limit=1), SessionFilter(runtime, open_only=True))
        return bool(rows)

    async def _let_go(self, runtime: Runtime) -> None:
        try:
            await self._shared.keeper.let_go(_hold_of(runtime))
        except EngineUnavailable as exc:
            log.warning("autostart hold not released; it expires with the lease", reason=str(exc))


def _hold_of(runtime: Runtime) -> str:
    return f"autostart:{runtime.name}"
