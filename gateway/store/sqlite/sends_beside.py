"""Pending sends, of which some are in their table and some are not, in order and no more of them than are wanted."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from gateway.events import SessionId
from gateway.events.frozen import replace
from gateway.store import questions
from gateway.store.encoding import decode_envelope
from gateway.store.records import SEND_COLUMNS, EventRecord, micros, moment, moment_or_none, send_from
from gateway.store.rows import Send
from gateway.store.sqlite.beside import Beside, TablesNeeded
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.held import HeldRows, Place, Row
from gateway.store.states import PENDING

_STATE, _DUE, _CREATED = (SEND_COLUMNS.index(name) for name in ("state", "due_at", "created_at"))
_OF_TARGET = f"FROM outbound INDEXED BY outbound_pending WHERE {PENDING} AND target = ?1 AND session_id"
_IN_TABLE = f"SELECT value FROM json_each(?2) WHERE EXISTS (SELECT 1 {_OF_TARGET} = value)"  # noqa: S608 - constants
_KEPT = f"SELECT seq, due_at, created_at {_OF_TARGET} = ?2 ORDER BY seq LIMIT ?3"


@dataclass(frozen=True, slots=True)
class _HeldSends:
    """What is held of the sends to one target: pending ones with their events, and changes of what is in its table."""

    pending: Mapping[SessionId, Sequence[tuple[Row, EventRecord]]]
    changes: Mapping[SessionId, Mapping[int, Row]]
    """By sequence."""

    @property
    def sessions(self) -> list[SessionId]:
        """Those whose sends cannot be told from the table alone."""
        return sorted(self.pending.keys() | self.changes.keys())


@dataclass(frozen=True, slots=True)
class _Pending:
    """One pending send, read in full only where it is asked for; times in microseconds."""

    session_id: SessionId
    sequence: int
    due_at: int | None
    created_at: int
    held: tuple[Row, EventRecord] | None = None
    """Where its table does not have it."""
    change: Row | None = None
    """Where its table does not have what became of it."""


def _of_target(target: str, session_id: SessionId | None) -> Callable[[HeldRows], _HeldSends | None]:
    def concerns(held: HeldRows) -> _HeldSends | None:
        events = held.events
        pending: dict[SessionId, list[tuple[Row, EventRecord]]] = {}
        for place, row in held.sends.get(target, {}).items():
            if row[_STATE] == "pending" and session_id in {None, place[0]}:
                pending.setdefault(place[0], []).append((row, events[place]))
        changes: dict[SessionId, dict[int, Row]] = {}
        for (name, sequence), row in held.changes.get(target, {}).items():
            if session_id in {None, name}:
                changes.setdefault(name, {})[sequence] = row
        return _HeldSends(pending, changes) if pending or changes else None

    return concerns


def _of_each(connection: sqlite3.Connection, target: str, part: _HeldSends, most: int) -> Iterator[Iterator[_Pending]]:
    """List the first pending sends to a target of each session of which something is held, in order."""
    values = target, orjson.dumps(part.sessions).decode()
    in_table = {session_id for (session_id,) in connection.execute(_IN_TABLE, values)}
    for session_id in part.sessions:
        yield _of_one(connection, target, session_id, part, most if session_id in in_table else 0)


def _of_one(
    connection: sqlite3.Connection, target: str, session_id: SessionId, part: _HeldSends, most: int
) -> Iterator[_Pending]:
    # Whoever asks for `most` hears of no more: what is held came behind all that the table has.
    changes = dict(part.changes.get(session_id, {}))
    last = 0
    if most:
        most += sum([row[0] != "pending" for row in changes.values()])
        kept = connection.execute(_KEPT, (target, session_id, most)).fetchall()
        for sequence, due_at, created_at in kept:
            change = changes.pop(sequence, None)
            if change is None:
                yield _Pending(session_id, sequence, due_at, created_at)
            elif change[0] == "pending":
                yield _Pending(session_id, sequence, change[2], created_at, change=change)
        last = kept[-1][0] if len(kept) == most else 0
    if any(row[0] == "pending" and (not last or sequence < last) for sequence, row in changes.items()):
        raise TablesNeeded
    for held in sorted(part.pending.get(session_id, ()), key=_sequence):
        row = held[0]
        yield _Pending(session_id, row[1], row[_DUE], row[_CREATED], held=held)


def _sequence(held: tuple[Row, EventRecord]) -> int:
    return held[1].seq


def _read_sends(connection: sqlite3.Connection, target: str, found: Sequence[_Pending]) -> list[Send]:
    wanted: dict[SessionId, list[int]] = {}
    for one in found:
        if one.held is None:
            wanted.setdefault(one.session_id, []).append(one.sequence)
    kept: dict[Place, Send] = {}
    for session_id, sequences in wanted.items():
        question = questions.sends.sends_at(session_id, target, orjson.dumps(sequences).decode())
        kept |= {(send.session_id, send.sequence): send for send in answer(connection, question)}
    sends: list[Send] = []
    for one in found:
        if one.held is not None:
            row, record = one.held
            sends.append(send_from(row, decode_envelope(record)))
            continue
        send = kept[one.session_id, one.sequence]
        if one.change is not None:
            _, attempt, due_at, reason, *_ = one.change
            send = replace(send, attempt=attempt, due_at=moment_or_none(due_at), reason=reason)
        sends.append(send)
    return sends


def pending_sends(
    session_id: SessionId | None, target: str, due_before: datetime | None, limit: int
) -> Beside[list[Send]]:
    due = None if due_before is None else micros(due_before)

    def ask(connection: sqlite3.Connection, part: _HeldSends) -> list[Send]:
        found: list[_Pending] = []
        for of_session in _of_each(connection, target, part, limit):
            for one in of_session:
                # A row that is not due holds back the later ones of its session.
                if len(found) >= limit or (due is not None and one.due_at is not None and one.due_at > due):
                    break
                found.append(one)
            if len(found) >= limit:
                break
        sends = _read_sends(connection, target, found)
        if session_id is None:
            apart = orjson.dumps(part.sessions).decode()
            sends += answer(connection, questions.sends.pending_sends(None, target, due_before, limit, apart=apart))
            sends.sort(key=lambda send: (send.session_id, send.sequence))
        return sends[: max(limit, 0)]

    return Beside(
        questions.sends.pending_sends(session_id, target, due_before, limit), _of_target(target, session_id), ask
    )


def next_send_due(target: str) -> Beside[datetime | None]:
    def ask(connection: sqlite3.Connection, part: _HeldSends) -> datetime | None:
        firsts = [next(of_session, None) for of_session in _of_each(connection, target, part, 1)]
        due = [moment(one.created_at if one.due_at is None else one.due_at) for one in firsts if one is not None]
        apart = orjson.dumps(part.sessions).decode()
        other = answer(connection, questions.sends.next_send_due(target, apart=apart))
        return min([*due, *([] if other is None else [other])], default=None)

    return Beside(questions.sends.next_send_due(target), _of_target(target, None), ask)
