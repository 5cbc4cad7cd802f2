"""Delivers copies of events and notices to a destination from the ledger, with slow retries and dead letters."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from gateway.clock import Clock
from gateway.core.holding import notice_target
from gateway.core.session import RetryPolicy
from gateway.errors import DragomanError, EngineUnavailable
from gateway.events import SessionId, to_copy
from gateway.executors.port import Copied, Destination
from gateway.guard import FAULTS, Tasks, guard, is_fault, is_to_end
from gateway.log_limit import limited
from gateway.runtime.delivery.notices import KnownQuestion, Notices
from gateway.store.port import Engine
from gateway.store.rows import Rows, Send
from gateway.store.step import SendChange, SendState, Step

log = structlog.get_logger(__name__)

_PAGE = 100
OFF = "off"
"""The note of a disabled destination."""
_QUERY_PAUSE = 0.05
"""Seconds between queries for copies, unless the last page was full."""
_MARK_AFTER = 1.0
"""Seconds after which delivered copies of a session are marked, even if more follow."""
_LAST_MARKS = 1.0
"""Seconds for writing marks when the delivery is canceled."""
FAULTS_A_COPY = 3
"""Unexpected failures of a destination caused by one copy before the copy is dead."""


def target_of(name: str) -> str:
    """Name the outbound target of a destination."""
    return f"destination:{name}"


def note_of(name: str) -> str:
    """Name the note that stores whether a destination is disabled."""
    return f"destination/{name}"


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The rules by which one destination gets its copies."""

    policy: RetryPolicy
    concurrency: int
    longest_sleep: float
    """Seconds after which the store is queried for copies that were not announced."""
    reconnect_within: timedelta
    """The time that copies wait for an unreachable destination; then they are dead."""


