"""Operations on calls for clients: queries, outcomes, progress, cancels and redrives."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from gateway.core.calls import outcome_fingerprint
from gateway.errors import CallOver, Conflict, EngineUnavailable, Stale, TooLarge
from gateway.events import CallId
from gateway.executors.port import Answered
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.dispatcher import Dispatcher
from gateway.runtime.clients.history import load_history
from gateway.runtime.clients.redriving import Redriving
from gateway.runtime.services import Services
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.signals import CancelOrdered, OutcomeGiven, OutcomeLate, ProgressGiven
from gateway.runtime.views import CallHistory
from gateway.store.call import Call, Listened
from gateway.store.rows import CallFilter, Page
from gateway.store.step import Step

log = structlog.get_logger(__name__)


class Calls:
    """Queries calls, and sends outcomes, progress and orders to the actor of the call's session."""

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        dispatcher: Dispatcher,
        callbacks: Callbacks,
        redriving: Redriving,
        *,
        largest: Callable[[str | None], int | None],
    ) -> None:
        """Prepare; `largest` returns the size limit for outcomes of an executor of this name."""
        self._engine = services.engine
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._callbacks = callbacks
        self._redriving = redriving
        self._late = services.tuning.late
        self._largest = largest

    async def page(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        """List calls; return the cursor of the next page as well."""
        return await self._engine.calls(which, page)

    async def argument_excerpts(self, rows: Sequence[Call]) -> Mapping[CallId, str]:
        """Read the beginning of the arguments of calls as JSON."""
        return await self._engine.argument_excerpts([row.call_id for row in rows])

    async def one(self, call_id: CallId) -> Call:
        """Load a call."""
        return await self._sessions.call(call_id)

    async def history(self, call_id: CallId) -> CallHistory:
        """Load the whole history of a call."""
        return await load_history(self._engine, await self._sessions.call(call_id))

    def callback_allowed(self, call_id: CallId, token: str) -> bool:
        """Whether a callback token belongs to a call, in constant time."""
        return self._callbacks.allowed(call_id, token)

    async def settle(self, call_id: CallId, answer: Answered, *, size: int = 0) -> Call:
        """Record an outcome of `size` bytes from a callback or the API; an identical repeat succeeds.

        Raises:
            Conflict: the call ended with another outcome; the first late outcome is recorded as ignored.
            CallOver: it ended too long ago. TooLarge: the outcome exceeds its executor's `max_response`.
        """
        row = await self._answerable(call_id, size)
        answer = self._dispatcher.scan_answer(row.executor, answer)
        if row.outcome_sha == outcome_fingerprint(answer.outcome):
            return row
        actor = await self._sessions.actor(row.session_id)
        if await self._sessions.ask(actor, OutcomeGiven(call_id, answer, reply_slot())):
            return await self._sessions.call(call_id)
        row = await self._sessions.call(call_id)
        if row.outcome_sha == outcome_fingerprint(answer.outcome):
            return row
        if row.late:
            raise Conflict(f"the call has already {row.state}; another late outcome is on record")
        await self._sessions.ask(actor, OutcomeLate(row, answer, reply_slot()))
        raise Conflict(f"the call has already {row.state}; this outcome was recorded as ignored")

    async def _answerable(self, call_id: CallId, size: int) -> Call:
        row = await self._sessions.call(call_id)
        ended = None if row.finished_at is None else await self._engine.ended_for(call_id)
        if ended is not None and ended > self._late:
            raise CallOver(f"the call has {row.state}, over {self._late.seconds // 60} minutes ago")
        largest = self._largest(row.executor)
        if largest is not None and size > largest:
            raise TooLarge(f"the body has {size} bytes; its executor's `max_response` allows {largest}")
        return row

    async def note_listened(self, call: Call, *, until: datetime | None) -> None:
        """Record that the caller of a held call has waited for the outcome: `until` when, or None if it received it."""
        if call.unheard_since is None:
            return
        try:
            # Not by the owner of the session, which may be another instance.
            await self._engine.commit(Step(call.session_id, calls=(Listened(call.call_id, until),)))
        except Stale:
            pass
        except EngineUnavailable as exc:
            # The conversation may be told of an outcome that its agent has.
            log.warning("wait for an outcome not recorded", call_id=call.call_id, reason=str(exc))

    async def progress(self, call_id: CallId, data: dict[str, Any], *, size: int = 0) -> None:
        """Record progress of a call.

        Raises:
            Conflict: the call has ended. CallOver: it ended too long ago.
            TooLarge: this report, or all reports of the call together, are too large.
        """
        row = await self._answerable(call_id, size)
        actor = await self._sessions.actor(row.session_id)
        if not await self._sessions.ask(actor, ProgressGiven(call_id, data, reply_slot())):
            raise Conflict(f"the call has already {(await self._sessions.call(call_id)).state}")

    async def cancel(self, call_id: CallId, *, reason: str | None) -> Call:
        """Cancel a call.

        Raises:
            Conflict: the call has ended.
        """
        row = await self._sessions.call(call_id)
        actor = await self._sessions.actor(row.session_id)
        if not await self._sessions.ask(actor, CancelOrdered(call_id, reason, reply_slot())):
            raise Conflict(f"the call has already {(await self._sessions.call(call_id)).state}")
        return await self._sessions.call(call_id)

    async def redrive(self, call_id: CallId, *, new_key: bool, deliver: bool) -> Call:
        """Redrive a call; return the new call, or the same one if it is open."""
        return await self._redriving.call(await self._sessions.call(call_id), new_key=new_key, deliver=deliver)
