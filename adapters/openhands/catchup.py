"""Tracks the events of a link: drops duplicates, maintains the cursor and fills gaps from the event store.

A server may send live events before its replay is complete (OH18). Until a link has caught up, the tracker buffers the
newest events and passes them on in order of their ids, with the events from the store between them.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

from adapters.openhands import wire
from gateway.adapter.port import Frame, Receiver
from gateway.errors import LinkLost
from gateway.events.weight import weight

REMEMBERED = 10_000
"""Events whose duplicates are detected; replay and live overlap by far less (OH17)."""
LOOKED_BACK = 100
"""Ids below the newest event in which gaps are filled; the replay has older events from the same store."""
MAX_HELD = 16 * 1024 * 1024
"""Bytes that are buffered for order; screenshots may fill them with fewer than `LOOKED_BACK` events."""
MOST_PAGES = 10


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One page of the event store."""

    events: tuple[Any, ...]
    has_more: bool


class NoStore(Exception):
    """The server has no REST interface, so its event store cannot be read."""


class HeldEvent(NamedTuple):
    """A buffered event; events are sorted by id, then by arrival."""

    number: int
    turn: int
    frame: Frame
    size: int


class Tracker:
    """The receiver between a link and its session; implements `gateway.adapter.port.Receiver`."""

    def __init__(
        self, receiver: Receiver, resume: int | None, *, on_newer_state: Callable[[], None] = lambda: None
    ) -> None:
        self._receiver = receiver
        self._seen: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._resume = resume
        self.newest = -1
        """Highest id that this link has received."""
        self.newest_state = -1
        """Highest id of a state that this link has received."""
        self._on_newer_state = on_newer_state
        """Called when a newer state arrives."""
        self.is_evicted = False
        """Whether the server has evicted the conversation for another one."""
        self._is_caught_up = False
        self._held: list[HeldEvent] = []
        self._held_bytes = 0
        self._turn = 0
        self._passed = -1
        """Highest id that was passed on."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Pass on a frame, unless it is a duplicate event."""
        mark = wire.mark_of(frame.payload) if frame.channel == wire.EVENTS else None
        if mark is None:
            self.is_evicted = self.is_evicted or (frame.channel == wire.EVENTS and wire.is_eviction(frame.payload))
            self._receiver.frame(frame, cursor)
            return
        if mark in self._seen:
            return
        self._seen[mark] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self.newest = max(self.newest, mark[0])
        if wire.is_state(frame.payload) and mark[0] > self.newest_state:
            self.newest_state = mark[0]
            self._on_newer_state()
        if wire.is_never_live(frame.payload):
            # Never recorded, so that live and replay record the same events. Its effects have their own events.
            return
        if self._is_caught_up:
            self._pass_on(mark[0], frame)
        else:
            self._hold(mark[0], frame)

    def put_stored(self, event: Any) -> None:
        """Accept an event from the store, except those that a replay omits and outdated states.

        A missed start of the agent is accepted: it shows that the MCP servers of the creation are lost.
        """
        mark = wire.mark_of(event)
        is_outdated = mark is not None and wire.is_state(event) and mark[0] < self.newest_state
        is_missed = mark is not None and self._resume is not None and mark[0] > self._resume and wire.is_start(event)
        if (is_outdated and not is_missed) or wire.is_unsent(event):
            return
        self.frame(Frame(wire.EVENTS, event))

    def caught_up(self, *, starting: bool | None = False) -> None:
        """Pass on all buffered events and mark the end of the replay."""
        while self._held:
            self._pass_first()
        # From now on the link's own ids count, even if a server that lost its store starts again from zero.
        self._is_caught_up = True
        self._receiver.caught_up(starting=starting)

    def give_up(self) -> None:
        """Pass on the buffered events of a link that did not catch up, because no replay shows their states again.

        The cursor stays before the first gap, so that the next link can fill it.
        """
        place = str(max(self._passed, self._resume or 0, self.first_gap(0) - 1))
        for held in sorted(self._held):
            self._receiver.frame(held.frame, place)
        self._held.clear()

    def first_gap(self, since: int) -> int:
        """Return the first id to request from the store."""
        start = max(since, self.newest - LOOKED_BACK, 0)
        ids = {number for number, _ in self._seen if number >= start}
        while start in ids:
            start += 1
        return start

    def _hold(self, number: int, frame: Frame) -> None:
        size = weight(frame.payload)
        heappush(self._held, HeldEvent(number, self._turn, frame, size))
        self._turn += 1
        self._held_bytes += size
        while len(self._held) > LOOKED_BACK or self._held_bytes > MAX_HELD:
            self._pass_first()

    def _pass_first(self) -> None:
        first = heappop(self._held)
        self._held_bytes -= first.size
        self._pass_on(first.number, first.frame)

    def _pass_on(self, number: int, frame: Frame) -> None:
        self._passed = max(self._passed, number)
        known = 0 if self._is_caught_up or self._resume is None else self._resume
        self._receiver.frame(frame, str(max(self._passed, known)))


async def fill(
    tracker: Tracker, ask: Callable[[int], Awaitable[HistoryPage]], *, since: int, resume: int | None
) -> None:
    """Fetch the events between replay and live, or between two threads of the server, from the store.

    Raises:
        LinkLost: the store cannot be read, or is too far ahead of the replay.
        NoStore: the server has no store.
    """
    newest = await _read_from(tracker, ask, tracker.first_gap(since))
    if resume is not None and since > 0 and max(newest, tracker.newest) < resume:
        # The cursor no longer exists: the conversation was started again under the same id.
        await _read_from(tracker, ask, 0)


def newest_state(payloads: Iterable[object]) -> str | None:
    """Return the newest state of the agent in these events, which are sorted from new to old."""
    for payload in payloads:
        match payload:
            case {"extras": {"agent_state": str(state)}} if wire.is_state(payload):
                return state
            case _:
                pass
    return None


async def _read_from(tracker: Tracker, ask: Callable[[int], Awaitable[HistoryPage]], start: int) -> int:
    newest = -1
    for _ in range(MOST_PAGES):
        page = await ask(start)
        for event in page.events:
            mark = wire.mark_of(event)
            newest = max(newest, mark[0] if mark is not None else -1)
            tracker.put_stored(event)
        if not page.has_more:
            return newest
        if newest < start:
            raise LinkLost("the event store reports more events but returns none")
        start = newest + 1
    raise LinkLost(f"the event store is over {MOST_PAGES * wire.PAGE} events ahead of the replay")
