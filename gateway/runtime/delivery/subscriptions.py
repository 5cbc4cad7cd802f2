"""Carries event copies to destinations, from the ledger, on a slow schedule with dead letters."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog

from gateway.clock import Clock
from gateway.core.session import RetryPolicy
from gateway.errors import DragomanError, EngineUnavailable
from gateway.events import to_copy
from gateway.executors.port import Copied, Destination
from gateway.guard import FAULTS, Tasks, guard, is_fault
from gateway.store.port import Engine
from gateway.store.rows import Send
from gateway.store.step import SendChange, SendState, Step

log = structlog.get_logger(__name__)

_PAGE = 100
_OFF = "off"
FAULTS_A_COPY = 3
"""How often one copy may make its destination fail in ways that nobody foresaw."""


def target_of(name: str) -> str:
    """Name the outbound target of a destination."""
    return f"destination:{name}"


def note_of(name: str) -> str:
    """Name the note that says whether a destination is switched off."""
    return f"destination/{name}"


class EventDelivery:
    """Delivers the copies of one destination; `run` is its only task."""

    def __init__(
        self,
        name: str,
        destination: Destination,
        *,
        policy: RetryPolicy,
        concurrency: int,
        engine: Engine,
        clock: Clock,
        jitter: Callable[[], float],
        longest_sleep: float,
    ) -> None:
        """Prepare; it looks for copies that nobody announced at least each `longest_sleep` seconds."""
        self._name = name
        self._longest_sleep = longest_sleep
        self._destination = destination
        self._policy = policy
        self._concurrency = concurrency
        self._engine = engine
        self._clock = clock
        self._jitter = jitter
        self._bell = asyncio.Event()
        self._faults: dict[tuple[str, int], int] = {}
        """How often the copies that made the destination fail have done so."""
        self.finishing = False

    def finish(self) -> None:
        """Begin no other copy; `run` ends with those that are under way."""
        self.finishing = True
        self._bell.set()

    def wake(self) -> None:
        """There may be something new."""
        self._bell.set()

    async def run(self) -> None:
        """Deliver until the task is canceled, or there is nothing more to finish."""
        while not self.finishing:
            self._bell.clear()
            try:
                rows = await self._due()
                if rows:
                    await self._deliver(rows)
                    continue
                wait = await self._sleep_time()
            except DragomanError as exc:
                log.warning("copies must wait", destination=self._name, reason=str(exc))
                wait = 1.0
            try:
                async with asyncio.timeout(wait):
                    await self._bell.wait()
            except TimeoutError:
                continue

    async def _due(self) -> Sequence[Send]:
        if await self._engine.note(note_of(self._name)) == _OFF:
            return ()
        return await self._engine.pending_sends(target=target_of(self._name), due_before=self._clock.now(), limit=_PAGE)

    async def _sleep_time(self) -> float:
        due = await self._engine.next_send_due(target_of(self._name))
        if due is None or await self._engine.note(note_of(self._name)) == _OFF:
            return self._longest_sleep
        return min(self._longest_sleep, max(0.05, (due - self._clock.now()).total_seconds()))

    async def _deliver(self, rows: Sequence[Send]) -> None:
        """Send copies side by side, but those of one session in order."""
        sessions: dict[str, list[Send]] = {}
        for row in rows:
            sessions.setdefault(row.session_id, []).append(row)
        slots = asyncio.Semaphore(self._concurrency)
        problems: list[DragomanError] = []

        async def of_one_session(mine: list[Send]) -> None:
            async with slots:
                try:
                    for row in mine:
                        if self.finishing or not await self._copy(row):
                            return
                except BaseException as exc:
                    if not is_fault(exc):
                        raise
                    # One session's mark that cannot be written must not break off the copies of the others.
                    if not isinstance(exc, DragomanError):
                        FAULTS.note("copies", exc, destination=self._name, session_id=mine[0].session_id)
                        exc = EngineUnavailable(f"a mark failed in a way that nobody foresaw ({type(exc).__name__})")
                    problems.append(exc)

        async with Tasks() as group:
            for mine in sessions.values():
                guard("copies", partial(of_one_session, mine), group, again=False)
        if problems:
            raise problems[0]

    async def _copy(self, row: Send) -> bool:
        envelope = row.envelope
        attempt = row.attempt + 1
        try:
            kind, data = to_copy(envelope)
            copied = await self._destination.copy(
                key=envelope.event_id,
                kind=kind,
                at=envelope.recorded_at,
                data=data,
                attempt=attempt,
            )
        except DragomanError:
            raise
        except BaseException as exc:
            if not is_fault(exc):
                raise
            copied = self._failed(row, exc)
        else:
            self._faults.pop((row.session_id, row.sequence), None)
        change = self._judge(row, copied, attempt)
        await self._engine.commit(Step(session_id=row.session_id, send_changes=(change,)))
        if copied.state == "gone":
            await self._engine.set_note(note_of(self._name), _OFF)
            log.error("a destination answered 410 and is switched off", destination=self._name)
        return change.state == "delivered"

    def _failed(self, row: Send, exc: BaseException) -> Copied:
        """A copy made its destination fail in a way that nobody foresaw: it is put aside when it has done so thrice."""
        FAULTS.note("destination", exc, destination=self._name, session_id=row.session_id, sequence=row.sequence)
        key = row.session_id, row.sequence
        self._faults[key] = times = self._faults.get(key, 0) + 1
        reason = f"the destination failed inside the gateway ({type(exc).__name__})"
        if times < FAULTS_A_COPY:
            return Copied("again", reason)
        del self._faults[key]
        return Copied("dead", reason)

    def _judge(self, row: Send, copied: Copied, attempt: int) -> SendChange:
        state: SendState = "delivered"
        due_at, reason = None, copied.reason
        match copied.state:
            case "delivered":
                reason = None
            case "refused":
                state = "refused"
            case "dead":
                state = "dead"
            case "gone":
                state, due_at = "pending", self._clock.now()
            case _ if attempt >= self._policy.attempts:
                state, reason = "dead", f"{copied.reason} (after {attempt} attempts)"
            case _:
                wait: timedelta = copied.retry_after or self._policy.delay(attempt, 0.5 + self._jitter() / 2)
                state, due_at = "pending", self._clock.now() + wait
        if state in {"refused", "dead"}:
            log.warning(
                "a copy was given up",
                destination=self._name,
                session_id=row.session_id,
                sequence=row.sequence,
                reason=reason,
            )
        return SendChange(
            sequence=row.sequence,
            target=row.target,
            state=state,
            attempt=attempt,
            due_at=due_at,
            reason=reason,
        )
