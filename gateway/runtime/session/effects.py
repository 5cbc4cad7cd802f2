"""Does what a step orders, and answers who waits for it, once the step is on record."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.core.calls import outcome_fingerprint
from gateway.core.effects import Ask, Dispatch, Effect, Queue, Release, Resend, Tell, Transmit
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import EngineUnavailable
from gateway.events import CallId, Envelope, Live
from gateway.executors.port import Answered
from gateway.guard import guard_call
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.session import signals as s
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.outbox import Outbox
from gateway.runtime.session.replies import fail, resolve
from gateway.runtime.session.shared import Shared
from gateway.store.step import RUNTIME


class EffectRunner:
    """One session's; `is_open` says whether a call may still wait for its slot."""

    def __init__(
        self,
        shared: Shared,
        inbox: Inbox,
        outbox: Outbox,
        feed: Feed,
        *,
        log: FilteringBoundLogger,
        is_open: Callable[[CallId], bool],
    ) -> None:
        self.late: list[tuple[CallId, Answered]] = []
        """What attempts have answered whose calls had ended otherwise; to be looked up."""
        self._shared = shared
        self._inbox = inbox
        self._outbox = outbox
        self._feed = feed
        self.log = log
        self._is_open = is_open

    async def look_up_late(self) -> None:
        """Find the calls whose answers came too late, so that these can be put on record."""
        while self.late:
            call_id, answered = self.late[0]
            try:
                row = await self._shared.engine.call(call_id)
            except EngineUnavailable as exc:
                # Looked up again behind the next batch.
                self.log.warning("late answer query failed", reason=str(exc))
                return
            del self.late[0]
            if row is not None and row.outcome_sha != outcome_fingerprint(answered.outcome):
                self._inbox.put(s.AnsweredLate(row, answered))

    def show(self, envelopes: Sequence[Envelope], effects: Sequence[Effect]) -> None:
        """Show followers what is on record and what is only live, in the order in which it came."""
        shown = 0
        for tell in effects:
            if isinstance(tell, Tell):
                upto = sum(envelope.sequence <= tell.after for envelope in envelopes)
                self._feed.extend(envelopes[shown:upto])
                self._feed.tell(Live(tell.event, tell.after))
                shown = upto
        if envelopes:
            self._feed.extend(envelopes[shown:] if shown else envelopes)

    def perform(self, effect: Effect, view: SessionView, runtime: RuntimeContext) -> None:
        """Begin what an effect orders."""
        dispatcher = self._shared.dispatcher
        match effect:
            case Transmit():
                self._outbox.add(effect)
            case Dispatch():
                dispatcher.dispatch(self._inbox, effect, view, protocol=runtime.protocol)
            case Release():
                if effect.executor is not None:
                    self._shared.slots.withdraw(effect.executor, self._inbox, effect.call_id)
                dispatcher.release(self._inbox, effect)
            case Queue(call_id, executor, due_at):
                self._queue(call_id, executor, due_at)
            case Ask():
                dispatcher.ask(self._inbox, effect)
            case Tell():
                # Shown already, in its place between what is on record.
                pass
            case Resend(sequence):
                self._outbox.again(sequence)

    def _queue(self, call_id: CallId, executor: str, due_at: datetime | None) -> None:
        slots, wait = self._shared.slots, 0.0
        if due_at is not None:
            wait = (due_at - self._shared.clock.now()).total_seconds()
        if wait <= 0:
            slots.wait(executor, self._inbox, call_id)
        else:
            wait_if_open = guard_call("session", self._wait_if_open)
            asyncio.get_running_loop().call_later(wait, wait_if_open, executor, call_id)

    def _wait_if_open(self, executor: str, call_id: CallId) -> None:
        # Meanwhile the call or the session may have ended; a slot given then would never come back.
        if self._is_open(call_id):
            self._shared.slots.wait(executor, self._inbox, call_id)

    def finish(self, signal: s.Signal, answer: Any, envelopes: Sequence[Envelope]) -> None:
        """Do what is left to do about a signal, and answer who waits for it."""
        if isinstance(answer, BaseException):
            fail(signal, answer)
            return
        match signal:
            # The usual ones first, each of which is looked for in turn.
            case s.FrameArrived():
                pass
            case s.Attempted(call_id, _, late):
                if answer is False and isinstance(late, Answered):
                    self.late.append((call_id, late))
            case s.Delivered(sequences, target):
                if target == RUNTIME:
                    self._outbox.done(sequences)
            case s.AttemptsDue():
                self._outbox.attempts_settled()
            case s.LinkUp(link):
                self._outbox.link_up(link)
            case s.LinkDown(_, refused):
                self._outbox.link_down(refused=refused)
            case s.Post(reply=reply):
                wanted = set(answer)
                resolve(reply, [envelope for envelope in envelopes if envelope.sequence in wanted])
            case (
                s.OutcomeGiven(reply=reply)
                | s.ProgressGiven(reply=reply)
                | s.CancelOrdered(reply=reply)
                | s.RedriveOrdered(reply=reply)
                | s.CallAsked(reply=reply)
            ):
                resolve(reply, answer)
            case (
                s.OutcomeLate(reply=reply)
                | s.DismissOrdered(reply=reply)
                | s.RepeatOrdered(reply=reply)
                | s.CloseOrdered(reply=reply)
            ):
                resolve(reply, None)
            case s.AnswerGiven(reply=reply):
                resolve(reply, next(envelope for envelope in envelopes if envelope.sequence == answer))
            case _:
                pass
