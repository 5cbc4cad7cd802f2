"""Delays the link of a session that its runtime stops when idle and restarts on connection."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Literal

from gateway.adapter.port import Resting
from gateway.clock import Clock
from gateway.core.adapt import HYDRATION
from gateway.errors import EngineUnavailable, LinkLost
from gateway.events import (
    ApprovalGiven,
    ContextUpdated,
    QuestionAnswered,
    SecretSupplied,
    SessionId,
    ToolFinished,
    interaction_id,
)
from gateway.runtime.feeds.wakeup import finish
from gateway.runtime.session.load import pending_rows
from gateway.store.port import Engine
from gateway.store.rows import Send

STOPPED = "the runtime has stopped the session; it is connected when an event waits for it"


class Rest:
    """Decides when one session needs a link; lives as long as its supervisor."""

    def __init__(
        self,
        connector: Resting,
        *,
        native_id: str,
        closed: "asyncio.Future[None]",
        has_work: Callable[[], Awaitable[bool]],
        call_when_queued: Callable[[Callable[[], None] | None], None],
        clock: Clock,
        jitter: Callable[[], float],
        show: Callable[[Literal["asleep", "refused"], str], None],
    ) -> None:
        """Prepare; `has_work` returns whether a link is needed, `call_when_queued` signals that it may have changed."""
        self._closed = closed
        self._has_work = has_work
        self._call_when_queued = call_when_queued
        self._connector = connector
        self._native_id = native_id
        self._clock = clock
        self._jitter = jitter
        self._show = show
        self._reason = STOPPED
        self._away_until: float | None = None
        self._away = connector.rest_times.crowded

    def back_off(self, reason: str, *, stood: timedelta) -> None:
        """Back off: the runtime stopped the session for another one after its link was up for `stood`."""
        times = self._connector.rest_times
        if stood > self._away:
            self._away = times.crowded
        # Sessions that were stopped together must not reconnect together.
        wait = self._away.total_seconds() * (1 + 0.1 * self._jitter())
        self._away_until = self._clock.monotonic() + wait
        self._away = min(2 * self._away, times.crowded_most)
        self._reason = reason

    def connected(self) -> None:
        """Forget the reason for the wait, because a link is up."""
        self._reason = STOPPED

    async def wait(self) -> None:
        """Wait until a link is needed or the session is closed.

        Raises:
            LinkLost: the runtime or the store cannot be queried.
            LinkRefused: the runtime refused the query.
        """
        loop = asyncio.get_running_loop()
        try:
            while not self._closed.done():
                queued: asyncio.Future[None] = loop.create_future()
                self._call_when_queued(partial(finish, queued))
                has_work = await self._query_work()
                remaining = 0.0 if self._away_until is None else self._away_until - self._clock.monotonic()
                if remaining > 0:
                    self._show("refused" if has_work else "asleep", self._reason)
                elif has_work or not await self._connector.is_stopped(self._native_id):
                    return
                else:
                    self._show("asleep", self._reason)
                    remaining = self._connector.rest_times.look_again.total_seconds() * (1 - 0.25 * self._jitter())
                await asyncio.wait({queued, self._closed}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call_when_queued(None)

    async def _query_work(self) -> bool:
        try:
            return await self._has_work()
        except EngineUnavailable as exc:
            raise LinkLost(f"the waiting events cannot be read: {exc}") from exc


async def has_something_to_say(engine: Engine, session_id: SessionId) -> bool:
    """Return whether an event of a client or a person waits for the runtime of a session."""
    async for row in pending_rows(engine, session_id):
        if await _is_client_event(engine, row):
            return True
    return False


async def _is_client_event(engine: Engine, row: Send) -> bool:
    event, about = row.envelope.event, row.envelope.caused_by
    match event:
        case ApprovalGiven() | QuestionAnswered() | SecretSupplied() if about is not None:
            asked = await engine.interaction(interaction_id(session=row.session_id, native_id=event.id, n=about))
            # The gateway itself answers an expired question.
            return asked is None or asked.state != "expired"
        case ContextUpdated(name=name, call_id=call_id):
            return call_id is None and name != HYDRATION
        case ToolFinished():
            return False
        case _:
            return True
