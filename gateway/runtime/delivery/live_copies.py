"""Sends live events to a destination in the background: once, and in the order of their session.

A live event that finds the queue full, waits too long or is not accepted is lost and counted.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import datetime

import structlog

from gateway.errors import DragomanError
from gateway.events import Live, SessionId, to_live_json
from gateway.events.weight import weight
from gateway.executors.port import LIVE_CONCURRENCY, Copied, Destination
from gateway.guard import FAULTS, Tasks, guard, in_time, is_fault
from gateway.log_limit import limited
from gateway.runtime.delivery.subscriptions import OFF, note_of
from gateway.runtime.services import Services
from gateway.store.rows import SessionName

log = structlog.get_logger(__name__)

MOST_WAITING = 1_000
MOST_WEIGHT = 4 * 1024**2
"""The weight of all waiting events, in bytes."""
_CHECK_EVERY = 10.0
"""Seconds for which the stored note of a disabled destination is not read again."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    session: SessionName
    live: Live
    weight: int
    at: datetime
    until: float


class LiveCopies:
    """The live events that wait for one destination, and the tasks that send them."""

    def __init__(self, name: str, destination: Destination, services: Services) -> None:
        self._name = name
        self._destination = destination
        self._services = services
        self._patience = services.tuning.live_copy
        self._tasks = Tasks()
        self._now = asyncio.get_running_loop().time
        self._queues: dict[SessionId, deque[_Waiting]] = {}
        """The waiting events of each session; a session whose event is being sent stays, even with an empty queue."""
        self._ready: deque[SessionId] = deque()
        """The sessions with waiting events, of which none is being sent."""
        self._number = self._weight = self._senders = 0
        self._is_off = False
        self._check_at = 0.0

    def add(self, session: SessionName, live: Live) -> None:
        """Queue a live event, or drop it if the queue is full."""
        size = weight(live.event)
        if self._number >= MOST_WAITING or self._weight + size > MOST_WEIGHT:
            self._lose("too many live events wait", session)
            return
        one = _Waiting(session, live, size, self._services.clock.now(), self._now() + self._patience)
        self._number += 1
        self._weight += size
        if (queue := self._queues.get(session.session_id)) is not None:
            queue.append(one)
            return
        self._queues[session.session_id] = deque([one])
        self._ready.append(session.session_id)
        if self._senders < LIVE_CONCURRENCY:
            self._senders += 1
            guard("live copies", self._send_all, self._tasks, again=False, destination=self._name)

    def wake(self) -> None:
        """Check with the next event whether the destination is still disabled."""
        self._check_at = 0.0

    async def close(self) -> None:
        """Cancel the requests and drop the waiting events."""
        await self._tasks.close()
        self._services.metrics.live_copies_lost(self._name, self._number)

    async def _send_all(self) -> None:
        """Send events until none waits; sessions take turns, so that a busy one does not delay the others."""
        try:
            while self._ready:
                session_id = self._ready.popleft()
                queue = self._queues[session_id]
                one = queue.popleft()
                await self._send(one)
                self._number -= 1
                self._weight -= one.weight
                if queue:
                    self._ready.append(session_id)
                else:
                    del self._queues[session_id]
        finally:
            self._senders -= 1

    async def _send(self, one: _Waiting) -> None:
        if self._now() > one.until:
            self._lose(f"it waited longer than {self._patience:g} s", one.session)
            return
        try:
            async with in_time(self._patience, "the request"):
                if await self._is_disabled():
                    copied = Copied("refused", "the destination is disabled")
                else:
                    copied = await self._post(one)
        except (DragomanError, TimeoutError) as exc:
            copied = Copied("refused", str(exc))
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.get().note("live copies", exc, destination=self._name, session_id=one.session.session_id)
            copied = Copied("refused", f"the destination failed inside the gateway ({type(exc).__name__})")
        if copied.state != "delivered":
            self._lose(copied.reason, one.session)

    async def _post(self, one: _Waiting) -> Copied:
        data = {**to_live_json(one.live), "session": one.session.to_json()}
        copied = await self._destination.copy(
            key=self._services.ids.event_id(), kind=one.live.event.kind, at=one.at, data=data, attempt=1
        )
        if copied.state == "gone" and not self._is_off:
            self._is_off = True
            await self._services.engine.set_note(note_of(self._name), OFF)
            log.error("destination answered 410 and is disabled", destination=self._name)
        return copied

    async def _is_disabled(self) -> bool:
        if self._now() >= self._check_at:
            self._check_at = self._now() + _CHECK_EVERY
            self._is_off = await self._services.engine.note(note_of(self._name)) == OFF
        return self._is_off

    def _lose(self, reason: str | None, session: SessionName) -> None:
        self._services.metrics.live_copies_lost(self._name, 1)
        limited(
            log.warning,
            "live event not copied",
            per=self._name,
            destination=self._name,
            session_id=session.session_id,
            reason=reason,
        )
