"""The frequent questions, answered from the tables and from what they do not have yet."""

import sqlite3
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import replace
from gateway.store import questions
from gateway.store.apply import CLOSED
from gateway.store.call import Call
from gateway.store.encoding import decode_envelope
from gateway.store.questions.answers import AnswersQuestions
from gateway.store.questions.question import Question
from gateway.store.records import EventRecord, SnapshotRecord, call_from, moment
from gateway.store.rows import ANY_SESSION, InteractionRow, Page, Send, SessionFilter, SessionRow, StoredAnswer
from gateway.store.sqlite import leases
from gateway.store.sqlite.beside import Beside, TablesNeeded
from gateway.store.sqlite.dialect import answer, in_sqlite
from gateway.store.sqlite.held import HeldRows, Row, after_move
from gateway.store.sqlite.sends_beside import next_send_due, pending_sends

T = TypeVar("T")


class AnswersBeside(AnswersQuestions):
    """What a store can say of which the tables are behind."""

    @abstractmethod
    async def _beside(self, wanted: Beside[T]) -> T:
        """Answer, from up-to-date tables where there is no other way."""

    @abstractmethod
    async def _look(self, question: Question[T]) -> T:
        """Ask tables that no step writes to."""

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        return await self._beside(_events(session_id, after, limit))

    async def session(self, session_id: SessionId) -> SessionRow | None:
        return await self._beside(_session(session_id))

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._beside(_sessions(page, which, newest_first))

    async def call(self, call_id: CallId) -> Call | None:
        return await self._beside(_call(call_id))

    async def latest_call(self, session_id: SessionId, native_call_id: str) -> Call | None:
        return await self._beside(_of_session(questions.calls.latest_call(session_id, native_call_id), session_id))

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]:
        return await self._beside(_of_session(questions.calls.open_calls(session_id), session_id))

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Sequence[Send]:
        return await self._beside(pending_sends(session_id, target, due_before, limit))

    async def next_send_due(self, target: str) -> datetime | None:
        return await self._beside(next_send_due(target))

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]:
        return await self._beside(_of_session(questions.sends.sends_of(session_id, sequence), session_id))

    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None:
        return await self._beside(
            Beside(questions.kept.interaction(interaction_id), lambda held: held.interactions or None)
        )

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        question = questions.kept.answer(key, scope, self._now())
        return await self._beside(Beside(question, lambda held: held.answers or None))

    async def note(self, name: str) -> str | None:
        return await self._look(questions.kept.note(name))


def _of_session(question: Question[T], session_id: SessionId) -> Beside[T]:
    return Beside(question, lambda held: held.sessions.get(session_id))


def _events(session_id: SessionId, after: int, limit: int) -> Beside[list[Envelope]]:
    question = questions.sessions.events(session_id, after, limit)

    def concerns(held: HeldRows) -> Any:
        touched = held.sessions.get(session_id)
        if touched is None:
            return None
        # A session's newest events are held, without a gap.
        sequence, found = touched[0], list[EventRecord]()
        while sequence > after and (record := held.events.get((session_id, sequence))) is not None:
            found.append(record)
            sequence -= 1
        return found[::-1] or None

    def ask(connection: sqlite3.Connection, part: Any) -> list[Envelope]:
        found = answer(connection, question)
        return found + [decode_envelope(record) for record in part[: max(limit - len(found), 0)]]

    return Beside(question, concerns, ask)


_Touched = tuple[Mapping[SessionId, Row], Mapping[SessionId, str], Mapping[SessionId, SnapshotRecord]]


def _as_it_is(kept: SessionRow, touched: _Touched) -> SessionRow:
    sessions, states, snapshots = touched
    row = sessions.get(kept.session_id)
    if row is None:
        return kept
    last_seq, _, updated_at, cursor, _ = row
    snapshot = snapshots.get(kept.session_id)
    return replace(
        kept,
        last_sequence=last_seq,
        updated_at=moment(updated_at),
        cursor=kept.cursor if cursor is None else cursor,
        state=states.get(kept.session_id, kept.state),
        snapshot=kept.snapshot if snapshot is None else snapshot.snapshot,
    )


def _session(session_id: SessionId) -> Beside[SessionRow | None]:
    question = questions.sessions.session(session_id)

    def concerns(held: HeldRows) -> _Touched | None:
        row = held.sessions.get(session_id)
        if row is None:
            return None
        states, snapshots = held.states, held.snapshots
        return (
            {session_id: row},
            {session_id: states[session_id]} if session_id in states else {},
            {session_id: snapshots[session_id]} if session_id in snapshots else {},
        )

    def ask(connection: sqlite3.Connection, touched: _Touched) -> SessionRow | None:
        kept = answer(connection, question)
        return None if kept is None else _as_it_is(kept, touched)

    return Beside(question, concerns, ask)


def _sessions(page: Page, which: SessionFilter, newest_first: bool) -> Beside[tuple[list[SessionRow], str | None]]:
    question = questions.sessions.sessions(page, which, newest_first=newest_first)

    def concerns(held: HeldRows) -> _Touched | None:
        return (dict(held.sessions), dict(held.states), dict(held.snapshots)) if held.sessions else None

    def ask(connection: sqlite3.Connection, touched: _Touched) -> tuple[list[SessionRow], str | None]:
        if which.open_only and any(opened for _, opened in _opened_or_closed(connection, touched[1])):
            raise TablesNeeded
        found, cursor = answer(connection, question)
        return [_as_it_is(row, touched) for row in found], cursor

    return Beside(question, concerns, ask)


def _opened_or_closed(
    connection: sqlite3.Connection, states: Mapping[SessionId, str]
) -> Iterator[tuple[str | None, int]]:
    """Say of sessions whose state has changed who owns each, and whether one more or less is open."""
    for session_id, state in states.items():
        look = "SELECT owner, state FROM sessions WHERE session_id = ?"
        owner, kept = connection.execute(look, (session_id,)).fetchone()
        yield owner, (state != CLOSED) - (kept != CLOSED)


def _call(call_id: CallId) -> Beside[Call | None]:
    question = questions.calls.call(call_id)

    def concerns(held: HeldRows) -> Any:
        found = held.opened.get(call_id), held.moved.get(call_id)
        return None if found == (None, None) else found

    def ask(connection: sqlite3.Connection, part: tuple[Row | None, Row]) -> Call | None:
        opened, moved = part
        if opened is not None:
            return call_from(opened)
        row = connection.execute(in_sqlite(question.text), question.values).fetchone()
        return None if row is None else call_from(after_move(row, moved))

    return Beside(question, concerns, ask)


def _owned(connection: sqlite3.Connection, states: Mapping[SessionId, str]) -> dict[str | None, int]:
    counted = Counter(leases.count_owned(connection))
    for owner, opened in _opened_or_closed(connection, states):
        counted[owner] += opened
    return counted


OWNED: Beside[dict[str | None, int]] = Beside(
    Question(leases.OWNED, (), lambda rows: {row[0]: row[1] for row in rows}),
    lambda held: dict(held.states) or None,
    _owned,
)
"""How many open sessions each owner has."""
