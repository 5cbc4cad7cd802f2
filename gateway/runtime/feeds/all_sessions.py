"""The feed of all sessions: one task reads the events of every session for all followers of this process.

The task reads the store in the order of its positions: at once if a session here or at another instance has news, and
otherwise twice a second. Live events come from the sessions here and in notifications of other instances; each is shown
before the next recorded event of its session.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import structlog

from gateway.errors import EngineUnavailable
from gateway.events import Envelope, Live, Missed, SessionId
from gateway.events.weight import weight
from gateway.guard import Tasks, guard
from gateway.runtime.feeds.follower_budget import LARGE, FollowerBudget
from gateway.runtime.feeds.log import NewsLog
from gateway.runtime.metrics import Metrics
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import Heartbeat, Passed, Selected, SessionEvent, SessionItem, SessionNews
from gateway.runtime.wakeup import Ending
from gateway.store.port import Engine
from gateway.store.rows import ANY_EVENT, EventFilter, PlacedPage, Position, SessionName

EVERY_SESSION = "*"
"""The name by which an instance asks the others to notify it of every session."""

_GATHER = 0.02
"""Seconds between two reads, so that events of a busy moment are read together."""
_HELD_BACK = 0.05
"""Seconds until events are read again that wait for an earlier transaction."""
_SAY_HELD_BACK = 2.0
"""Seconds after which an operator and the followers hear of events that wait for an earlier transaction."""
_RENEW = 10.0
_MOST_LIVE = 1_000
"""Live events that wait to be shown; the oldest are dropped."""
_MOST_NAMES = 10_000
_FIRST_PAGE, _LARGEST_PAGE = 4, 200
_LEAST_SEARCHED, _MOST_SEARCHED = 1_000, 20_000
"""Events that one read searches for matches."""

log = structlog.get_logger(__name__)


class AllSessionsFeed:
    """Shows the events of all sessions to followers."""

    def __init__(
        self,
        engine: Engine,
        tasks: Tasks,
        tuning: Tuning,
        budget: FollowerBudget,
        metrics: Metrics,
        *,
        ask_others: Callable[[], None],
    ) -> None:
        """Start without followers; `ask_others` asks other instances to notify this one of every session."""
        self.is_wanted = False
        """Whether followers here or other instances want to know of changes."""
        self._engine = engine
        self._tasks = tasks
        self._tuning = tuning
        self._budget = budget
        self._metrics = metrics
        self._ask_others = ask_others
        self._log = NewsLog(SessionNews)
        self._reading: asyncio.Task[None] | None = None
        self._position: Position = (0, 0, 0)
        self._news = asyncio.Event()
        self._live: deque[tuple[SessionId, Live]] = deque(maxlen=_MOST_LIVE)
        self._names: OrderedDict[SessionId, SessionName] = OrderedDict()
        self._others: Callable[[SessionId, Live | None], None] | None = None
        self._others_until = 0.0
        self._held_back_since: float | None = None
        self._held_back = ""
        """What the events that wait for an earlier transaction wait for."""

    @property
    def is_followed(self) -> bool:
        """Whether there are followers here."""
        return self._log.followed

    # Changes ---------------------------------------------------------------------------------------------

    def tell(self, session_id: SessionId, live: Live | None) -> bool:
        """Take a change of a session here: a live event, or None after recorded ones.

        Returns whether other instances were notified.
        """
        self.hear(session_id, live)
        if self._others is None:
            return False
        if asyncio.get_running_loop().time() > self._others_until:
            self._others = None
            self.is_wanted = self._log.followed
            return False
        self._others(session_id, live)
        return True

    def hear(self, session_id: SessionId, live: Live | None) -> None:
        """Take a change of a session that may run at another instance."""
        if self._log.followed:
            if live is not None:
                self._live.append((session_id, live))
            self._news.set()

    def look(self) -> None:
        """Read the store now, since notifications may have been missed."""
        self._news.set()

    def notify_others(self, tell: Callable[[SessionId, Live | None], None], *, seconds: float) -> None:
        """Call `tell` for each change of a session here in the next seconds."""
        self._others = tell
        self._others_until = asyncio.get_running_loop().time() + seconds
        self.is_wanted = True

    # Following -------------------------------------------------------------------------------------------

    async def follow(
        self, which: EventFilter, *, after: Position | None, is_gap: bool = False, heartbeat: float, ended: Ending
    ) -> AsyncGenerator[SessionItem]:
        """Yield the matching events after a position, then new ones; None starts with new events.

        With `is_gap`, or after a position that the store has not reached, `Missed` is the first item.
        """
        place = self._log.join()
        self.is_wanted = True
        waiting = self._log.waiting(ended, within=heartbeat)
        try:
            end = await self._engine.end()
            self._read_on(end)
            last = end if after is None else min(after, end)
            is_gap = is_gap or last != (after or end)
            if is_gap:
                yield Missed()
            if is_gap or after is None:
                # A client that is cut off before its first event resumes here.
                yield Passed(last)
            # Events recorded before joining are only in the store.
            sent, missed = last, True
            while True:
                some, place, is_behind = self._log.since(place)
                if missed or is_behind:
                    async with aclosing(self._read(last, which)) as history:
                        async for item, last in history:
                            if item is not None:
                                sent = last
                                yield item
                if some is not None:
                    chosen = _select(some, last, which)
                    if chosen.items and not self._budget.shares(some):
                        # Recorded events are read again when the budget allows.
                        missed = True
                        continue
                    last = last if some.last is None else max(last, some.last)
                    if chosen.items:
                        try:
                            sent = max(sent, *(one.position or sent for one in chosen.items))
                            yield chosen
                        finally:
                            self._budget.leave_shared(some)
                elif not (missed or is_behind):
                    if ended.happened:
                        return
                    if not await self._log.wait(place, waiting):
                        yield Passed(last) if last > sent else Heartbeat(self._held_back)
                        sent = last
                missed = False
        finally:
            waiting.end()
            self._log.leave()
            self.is_wanted = self._log.followed or self._others is not None
            # The task ends if this was the last follower.
            self._news.set()

    async def _read(self, after: Position, which: EventFilter) -> AsyncGenerator[tuple[SessionItem | None, Position]]:
        """Yield the matching events on record after a position, each item with the position that it reaches."""
        limit, searched, was_gap, reserved = _FIRST_PAGE, _LEAST_SEARCHED, False, 0
        try:
            while True:
                page = await self._engine.read_all(
                    after, which, limit=limit, searched=limit if which == ANY_EVENT else searched
                )
                if page.is_gap and not was_gap:
                    was_gap = True
                    yield Missed(), after
                heavy = weight(page.events[0].envelope.event) if page.events else 0
                if heavy > LARGE and not reserved:
                    if not self._budget.takes(heavy):
                        # Waits without the page, and reads it again.
                        del page
                        await self._budget.enter(heavy)
                        limit, reserved = 1, heavy
                        continue
                    reserved = heavy
                taken, after, more = _take(page)
                limit, full = _next_limit(limit, taken), len(page.events) == limit
                searched = max(searched // 2, _LEAST_SEARCHED) if full else min(searched * 2, _MOST_SEARCHED)
                del page
                for news in taken:
                    yield Selected(news.items), news.last or after
                if reserved:
                    self._budget.leave(reserved)
                    reserved = 0
                if not more:
                    yield None, after
                    return
                if not taken:
                    yield Passed(after), after
        finally:
            if reserved:
                self._budget.leave(reserved)

    # Reading ---------------------------------------------------------------------------------------------

    def _read_on(self, position: Position) -> None:
        """Start to read after a position, unless the task runs."""
        if self._reading is None:
            self._position = position
            self._live.clear()
            self._reading = guard("feed of all sessions", self._run, self._tasks)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        limit, asked_at = _FIRST_PAGE, float("-inf")
        while self._log.followed:
            if loop.time() - asked_at > _RENEW:
                self._ask_others()
                asked_at = loop.time()
            self._news.clear()
            try:
                page = await self._engine.read_all(self._position, ANY_EVENT, limit=limit, searched=limit)
                await self._learn_names(page)
                await self._note_held_back(is_held=page.held_back)
            except EngineUnavailable as exc:
                self._engine.outage.failed(exc, "read of all sessions")
                await asyncio.sleep(self._tuning.feed_look)
                continue
            if page.is_gap:
                self._log.skip()
            taken, self._position, more = _take(page)
            limit = _next_limit(limit, taken)
            self._show(taken, more=more)
            if not more:
                await asyncio.sleep(_GATHER)
                await self._wait(_HELD_BACK if page.held_back else self._tuning.stream_look)
        await self._note_held_back(is_held=False)
        # After a fault the task starts again where it was.
        self._reading = None

    async def _note_held_back(self, *, is_held: bool) -> None:
        """Say who holds back events: in the log, in a metric and to the followers."""
        now = asyncio.get_running_loop().time()
        if not is_held:
            if self._held_back:
                log.info("events are no longer held back")
                self._metrics.held_back(None, 0)
            self._held_back_since, self._held_back = None, ""
            return
        self._held_back_since = self._held_back_since or now
        if now - self._held_back_since < _SAY_HELD_BACK or (holder := await self._engine.held_back_by()) is None:
            return
        if not self._held_back:
            fix = "end it, for example with pg_terminate_backend"
            log.warning("events are held back", by=str(holder), pid=holder.pid, database=holder.database, fix=fix)
        self._held_back = f"events are held back by {holder}"
        self._metrics.held_back(holder, now - self._held_back_since)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _learn_names(self, page: PlacedPage) -> None:
        """Remember the sessions of the page, and look up those of live events."""
        for placed in page.events:
            self._names[placed.session.session_id] = placed.session
            self._names.move_to_end(placed.session.session_id)
        for session_id in {session_id for session_id, _ in self._live} - self._names.keys():
            row = await self._engine.session(session_id)
            if row is not None:
                self._names[session_id] = SessionName(session_id, row.runtime, row.native_id, row.labels)
        while len(self._names) > _MOST_NAMES:
            self._names.popitem(last=False)

    def _show(self, taken: Sequence[SessionNews], *, more: bool) -> None:
        """Show recorded events, and live events in between."""
        for news in taken:
            for one in news.items:
                if isinstance(one.item, Envelope):
                    self._show_live(one.item.session_id, before=one.item.sequence)
                self._log.show(one, weight(one.item.event))
        if not more:
            self._show_live()

    def _show_live(self, session_id: SessionId | None = None, *, before: int = 0) -> None:
        """Show the live events that wait: all, or those of a session before a sequence."""
        for _ in range(len(self._live)):
            waiting = self._live.popleft()
            of, live = waiting
            if session_id is not None and (of != session_id or live.after_sequence >= before):
                self._live.append(waiting)
            elif (name := self._names.get(of)) is not None:
                self._log.show(SessionEvent(live, name), weight(live.event))


def _take(page: PlacedPage) -> tuple[list[SessionNews], Position, bool]:
    """Return the events of a page in batches, the position that they reach, and whether more follow.

    The rest of a heavy page is read again later, so that a follower that stops reading does not hold it.
    """
    taken: list[SessionNews] = []
    heavy = 0
    for count, placed in enumerate(page.events):
        size = weight(placed.envelope.event)
        heavy += size
        if count and heavy > LARGE:
            return taken, page.events[count - 1].position, True
        if not taken or not taken[-1].takes(size):
            taken.append(SessionNews())
        taken[-1].add(SessionEvent(placed.envelope, placed.session, placed.position), size)
    return taken, page.position, page.more


def _next_limit(limit: int, taken: Sequence[SessionNews]) -> int:
    count, heavy = sum(len(news.items) for news in taken), sum(news.weight for news in taken)
    return max(1, min(limit * 2, count * LARGE // heavy if heavy else limit * 2, _LARGEST_PAGE))


def _select(news: SessionNews, last: Position, which: EventFilter) -> Selected:
    """Select the matching events of a batch that the store has not yielded already."""
    return Selected(
        [
            one
            for one in news.items
            if (one.position is None or one.position > last) and which.matches(one.session, one.item.event.kind)
        ]
    )
