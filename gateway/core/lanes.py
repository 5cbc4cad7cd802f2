"""What waits to leave on one link, and what of it leaves next. Pure."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import get_args

from gateway.core.effects import Place, Transmit
from gateway.store.step import Lane

LANES: tuple[Lane, ...] = ("urgent", "turn", "new_work")
_PLACES: tuple[Place, ...] = get_args(Place)


class Lanes:
    """Sorts outbound events: by lane, or all in one order where each may replace the state that another told.

    Within a lane the older event goes first. One that may not leave yet holds up nothing in an earlier lane, and
    nothing behind it that may.
    """

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        # Made when it is needed, since most sessions are idle most of the time.
        self._waiting: dict[int, deque[Transmit]] = {}

    def add(self, item: Transmit) -> None:
        """Let an event wait in its place."""
        lane = _PLACES.index(item.place) if self._in_order else LANES.index(item.lane)
        line = self._waiting.setdefault(lane, deque())
        if line and item.sequence < line[-1].sequence:
            self._waiting[lane] = deque(sorted((*line, item), key=_sequence))
        else:
            line.append(item)

    def take(self, may_leave: Callable[[Transmit], bool]) -> Transmit | None:
        """Take what leaves next; None where nothing may."""
        for lane in sorted(self._waiting):
            line = self._waiting[lane]
            for item in line:
                if may_leave(item):
                    first = _asked_first(line, item)
                    line.remove(first)
                    if not line:
                        del self._waiting[lane]
                    return first
        return None

    def remove(self, unwanted: Callable[[Transmit], bool]) -> list[Transmit]:
        """Let some wait here no longer; answers which."""
        gone = [item for item in self if unwanted(item)]
        for lane in [lane for lane in self._waiting if gone]:
            line = deque([item for item in self._waiting.pop(lane) if item not in gone])
            if line:
                self._waiting[lane] = line
        return gone

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Transmit]:
        return (item for lane in sorted(self._waiting) for item in self._waiting[lane])


def _sequence(item: Transmit) -> int:
    return item.sequence


def _asked_first(line: deque[Transmit], item: Transmit) -> Transmit:
    """Of approvals that may leave, whatever order they were given in, take the one that was asked for first."""
    if item.kind != "approval.given" or item.caused_by is None:
        return item
    given = [one for one in line if one.kind == item.kind and one.caused_by is not None]
    return min(given, key=lambda one: one.caused_by or 0)
