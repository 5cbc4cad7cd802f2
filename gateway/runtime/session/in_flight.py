"""What was sent to a runtime that answers nothing: when silence means that it has come. Pure.

That an outcome is believed to be delivered is a mark, which waits for the session's next step to be put on record with:
until then a crash says the outcome again, in the same words. What a repeat would count as new is put on record at once.
"""

from collections.abc import Collection, Sequence

from gateway.core.adapt import RENEWED
from gateway.core.effects import Transmit
from gateway.events.frozen import frozen
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.step import RUNTIME

PORTION = 32
"""Events said again that may be on their way while no record says that they came; a crash repeats no more of them."""
CROWD = 8_000
"""Events on their way from which on the link is asked before the window is over, lest the next ones have to wait.

What has half of them behind it is believed as soon as it has surely come: a fault is about the newest anyhow."""
NOTHING: frozenset[int] = frozenset()
"""One for all: Python makes another each time, and an idle session would hold five of 216 bytes."""


@frozen
class _Sent:
    sequence: int
    at: float
    note: str | None
    """What its row says once it is delivered."""
    repeats: bool
    rides: bool
    """Whether its delivery may wait for the session's next step."""


class InFlightSends:
    """One session's sends of which nobody has said anything yet, and those that are believed to have come."""

    __slots__ = ("_believed", "marks", "portion", "sent", "settling")

    def __init__(self) -> None:
        self.marks: list[int] = []
        """Outcomes that are believed to be delivered, which the session's next step puts on record."""
        self.sent: list[_Sent] = []
        """What is on its way, against which something may still be said."""
        self.settling: dict[int, None] = {}
        """What is believed to be delivered, and not on record as that."""
        self.portion: frozenset[int] = NOTHING
        """What was said again, and is not on record as delivered."""
        self._believed: list[_Sent] = []
        """What was said again last, and believed; a fault may still be about it."""

    @property
    def sequences(self) -> set[int]:
        """What is on its way."""
        return {sent.sequence for sent in self.sent}

    @property
    def repeats(self) -> bool:
        """Whether something is on its way that was said again.

        It is believed as soon as it has surely come, lest a gateway that keeps dying says it for ever. The silence is
        still listened to: a fault within the window is about it.
        """
        return any(sent.repeats for sent in self.sent)

    @property
    def is_crowded(self) -> bool:
        """Whether the link is to be asked at once."""
        return len(self.sent) >= CROWD

    def add(self, item: Transmit, *, now: float) -> None:
        """An event has left."""
        rides = item.kind == "tool.finished" and not item.repeats
        self.sent.append(_Sent(item.sequence, now, RENEWED if item.renewed else None, item.repeats, rides))
        if item.repeats:
            self.portion |= {item.sequence}

    def again(self, sequence: int) -> bool:
        """Somebody asks for an event once more; says whether it has left already."""
        left = sequence in self.settling or sequence in self.sequences
        self.settling.pop(sequence, None)
        if sequence in self.marks:
            self.marks.remove(sequence)
        return left

    def proven(self, *, asked_at: float, window: float) -> Sequence[int]:
        """List what an answer of the link to a question asked at this moment proves to have come.

        Of what was said again it proves that; of the rest only what nothing was said against for a window before, or
        what is far behind the newest of a crowd.
        """
        until = self._proven_until(asked_at=asked_at, window=window)
        return [sent.sequence for sent in self.sent if sent.at <= (asked_at if sent.repeats else until)]

    def confirm(self, *, asked_at: float, window: float) -> Sequence[Signal]:
        """The link has answered a question that was asked at this moment: what it proves is delivered."""
        ripe: dict[str | None, list[int]] = {}
        kept: list[_Sent] = []
        until = self._proven_until(asked_at=asked_at, window=window)
        for sent in self.sent:
            if sent.at > (asked_at if sent.repeats else until):
                kept.append(sent)
                continue
            self.settling[sent.sequence] = None
            if sent.rides:
                self.marks.append(sent.sequence)
            else:
                ripe.setdefault(sent.note, []).append(sent.sequence)
            if sent.repeats:
                self._believed = [*self._believed[-PORTION:], sent]
        self.sent = kept
        return [Delivered(tuple(sequences), RUNTIME, "delivered", note) for note, sequences in ripe.items()]

    def _proven_until(self, *, asked_at: float, window: float) -> float:
        """Say up to when what was sent is proven: by silence, or in a crowd by the answer alone."""
        silent = asked_at - window
        return max(silent, min(asked_at, self.sent[-CROWD // 2].at)) if self.is_crowded else silent

    def take_marks(self) -> Sequence[Signal]:
        """Take what the session's next step puts on record; for whoever makes it."""
        if not self.marks:
            return ()
        marks, self.marks = self.marks, []
        return (Delivered(tuple(marks), RUNTIME, "delivered"),)

    def refused(self, *, now: float, window: float) -> int | None:
        """The runtime reports an error: take out what it is about, the newest send in the window, if there is one."""
        if self.sent:
            return self.sent.pop().sequence
        if self._believed and self._believed[-1].at > now - window:
            return self._believed.pop().sequence
        return None

    def done(self, sequences: Collection[int]) -> bool:
        """The fate of these is on record; says whether more may be said again now."""
        for sequence in sequences if self.settling else ():
            self.settling.pop(sequence, None)
        if not self.portion:
            return False
        self.portion = self.portion.difference(sequences) or NOTHING
        return True

    def lose(self) -> set[int]:
        """The link is down: nothing is on its way any more; answers what nobody knows of whether it came."""
        lost, self.sent = self.sequences, []
        self.portion = NOTHING
        self._believed = []
        return lost
