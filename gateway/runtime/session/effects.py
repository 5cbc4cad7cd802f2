"""Performs the effects of a committed step and resolves the replies."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.core.calls import outcome_fingerprint
from gateway.core.effects import Ask, AwaitCopy, Dispatch, Effect, OpenWanted, Queue, Release, Resend, Tell, Transmit
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import EngineUnavailable
from gateway.events import CallId, Envelope, Live
from gateway.executors.port import Answered
from gateway.guard import guard_call
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.session import signals as s
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.replies import fail, resolve
from gateway.runtime.session.sender import Sender
from gateway.runtime.session.shared import Shared
from gateway.store.step import RUNTIME


class EffectRunner:
    """Performs the effects of one session; `is_open` returns whether a call is still open."""

    def __init__(
        self,
        shared: Shared,
        inbox: Inbox,
        outbox: Sender,
        feed: Feed,
        *,
        log: FilteringBoundLogger,
        is_open: Callable[[CallId], bool],
    ) -> None:
        self.late: list[tuple[CallId, Answered]] = []
        """Results of attempts whose calls have another outcome; `process_late` records them."""
        self._shared = shared
        self._inbox = inbox
        self._outbox = outbox
        self._feed = feed
        self.log = log
        self._is_open = is_open

    async def process_late(self) -> None:
        """Load the calls with late results, so that the results are recorded."""
        while self.late:
            call_id, answered = self.late[0]
            try:
                row = await self._shared.engine.call(call_id)
            except EngineUnavailable as exc:
                # Retried after the next batch.
                self._shared.engine.outage.failed(exc, "query for a late result")
                return
            del self.late[0]
            if row is not None and row.outcome_sha != outcome_fingerprint(answered.outcome):
                self._inbox.put(s.AnsweredLate(row, answered))

    def publish(self, envelopes: Sequence[Envelope], effects: Sequence[Effect]) -> None:
        """Publish recorded and live events to followers, in their order."""
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
        """Start one effect."""
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
            case AwaitCopy():
                dispatcher.await_copy(self._inbox, effect)
            case Tell():
                # `publish` has sent it in order.
                pass
            case Resend(sequence):
                self._outbox.resend(sequence)
            case OpenWanted(after):
                # Before the live frames that already wait.
                self._inbox.put_back([s.WantedDue(after)])

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
        # A slot for a call or session that has ended meanwhile would never be released.
        if self._is_open(call_id):
            self._shared.slots.wait(executor, self._inbox, call_id)

    def finish(self, signal: s.Signal, answer: Any, envelopes: Sequence[Envelope]) -> None:
        """Complete the work for a signal and resolve its reply."""
        if isinstance(answer, BaseException):
            fail(signal, answer)
            return
        match signal:
            # The most frequent first, because patterns are tried in order.
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
                posted = set(answer)
                resolve(reply, [envelope for envelope in envelopes if envelope.sequence in posted])
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
