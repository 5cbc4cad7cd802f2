"""Redrives ended calls and deliveries, and dismisses dead letters."""

from collections.abc import Callable
from dataclasses import replace

from gateway.clock import Clock, Ids
from gateway.core.redriving import NO_LONGER_DEAD, dismissal
from gateway.errors import Conflict, Elsewhere, Gone, NotFound, Stale, Truncated
from gateway.events import CallId, Envelope, SessionId, ToolRequested
from gateway.runtime.clients.dead_letters import dismissed
from gateway.runtime.drain import Drain
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.load import approved_arguments
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.signals import DismissOrdered, RedriveOrdered, RepeatOrdered
from gateway.store.call import Call, Dismissed
from gateway.store.encoding import is_erased
from gateway.store.port import Engine
from gateway.store.rows import Send
from gateway.store.step import RUNTIME, SendChange, Step


class Redriving:
    """Carries out an operator's order for one call or delivery; `wake` wakes the sender of event copies."""

    def __init__(
        self, engine: Engine, sessions: Sessions, clock: Clock, ids: Ids, *, wake: Callable[[], None], drain: Drain
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._clock = clock
        self._ids = ids
        self._wake = wake
        self._drain = drain

    async def call(self, row: Call, *, new_key: bool, deliver: bool) -> Call:
        """Send the request of an ended call to its executor as a new call, or repeat the request of an open call.

        Returns the new call, or the same one if it is open.

        Raises:
            Conflict, Elsewhere: the call cannot be redriven, or its session does not run here.
            Gone: its arguments were removed. Draining: the gateway is stopping.
        """
        if row.is_open:
            if new_key:
                raise Conflict("the call is still open, and an open call keeps its key; omit `new_key`")
            actor = await self._sessions.actor(row.session_id)
            self._drain.refuse_new()
            await self._sessions.ask(actor, RepeatOrdered(row.call_id, reply_slot()))
            return await self._sessions.call(row.call_id)
        try:
            found = await self._engine.read(row.session_id, after=row.request_sequence - 1, limit=1)
        except Truncated:
            found = ()
        request = found[0].event if found else None
        if found and found[0].stored_kind is not None:
            raise Conflict("this release cannot read the request of this call")
        if not isinstance(request, ToolRequested):
            raise Gone("the arguments of this call were removed", first_sequence=row.request_sequence + 1)
        row, request = await self._as_allowed(row, request)
        actor = await self._sessions.actor(row.session_id)
        self._drain.refuse_new()
        order = RedriveOrdered(row, request, new_key=new_key, deliver=deliver, reply=reply_slot())
        fresh: CallId = await self._sessions.ask(actor, order)
        return await self._sessions.call(fresh)

    async def _as_allowed(self, row: Call, request: ToolRequested) -> tuple[Call, ToolRequested]:
        """Replace the arguments of a request by those that a person was asked about last, or has allowed."""
        sequence = row.arguments_sequence
        if sequence is None:
            return row, request
        try:
            allowed = approved_arguments(await self._engine.read(row.session_id, after=sequence - 1, limit=1))
        except Truncated:
            allowed = None
        if allowed is None:
            raise Gone("the arguments that a person has allowed were removed", first_sequence=sequence + 1)
        arguments, edited = allowed
        return replace(row, edited=edited), request.model_copy(update={"arguments": arguments})

    async def dead_call(self, call_id: CallId, *, new_key: bool, deliver: bool) -> Call:
        """Redrive a dead call, unless it was redriven or dismissed already."""
        row = await self._sessions.call(call_id)
        if not row.dead:
            raise Conflict(NO_LONGER_DEAD)
        return await self.call(row, new_key=new_key, deliver=deliver)

    async def delivery(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send one event copy or outbound event again, whatever its state."""
        actor = await self._sender(session_id, target)
        if await self._send(session_id, sequence, target) is None:
            raise NotFound(f"event {sequence} has no delivery to {target!r}")
        change = SendChange(sequence=sequence, target=target, state="pending", due_at=self._clock.now())
        await self._engine.commit(Step(session_id=session_id, send_changes=(change,)))
        self._send_again(actor, sequence)

    async def dead_delivery(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send a dead delivery again, unless it is being sent already."""
        actor = await self._sender(session_id, target)
        await self._send(session_id, sequence, target)
        if not await self._engine.revive(session_id, sequence, target, due_at=self._clock.now()):
            raise Conflict("this delivery is already being retried")
        self._send_again(actor, sequence)

    async def dismiss(self, row: Call | Send, by: str) -> Call | Send:
        """Dismiss a dead letter.

        Raises:
            Conflict: it was redriven or dismissed meanwhile. Elsewhere: another instance owns its session.
        """
        now = self._clock.now()
        if isinstance(row, Send):
            reason = dismissed(row, by=by, at=now)
            if not await self._engine.dismiss(row.session_id, row.sequence, row.target, reason=reason):
                raise Conflict("this delivery was redriven or dismissed meanwhile")
            return replace(row, state="moot", due_at=None, reason=reason)
        owned = self._sessions.owned(row.session_id)
        if owned is not None:
            await self._sessions.ask(owned, DismissOrdered(row, by, reply_slot()))
            return await self._sessions.call(row.call_id)
        session = await self._sessions.session(row.session_id)
        if session.state != "closed" and isinstance(elsewhere := await self._sessions.not_here(session), Elsewhere):
            raise elsewhere
        # The session has no actor anywhere, so the event is written directly.
        event = Envelope(
            event_id=self._ids.event_id(),
            session_id=row.session_id,
            sequence=0,
            recorded_at=now,
            direction="to_runtime",
            event=dismissal(row, by=by),
            caused_by=row.request_sequence,
            synthetic=True,
        )
        try:
            await self._engine.commit(Step(row.session_id, (event,), calls=(Dismissed(row.call_id),)))
        except Stale as exc:
            raise Conflict(NO_LONGER_DEAD) from exc
        return await self._sessions.call(row.call_id)

    async def _send(self, session_id: SessionId, sequence: int, target: str) -> Send | None:
        """Find one delivery.

        Raises:
            Gone: the content of its event was erased.
        """
        row = next((one for one in await self._engine.sends_of(session_id, sequence) if one.target == target), None)
        if row is not None and is_erased(row.envelope.event):
            raise Gone("the content of this event was erased; there is nothing to send", first_sequence=sequence + 1)
        return row

    async def _sender(self, session_id: SessionId, target: str) -> Actor | None:
        """Find the actor that sends to the runtime; None for copies and for events of closed sessions.

        Raises:
            Elsewhere: another instance owns the session. Draining: the gateway is stopping.
        """
        session = await self._sessions.session(session_id)
        owned = self._sessions.owned(session_id)
        if target == RUNTIME and owned is None and session.state != "closed":
            raise await self._sessions.not_here(session)
        self._drain.refuse_new()
        return owned if owned is not None and target == RUNTIME else None

    def _send_again(self, actor: Actor | None, sequence: int) -> None:
        self._wake()
        if actor is not None:
            actor.sender.resend(sequence)
