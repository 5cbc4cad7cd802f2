"""Follows which events a link has brought: drops repeats, keeps the place to resume at, fills what is missing."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from adapters.openhands import wire
from gateway.errors import LinkLost
from gateway.ports.adapter import Frame, Receiver

REMEMBERED = 10_000
"""Events whose repeats are known; replay and live overlap by far less (OH17)."""
LOOKED_BACK = 100
"""How far behind the newest event a hole is looked for: what is older, the replay took from the same store."""
MOST_PAGES = 10


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of the event store."""

    events: tuple[Any, ...]
    has_more: bool


class Tracker:
    """Stands between a link and its session; implements `gateway.ports.adapter.Receiver`."""

    def __init__(self, receiver: Receiver, resume: int | None) -> None:
        self._receiver = receiver
        self._seen: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._resume = resume
        self.newest = -1
        """Highest id this link has brought."""
        self._newest_state = -1
        self._is_caught_up = False

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Hand a frame on, unless it is an event that came before."""
        mark = wire.mark_of(frame.payload) if frame.channel == wire.EVENTS else None
        if mark is None:
            self._receiver.frame(frame, cursor)
            return
        if mark in self._seen:
            return
        self._seen[mark] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self.newest = max(self.newest, mark[0])
        if wire.is_state(frame.payload):
            self._newest_state = max(self._newest_state, mark[0])
        self._receiver.frame(frame, str(self._place()))

    def stored(self, event: Any) -> None:
        """Take an event from the store; those that a replay leaves out stay out, and so do states gone by."""
        mark = wire.mark_of(event)
        gone_by = mark is not None and wire.is_state(event) and mark[0] < self._newest_state
        if gone_by or wire.is_unsent(event):
            return
        self.frame(Frame(wire.EVENTS, event))

    def caught_up(self) -> None:
        """Let the session act on what is still open."""
        # From now on the link's own ids count, even where a server that lost its store begins anew.
        self._is_caught_up = True
        self._receiver.caught_up()

    def first_hole(self, since: int) -> int:
        """Find the first id from which on the store should be asked."""
        start = max(since, self.newest - LOOKED_BACK, 0)
        ids = {number for number, _ in self._seen if number >= start}
        while start in ids:
            start += 1
        return start

    def _place(self) -> int:
        if self._is_caught_up or self._resume is None:
            return self.newest
        return max(self.newest, self._resume)


async def fill(tracker: Tracker, ask: Callable[[int], Awaitable[Page]], *, since: int, resume: int | None) -> None:
    """Ask the store for the events that fell between replay and live, or between two threads of the server.

    Raises:
        LinkLost: the store cannot be read, or it is not nearly caught up.
    """
    newest = await _read_on(tracker, ask, tracker.first_hole(since))
    if resume is not None and since > 0 and max(newest, tracker.newest) < resume:
        # What we stood at is gone: the conversation was begun anew under the same name.
        await _read_on(tracker, ask, 0)


async def _read_on(tracker: Tracker, ask: Callable[[int], Awaitable[Page]], start: int) -> int:
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
