"""Which decision of the core belongs to which signal."""

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.core import frames, interactions, messages, outcomes, posts, session
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.effects import Transmit
from gateway.envelope import ContextUpdated, Event, LinkChanged, MessagePosted
from gateway.errors import Overloaded
from gateway.ports.step import HANDOVER, SendChange
from gateway.runtime import signals as s

MOST_WAITING = 16
_REASON = 500


class Desk(Protocol):
    """What a session's pump knows that a decision asks for."""

    @property
    def council(self) -> Council: ...
    @property
    def known_refused(self) -> bool: ...
    @property
    def state_waits(self) -> bool: ...
    @property
    def waiting_messages(self) -> int: ...
    @property
    def waiting_events(self) -> int: ...
    def dice(self) -> float: ...
    def give_back(self, executor: str) -> None: ...


def decide(desk: Desk, build: Building, signal: s.Signal) -> Any:
    """Add what a signal means to a step; returns what its reply gets, where it has one."""
    match signal:
        case s.Connecting() | s.CaughtUp() | s.Reread() | s.LinkUp() | s.LinkDown():
            _about_link(desk, build, signal)
        case s.Attempted(call_id, attempt, answer):
            return outcomes.answered(desk.council, build, call_id, attempt, answer, dice=desk.dice())
        case s.SlotFree() | s.TurnedAway() | s.Replied():
            _about_work(desk, build, signal)
        case s.FrameArrived(frame, cursor, _, overloaded):
            frames.take(desk.council, build, frame, cursor=cursor, overloaded=overloaded)
        case s.HandedOver(frame, sequence, overloaded):
            frames.take(desk.council, build, frame, overloaded=overloaded)
            build.change_send(SendChange(sequence, HANDOVER, "delivered"))
        case s.Delivered(sequences, target, state, reason, overdue, fault):
            for sequence in sequences:
                session.delivery(build, sequence, target, state, reason=reason, fault=fault)
            if overdue:
                messages.correct(desk.council, build, caused_by=sequences[-1])
        case s.Held(sequences):
            session.held(build, sequences)
        case s.AnsweredLate(row, answered):
            outcomes.late_outcome(build, row, answered)
        case s.Recover(unconfirmed):
            session.recover(desk.council, build, unconfirmed)
        case s.Tick():
            session.tick(desk.council, build)
        case _:
            return _for_client(desk, build, signal)
    return None


def _about_link(desk: Desk, build: Building, signal: s.LinkSignal) -> None:
    council = desk.council
    match signal:
        case s.Connecting():
            frames.connecting(council, build)
        case s.CaughtUp(starting):
            frames.caught_up(council, build, is_starting=starting)
        case s.Reread():
            interactions.ask_again(council, build)
        case s.LinkUp():
            session.link(council, build, LinkChanged(state="up"), state_waits=desk.state_waits)
        case s.LinkDown(reason, refused):
            if build.memory.linked or (refused and not desk.known_refused):
                state = "refused" if refused else "down"
                session.link(council, build, LinkChanged(state=state, reason=reason[:_REASON]))


def _about_work(desk: Desk, build: Building, signal: s.SlotFree | s.TurnedAway | s.Replied) -> None:
    match signal:
        case s.SlotFree(call_id, executor):
            if not outcomes.claim(build, call_id):
                desk.give_back(executor)
        case s.TurnedAway(call_id, reason):
            outcomes.turn_away(desk.council, build, call_id, reason)
        case s.Replied(sequence, answer):
            asked = next((a for a in build.memory.asked if a.sequence == sequence), None)
            if asked is None:
                messages.replied(desk.council, build, sequence, answer)
            else:
                interactions.replied(desk.council, build, asked, answer)


def _for_client(desk: Desk, build: Building, signal: s.ClientSignal) -> Any:
    """What an API client or operator asked for."""
    council = desk.council
    match signal:
        case s.Post(events, _, by, keep):
            _refuse_too_many(desk, build, events)
            sequences = [posts.post(council, build, event, by=by) for event in events]
            if keep is not None:
                build.keep(keep, sequences)
            return sequences
        case s.OutcomeGiven(call_id, answered):
            return outcomes.outcome(council, build, call_id, answered)
        case s.OutcomeLate(row, answered):
            outcomes.late_outcome(build, row, answered)
        case s.ProgressGiven(call_id, progress):
            return outcomes.progressed(council, build, call_id, progress)
        case s.CancelOrdered(call_id, reason):
            return outcomes.cancel(council, build, call_id, reason=reason)
        case s.RedriveOrdered(row, request, new_key, deliver):
            return outcomes.redrive(council, build, row, request, new_key=new_key, deliver=deliver)
        case s.DismissOrdered(row, by):
            outcomes.dismiss(build, row, by=by)
        case s.AnswerGiven(interaction_id, body, by):
            interactions.answer(council, build, interaction_id, body, by=by)
        case s.CloseOrdered(reason):
            session.close(council, build, reason=reason)
    return None


def _refuse_too_many(desk: Desk, build: Building, events: Sequence[Event]) -> None:
    """Only so many events may wait for the runtime, and messages for their turn where it takes one a turn."""
    most = desk.council.policy.outbound
    if desk.waiting_events + len(build.events) + len(events) > most:
        raise Overloaded(f"{most} events may wait to be delivered to the runtime; try again later")
    if not desk.council.capabilities.one_message_per_turn:
        return
    running = build.memory.running
    more = sum(_begins_a_turn(event, running=running) for event in events)
    decided = sum(isinstance(effect, Transmit) and effect.lane == "new_work" for effect in build.effects)
    # Where no turn runs, the first of them need not wait.
    room = MOST_WAITING if running else MOST_WAITING + 1
    if more and desk.waiting_messages + decided + more > room:
        raise Overloaded(f"only {MOST_WAITING} messages may wait for the turn to end; interrupt it or wait")


def _begins_a_turn(event: Event, *, running: bool) -> bool:
    match event:
        case MessagePosted():
            return True
        case ContextUpdated():
            return event.wakes_agent and not running
        case _:
            return False
