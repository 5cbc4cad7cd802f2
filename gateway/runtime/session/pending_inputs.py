"""The undecided inputs of a failed or released session, for its next worker or owner."""

from dataclasses import dataclass

from gateway.adapter.port import Codec
from gateway.core.state import SessionView
from gateway.events import CallId
from gateway.runtime.session.signals import (
    AnsweredLate,
    Attempted,
    Delivered,
    ExecutorReplied,
    FrameArrived,
    Signal,
)

Tried = tuple[Signal, int]
"""An input with the number of times that the session has failed on it."""

OWN_RESULTS = (Attempted, AnsweredLate, ExecutorReplied, Delivered)
"""Results of this process's own work; without them recovery would have to guess."""


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


def is_same_frame(signal: Signal, known: Signal) -> bool:
    """Return whether a signal is the same frame as a known one."""
    if not (isinstance(signal, FrameArrived) and isinstance(known, FrameArrived)):
        return False
    return (signal.cursor, signal.frame) == (known.cursor, known.frame)
