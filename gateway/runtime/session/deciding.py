"""Maps each signal to a decision of the core."""

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core import approvals, callers, calls, confirmations, inbound, interactions, lifecycle, outbound, redriving
from gateway.core.effects import Transmit
from gateway.core.session import StepBuilder
from gateway.errors import Inexpressible, Overloaded
from gateway.events import ContextUpdated, Event, LinkChanged, MessagePosted
from gateway.runtime.session import signals as s
from gateway.runtime.session.outbox import Outbox
from gateway.store.step import HANDOVER, SendChange

MOST_WAITING = 16
_REASON = 500


def decide(builder: StepBuilder, signal: s.Signal, *, outbox: Outbox, jitter: Callable[[], float]) -> Any:
    """Add the decision about a signal to a step; return the result for its reply.

    `outbox` is only read. For `SlotFree` the result is whether the call still needs the slot.
    """
    match signal:
        # The most frequent first, because patterns are tried in order.
        case s.FrameArrived():
            inbound.take(builder, signal.frame, cursor=signal.cursor, overloaded=signal.overloaded)
        case s.Attempted():
            return calls.answered(builder, signal.call_id, signal.attempt, signal.answer, jitter=jitter())
        case s.Delivered(sequences, target, state, reason, overdue, fault, answers):
            for sequence in sequences:
                if fault:
                    lifecycle.report_fault(builder, sequence, reason)
                lifecycle.delivery(builder, sequence, target, state, reason=reason, answers=answers)
            if overdue:
                confirmations.correct(builder, caused_by=sequences[-1])
        case s.Connecting() | s.CaughtUp() | s.WantedDue() | s.Reread() | s.LinkUp() | s.LinkDown():
            _about_link(builder, signal, outbox)
        case s.SlotFree() | s.TurnedAway() | s.ExecutorReplied():
            return _about_work(builder, signal)
        case s.HandedOver(frame, sequence, overloaded):
            inbound.take(builder, frame, overloaded=overloaded)
            builder.send_changes.append(SendChange(sequence, HANDOVER, "delivered"))
        case s.AttemptsDue():
            # `Outbox.plan_attempts` adds them to each step.
            pass
        case s.AnsweredLate(row, answered):
            calls.late_outcome(builder, row, answered)
        case s.Recover(unconfirmed):
            lifecycle.recover(builder, unconfirmed)
        case s.Tick():
            lifecycle.tick(builder)
        case _:
            return _for_client(builder, signal, outbox)
    return None


def _about_link(builder: StepBuilder, signal: s.LinkSignal, outbox: Outbox) -> None:
    match signal:
        case s.Connecting():
            inbound.connecting(builder)
        case s.CaughtUp(starting):
            inbound.caught_up(builder, is_starting=starting)
        case s.WantedDue(requests=requests):
            inbound.open_wanted(builder, requests)
        case s.Reread():
            interactions.ask_again(builder)
        case s.LinkUp():
            lifecycle.link(builder, LinkChanged(state="up"), state_waits=outbox.state_waits)
        case s.LinkDown(reason, refused):
            if builder.memory.linked or (refused and not outbox.refused):
                state = "refused" if refused else "down"
                lifecycle.link(builder, LinkChanged(state=state, reason=reason[:_REASON]))


def _about_work(builder: StepBuilder, signal: s.SlotFree | s.TurnedAway | s.ExecutorReplied) -> bool | None:
    match signal:
        case s.SlotFree(call_id):
            return calls.claim(builder, call_id)
        case s.TurnedAway(call_id, reason):
            calls.turn_away(builder, call_id, reason)
        case s.ExecutorReplied(sequence, answer):
            asked = next((a for a in builder.memory.asked if a.sequence == sequence), None)
            if asked is None:
                confirmations.replied(builder, sequence, answer)
            else:
                interactions.replied(builder, asked, answer)
    return None


def _post(builder: StepBuilder, event: Event, place: int, by: str) -> int:
    try:
        return outbound.post(builder, event, by=by)
    except Inexpressible as exc:
        exc.place = place
        raise


def _for_client(builder: StepBuilder, signal: s.ClientSignal, outbox: Outbox) -> Any:
    match signal:
        case s.Post(events, _, by, keep):
            _refuse_too_many(builder, events, outbox)
            sequences = [_post(builder, event, place, by) for place, event in enumerate(events)]
            if keep is not None:
                builder.keep(keep, sequences)
            return sequences
        case s.CallAsked(request):
            return callers.ask(builder, request)
        case s.OutcomeGiven(call_id, answered):
            return calls.outcome(builder, call_id, answered)
        case s.OutcomeLate(row, answered):
            calls.late_outcome(builder, row, answered)
        case s.ProgressGiven(call_id, progress):
            return calls.progressed(builder, call_id, progress)
        case s.CancelOrdered(call_id, reason):
            return calls.cancel(builder, call_id, reason=reason)
        case s.RedriveOrdered(row, request, new_key, deliver):
            return redriving.redrive(builder, row, request, new_key=new_key, deliver=deliver)
        case s.RepeatOrdered(call_id):
            calls.repeat(builder, call_id)
        case s.DismissOrdered(row, by):
            redriving.dismiss(builder, row, by=by)
        case s.AnswerGiven(interaction_id, body, by):
            held = approvals.held_call(builder, interaction_id)
            if held is not None:
                return approvals.answer(builder, held, body, by=by)
            return interactions.answer(builder, interaction_id, body, by=by)
        case s.CloseOrdered(reason):
            lifecycle.close(builder, reason=reason)
    return None


def _refuse_too_many(builder: StepBuilder, events: Sequence[Event], outbox: Outbox) -> None:
    """Limit the events that wait for the runtime, and the messages that wait for their turn."""
    most = builder.runtime.policy.outbound
    if outbox.waiting + len(builder.events) + len(events) > most:
        raise Overloaded(f"{most} events may wait to be delivered to the runtime; try again later")
    if not builder.runtime.capabilities.one_message_per_turn:
        return
    running = builder.memory.running
    more = sum(_begins_a_turn(event, running=running) for event in events)
    decided = sum(isinstance(effect, Transmit) and effect.lane == "new_work" for effect in builder.effects)
    # Without a running turn the first message does not wait.
    limit = MOST_WAITING if running else MOST_WAITING + 1
    if more and outbox.new_work + decided + more > limit:
        raise Overloaded(f"only {MOST_WAITING} messages may wait for the turn to end; interrupt it or wait")


def _begins_a_turn(event: Event, *, running: bool) -> bool:
    match event:
        case MessagePosted():
            return True
        case ContextUpdated():
            return event.wakes_agent and not running
        case _:
            return False
