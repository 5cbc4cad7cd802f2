"""Performs the effects of a committed step, resolves the replies, and publishes the events."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

from gateway.core.calls import outcome_fingerprint
from gateway.core.effects import Ask, AwaitCopy, Dispatch, Effect, OpenWanted, Queue, Release, Resend, Tell, Transmit
from gateway.core.session import StepBuilder
from gateway.core.state import SessionView
from gateway.errors import EngineUnavailable
from gateway.events import CallId, Envelope, Live
from gateway.executors.port import Answered
from gateway.guard import guard, guard_call, is_fault
from gateway.runtime import signals as s
from gateway.runtime.observe import note
from gateway.runtime.session.decide import SignalBatch
from gateway.runtime.session.shared import Shared
from gateway.runtime.signals import fail, resolve
from gateway.store.rows import SessionName
from gateway.store.step import RUNTIME
from gateway.traces.queue import Traces
from gateway.traces.spans import tool_span, turn_span

if TYPE_CHECKING:
    from gateway.runtime.session.actor import Actor

Args = TypeVarTuple("Args")

_PAUSE = 0.5


class EffectRunner:
    """Performs the effects of one session."""

    def __init__(self, actor: "Actor", shared: Shared) -> None:
        self._actor = actor
        self._session_id = actor.session_id
        self._shared = shared
        self._sender = actor.sender

    def act(self, batch: SignalBatch, before: SessionView) -> None:
        """Perform the effects of a step; one that fails does not stop the others.

        Raises:
            BaseException: the first failure, at the end.
        """
        builder, failures = batch.builder, list[BaseException]()
        assert builder is not None
        envelopes = () if batch.committed is None else batch.committed.envelopes
        # Executors and the runtime first, because they wait.
        if envelopes:
            _try(failures, self._sender.apply_events, envelopes)
        for effect in builder.effects:
            _try(failures, self._perform, effect, builder)
        for signal, answer in batch.answers:
            _try(failures, self._finish, signal, answer, envelopes)
        _try(failures, self._sender.poke)
        _try(failures, self._publish, envelopes, builder.effects)
        if envelopes:
            _try(failures, self._report, builder, envelopes, before)
        if builder.runtime.policy.approvals.notify and (builder.interactions or builder.send_changes):
            _try(failures, self._shared.backends.wake)
        if builder.interactions:
            changed = tuple(change.interaction_id for change in builder.interactions)
            _try(failures, self._shared.interaction_feed.tell, changed)
        if failures:
            raise failures[0]

    def _report(self, builder: StepBuilder, envelopes: Sequence[Envelope], before: SessionView) -> None:
        """Wake the copies of recorded events, and count, log and trace them."""
        shared, runtime = self._shared, builder.runtime
        if runtime.policy.routes.copying:
            shared.backends.wake()
        note(envelopes, before, adapter=runtime.adapter, metrics=shared.metrics, log=self._actor.log)
        if shared.traces is not None:
            trace_step(shared.traces, builder, envelopes)
        if runtime.options.takes_mcp:
            shared.tool_watch.note(before.session_id, before.runtime, envelopes)

    def _publish(self, envelopes: Sequence[Envelope], effects: Sequence[Effect]) -> None:
        """Publish recorded and live events to followers, in their order."""
        feed, shown = self._actor.feed, 0
        for tell in effects:
            if isinstance(tell, Tell):
                upto = sum(envelope.sequence <= tell.after for envelope in envelopes)
                feed.extend(envelopes[shown:upto])
                self.publish_live(Live(tell.event, tell.after))
                shown = upto
        if envelopes:
            feed.extend(envelopes[shown:] if shown else envelopes)

    def publish_live(self, live: Live) -> None:
        """Publish a live event, and copy it to the destinations of its routes."""
        view, routes = self._actor.view, self._actor.runtime.policy.routes
        self._actor.feed.tell(live)
        if routes.copying_live:
            name = SessionName(view.session_id, view.runtime, view.native_id, view.memory.labels)
            targets = routes.copies_for(
                runtime=name.runtime, kind=live.event.kind, tool=None, labels=name.labels, live=True
            )
            self._shared.backends.copy_live(targets, name, live)

    def _perform(self, effect: Effect, builder: StepBuilder) -> None:
        """Start one effect."""
        dispatcher = self._shared.dispatcher
        match effect:
            case Transmit():
                self._sender.add(effect)
            case Dispatch():
                dispatcher.dispatch(self._session_id, effect, builder.view, protocol=builder.runtime.protocol)
            case Release():
                if effect.executor is not None:
                    self._shared.slots.withdraw(effect.executor, self._session_id, effect.call_id)
                dispatcher.release(self._session_id, effect)
            case Queue(call_id, executor, due_at):
                self._queue(call_id, executor, due_at)
            case Ask():
                dispatcher.ask(self._session_id, effect)
            case AwaitCopy():
                dispatcher.await_copy(self._session_id, effect)
            case Tell():
                # `_publish` sends it in order.
                pass
            case Resend(sequence):
                self._sender.resend(sequence)
            case OpenWanted(after):
                # Before the live frames that already wait.
                self._actor.inbox.put_back([s.WantedDue(after)])

    def _queue(self, call_id: CallId, executor: str, due_at: datetime | None) -> None:
        slots, wait = self._shared.slots, 0.0
        if due_at is not None:
            wait = (due_at - self._shared.clock.now()).total_seconds()
        if wait <= 0:
            slots.wait(executor, self._session_id, call_id)
        else:
            wait_if_open = guard_call("session", self._wait_if_open)
            asyncio.get_running_loop().call_later(wait, wait_if_open, executor, call_id)

    def _wait_if_open(self, executor: str, call_id: CallId) -> None:
        # A slot for a call or session that has ended meanwhile would never be released.
        if self._actor.state != "ended" and call_id in self._actor.view.calls:
            self._shared.slots.wait(executor, self._session_id, call_id)

    def _finish(self, signal: s.Signal, answer: Any, envelopes: Sequence[Envelope]) -> None:
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
                    read = partial(self._record_late, call_id, late)
                    guard("session", read, self._shared.tasks, again=False, session_id=self._session_id)
            case s.Delivered(sequences, target):
                if target == RUNTIME:
                    self._sender.done(sequences)
            case s.AttemptsDue():
                self._sender.attempts_settled()
            case s.LinkUp(link):
                self._sender.link_up(link)
            case s.LinkDown(_, refused):
                self._sender.link_down(refused=refused)
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

    async def _record_late(self, call_id: CallId, answered: Answered) -> None:
        """Record the result of an attempt whose call has another outcome."""
        engine = self._shared.engine
        while self._actor.state != "ended":
            try:
                row = await engine.call(call_id)
            except EngineUnavailable as exc:
                engine.outage.failed(exc, "query for a late result")
                await asyncio.sleep(_PAUSE)
            else:
                if row is not None and row.outcome_sha != outcome_fingerprint(answered.outcome):
                    self._shared.signal(self._session_id, s.AnsweredLate(row, answered))
                return


def _try(failures: list[BaseException], call: Callable[[*Args], object], *args: "Unpack[Args]") -> None:
    try:
        call(*args)
    except BaseException as exc:
        if not is_fault(exc):
            raise
        failures.append(exc)


def trace_step(traces: Traces, builder: StepBuilder, envelopes: Sequence[Envelope]) -> None:
    """Write the spans of the turn and the calls that ended in a step."""
    before, runtime = builder.base, builder.runtime
    opened = builder.opened
    for envelope in envelopes:
        event = envelope.event
        if event.kind != "tool.finished" or envelope.linked_to is not None:
            continue
        call_id = CallId(event.call_id or "")
        call = before.calls.get(call_id) or opened.get(call_id)
        if call is None:
            continue
        span = tool_span(call, event, envelope.recorded_at, content=traces.content)
        if span is not None:
            traces.put(span)
    if before.memory.turn is not None and builder.memory.turn is not before.memory.turn:
        span = turn_span(before, runtime.adapter, builder.now, runtime.policy.trace_ratio)
        if span is not None:
            traces.put(span)
