"""Periodic work: retention, and the gauges that are measured."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import structlog

from gateway.errors import EngineUnavailable
from gateway.guard import Tasks, running
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.metrics import Metrics
from gateway.runtime.session.registry import Sessions
from gateway.runtime.status import Status
from gateway.runtime.tuning import Tuning
from gateway.settings.model import Retention
from gateway.store.port import Engine
from gateway.store.rows import RetentionPolicy

log = structlog.get_logger(__name__)

_COUNTED = 1_000


class Maintenance:
    """Runs two loops in the gateway's task group."""

    def __init__(
        self, engine: Engine, metrics: Metrics, sessions: Sessions, keeper: LeaseKeeper, tuning: Tuning, status: Status
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._metrics = metrics
        self._sessions = sessions
        self._tuning = tuning
        self._status = status
        self._can_open = True
        """Whether the last check could open a file."""

    @contextmanager
    def running(self, tasks: Tasks, retention: Callable[[], Retention]) -> Generator[None]:
        """Run the loops in this group; `retention` returns the current retention settings."""
        with running("gauges", self._measure, tasks), running("retention", partial(self._sweep, retention), tasks):
            yield

    async def _measure(self) -> None:
        while True:
            oldest: dict[str, float] = dict.fromkeys(self._sessions.runtimes, 0.0)
            for session in self._sessions.all():
                name = session.view.runtime
                oldest[name] = max(oldest.get(name, 0.0), session.sender.oldest_wait())
            calls = (call for session in self._sessions.all() for call in session.view.calls.values())
            self._metrics.held_calls(sum(call.state == "held" for call in calls))
            for name, seconds in oldest.items():
                self._metrics.outbox_oldest(name, seconds)
            self._metrics.tasks(len(asyncio.all_tasks()))
            self._check_descriptors()
            self._metrics.conditions(Counter(condition.kind for condition in self._status.conditions()))
            try:
                await self._measure_store()
            except EngineUnavailable as exc:
                self._engine.outage.failed(exc, "measurement")
            await asyncio.sleep(self._tuning.gauges)

    def _check_descriptors(self) -> None:
        """Log when no file or socket can be opened; new clients would wait forever without an error."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as exc:
            if self._can_open:
                fix = "raise `ulimit -Hn` (LimitNOFILE, `ulimits`), and list the open ones: `ls -l /proc/<pid>/fd`"
                reason = exc.strerror or str(exc)
                # A traceback would not help: the cause is the limit of the machine.
                log.error("out of file descriptors; refusing new connections", reason=reason, fix=fix)  # noqa: TRY400
            self._can_open = False
        else:
            if not self._can_open:
                log.info("file descriptors are available again")
            self._can_open = True

    async def _measure_store(self) -> None:
        self._metrics.dead_letters(await self._engine.count_dead(_COUNTED))
        self._metrics.interactions_waiting(await self._engine.count_waiting(_COUNTED))
        for runtime, lacking in (await self._status.sessions_without_tools()).items():
            self._metrics.sessions_without_tools(runtime, len(lacking))
        free = (await self._engine.health()).extra.get("disk_free_bytes")
        self._engine.outage.works()
        if free is not None:
            self._metrics.disk_free(int(free))

    async def _sweep(self, retention: Callable[[], Retention]) -> None:
        while True:
            await asyncio.sleep(self._tuning.sweep)
            lost = Counter[str]()
            try:
                if not await self._keeper.hold("sweep"):
                    continue
                policy = _policy(retention())
                swept = await self._engine.sweep(policy)
                lost.update(swept.copies)
                while swept.more and await self._keeper.hold("sweep"):
                    await asyncio.sleep(0.05)
                    swept = await self._engine.sweep(policy)
                    lost.update(swept.copies)
            except EngineUnavailable as exc:
                self._engine.outage.failed(exc, "retention")
            self._report_lost(lost)

    def _report_lost(self, lost: Counter[str]) -> None:
        """Count and log the copies that retention removed undelivered."""
        named = Counter[str]()
        for target, count in lost.items():
            named[target.partition(":")[2] or target] += count
        for destination, count in named.items():
            self._metrics.copies_lost(destination, count)
        if named:
            log.warning("retention removed copies that were never delivered", copies=dict(named))


def _policy(retention: Retention) -> RetentionPolicy:
    return RetentionPolicy(
        closed_age=retention.closed_age,
        open_age=retention.open_age,
        open_events=retention.open_events,
        call_age=retention.closed_age,
        copy_age=retention.closed_age,
        max_bytes=int(retention.max_bytes),
    )
