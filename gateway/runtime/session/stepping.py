"""Turns a batch of signals into one step; a failed decision affects only its own signal."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any

from gateway.core.effects import Dispatch
from gateway.core.lifecycle import GATEWAY_FAULT
from gateway.core.session import Recorded, RuntimeContext, SlotAccess, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import DragomanError
from gateway.events import FaultReported, FrameRejected
from gateway.guard import FAULTS, is_fault
from gateway.runtime.observe import label_session
from gateway.runtime.session import signals as s
from gateway.runtime.session.deciding import decide
from gateway.runtime.session.due import DueTimer
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.replies import reply_of
from gateway.runtime.session.sender import Sender
from gateway.runtime.session.shared import Shared
from gateway.store.call import Call
from gateway.store.step import HANDOVER, SendChange

FAULTS_AN_INPUT = 3
"""Unexpected failures of a session caused by one input before it is quarantined."""
_EXCERPT = 500

Answers = list[tuple[s.Signal, Any]]
"""The result of each signal, or its exception."""


class StepMaker:
    """Makes the steps of one session; takes the slots for its decisions and releases them if no step is written."""

    def __init__(
        self, shared: Shared, inbox: Inbox, outbox: Sender, timer: DueTimer, drop_link: Callable[[str], None]
    ) -> None:
        self._shared = shared
        self._inbox = inbox
        self._outbox = outbox
        self._timer = timer
        self._drop_link = drop_link
        self._slots = SlotAccess(self._take_slot, shared.slots.refusal)
        self._taken: list[str] = []
        """The executors of the slots that the current step has taken."""

    def decide(
        self,
        view: SessionView,
        runtime: RuntimeContext,
        batch: Sequence[s.Signal],
        *,
        known: Mapping[str, Call],
        repeats: Collection[str],
    ) -> tuple[StepBuilder, Answers]:
        """Let the core decide each signal in order.

        If a decision fails, all are made again, each with a savepoint.
        """
        builder = self._builder(view, runtime, known=known, repeats=repeats)
        outbox, jitter = self._outbox.outbox, self._shared.jitter
        answers: Answers = []
        try:
            for signal in batch:
                answers.append((signal, decide(builder, signal, outbox=outbox, jitter=jitter)))
        # A bug in one decision must not end the session.
        except BaseException as exc:
            if not is_fault(exc):
                raise
            self._release_taken(0)
            failed = batch[len(answers)]
            self._note(failed, exc, view)
            builder = self._builder(view, runtime, known=known, repeats=repeats)
            answers = [(one, self._decide_alone(builder, one, exc if one is failed else None)) for one in batch]
        for signal, answer in answers:
            if isinstance(signal, s.SlotFree):
                if not answer or isinstance(answer, BaseException):
                    self._shared.slots.release(signal.executor, self._inbox)
            elif isinstance(signal, s.Tick) and answer is None:
                self._timer.faults = 0
        return builder, answers

    def quarantine(self, view: SessionView, runtime: RuntimeContext, batch: Sequence[s.Signal]) -> StepBuilder:
        """Make the step that quarantines signals on which the session failed repeatedly."""
        builder = self._builder(view, runtime, known={}, repeats=())
        for signal in batch:
            self._record_quarantined(builder, signal, f"the session failed on it {FAULTS_AN_INPUT} times")
        return builder

    def release_slots(self, builder: StepBuilder) -> None:
        """Release the slots of a step that was not written, or perhaps not."""
        for effect in builder.effects:
            if isinstance(effect, Dispatch) and effect.call.executor is not None:
                self._shared.slots.release(effect.call.executor, self._inbox)

    def release_granted(self, batch: Sequence[s.Signal]) -> None:
        """Release the slots that came with undecided signals."""
        for signal in batch:
            if isinstance(signal, s.SlotFree):
                self._shared.slots.release(signal.executor, self._inbox)

    def requeue_slot(self, signal: s.Signal) -> bool:
        """Request the slot of an unwritten claim again; return False for other signals."""
        if isinstance(signal, s.SlotFree):
            self._shared.slots.wait(signal.executor, self._inbox, signal.call_id)
            return True
        return False

    def _builder(
        self, view: SessionView, runtime: RuntimeContext, *, known: Mapping[str, Call], repeats: Collection[str]
    ) -> StepBuilder:
        self._taken.clear()
        return StepBuilder(
            view,
            self._shared.clock.now(),
            self._shared.ids.event_id,
            self._slots,
            runtime,
            Recorded(known, repeats),
        )

    def _take_slot(self, executor: str) -> bool:
        if not self._shared.slots.take(executor, self._inbox):
            return False
        self._taken.append(executor)
        return True

    def _release_taken(self, count: int) -> None:
        """Release the slots of the current step, except the first `count`."""
        while len(self._taken) > count:
            self._shared.slots.release(self._taken.pop(), self._inbox)

    def _decide_alone(self, builder: StepBuilder, signal: s.Signal, fault: BaseException | None) -> Any:
        """Decide one signal and undo a failed decision; `fault` is the exception of an earlier attempt."""
        outbox, jitter = self._outbox.outbox, self._shared.jitter
        for tries in count(1):
            if fault is None:
                mark, taken = builder.mark(), len(self._taken)
                try:
                    return decide(builder, signal, outbox=outbox, jitter=jitter)
                except BaseException as exc:
                    if not is_fault(exc):
                        raise
                    builder.back_to(mark)
                    self._release_taken(taken)
                    if tries == 1:
                        self._note(signal, exc, builder.base)
                    fault = exc
            if reply_of(signal) is not None or tries >= FAULTS_AN_INPUT:
                self._record_failure(builder, signal, fault)
                return fault
            fault = None
        raise AssertionError("unreachable")

    def _note(self, signal: s.Signal, exc: BaseException, view: SessionView) -> None:
        if not isinstance(exc, DragomanError):
            FAULTS.get().note("decision", exc, session=label_session(view), signal=type(signal).__name__)

    def _record_failure(self, builder: StepBuilder, signal: s.Signal, exc: BaseException) -> None:
        """Record that a decision failed, unless its client gets the error."""
        match signal:
            case s.LinkDown(_, refused):
                self._outbox.link_down(refused=refused)
            case s.LinkUp() | s.Connecting() | s.CaughtUp() | s.WantedDue():
                # Later frames of this link would rest on a state that was not recorded.
                self._drop_link(f"the gateway failed on a signal of the link ({type(exc).__name__})")
            case s.Tick():
                self._timer.faults += 1
            case _:
                pass
        if not isinstance(exc, DragomanError) or reply_of(signal) is None:
            self._record_quarantined(builder, signal, f"the gateway failed on it ({type(exc).__name__})")

    def _record_quarantined(self, builder: StepBuilder, signal: s.Signal, reason: str) -> None:
        """Record that an input could not be processed."""
        match signal:
            case s.FrameArrived(frame, cursor):
                builder.cursor = cursor or builder.cursor
                excerpt = repr(frame.payload)[:_EXCERPT]
                event = FrameRejected(channel=frame.channel[:64], reason=reason, excerpt=excerpt)
            case s.HandedOver(frame, sequence):
                excerpt = repr(frame.payload)[:_EXCERPT]
                event = FrameRejected(channel=frame.channel[:64], reason=reason, excerpt=excerpt)
                builder.send_changes.append(SendChange(sequence, HANDOVER, "moot", reason=reason))
            case s.Tick() if self._timer.faults > 1:
                # One event is enough; the log and the metric count every failure.
                return
            case _:
                event = FaultReported(code=GATEWAY_FAULT, message=f"{type(signal).__name__}: {reason}")
        builder.apply(event, "from_runtime")
