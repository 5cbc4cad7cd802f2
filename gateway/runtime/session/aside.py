"""What a newer release has written and waits for it, with all that must not overtake it. Pure."""

from collections.abc import Callable, Collection, Sequence

from gateway.core.effects import Transmit
from gateway.core.resend import LANES
from gateway.runtime.session.signals import Delivered, Signal
from gateway.store.rows import Send
from gateway.store.step import BEHIND, NEWER, RUNTIME, Lane


class Aside:
    """One session's lanes that wait for a newer release, and the events in them that do."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[Lane, set[int]] = {}
        """The lanes that wait, and which of their events do."""

    @property
    def count(self) -> int:
        """How many events wait."""
        return sum(map(len, self.waiting.values())) if self.waiting else 0

    def add(self, item: Transmit) -> Signal:
        """Let an event wait behind the others of its lane."""
        self.waiting[item.lane].add(item.sequence)
        return Delivered((item.sequence,), RUNTIME, "pending", BEHIND)

    def clear(self) -> None:
        """Nothing of it is known any more."""
        self.waiting = {}

    def part(
        self, page: Sequence[Send], remove: Callable[[Callable[[Transmit], bool]], Collection[Transmit]]
    ) -> tuple[list[Send], Collection[Transmit], list[Signal]]:
        """Part what this release cannot say, and what must not overtake it, from what may be sent.

        The release that wrote it says it: a mark in its row lists it, and lets that release know that it waited.
        `remove` takes out of the lanes what came while the page was read; those are answered as well.
        """
        self.waiting = {}
        left: list[Send] = []
        marked: list[int] = []
        for row in page:
            unknown = row.envelope.stored_kind is not None or row.lane not in LANES
            if not unknown and row.lane not in self.waiting:
                left.append(row)
                continue
            self.waiting.setdefault(row.lane, set()).add(row.sequence)
            if unknown and not row.waits:
                marked.append(row.sequence)
        late = remove(self._is_behind) if self.waiting else ()
        for item in late:
            self.waiting[item.lane].add(item.sequence)
        signals: list[Signal] = []
        if late:
            signals.append(Delivered(tuple([item.sequence for item in late]), RUNTIME, "pending", BEHIND))
        if marked:
            signals.append(Delivered(tuple(marked), RUNTIME, "pending", NEWER))
        return left, late, signals

    def _is_behind(self, item: Transmit) -> bool:
        return item.lane in self.waiting and item.sequence > min(self.waiting[item.lane])
