"""Takes over sessions without an owner: at the start, after an instance died or left, and on notifications."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from logging import INFO, WARNING

import structlog

from gateway.errors import EngineUnavailable
from gateway.events import SessionId
from gateway.guard import FAULTS
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.metrics import Metrics
from gateway.runtime.observe import label_session, warn_unserved
from gateway.runtime.session.registry import Sessions
from gateway.runtime.tuning import Tuning
from gateway.store.port import Engine, Report, report_nothing
from gateway.store.rows import Page, Regained, SessionFilter, SessionRow

log = structlog.get_logger(__name__)

BATCH = 100
"""Sessions taken over at once; each opens a link."""
_PAUSE = 0.1
_TOGETHER = 16
"""Named sessions that are acquired before the first of them is started."""
_COMPARE = 10
"""Looks after which the sessions owned in the store are compared with those that run here."""
_PAGE = 500
_MOST_NAMED = 10_000


class Takeover:
    """Looks for sessions without an owner about once a second, and when woken."""

    def __init__(
        self,
        engine: Engine,
        keeper: LeaseKeeper,
        sessions: Sessions,
        *,
        metrics: Metrics,
        jitter: Callable[[], float],
        tuning: Tuning,
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._sessions = sessions
        self._metrics = metrics
        self._jitter = jitter
        self._tuning = tuning
        self._wake = asyncio.Event()
        self._named: dict[SessionId, None] = {}
        self._must_compare = False

    def wake(self) -> None:
        """Look for sessions now."""
        self._wake.set()

    async def resume(self, mine: Sequence[Regained]) -> None:
        """Resume these sessions under a new lease; release all others that run here."""
        self._sessions.resume_all({one.session_id: one for one in mine})
        # Sessions that were being started when the lease was lost are owned but do not run. The next look finds them;
        # meanwhile other instances that lost their lease in the same pause can resume theirs.
        self._must_compare = True

    async def take_all(self, *, pause: float = 0.0, report: Report = report_nothing) -> None:
        """Take over all sessions that this instance may own, `BATCH` at a time."""
        try:
            most = 0 if report is report_nothing else await self._engine.count_open_sessions()
            while not self._sessions.leaving:
                report("loading sessions", min(1, self._sessions.count / max(most, 1)))
                rows = await self._keeper.take_over(self._sessions.runtimes.keys(), limit=BATCH)
                if not rows:
                    break
                for row in rows:
                    self._metrics.taken_up(takeover=row.fence > 1)
                self._log_taken(rows)
                await self._sessions.take_up(rows)
                await asyncio.sleep(pause * (0.5 + self._jitter()))
            if self._must_compare:
                self._must_compare = False
                await self._compare()
        except EngineUnavailable:
            # This instance may own a session without knowing, because the answer was lost.
            self._must_compare = True
            raise

    def _log_taken(self, rows: Sequence[SessionRow]) -> None:
        """Log sessions of other instances, one line for each former owner."""
        lease = self._keeper.lease
        taken: dict[str | None, list[str]] = {}
        for row in rows:
            if self._keeper.shared and row.fence > 1:
                taken.setdefault(row.previous_owner, []).append(label_session(row))
        for previous, sessions in taken.items():
            log.log(
                INFO if previous is None else WARNING,
                "sessions taken over",
                reason="their owner released them" if previous is None else "the lease of their owner expired",
                sessions=sessions,
                owner=None if lease is None else lease.instance,
                previous_owner=previous,
            )

    async def warn_unserved(self) -> None:
        """Warn of open sessions whose runtime no instance has, for example after a change of the configuration."""
        known = self._sessions.runtimes.keys() | self._sessions.unconnected
        unserved, after = Counter[str](), ""
        try:
            while after is not None:
                rows, after = await self._engine.sessions(Page(_PAGE, after or None), SessionFilter(open_only=True))
                for row in rows:
                    if row.runtime not in known and await self._engine.owner(row.session_id) is None:
                        unserved[row.runtime] += 1
            calls: Mapping[str, int] = await self._engine.count_open_calls() if unserved else {}
            for name, sessions in unserved.items():
                warn_unserved(name, sessions=sessions, calls=calls.get(name, 0))
        except EngineUnavailable as exc:
            self._engine.outage.failed(exc, "query for sessions without a runtime")

    def prioritize(self, names: Sequence[str]) -> None:
        """Look at these sessions first, since another instance reported that they have no owner."""
        for name in names[: _MOST_NAMED - len(self._named)]:
            self._named[SessionId(name)] = None
        self._wake.set()

    async def keep_looking(self) -> None:
        """Look regularly until the process is about to exit."""
        looks = 0
        while not self._sessions.leaving:
            try:
                async with asyncio.timeout(self._tuning.takeover_look * (0.5 + self._jitter())):
                    await self._wake.wait()
            except TimeoutError:
                looks += 1
            self._wake.clear()
            try:
                # A leaving instance names its sessions in parts. `take_over` would still count it for the fair shares.
                await self._take_named()
                if looks >= _COMPARE:
                    looks, self._must_compare = 0, True
                await self.take_all(pause=_PAUSE)
            except EngineUnavailable as exc:
                self._must_compare = True
                self._engine.outage.failed(exc, "query for sessions without an owner")

    async def _take_named(self) -> None:
        while self._named:
            taken: list[SessionRow] = []
            for session_id in list(islice(self._named, _TOGETHER)):
                try:
                    row = await self._keeper.take(session_id)
                except EngineUnavailable:
                    raise
                except Exception as exc:  # noqa: BLE001 - noted: one session must not block the others
                    FAULTS.get().note("takeover", exc, session_id=session_id)
                    row, self._must_compare = None, True
                del self._named[session_id]
                if row is not None and self._sessions.owned(session_id) is None:
                    self._metrics.taken_up(takeover=row.fence > 1)
                    taken.append(row)
            self._log_taken(taken)
            await self._sessions.take_up(taken)

    async def _compare(self) -> None:
        """Start owned sessions that do not run, and stop running ones with another owner; lost answers cause both."""
        lease = self._keeper.lease
        if lease is None or not self._keeper.settled:
            return
        shown = await self._engine.instances()
        owned = next((one.sessions for one in shown if one.instance_id == lease.instance), 0)
        if owned == len(self._sessions.all()):
            return
        after: str | None = None
        while True:
            rows, after = await self._engine.sessions(Page(_PAGE, after), SessionFilter(open_only=True))
            for row in rows:
                running = self._sessions.owned(row.session_id)
                if row.owner == lease.instance and running is None:
                    log.warning("session was owned but did not run", session=label_session(row))
                    await self._sessions.take_up([row])
                elif running is not None and running.permit.fence < row.fence:
                    self._sessions.lose(running, "another instance owns it")
            if after is None or self._keeper.lease is not lease:
                return
