"""The inputs of a session: a batch that is decided together, and those that wait for the next object or owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.adapter.port import Codec
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import Fenced
from gateway.events import CallId
from gateway.runtime.session.outbox import Attempts
from gateway.runtime.session.signals import (
    AnsweredLate,
    Attempted,
    Delivered,
    ExecutorReplied,
    FrameArrived,
    Signal,
)
from gateway.store.call import Call
from gateway.store.step import Committed, Step

Tried = tuple[Signal, int]
"""An input with the number of times that the session has failed on it."""

FAULTS_AN_INPUT = 3
"""Unexpected failures of a session caused by one input before it is quarantined."""
Answers = list[tuple[Signal, Any]]
"""The result of each signal, or its exception."""

OWN_RESULTS = (Attempted, AnsweredLate, ExecutorReplied, Delivered)
"""Results of this process's own work; without them recovery would have to guess."""


@dataclass(slots=True, eq=False)
class Batch:
    """Signals that are decided together, and the decision about them."""

    signals: list[Signal]
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
    answers: Answers = field(default_factory=list[tuple[Signal, Any]])
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


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """The undecided inputs of a session; recorded ones are in the store."""

    sequence: int
    """The last known sequence in the store."""
    under_way: tuple[Tried, ...]
    """The inputs of the failed step, which may be committed."""
    waiting: tuple[Tried, ...]
    replayed: tuple[Tried, ...] = ()
    """Frames of the failed step that the runtime replays if they are not recorded; decided when they arrive."""
    unsure: bool = False
    """Whether the failed step may be committed; otherwise it is certainly not."""
    codec: Codec | None = None
    """Decodes its frames if the protocol does not replay them."""

    @property
    def frames(self) -> list[FrameArrived]:
        """The frames of the runtime, in order."""
        return [signal for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, FrameArrived)]

    @property
    def answered_calls(self) -> list[CallId]:
        """The calls whose attempt has ended; the new owner decides about them without its answer."""
        return [signal.call_id for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, Attempted)]


def worth_deciding(pending: PendingInputs | None, view: SessionView) -> tuple[list[Tried], list[Tried]]:
    """Return the inputs that are not recorded yet, as results and frames."""
    if pending is None:
        return [], []
    # The fence excludes all other writers but operators, whose writes are events: no new event means no step.
    unrecorded = [*(pending.under_way if view.last_sequence == pending.sequence else ()), *pending.waiting]
    frames = [one for one in unrecorded if isinstance(one[0], FrameArrived)]
    return [one for one in unrecorded if not isinstance(one[0], FrameArrived)], frames


def collect(
    sequence: int, batch: Batch | None, waiting: Sequence[Tried], replayed: Sequence[Tried], runtime: RuntimeContext
) -> PendingInputs:
    """Collect the inputs to decide again; a link that replays sends unrecorded frames again by itself."""
    resumes = runtime.capabilities.resumes
    kinds = OWN_RESULTS if resumes else (*OWN_RESULTS, FrameArrived)
    failed: list[Tried] = []
    if batch is not None and batch.written != "yes":
        failed = [(signal, batch.times + 1) for signal in batch.signals]
    frames = [one for one in failed if resumes and isinstance(one[0], FrameArrived)]
    return PendingInputs(
        sequence,
        tuple(one for one in failed if isinstance(one[0], kinds)),
        tuple(one for one in waiting if isinstance(one[0], kinds)),
        replayed=(*replayed, *frames),
        unsure=batch is not None and batch.written == "unsure",
        codec=None if resumes else runtime.codec,
    )


def split_repeated(signals: list[Signal], replayed: Sequence[Tried]) -> tuple[list[Signal], list[Signal], Tried | None]:
    """Split signals before or behind a frame on which the session has failed; return it if it is the first one."""
    for place, signal in enumerate(signals):
        known = next((one for one in replayed if _is_same_frame(signal, one[0])), None)
        if known is not None:
            count = max(1, place)
            return signals[:count], signals[count:], None if place else known
    return signals, [], None


def _is_same_frame(signal: Signal, known: Signal) -> bool:
    """Return whether a signal is the same frame as a known one."""
    if not (isinstance(signal, FrameArrived) and isinstance(known, FrameArrived)):
        return False
    return (signal.cursor, signal.frame) == (known.cursor, known.frame)
