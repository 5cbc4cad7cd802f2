"""Sends to a runtime without acknowledgements: when silence confirms a delivery. Pure.

A confirmed outcome gets a delivery mark, which joins the session's next step: until then a crash repeats the outcome,
byte for byte. The mark of an event that a runtime would count twice is committed at once.
"""

from collections.abc import Collection, Sequence

from gateway.core.adapt import RENEWED
from gateway.core.effects import Transmit
from gateway.events.frozen import frozen
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.step import RUNTIME

PORTION = 32
"""The retransmit window: retransmitted events in flight; a crash repeats at most these."""
CROWD = 8_000
"""Sends in flight from which on the link is asked before the window ends, so that further events need not wait.

Events with half of them behind are confirmed by the answer alone, because a fault concerns the newest send."""
NOTHING: frozenset[int] = frozenset()
"""Shared, because an idle session would otherwise hold five empty objects of 216 bytes."""


@frozen
class _Sent:
    sequence: int
    at: float
    note: str | None
    """The change of its row after the delivery."""
    repeats: bool
    rides: bool
    """Whether its delivery mark may wait for the session's next step."""


class InFlightSends:
    """The unconfirmed and the confirmed, unmarked sends of one session."""

    __slots__ = ("_believed", "marks", "portion", "sent", "settling")

    def __init__(self) -> None:
        self.marks: list[int] = []
        """Confirmed outcomes that the session's next step marks."""
        self.sent: list[_Sent] = []
        """Sends in flight that a fault may still concern."""
        self.settling: dict[int, None] = {}
        """Confirmed sends without a committed mark."""
        self.portion: frozenset[int] = NOTHING
        """Retransmits without a committed mark."""
        self._believed: list[_Sent] = []
        """The last confirmed retransmits; a fault may still concern them."""

    @property
    def sequences(self) -> set[int]:
        """The sends in flight."""
        return {sent.sequence for sent in self.sent}

    @property
    def repeats(self) -> bool:
        """Whether retransmits are in flight.

        Retransmitted events are confirmed by the ping, so a crash loop does not retransmit them forever. A fault within
        the window still concerns them.
        """
        return any(sent.repeats for sent in self.sent)

    @property
    def is_crowded(self) -> bool:
        """Whether the link must be asked at once."""
        return len(self.sent) >= CROWD

    def add(self, item: Transmit, *, now: float) -> None:
        """Add a sent event."""
        rides = item.kind == "tool.finished" and not item.repeats
        self.sent.append(_Sent(item.sequence, now, RENEWED if item.renewed else None, item.repeats, rides))
        if item.repeats:
            self.portion |= {item.sequence}

    def again(self, sequence: int) -> bool:
        """Mark an event as requested again; return whether it has left already."""
        left = sequence in self.settling or sequence in self.sequences
        self.settling.pop(sequence, None)
        if sequence in self.marks:
            self.marks.remove(sequence)
        return left

    def proven(self, *, asked_at: float, window: float) -> Sequence[int]:
        """List the sends that the link's answer to a question of this moment confirms.

        It confirms all earlier retransmits. Of other sends it confirms those with a window of silence before the
        question, and those far behind the newest of many.
        """
        until = self._proven_until(asked_at=asked_at, window=window)
        return [sent.sequence for sent in self.sent if sent.at <= (asked_at if sent.repeats else until)]

    def confirm(self, *, asked_at: float, window: float) -> Sequence[Signal]:
        """Confirm the sends that the link's answer to a question of this moment proves."""
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
        """Return the time up to which sends are confirmed, by silence or, of many, by the answer alone."""
        silent = asked_at - window
        return max(silent, min(asked_at, self.sent[-CROWD // 2].at)) if self.is_crowded else silent

    def take_marks(self) -> Sequence[Signal]:
        """Take the marks for the session's next step."""
        if not self.marks:
            return ()
        marks, self.marks = self.marks, []
        return (Delivered(tuple(marks), RUNTIME, "delivered"),)

    def refused(self, *, now: float, window: float) -> int | None:
        """Take out the send that a reported error concerns: the newest in the window, if there is one."""
        if self.sent:
            return self.sent.pop().sequence
        if self._believed and self._believed[-1].at > now - window:
            return self._believed.pop().sequence
        return None

    def done(self, sequences: Collection[int]) -> bool:
        """Note sends with a recorded fate; return whether more may be retransmitted now."""
        for sequence in sequences if self.settling else ():
            self.settling.pop(sequence, None)
        if not self.portion:
            return False
        self.portion = self.portion.difference(sequences) or NOTHING
        return True

    def lose(self) -> set[int]:
        """Clear the sends of a lost link; return those with an unknown delivery."""
        lost, self.sent = self.sequences, []
        self.portion = NOTHING
        self._believed = []
        return lost
