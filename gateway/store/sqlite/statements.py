"""How rows are written into the SQLite tables, and how statements over a record's columns are put together."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from gateway.store.records import (
    CALL_COLUMNS,
    CALL_MOVE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    InteractionMove,
    InteractionRecord,
)
from gateway.store.sqlite.held import HeldRows, Row

T = TypeVar("T")

_ROWS = (64, 16, 4, 1)
"""Rows that one statement writes or changes. sqlite3 gives the GIL away for every statement, and the loop is slow to
return it."""


def select(columns: Sequence[str], rest: str) -> str:
    """Write a SELECT of a record's columns, in its order."""
    return " ".join(("SELECT", ", ".join(columns), rest))


def insert(table: str, columns: Sequence[str], rest: str = "") -> str:
    """Write an INSERT of a record's columns, in its order."""
    marks = ", ".join("?" * len(columns))
    return " ".join(("INSERT INTO", table, "(", ", ".join(columns), ") VALUES (", marks, ")", rest))


def _in_rows(table: str, columns: Sequence[str]) -> dict[int, str]:
    more = ", (" + ", ".join("?" * len(columns)) + ")"
    return {size: insert(table, columns, more * (size - 1)) for size in _ROWS}


_ADD_EVENTS = _in_rows("events", EventRecord._fields)
_ADD_CALLS = _in_rows("calls", CALL_COLUMNS)
_ADD_SENDS = _in_rows("outbound", SEND_COLUMNS)
_MOVE_CALL = f"UPDATE calls SET {', '.join(f'{name} = ?' for name in CALL_MOVE_COLUMNS[:-1])} WHERE call_id = ?"  # noqa: S608
_MOVE_SENDS = {
    size: f"""
    UPDATE outbound SET state = ?, attempt = ?, due_at = ?, reason = ?
    WHERE session_id = ? AND target = ? AND seq IN ({", ".join("?" * size)})
    """  # noqa: S608 - only marks are put in
    for size in _ROWS
}
_ADD_INTERACTION = insert(
    "interactions",
    InteractionRecord._fields,
    """
    ON CONFLICT (interaction_id) DO UPDATE SET
        state = excluded.state,
        expires_at = coalesce(excluded.expires_at, expires_at),
        answered_by = coalesce(excluded.answered_by, answered_by)
    WHERE session_id = excluded.session_id
    """,
)
_MOVE_INTERACTION = """
UPDATE interactions SET state = ?, expires_at = coalesce(?, expires_at), answered_by = coalesce(?, answered_by)
WHERE interaction_id = ? AND session_id = ?
"""
_MOVE_SESSION = """
UPDATE sessions SET last_seq = ?, size = ?, updated_at = ?, cursor = coalesce(?, cursor) WHERE session_id = ?
"""
_CHANGE_STATE = "UPDATE sessions SET state = ? WHERE session_id = ?"
"""By itself, since most steps change none and an index depends on it."""
_KEEP_ANSWER = """
INSERT INTO idempotency (scope, key, request_sha, response, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET
    request_sha = excluded.request_sha, response = excluded.response, expires_at = excluded.expires_at
WHERE idempotency.expires_at <= ?
"""
_KEEP_SNAPSHOT = """
INSERT INTO snapshots (session_id, snapshot) VALUES (?, ?)
ON CONFLICT (session_id) DO UPDATE SET snapshot = excluded.snapshot
"""


def write(connection: sqlite3.Connection, rows: HeldRows) -> None:
    """Write rows into their tables; the transaction is the caller's."""
    many = connection.executemany
    # By session, so that what is written next to each other lies next to each other.
    _add(connection, _ADD_EVENTS, sorted(rows.events.values()))
    _add(connection, _ADD_CALLS, [*rows.opened.values()])
    many(_MOVE_CALL, rows.moved.values())
    _add(connection, _ADD_SENDS, [row for sends in rows.sends.values() for _, row in sorted(sends.items())])
    for target, changes in rows.changes.items():
        _move_sends(connection, target, changes.values())
    for change in rows.interactions:
        connection.execute(_MOVE_INTERACTION if isinstance(change, InteractionMove) else _ADD_INTERACTION, change)
    many(_KEEP_ANSWER, rows.answers)
    many(_KEEP_SNAPSHOT, rows.snapshots.values())
    many(_MOVE_SESSION, rows.sessions.values())
    many(_CHANGE_STATE, [(state, session_id) for session_id, state in rows.states.items()])


def _add(connection: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[Row]) -> None:
    for statement, part in _in_parts(statements, rows):
        connection.execute(statement, [*chain.from_iterable(part)])


def _move_sends(connection: sqlite3.Connection, target: str, changes: Iterable[Row]) -> None:
    # Nearly all of a session have come to the same end.
    alike: dict[Row, list[int]] = {}
    for change in changes:
        alike.setdefault(change[:-2], []).append(change[-2])
    for said, sequences in alike.items():
        for statement, part in _in_parts(_MOVE_SENDS, sequences):
            connection.execute(statement, (*said, target, *part))


def _in_parts(statements: Mapping[int, str], rows: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    start = 0
    for size, statement in statements.items():
        while len(rows) - start >= size:
            yield statement, rows[start : start + size]
            start += size
