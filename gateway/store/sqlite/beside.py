"""The frequent questions, answered from the tables and from what they do not have yet, without waiting for the writer.

A question of this kind says what of the held rows concerns it. Where nothing does, the tables alone are asked; where
something does and it cannot put both together, the tables are brought up to date first.
"""

import sqlite3
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import sleep
from typing import Any, Generic, TypeVar

import orjson

from gateway.errors import EngineUnavailable
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import replace
from gateway.store import questions
from gateway.store.apply import CLOSED
from gateway.store.call import Call
from gateway.store.encoding import decode_envelope
from gateway.store.questions.answers import AnswersQuestions
from gateway.store.questions.question import Question
from gateway.store.records import (
    SEND_COLUMNS,
    EventRecord,
    SnapshotRecord,
    call_from,
    moment,
    moment_or_none,
    send_from,
)
from gateway.store.rows import InteractionRow, Page, Send, SessionRow, StoredAnswer
from gateway.store.sqlite import leases
from gateway.store.sqlite.dialect import answer, in_sqlite
from gateway.store.sqlite.held import HeldRows, Place, Row, after_move
from gateway.store.sqlite.log import Behind

T = TypeVar("T")

_TRIES, _PAUSE = 2_000, 0.001
_STATE, _DUE, _CREATED = (SEND_COLUMNS.index(name) for name in ("state", "due_at", "created_at"))
_MOST_SENDS = 2_000
"""Pending rows of the sessions in question that are put together with what is held; where there are more, the tables
are brought up to date instead."""


class TablesNeeded(Exception):
    """Only tables that are up to date can answer."""


@dataclass(frozen=True, slots=True)
class Beside(Generic[T]):
    """A question that may be answered while rows are held."""

    question: Question[T]
    """What the tables alone are asked."""
    concerns: Callable[[HeldRows], Any]
    """Copies what is held that concerns it; None where nothing does."""
    ask: Callable[[sqlite3.Connection, Any], T] | None = None
    """Puts the tables and that copy together."""


def answer_beside(connection: sqlite3.Connection, wanted: Beside[T], behind: Behind) -> T:
    """Answer from one state of the store.

    Raises:
        TablesNeeded: that takes tables that are up to date.
    """
    for _ in range(_TRIES):
        connection.execute("BEGIN")
        try:
            part, known = behind.look(connection, wanted.concerns)
            if known:
                if part is None:
                    return answer(connection, wanted.question)
                if wanted.ask is None:
                    raise TablesNeeded
                return wanted.ask(connection, part)
        finally:
            connection.execute("COMMIT")
        # The writer is between a commit and telling of it.
        sleep(_PAUSE)
    raise EngineUnavailable("the database cannot be read: its writer does not say what it has written")


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
        self, page: Page, *, runtime: str | None = None, open_only: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._beside(_sessions(page, runtime, open_only))

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
        return await self._beside(_pending_sends(session_id, target, due_before, limit))

    async def next_send_due(self, target: str) -> datetime | None:
        return await self._beside(_next_send_due(target))

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
        if session_id not in held.sessions:
            return None
        return [one for (name, seq), one in held.events.items() if name == session_id and seq > after] or None

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


def _sessions(page: Page, runtime: str | None, open_only: bool) -> Beside[tuple[list[SessionRow], str | None]]:
    question = questions.sessions.sessions(page, runtime=runtime, open_only=open_only)

    def concerns(held: HeldRows) -> _Touched | None:
        return (dict(held.sessions), dict(held.states), dict(held.snapshots)) if held.sessions else None

    def ask(connection: sqlite3.Connection, touched: _Touched) -> tuple[list[SessionRow], str | None]:
        if open_only and any(opened for _, opened in _opened_or_closed(connection, touched[1])):
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


