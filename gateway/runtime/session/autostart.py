"""Creates the session of a runtime with `autostart`; retries with back-off."""

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
"""The longest back-off after an adapter fault, because each attempt may have created a session that stays unused."""
_CHECK_AGAIN = 1.0
"""Seconds between checks while another instance creates the session."""
_MOST_LOGGED = 100
"""Distinct reasons logged for one runtime."""


class Autostarts:
    """Runs one task for each runtime without its session; a hold in the store lets one instance create it."""

    def __init__(self, shared: Shared, create: Callable[[Runtime], Awaitable[object]], drain: Drain) -> None:
        """Prepare; `create` creates the native session and opens it."""
        self._shared = shared
        self._create = create
        self._drain = drain
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failing: dict[str, FailingAutostart] = {}

    @property
    def failing(self) -> Mapping[str, FailingAutostart]:
        """The last failure of each runtime without a session, by runtime name."""
        return self._failing

    async def start(self, runtime: Runtime) -> None:
        """Start to create the session of a runtime unless it has one; an earlier task is canceled."""
        await self.stop(runtime.name)
        run = partial(self._run, runtime)
        task = guard("autostart", run, self._shared.tasks, again=False, runtime=runtime.name)
        self._running[runtime.name] = task

    async def stop(self, name: str) -> None:
        """Stop the attempts for a runtime."""
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
                    # Another instance holds the right to create it.
                    self._failing.pop(name, None)
                    attempts = 0
                    await asyncio.sleep(_CHECK_AGAIN * (0.5 + self._shared.jitter()))
                    continue
                except DragomanError as exc:
                    reason, longest = str(exc), self._shared.tuning.autostart_longest
                except BaseException as exc:
                    if not is_fault(exc) or is_to_end():
                        raise
                    FAULTS.get().note("autostart", exc, runtime=name)
                    reason = f"the adapter failed inside the gateway ({type(exc).__name__})"
                    longest = _LONGEST_AFTER_FAULTS
                attempts += 1
                if reason not in logged and len(logged) < _MOST_LOGGED:
                    logged.add(reason)
                    log.warning("autostart failed; retrying", runtime=name, reason=reason)
                await asyncio.sleep(self._note_failure(name, reason, attempts, longest=longest))
        finally:
            self._failing.pop(name, None)
            await self._release_hold(runtime)

    async def _is_done(self, runtime: Runtime) -> bool:
        """Create the session unless it exists; return False while another instance may create it."""
        if await self._has_session(runtime.name):
            return True
        if not await self._shared.keeper.hold(_hold_of(runtime)):
            return False
        # Another instance may have created it before it released the hold.
        if not await self._has_session(runtime.name):
            await self._create(runtime)
        return True

    def _note_failure(self, name: str, reason: str, attempts: int, *, longest: float) -> float:
        """Record a failed attempt; return the seconds until the next one."""
        before, now = self._failing.get(name), self._shared.clock.now()
        ceiling = min(longest, self._shared.tuning.autostart_first * 2 ** min(attempts - 1, 20))
        wait = ceiling * (0.5 + 0.5 * self._shared.jitter())
        since = now if before is None else before.since
        self._failing[name] = FailingAutostart(reason, since, attempts, now + timedelta(seconds=wait))
        return wait

    async def _has_session(self, runtime: str) -> bool:
        rows, _ = await self._shared.engine.sessions(Page(limit=1), SessionFilter(runtime, open_only=True))
        return bool(rows)

    async def _release_hold(self, runtime: Runtime) -> None:
        try:
            await self._shared.keeper.release_name(_hold_of(runtime))
        except EngineUnavailable as exc:
            log.warning("autostart hold not released; it expires with the lease", reason=str(exc))


def _hold_of(runtime: Runtime) -> str:
    return f"autostart:{runtime.name}"
