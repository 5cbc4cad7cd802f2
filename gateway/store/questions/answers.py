"""The queries and the sweep that both database engines share."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from gateway.errors import EngineUnavailable, NotFound, Truncated
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.store.call import Call
from gateway.store.questions import calls, interactions, order, retention, sends, sessions
from gateway.store.questions.question import Question, T
from gateway.store.records import whole_micros
from gateway.store.retention import Chosen, Item, RemovedRows, add_up, consider, portions
from gateway.store.rows import (
    ANY_DEAD,
    ANY_SESSION,
    CallFilter,
    DeadFilter,
    EventFilter,
    Generation,
    Holder,
    InteractionRow,
    Page,
    PlacedPage,
    Position,
    RetentionPolicy,
    Rows,
    Send,
    SessionFilter,
    SessionRow,
    StoredAnswer,
    Swept,
)
from gateway.store.step import InteractionState


class AnswersQuestions(ABC):
    """Implements the queries of the port and the sweep for an engine that can run a `Question`."""

    _generation: Generation | None = None

    @abstractmethod
    async def _answer(self, question: Question[T]) -> T:
        """Run a query on the database."""

    @abstractmethod
    async def _cut(self, firsts: Mapping[SessionId, int], copies_from: int) -> RemovedRows:
        """Remove the oldest events of sessions, except those still needed."""

    @abstractmethod
    async def _drop_calls(self, before: int, budget: int) -> int:
        """Remove calls that ended before a time and have a delivered outcome, and expired answers."""

    @abstractmethod
    def _now(self) -> int:
        """Return the current time in microseconds."""

    async def read(
        self, session_id: SessionId, *, after: int = 0, limit: int = 500, excerpts: bool = False
    ) -> Rows[Envelope]:
        return await self._answer(sessions.events(session_id, after, limit, excerpts=excerpts))

    async def read_kinds(
        self,
        session_id: SessionId,
        kinds: Collection[str],
        *,
        after: int = 0,
        limit: int = 500,
        excerpts: bool = False,
    ) -> tuple[Sequence[Envelope], int | None]:
        return await self._answer(sessions.events_of_kinds(session_id, kinds, after, limit, excerpts=excerpts))

    async def latest_event(self, session_id: SessionId, kind: str) -> tuple[Envelope | None, int]:
        return await self._answer(sessions.latest_event(session_id, kind))

    async def session(self, session_id: SessionId) -> SessionRow | None:
        return await self._answer(sessions.session(session_id))

    async def snapshot(self, session_id: SessionId) -> bytes | None:
        return await self._answer(sessions.snapshot(session_id))

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._answer(sessions.sessions(page, which, newest_first=newest_first))

    async def count_open_sessions(self) -> int:
        return await self._answer(sessions.count_open())

    @property
    def generation(self) -> Generation:
        if self._generation is None:
            raise EngineUnavailable("the store is not open")
        return self._generation

    async def _read_generation(self) -> None:
        self._generation = await self._answer(order.generation())

    async def end(self) -> Position:
        return await self._answer(order.end())

    async def read_all(self, after: Position, which: EventFilter, *, limit: int, searched: int) -> PlacedPage:
        bound = await self._bound()
        return await self._answer(order.read_all(after, which, bound=bound, limit=limit, searched=searched))

    async def _bound(self) -> int:
        """Return the major number below which no event can appear any more, if several transactions write at a time."""
        return 0

    async def held_back_by(self) -> Holder | None:
        return None

    async def call(self, call_id: CallId) -> Call | None:
        return await self._answer(calls.call(call_id))

    async def latest_reuse(self, session_id: SessionId, native_call_id: str) -> Call | None:
        return await self._answer(calls.latest_reuse(session_id, native_call_id))

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        return await self._answer(calls.calls(which, page))

    async def argument_excerpts(self, call_ids: Collection[CallId]) -> Mapping[CallId, str]:
        return await self._answer(calls.excerpts(call_ids)) if call_ids else {}

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]:
        return await self._answer(calls.open_calls(session_id))

    async def unheard_calls(self, session_id: SessionId) -> Sequence[Call]:
        return await self._answer(calls.unheard_calls(session_id))

    async def count_open_calls(self) -> Mapping[str, int]:
        return await self._answer(calls.count_open_calls())

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        after: int = 0,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Rows[Send]:
        return await self._answer(sends.pending_sends(session_id, target, after, due_before, limit))

    async def next_send_due(self, target: str) -> datetime | None:
        return await self._answer(sends.next_send_due(target))

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]:
        try:
            found = await self.read(session_id, after=sequence - 1, limit=1)
        except (NotFound, Truncated):
            return []
        return await self._answer(sends.sends_of(found[0])) if found and found[0].sequence == sequence else []

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
        return await self._answer(sends.dead_sends(page, which))

    async def count_dead(self, most: int) -> int:
        return await self._answer(sends.count_dead(most))

    async def count_waiting(self, most: int) -> int:
        return await self._answer(interactions.count_waiting(most))

    async def interactions(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[InteractionRow], str | None]:
        return await self._answer(interactions.interactions(page, session_id=session_id, state=state))

    async def interactions_with_events(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope | None]], str | None]:
        return await self._answer(interactions.with_events(page, session_id=session_id, state=state))

    async def approvals(
        self, page: Page, *, session_id: SessionId | None = None, since: datetime | None = None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        return await self._answer(interactions.approvals(page, session_id=session_id, since=since))

    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None:
        return await self._answer(interactions.interaction(interaction_id))

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        return await self._answer(interactions.answer(key, scope, self._now()))

    async def note(self, name: str) -> str | None:
        return await self._answer(interactions.note(name))

    async def sweep(self, policy: RetentionPolicy, *, budget: int = 2_000) -> Swept:
        now = self._now()
        cuts, more = await self._choose(policy, now, budget)
        copies_from = now - whole_micros(policy.copy_age)
        events, copies = add_up([await self._cut(firsts, copies_from) for firsts in portions(cuts)])
        calls = await self._drop_calls(now - whole_micros(policy.call_age), budget - events)
        return Swept(events=events, calls=calls, more=more or events + calls >= budget, copies=copies)

    async def _choose(self, policy: RetentionPolicy, now: int, budget: int) -> Chosen:
        """Choose the events to remove; the removal checks them again."""
        total = await self._answer(retention.total_size())
        found = await self._answer(retention.removable_sessions(policy, now=now, total=total, budget=budget))
        choosing = consider(found, policy, now=now, total=total, budget=budget)
        events: list[Item] | None = None
        while True:
            try:
                place = next(choosing) if events is None else choosing.send(events)
            except StopIteration as end:
                return end.value
            events = await self._answer(retention.items(*place))
