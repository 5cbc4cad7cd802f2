"""What the followers of questions to people see: a bounded list of which ones changed, and a wake-up.

Changes at other instances come by their notifications, and by a look from time to time. Only ids are kept. A follower
reads the row as it is when its turn comes, so a question that changed twice meanwhile is shown once, as it
stands; one that falls behind begins again with all that wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable

import structlog

from gateway.errors import EngineUnavailable, Truncated
from gateway.events import InteractionId, Missed
from gateway.runtime.feeds.wakeup import Ending, Wakeup, wait_any
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import Heartbeat, InteractionItem, InteractionShown
from gateway.store.port import Engine
from gateway.store.rows import InteractionRow, Page

TAIL = 1_000
_PAGE = 200

log = structlog.get_logger(__name__)


class InteractionFeed:
    """Keeps which interactions changed last, over all sessions."""

    def __init__(self, tell_others: Callable[[Collection[InteractionId]], None] | None = None) -> None:
        """Start an empty list; `tell_others` takes what changed here to other instances."""
        self._tell_others = tell_others
        self._followers = 0
        self._ids: deque[InteractionId] = deque(maxlen=TAIL)
        self._count = 0
        self._wakeup = Wakeup()

    @property
    def followed(self) -> bool:
        """Whether anybody follows here."""
        return self._followers > 0

    def join(self) -> int:
        """Start to follow; returns the place to read from."""
        self._followers += 1
        return self._count

    def leave(self) -> None:
        """Stop following."""
        self._followers -= 1

    def tell(self, changed: Collection[InteractionId]) -> None:
        """Take note that these changed here; their rows are written already."""
        if changed:
            self.hear(changed)
            if self._tell_others is not None:
                self._tell_others(changed)

    def hear(self, changed: Iterable[InteractionId]) -> None:
        """Take note that these changed, wherever that was."""
        for interaction_id in changed:
            self._ids.append(interaction_id)
            self._count += 1
        self._wakeup.wake()

    def miss(self) -> None:
        """Let all followers begin again: something may have changed unheard."""
        self._ids.clear()
        self._count += 1
        self._wakeup.wake()

    def since(self, place: int) -> tuple[list[InteractionId], int, bool]:
        """Read what changed after a place: the ids, each once, the new place, and whether some were missed."""
        first = self._count - len(self._ids)
        return list(dict.fromkeys(list(self._ids)[max(0, place - first) :])), self._count, first > place

    async def wait(self, place: int, *, ended: Ending, within: float) -> bool:
        """Wait for something behind a place, or the end; False when neither came in so many seconds."""
        return self._count > place or ended.is_set() or await wait_any(self._wakeup, ended, within=within)


async def show(engine: Engine, row: InteractionRow) -> InteractionShown | None:
    """Put a row together with the event that asked; None where that was removed."""
    try:
        found = await engine.read(row.session_id, after=row.request_sequence - 1, limit=1)
    except Truncated:
        return None
    return InteractionShown(row, found[0]) if found and found[0].sequence == row.request_sequence else None


async def follow_interactions(
    engine: Engine, interaction_feed: InteractionFeed, *, heartbeat: float, ended: Ending
) -> AsyncGenerator[InteractionItem]:
    """Yield all that wait, then each that changes as it then is, and heartbeats in between."""
    place, missed = interaction_feed.join(), True
    listed: dict[InteractionId, InteractionRow] = {}
    """What was shown of those that wait, as it stood: one that came just before is among the changes as well."""
    try:
        while not ended.is_set():
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
    """Look from time to time which questions wait, so that a lost notification only costs a wait."""
    known: set[InteractionId] | None = None
    while True:
        try:
            waiting = {row.interaction_id async for row in _rows_waiting(engine)}
        except EngineUnavailable as exc:
            log.warning("interaction query failed", reason=str(exc))
        else:
            if known is not None:
                interaction_feed.hear(known ^ waiting)
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
    async for row in _rows_waiting(engine):
        shown = await show(engine, row)
        if shown is not None:
            yield shown
