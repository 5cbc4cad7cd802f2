"""Decides signals: maps each to a function of the core, and makes one step of a batch.

A failed decision concerns only its own signal; one on which the session fails repeatedly is quarantined.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gateway.adapter.port import Frame
from gateway.core import approvals, callers, calls, confirmations, inbound, interactions, lifecycle, outbound, redriving
from gateway.core.effects import Dispatch, Transmit
from gateway.core.session import Recorded, SlotAccess, StepBuilder
from gateway.core.snapshots import to_snapshot
from gateway.errors import DragomanError, Fenced, Inexpressible, Overloaded
from gateway.events import ContextUpdated, Event, FaultReported, FrameRejected, LinkChanged, MessagePosted
from gateway.guard import FAULTS, is_fault
from gateway.runtime import signals as s
from gateway.runtime.observe import excerpt, label_session
from gateway.runtime.session.outbox import Attempts, Outbox
from gateway.runtime.session.shared import Shared
from gateway.runtime.signals import reply_of
from gateway.store.call import Call
from gateway.store.step import HANDOVER, Committed, SendChange, Step

if TYPE_CHECKING:
    from gateway.runtime.session.actor import Actor

FAULTS_AN_INPUT = 3
"""Unexpected failures of a session caused by one input before it is quarantined."""
Answers = list[tuple[s.Signal, Any]]
"""The result of each signal, or its exception."""

MOST_WAITING = 16
_REASON = 500


@dataclass(slots=True, eq=False)
class SignalBatch:
    """Signals that are decided together, and the decision about them."""

    signals: list[s.Signal]
    alone: bool = False
    """Whether it is a single signal, decided on fresh data from the ledger."""
    times: int = 0
    """How often the session has failed on it."""
    has_slots: bool = True
    """Whether it holds slots: those granted to its signals, later those of its decision."""
    stale: int = 0
    """How often its step was stale."""
    repeats: set[str] = field(default_factory=set[str])
    """The native ids that the store has refused as repeats."""
    fence: int = 0
    fenced: Fenced | None = None
    """The refusal of its last step by the fence of another owner."""
    is_read: bool = False
    """Whether the queries that its decision requires have run."""
    known: Mapping[str, Call] = field(default_factory=dict[str, Call])
    """The calls of the ledger that it concerns."""
    builder: StepBuilder | None = None
    """Its decision."""
    answers: Answers = field(default_factory=list[tuple[s.Signal, Any]])
    attempts: Attempts | None = None
    step: Step | None = None
    """What there is to write, if anything."""
    since: float = 0.0
    """When the store got it."""
    is_late: bool = False
    """Whether the store has had it for so long that this was logged."""
    committed: Committed | None = None
    written: Literal["no", "unsure", "yes"] = "no"

    def undo(self) -> None:
        """Forget the decision, because nothing of it was written."""
        self.builder = self.attempts = self.step = self.committed = None
        self.is_read, self.written = False, "no"

    @property
    def is_quarantined(self) -> bool:
        return self.times >= FAULTS_AN_INPUT

    @property
    def may_act(self) -> bool:
        """Whether it is decided, and written if there is anything to write."""
        return self.builder is not None and (self.step is None or self.committed is not None)


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
        case s.SlotFree() | s.TurnedAway() | s.ExecutorReplied() | s.Rerouted():
            return _about_work(builder, signal)
        case s.HandedOver(frame, sequence, overloaded):
            inbound.take(builder, frame, overloaded=overloaded)
            builder.send_changes.append(SendChange(sequence, HANDOVER, "delivered"))
        case s.AttemptsDue():
            # `Outbox.plan_attempts` adds them to each step.
            pass
        case s.AnsweredLate(row, answered):
            calls.late_outcome(builder, row, answered)
        case s.Recover(unconfirmed, restored):
            lifecycle.recover(builder, unconfirmed, restored)
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


def _about_work(builder: StepBuilder, signal: s.WorkSignal) -> bool | None:
    match signal:
        case s.SlotFree(call_id):
            return calls.claim(builder, call_id)
        case s.TurnedAway(call_id, reason):
            calls.turn_away(builder, call_id, reason)
        case s.Rerouted(before):
            lifecycle.rerouted(builder, before)
        case s.ExecutorReplied(sequence, answer, executor):
            asked = next((a for a in builder.memory.asked if a.sequence == sequence), None)
            held = approvals.asked_about(builder, sequence)
            if held is not None:
                approvals.replied(builder, held, answer, executor=executor)
            elif asked is None:
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


class Decider:
    """Makes the steps of one session; takes the slots for its decisions, and releases them if no step is written."""

    def __init__(self, actor: "Actor", shared: Shared) -> None:
        self._actor = actor
        self._session_id = actor.session_id
        self._shared = shared
        self._sender = actor.sender
        self._slots = SlotAccess(self._take_slot, shared.slots.refusal)
        self._taken: list[str] = []
        """The executors of the slots that the current step has taken."""
        self._snapshot_at = actor.view.last_sequence
        self._unsaved = shared.tuning.snapshot_bytes if actor.view.is_unsaved else 0
        """The stored bytes of the events since the snapshot."""
        self._snapshot_size = 0

    def make_step(self, batch: SignalBatch) -> Step | None:
        """Decide a batch; return its step, with a due snapshot, or None if there is nothing to write."""
        batch.builder = builder = self._quarantine(batch) if batch.is_quarantined else self._decide(batch)
        batch.attempts = attempts = self._sender.plan_attempts(builder)
        if attempts is not None:
            builder.write_attempts(*attempts)
        tuning, events = self._shared.tuning, builder.last_sequence - self._snapshot_at
        # A snapshot is never written for fewer bytes of events than its own.
        due = events >= tuning.snapshot_every or self._unsaved >= max(tuning.snapshot_bytes, self._snapshot_size)
        if builder.empty and not due:
            return None
        is_saved = due or builder.memory.closed
        snapshot = to_snapshot(builder.last_sequence, builder.memory) if is_saved else None
        return builder.step(fence=batch.fence, snapshot=snapshot)

    def note_committed(self, batch: SignalBatch) -> None:
        """Note the attempts and the snapshot of a committed step."""
        if batch.step is None or batch.builder is None or batch.committed is None:
            return
        if batch.attempts is not None:
            self._sender.outbox.note_attempts(batch.attempts)
        self._unsaved += batch.committed.size
        if batch.step.snapshot is not None:
            self._snapshot_at, self._unsaved = batch.builder.last_sequence, 0
            self._snapshot_size = len(batch.step.snapshot)

    def _decide(self, batch: SignalBatch) -> StepBuilder:
        """Let the core decide each signal in order.

        If a decision fails, all are made again, each with a savepoint.
        """
        builder, answers = self._builder(batch.known, batch.repeats), Answers()
        outbox, jitter = self._sender.outbox, self._shared.jitter
        try:
            for signal in batch.signals:
                answers.append((signal, decide(builder, signal, outbox=outbox, jitter=jitter)))
        # A bug in one decision must not end the session.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            self._release_taken(0)
            failed = batch.signals[len(answers)]
            self._note(failed, exc)
            builder = self._builder(batch.known, batch.repeats)
            answers = [(one, self._decide_alone(builder, one, exc if one is failed else None)) for one in batch.signals]
        for signal, answer in answers:
            if isinstance(signal, s.SlotFree):
                if not answer or isinstance(answer, BaseException):
                    self._shared.slots.release(signal.executor, self._session_id)
            elif isinstance(signal, s.Tick) and answer is None:
                self._actor.timer.faults = 0
        batch.answers = answers
        return builder

    def _quarantine(self, batch: SignalBatch) -> StepBuilder:
        """Make the step that quarantines signals on which the session failed repeatedly."""
        builder = self._builder({}, ())
        for signal in batch.signals:
            self._record_quarantined(builder, signal, f"the session failed on it {FAULTS_AN_INPUT} times")
        return builder

    def release_slots(self, builder: StepBuilder) -> None:
        """Release the slots of a step that was not written, or perhaps not."""
        for effect in builder.effects:
            if isinstance(effect, Dispatch) and effect.call.executor is not None:
                self._shared.slots.release(effect.call.executor, self._session_id)

    def release_granted(self, batch: Sequence[s.Signal]) -> None:
        """Release the slots that came with undecided signals."""
        for signal in batch:
            if isinstance(signal, s.SlotFree):
                self._shared.slots.release(signal.executor, self._session_id)

    def requeue_slot(self, signal: s.Signal) -> bool:
        """Request the slot of an unwritten claim again; return False for other signals."""
        if isinstance(signal, s.SlotFree):
            self._shared.slots.wait(signal.executor, self._session_id, signal.call_id)
            return True
        return False

    def _builder(self, known: Mapping[str, Call], repeats: Collection[str]) -> StepBuilder:
        self._taken.clear()
        actor, recorded = self._actor, Recorded(known, repeats)
        now, mint = self._shared.clock.now(), self._shared.ids.event_id
        return StepBuilder(actor.view, now, mint, self._slots, actor.runtime, recorded)

    def _take_slot(self, executor: str) -> bool:
        if not self._shared.slots.take(executor, self._session_id):
            return False
        self._taken.append(executor)
        return True

    def _release_taken(self, count: int) -> None:
        """Release the slots of the current step, except the first `count`."""
        while len(self._taken) > count:
            self._shared.slots.release(self._taken.pop(), self._session_id)

    def _decide_alone(self, builder: StepBuilder, signal: s.Signal, fault: BaseException | None) -> Any:
        """Decide one signal and undo a failed decision; `fault` is the exception of an earlier attempt."""
        outbox, jitter = self._sender.outbox, self._shared.jitter
        # A client gets the error of its request at once, and may try again.
        most = 1 if reply_of(signal) is not None else FAULTS_AN_INPUT
        problem = fault
        for tries in range(0 if fault is None else 1, most):
            mark, taken = builder.mark(), len(self._taken)
            try:
                return decide(builder, signal, outbox=outbox, jitter=jitter)
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                builder.back_to(mark)
                self._release_taken(taken)
                if tries == 0:
                    self._note(signal, exc)
                problem = exc
        assert problem is not None
        self._record_failure(builder, signal, problem)
        return problem

    def _note(self, signal: s.Signal, exc: BaseException) -> None:
        if not isinstance(exc, DragomanError):
            FAULTS.get().note("decision", exc, session=label_session(self._actor.view), signal=type(signal).__name__)

    def _record_failure(self, builder: StepBuilder, signal: s.Signal, exc: BaseException) -> None:
        """Record that a decision failed, unless its client gets the error."""
        match signal:
            case s.LinkDown(_, refused):
                self._sender.link_down(refused=refused)
            case s.LinkUp() | s.Connecting() | s.CaughtUp() | s.WantedDue():
                # Later frames of this link would rest on a state that was not recorded.
                self._actor.drop_link(f"the gateway failed on a signal of the link ({type(exc).__name__})")
            case s.Tick():
                self._actor.timer.faults += 1
            case _:
                pass
        if not isinstance(exc, DragomanError) or reply_of(signal) is None:
            self._record_quarantined(builder, signal, f"the gateway failed on it ({type(exc).__name__})")

    def _record_quarantined(self, builder: StepBuilder, signal: s.Signal, reason: str) -> None:
        """Record that an input could not be processed."""
        match signal:
            case s.FrameArrived(frame, cursor):
                builder.cursor = cursor or builder.cursor
                event = _rejected(frame, reason)
            case s.HandedOver(frame, sequence):
                event = _rejected(frame, reason)
                builder.send_changes.append(SendChange(sequence, HANDOVER, "moot", reason=reason))
            case s.Tick() if self._actor.timer.faults > 1:
                # One event is enough; the log and the metric count every failure.
                return
            case _:
                event = FaultReported(code=lifecycle.GATEWAY_FAULT, message=f"{type(signal).__name__}: {reason}")
        builder.apply(event, "from_runtime")


def _rejected(frame: Frame, reason: str) -> FrameRejected:
    return FrameRejected(channel=frame.channel[:64], reason=reason, excerpt=excerpt(frame.payload))
