"""Tracks sends to a runtime without acknowledgements, where silence confirms a delivery. Pure.

The delivery mark of a confirmed outcome joins the session's next step; until then a crash repeats the outcome, byte for
byte. The mark of an event that a runtime would count twice is committed at once.
"""

from collections.abc import Collection, Sequence

from gateway.core.adapt import RENEWED
from gateway.core.effects import Transmit
from gateway.events.frozen import frozen
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.step import RUNTIME

BATCH = 32
"""The retransmit window: the most retransmitted events in flight, which a crash may repeat."""
CROWD = 8_000
"""With this many sends in flight the link is queried before the window ends, so that further events need not wait.

The answer alone confirms the older half, because a fault concerns the newest send."""
NOTHING: frozenset[int] = frozenset()
"""Shared, because an idle session would otherwise hold five empty objects of 216 bytes."""


@frozen
class _Sent:
    sequence: int
    at: float
    note: str | None
    """The note that its row gets after delivery."""
    repeats: bool
    piggybacks: bool
    """Whether its delivery mark may wait for the session's next step."""


class InFlightSends:
    """The unconfirmed sends of one session, and the fates that are not committed yet."""

    __slots__ = ("_confirmed", "marks", "retransmits", "sent", "settling")

    def __init__(self) -> None:
        self.marks: list[int] = []
        """Confirmed outcomes to mark in the session's next step."""
        self.sent: list[_Sent] = []
        """Sends in flight that a fault may still concern."""
        self.settling: dict[int, None] = {}
        """Events with a known fate that is not committed yet, for every runtime."""
        self.retransmits: frozenset[int] = NOTHING
        """Retransmits without a committed mark."""
        self._confirmed: list[_Sent] = []
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
        """Whether the link must be queried at once."""
        return len(self.sent) >= CROWD

    def add(self, item: Transmit, *, now: float) -> None:
        """Add a sent event."""
        piggybacks = item.kind == "tool.finished" and not item.repeats
        self.sent.append(_Sent(item.sequence, now, RENEWED if item.renewed else None, item.repeats, piggybacks))
        if item.repeats:
            self.retransmits |= {item.sequence}

    def resend(self, sequence: int) -> bool:
        """Note that an event is requested again; return whether it was sent already."""
        was_sent = sequence in self.settling or sequence in self.sequences
        self.settling.pop(sequence, None)
        if sequence in self.marks:
            self.marks.remove(sequence)
        return was_sent

    def list_proven(self, *, asked_at: float, window: float) -> Sequence[int]:
        """List the sends that the link's answer to a query at `asked_at` confirms.

        It confirms all earlier retransmits. Of other sends it confirms those with a window of silence before the
        query and, of a crowd, the older half.
        """
        until = self._confirmed_until(asked_at=asked_at, window=window)
        return [sent.sequence for sent in self.sent if sent.at <= (asked_at if sent.repeats else until)]

    def confirm(self, *, asked_at: float, window: float) -> Sequence[Signal]:
        """Confirm the sends that `list_proven` lists."""
        ripe: dict[str | None, list[int]] = {}
        unconfirmed: list[_Sent] = []
        until = self._confirmed_until(asked_at=asked_at, window=window)
        for sent in self.sent:
            if sent.at > (asked_at if sent.repeats else until):
                unconfirmed.append(sent)
                continue
            self.settling[sent.sequence] = None
            if sent.piggybacks:
                self.marks.append(sent.sequence)
            else:
                ripe.setdefault(sent.note, []).append(sent.sequence)
            if sent.repeats:
                self._confirmed = [*self._confirmed[-BATCH:], sent]
        self.sent = unconfirmed
        return [Delivered(tuple(sequences), RUNTIME, "delivered", note) for note, sequences in ripe.items()]

    def _confirmed_until(self, *, asked_at: float, window: float) -> float:
        """Return the time up to which sends are confirmed: by silence, or in a crowd by the answer alone."""
        silent = asked_at - window
        return max(silent, min(asked_at, self.sent[-CROWD // 2].at)) if self.is_crowded else silent

    def take_marks(self) -> Sequence[Signal]:
        """Take the marks for the session's next step."""
        if not self.marks:
            return ()
        marks, self.marks = self.marks, []
        return (Delivered(tuple(marks), RUNTIME, "delivered"),)

    def take_refused(self, *, now: float, window: float) -> int | None:
        """Remove and return the send that a reported error concerns: the newest in the window, if any."""
        if self.sent:
            return self.sent.pop().sequence
        if self._confirmed and self._confirmed[-1].at > now - window:
            return self._confirmed.pop().sequence
        return None

    def done(self, sequences: Collection[int]) -> bool:
        """Note sends with a recorded fate; return whether more may be retransmitted now."""
        for sequence in sequences if self.settling else ():
            self.settling.pop(sequence, None)
        if not self.retransmits:
            return False
        self.retransmits = self.retransmits.difference(sequences) or NOTHING
        return True

    def clear(self) -> set[int]:
        """Clear the sends of a lost link; return those with an unknown delivery."""
        lost, self.sent = self.sequences, []
        self.retransmits = NOTHING
        self._confirmed = []
        return lost
