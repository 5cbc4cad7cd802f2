"""Follows which events a link has brought: drops repeats, keeps the place to resume at, fills what is missing.

A server may speak live before its replay is whole (OH18). So until a link has caught up, its newest events are held
back and handed on by their numbers: what the store fills in takes its own place among them.
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
"""Events whose repeats are known; replay and live overlap by far less (OH17)."""
LOOKED_BACK = 100
"""How far behind the newest event a hole is looked for: what is older, the replay took from the same store."""
MOST_HELD = 16 * 1024 * 1024
"""Bytes that are held back for the sake of order; screenshots may fill them with fewer than `LOOKED_BACK` events."""
MOST_PAGES = 10


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One answer of the event store."""

    events: tuple[Any, ...]
    has_more: bool


class NoStore(Exception):
    """The server has no REST interface, so its event store cannot be read."""


class HeldEvent(NamedTuple):
    """An event that waits for those numbered below it; of one number, the first to come goes first."""

    number: int
    turn: int
    frame: Frame
    size: int


class Tracker:
    """Stands between a link and its session; implements `gateway.adapter.port.Receiver`."""

    def __init__(
        self, receiver: Receiver, resume: int | None, *, on_newer_state: Callable[[], None] = lambda: None
    ) -> None:
        self._receiver = receiver
        self._seen: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._resume = resume
        self.newest = -1
        """Highest id this link has brought."""
        self.newest_state = -1
        """Highest id of a state this link has brought."""
        self._on_newer_state = on_newer_state
        """Called when a state arrives that is newer than those before it."""
        self.is_evicted = False
        """Whether the server has told that it ends the conversation to make room for another."""
        self._is_caught_up = False
        self._held: list[HeldEvent] = []
        self._held_bytes = 0
        self._turn = 0
        self._handed = -1
        """Highest id that was handed on."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Hand a frame on, unless it is an event that came before."""
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
            # Recorded the same live and replayed: not at all. What it led to is told by events of its own.
            return
        if self._is_caught_up:
            self._hand_on(mark[0], frame)
        else:
            self._hold(mark[0], frame)

    def stored(self, event: Any) -> None:
        """Take an event from the store; those that a replay leaves out stay out, and so do states gone by.

        A start of the agent that nobody saw is kept: it tells that the MCP servers of the creation are gone.
        """
        mark = wire.mark_of(event)
        gone_by = mark is not None and wire.is_state(event) and mark[0] < self.newest_state
        missed = mark is not None and self._resume is not None and mark[0] > self._resume and wire.is_start(event)
        if (gone_by and not missed) or wire.is_unsent(event):
            return
        self.frame(Frame(wire.EVENTS, event))

    def caught_up(self, *, starting: bool | None = None) -> None:
        """Let the session act on what is still open."""
        while self._held:
            self._let_go()
        # From now on the link's own ids count, even where a server that lost its store begins anew.
        self._is_caught_up = True
        self._receiver.caught_up(starting=starting)

    def give_up(self) -> None:
        """Hand on what came over a link that did not catch up: no replay shows the states among it again.

        The place stays before the first hole, so that the next link is shown what may be missing in it.
        """
        place = str(max(self._handed, self._resume or 0, self.first_hole(0) - 1))
        for held in sorted(self._held):
            self._receiver.frame(held.frame, place)
        self._held.clear()

    def first_hole(self, since: int) -> int:
        """Find the first id from which on the store should be asked."""
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
        while len(self._held) > LOOKED_BACK or self._held_bytes > MOST_HELD:
            self._let_go()

    def _let_go(self) -> None:
        first = heappop(self._held)
        self._held_bytes -= first.size
        self._hand_on(first.number, first.frame)

    def _hand_on(self, number: int, frame: Frame) -> None:
        self._handed = max(self._handed, number)
        known = 0 if self._is_caught_up or self._resume is None else self._resume
        self._receiver.frame(frame, str(max(self._handed, known)))


async def fill(
    tracker: Tracker, ask: Callable[[int], Awaitable[HistoryPage]], *, since: int, resume: int | None
) -> None:
    """Ask the store for the events that fell between replay and live, or between two threads of the server.

    Raises:
        LinkLost: the store cannot be read, or it is not nearly caught up.
        NoStore: the server has none.
    """
    newest = await _read_on(tracker, ask, tracker.first_hole(since))
    if resume is not None and since > 0 and max(newest, tracker.newest) < resume:
        # What we stood at is gone: the conversation was begun anew under the same name.
        await _read_on(tracker, ask, 0)


def newest_state(payloads: Iterable[object]) -> str | None:
    """Find the agent's state that is told first among these events, the newest of which come first."""
    for payload in payloads:
        match payload:
            case {"extras": {"agent_state": str(state)}} if wire.is_state(payload):
                return state
            case _:
                pass
    return None


async def _read_on(tracker: Tracker, ask: Callable[[int], Awaitable[HistoryPage]], start: int) -> int:
    newest = -1
    for _ in range(MOST_PAGES):
        page = await ask(start)
        for event in page.events:
            mark = wire.mark_of(event)
            newest = max(newest, mark[0] if mark is not None else -1)
            tracker.stored(event)
        if not page.has_more:
            return newest
        if newest < start:
            raise LinkLost("the event store says there is more and gives nothing")
        start = newest + 1
    raise LinkLost(f"the event store is over {MOST_PAGES * wire.PAGE} events ahead of the replay")