class EventDelivery:
    """Delivers the copies and the notices of one destination; `run` is its only task."""

    def __init__(
        self,
        name: str,
        destination: Destination,
        rules: DeliveryRules,
        notices: Notices,
        *,
        engine: Engine,
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self._name = name
        self._longest_sleep = rules.longest_sleep
        self._destination = destination
        self._notices = notices
        self._policy = rules.policy
        self._concurrency = rules.concurrency
        self._engine = engine
        self._clock = clock
        self._jitter = jitter
        self._reconnect_within = rules.reconnect_within
        self._unreachable_since: datetime | None = None
        self._wakeup = asyncio.Event()
        self._may_be_off = True
        """Whether the store must be queried for a disabled destination."""
        self._faults: dict[tuple[str, int], int] = {}
        """Unexpected failures by the copy that caused them."""
        self.finishing = False

    def finish(self) -> None:
        """Start no more copies; `run` returns after those in flight."""
        self.finishing = True
        self._wakeup.set()

    def wake(self) -> None:
        """Query for new copies at once."""
        self._wakeup.set()

    async def run(self) -> None:
        """Deliver until the task is canceled or `finish` is called."""
        self._may_be_off = True
        while not self.finishing:
            self._wakeup.clear()
            try:
                rows = await self._due()
                await self._deliver(rows, self._copy_in_order)
                await self._deliver(await self._due_notices(), self._notify)
                if rows.more:
                    continue
                # New copies are queried next, before any retry is due.
                wait = 0.0 if self._wakeup.is_set() else await self._sleep_time()
            except EngineUnavailable as exc:
                self._engine.outage.failed(exc, "copies")
                wait = 1.0
            except DragomanError as exc:
                limited(log.warning, "copies postponed", per=self._name, destination=self._name, reason=str(exc))
                wait = 1.0
            # Copies that are written meanwhile share the next query.
            await asyncio.sleep(_QUERY_PAUSE)
            try:
                async with asyncio.timeout(wait):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def _due(self) -> Rows[Send]:
        if await self._is_off():
            return Rows()
        return await self._engine.pending_sends(target=target_of(self._name), due_before=self._clock.now(), limit=_PAGE)

    async def _due_notices(self) -> Sequence[Send]:
        return () if await self._is_off() else await self._notices.due(self._name, _PAGE)

    async def _is_off(self) -> bool:
        # Only a 410 disables a destination, and enabling it wakes this task.
        if self._may_be_off:
            self._may_be_off = await self._engine.note(note_of(self._name)) == OFF
        return self._may_be_off

    async def _sleep_time(self) -> float:
        if self._may_be_off:
            return self._longest_sleep
        due = [await self._engine.next_send_due(name(self._name)) for name in (target_of, notice_target)]
        times = [max(0.05, (one - self._clock.now()).total_seconds()) for one in due if one is not None]
        return min([self._longest_sleep, *times])

    async def _deliver(self, rows: Sequence[Send], send: Callable[[list[Send]], Awaitable[None]]) -> None:
        """Send rows concurrently, but those of one session in order."""
        sessions: dict[str, list[Send]] = {}
        for row in rows:
            sessions.setdefault(row.session_id, []).append(row)
        waiting = deque(sessions.values())
        problems: list[DragomanError] = []

        async def deliver_sessions() -> None:
            while waiting:
                mine = waiting.popleft()
                try:
                    await send(mine)
                except BaseException as exc:
                    if not is_fault(exc):
                        raise
                    # A session whose marks cannot be written must not stop the copies of the others.
                    if not isinstance(exc, DragomanError):
                        FAULTS.get().note("copies", exc, destination=self._name, session_id=mine[0].session_id)
                        exc = EngineUnavailable(f"a mark failed unexpectedly ({type(exc).__name__})")
                    problems.append(exc)

        async with Tasks() as group:
            for _ in range(min(len(waiting), self._concurrency)):
                guard("copies", deliver_sessions, group, again=False)
        if problems:
            raise problems[0]

    async def _copy_in_order(self, rows: Sequence[Send]) -> None:
        """Send copies of one session until one fails; mark the results in few steps."""
        marks: list[SendChange] = []
        now = asyncio.get_running_loop().time
        marked_at = now()
        try:
            for row in rows:
                if self.finishing:
                    break
                marks.append(await self._copy(row))
                if marks[-1].state != "delivered":
                    break
                if now() >= marked_at + _MARK_AFTER:
                    await self._mark(rows[0].session_id, marks)
                    marked_at = now()
        finally:
            # Also when canceled, within a time limit: unmarked copies are sent again.
            if marks:
                async with asyncio.timeout(_LAST_MARKS if is_to_end() else None):
                    await self._mark(rows[0].session_id, marks)

    async def _mark(self, session_id: SessionId, marks: list[SendChange]) -> None:
        changes = tuple(marks)
        marks.clear()
        await self._engine.commit(Step(session_id=session_id, send_changes=changes))

    async def _copy(self, row: Send) -> SendChange:
        envelope = row.envelope
        return await self._send(
            row,
            lambda: (envelope.event_id, envelope.recorded_at, *to_copy(envelope, self._engine.generation.name)),
        )

    async def _notify(self, rows: Sequence[Send]) -> None:
        """Send notices about the questions of one session until one fails."""
        for row in rows:
            if self.finishing:
                return
            known = await self._notices.look(row)
            if known is None:
                change = SendChange(row.sequence, row.target, "moot", reason="the question was removed")
            else:
                change = await self._send(row, partial(self._write_notice, row, known))
            if not await self._notices.mark(change, row, known) or change.state not in {"delivered", "moot"}:
                return

    def _write_notice(self, row: Send, known: KnownQuestion) -> tuple[str, datetime, str, dict[str, Any]]:
        notice = self._notices.write(self._name, row, known)
        return notice.key, self._clock.now(), notice.kind, notice.data

    async def _send(self, row: Send, write: Callable[[], tuple[str, datetime, str, dict[str, Any]]]) -> SendChange:
        """Send what `write` returns: key, time, kind and data."""
        attempt = row.attempt + 1
        try:
            key, at, kind, data = write()
            copied = await self._destination.copy(key=key, kind=kind, at=at, data=data, attempt=attempt)
        except DragomanError:
            raise
        except BaseException as exc:
            if not is_fault(exc):
                raise
            copied = self._note_fault(row, exc)
        else:
            self._faults.pop((row.session_id, row.sequence), None)
        if copied.state == "gone":
            self._may_be_off = True
            await self._engine.set_note(note_of(self._name), OFF)
            log.error("destination answered 410 and is disabled", destination=self._name)
        return self._judge(row, copied, attempt)

    def _note_fault(self, row: Send, exc: BaseException) -> Copied:
        """Note an unexpected failure; the third one of a copy makes it dead."""
        FAULTS.get().note("destination", exc, destination=self._name, session_id=row.session_id, sequence=row.sequence)
        key = row.session_id, row.sequence
        self._faults[key] = times = self._faults.get(key, 0) + 1
        reason = f"the destination failed inside the gateway ({type(exc).__name__})"
        if times < FAULTS_A_COPY:
            return Copied("again", reason)
        del self._faults[key]
        return Copied("dead", reason)

    def _judge(self, row: Send, copied: Copied, attempt: int) -> SendChange:
        state: SendState = "delivered"
        due_at, reason, now = None, copied.reason, self._clock.now()
        if copied.state != "unsent":
            self._unreachable_since = None
        elif self._unreachable_since is None:
            self._unreachable_since = now
        match copied.state:
            case "delivered":
                reason = None
            case "refused":
                state = "refused"
            case "dead":
                state = "dead"
            case "gone":
                state, due_at = "pending", now
            case "unsent":
                # Nothing was sent, so it does not count as an attempt.
                since, attempt = self._unreachable_since or now, row.attempt
                if now - since < self._reconnect_within:
                    state, due_at = "pending", now + self._policy.reconnect_pause(now - since, self._jitter())
                else:
                    state, reason = "dead", f"unreachable since {since:%Y-%m-%d %H:%M:%S} UTC ({copied.reason})"
            case _ if attempt >= self._policy.attempts:
                state, reason = "dead", f"{copied.reason} (after {attempt} attempts)"
            case _:
                wait: timedelta = copied.retry_after or self._policy.delay(attempt, 0.5 + self._jitter() / 2)
                state, due_at = "pending", now + wait
        if state in {"refused", "dead"}:
            log.warning(
                "copy not delivered",
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
