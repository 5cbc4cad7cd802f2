"""The feed of interactions: a bounded list of the ids that changed, and a wake-up for followers.

Changes at other instances arrive by notifications and by polling. A follower reads the current row of each id, so an
interaction that changed twice meanwhile is shown once. A follower that falls behind starts over with all waiting
interactions.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable

import structlog

from gateway.errors import EngineUnavailable, Truncated
from gateway.events import InteractionId, Missed
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import Heartbeat, InteractionItem, InteractionShown
from gateway.runtime.wakeup import Ending, Wakeup, wait_any
from gateway.store.port import Engine
from gateway.store.rows import InteractionRow, Page

TAIL = 1_000
_PAGE = 200

log = structlog.get_logger(__name__)


class InteractionFeed:
    """Keeps the ids of the interactions that changed last, over all sessions."""

    def __init__(self, notify_others: Callable[[Collection[InteractionId]], None] | None = None) -> None:
        """Start an empty list; `notify_others` sends local changes to other instances."""
        self._notify_others = notify_others
        self._followers = 0
        self._ids: deque[InteractionId] = deque(maxlen=TAIL)
        self._count = 0
        self._wakeup = Wakeup()

    @property
    def followed(self) -> bool:
        """Whether the feed has local followers."""
        return self._followers > 0

    def join(self) -> int:
        """Add a follower; return its place to read from."""
        self._followers += 1
        return self._count

    def leave(self) -> None:
        """Remove a follower."""
        self._followers -= 1

    def tell(self, changed: Collection[InteractionId]) -> None:
        """Record local changes and notify other instances; the rows must be written already."""
        if changed:
            self.record(changed)
            if self._notify_others is not None:
                self._notify_others(changed)

    def record(self, changed: Iterable[InteractionId]) -> None:
        """Record changes of any instance."""
        for interaction_id in changed:
            self._ids.append(interaction_id)
            self._count += 1
        self._wakeup.wake()

    def miss(self) -> None:
        """Make all followers start over, since notifications may have been missed."""
        self._ids.clear()
        self._count += 1
        self._wakeup.wake()

    def since(self, place: int) -> tuple[list[InteractionId], int, bool]:
        """Return the ids that changed after a place, the next place, and whether changes were missed."""
        first = self._count - len(self._ids)
        return list(dict.fromkeys(list(self._ids)[max(0, place - first) :])), self._count, first > place

    async def wait(self, place: int, *, ended: Ending, within: float) -> bool:
        """Wait for changes after a place, or for the end; return False after `within` seconds."""
        return self._count > place or ended.happened or await wait_any(self._wakeup, ended, within=within)


async def show(engine: Engine, row: InteractionRow) -> InteractionShown | None:
    """Combine a row with the event that requested it; None if the event was removed."""
    try:
        found = await engine.read(row.session_id, after=row.request_sequence - 1, limit=1)
    except Truncated:
        return None
    return InteractionShown(row, found[0]) if found and found[0].sequence == row.request_sequence else None


async def follow_interactions(
    engine: Engine, interaction_feed: InteractionFeed, *, heartbeat: float, ended: Ending
) -> AsyncGenerator[InteractionItem]:
    """Yield all waiting interactions, then each one that changes, with heartbeats in between."""
    place, missed = interaction_feed.join(), True
    listed: dict[InteractionId, InteractionRow] = {}
    """The waiting interactions as shown; a recent one may also be among the changes."""
    try:
        while not ended.happened:
            if missed:
                async for waiting in _waiting(engine):
                    listed[waiting.row.interaction_id] = waiting.row
                    yield waiting
            changed, place, missed = interaction_feed.since(place)
            if missed:
                yield Missed()
                continue
            for interaction_id in changed:
                row = await engine.interaction(interaction_id)
                if row is None or row == listed.get(interaction_id):
                    continue
                shown = await show(engine, row)
                if shown is not None:
                    yield shown
            listed.clear()
            if not await interaction_feed.wait(place, ended=ended, within=heartbeat):
                yield Heartbeat()
    finally:
        interaction_feed.leave()


async def watch_others(engine: Engine, interaction_feed: InteractionFeed, tuning: Tuning) -> None:
    """Poll the waiting interactions, so that a lost notification only causes a delay."""
    known: set[InteractionId] | None = None
    while True:
        try:
            waiting = {row.interaction_id async for row in _rows_waiting(engine)}
        except EngineUnavailable as exc:
            engine.outage.failed(exc, "query for interactions")
        else:
            if known is not None:
                interaction_feed.record(known ^ waiting)
            known = waiting
        await asyncio.sleep(tuning.interactions_look if interaction_feed.followed else tuning.interactions_look_idle)


async def _rows_waiting(engine: Engine) -> AsyncIterator[InteractionRow]:
    after: str | None = None
    while True:
        rows, after = await engine.interactions(Page(_PAGE, after), state="waiting")
        for row in rows:
            yield row
        if after is None:
            return


async def _waiting(engine: Engine) -> AsyncIterator[InteractionShown]:
    after: str | None = None
    while True:
        rows, after = await engine.interactions_with_events(Page(_PAGE, after), state="waiting")
        for row, asked in rows:
            if asked is not None:
                yield InteractionShown(row, asked)
        if after is None:
            return
