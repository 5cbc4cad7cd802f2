"""What a session that failed, or was given up here, had before it: for whoever takes it up from the store."""

from dataclasses import dataclass

from gateway.adapter.port import Codec
from gateway.core.state import SessionView
from gateway.runtime.session.signals import (
    AnsweredLate,
    Attempted,
    Delivered,
    ExecutorReplied,
    FrameArrived,
    Signal,
)

Tried = tuple[Signal, int]
"""An input, and how often the session has failed on it."""

OWN = (Attempted, AnsweredLate, ExecutorReplied, Delivered)
"""What came of work that was ordered here, and would otherwise be guessed at by recovery."""


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """What a session had before it; what is on record is read again from there."""

    sequence: int
    """The last one that was known to be on record."""
    under_way: tuple[Tried, ...]
    """Whose step may have been written, or not."""
    waiting: tuple[Tried, ...]
    said_again: tuple[Tried, ...] = ()
    """Frames under way of a runtime that says again what is not on record; they are decided about when it does."""
    unsure: bool = False
    """Whether it is not known what became of the step of what was under way; else it was surely not written."""
    codec: Codec | None = None
    """What reads its frames, where the protocol does not send them again."""

    @property
    def frames(self) -> list[FrameArrived]:
        """What the runtime has said, in its order."""
        return [signal for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, FrameArrived)]


def worth_deciding(left: PendingInputs | None, view: SessionView) -> tuple[list[Tried], list[Tried]]:
    """Part what a session that failed had before it, as far as it is not on record: results, and frames."""
    if left is None:
        return [], []
    # Nobody else writes under its fence but operators, who write events: where none is new, no step was written.
    kept = [*(left.under_way if view.last_sequence == left.sequence else ()), *left.waiting]
    frames = [one for one in kept if isinstance(one[0], FrameArrived)]
    return [one for one in kept if not isinstance(one[0], FrameArrived)], frames


def is_again(signal: Signal, known: Signal) -> bool:
    """Whether a signal is a frame that was there before, said again."""
    if not (isinstance(signal, FrameArrived) and isinstance(known, FrameArrived)):
        return False
    return (signal.cursor, signal.frame) == (known.cursor, known.frame)