@dataclass(frozen=True, slots=True)
class _HeldSends:
    """What is held of the sends to one target: pending ones with their events, and changes of what is in its table."""

    pending: Sequence[tuple[Row, EventRecord]]
    changes: Mapping[Place, Row]

    @property
    def sessions(self) -> str:
        """List in JSON whose sends cannot be told from the table alone."""
        names = {row[0] for row, _ in self.pending} | {place[0] for place in self.changes}
        return orjson.dumps([*names]).decode()


@dataclass(frozen=True, slots=True)
class _Pending:
    """One pending send, told in full only where it is asked for."""

    place: Place
    due_at: datetime | None
    created_at: datetime
    tell: Callable[[], Send]


def _of_target(target: str, session_id: SessionId | None) -> Callable[[HeldRows], _HeldSends | None]:
    def concerns(held: HeldRows) -> _HeldSends | None:
        sends, changes = held.sends.get(target, {}), held.changes.get(target, {})
        pending = [
            (row, held.events[place])
            for place, row in sends.items()
            if row[_STATE] == "pending" and session_id in {None, place[0]}
        ]
        changed = {place: row for place, row in changes.items() if session_id in {None, place[0]}}
        return _HeldSends(pending, changed) if pending or changed else None

    return concerns


def _together(connection: sqlite3.Connection, target: str, part: _HeldSends) -> list[_Pending]:
    """List all pending sends to a target of the sessions of which something is held, in order."""
    kept = answer(connection, questions.sends.pending_of(part.sessions, target, _MOST_SENDS))
    changes = dict(part.changes)
    found: list[_Pending] = []
    for send in kept:
        row = changes.pop((send.session_id, send.sequence), None)
        if row is None:
            found.append(_of_send(send))
        elif row[0] == "pending":
            found.append(_of_send(replace(send, attempt=row[1], due_at=moment_or_none(row[2]), reason=row[3])))
    if len(kept) == _MOST_SENDS or any(row[0] == "pending" for row in changes.values()):
        raise TablesNeeded
    for row, record in part.pending:
        due_at, created_at = moment_or_none(row[_DUE]), moment(row[_CREATED])
        found.append(_Pending((row[0], row[1]), due_at, created_at, partial(_read_send, row, record)))
    return sorted(found, key=lambda one: one.place)


def _of_send(send: Send) -> _Pending:
    return _Pending((send.session_id, send.sequence), send.due_at, send.created_at, lambda: send)


def _read_send(row: Row, record: EventRecord) -> Send:
    return send_from(row, decode_envelope(record))


def _pending_sends(
    session_id: SessionId | None, target: str, due_before: datetime | None, limit: int
) -> Beside[list[Send]]:
    def ask(connection: sqlite3.Connection, part: _HeldSends) -> list[Send]:
        found: list[_Pending] = []
        waiting: set[SessionId] = set()
        for one in _together(connection, target, part):
            # A row that is not due holds back the later ones of its session.
            if due_before is not None and one.due_at is not None and one.due_at > due_before:
                waiting.add(one.place[0])
            elif one.place[0] not in waiting:
                found.append(one)
        if session_id is None:
            apart = questions.sends.pending_sends(None, target, due_before, limit, apart=part.sessions)
            found += map(_of_send, answer(connection, apart))
            found.sort(key=lambda one: one.place)
        return [one.tell() for one in found[: max(limit, 0)]]

    return Beside(
        questions.sends.pending_sends(session_id, target, due_before, limit), _of_target(target, session_id), ask
    )


def _next_send_due(target: str) -> Beside[datetime | None]:
    def ask(connection: sqlite3.Connection, part: _HeldSends) -> datetime | None:
        first: dict[SessionId, datetime] = {}
        for one in _together(connection, target, part):
            first.setdefault(one.place[0], one.due_at or one.created_at)
        other = answer(connection, questions.sends.next_send_due(target, apart=part.sessions))
        return min([*first.values(), *([] if other is None else [other])], default=None)

    return Beside(questions.sends.next_send_due(target), _of_target(target, None), ask)


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
