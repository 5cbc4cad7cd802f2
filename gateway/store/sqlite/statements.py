"""Writes the rows of a batch into the SQLite tables."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from gateway.events import SessionId
from gateway.store.apply import Writes
from gateway.store.records import (
    CALL_COLUMNS,
    CALL_MOVE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    call_move_row,
    call_row,
)

T = TypeVar("T")
Row = Sequence[Any]

_ROWS = (64, 16, 4, 1)
"""Rows of one statement. sqlite3 releases the GIL for each statement, and the event loop is slow to return it."""


def _insert(table: str, columns: Sequence[str], rest: str = "") -> str:
    marks = ", ".join("?" * len(columns))
    return " ".join(("INSERT INTO", table, "(", ", ".join(columns), ") VALUES (", marks, ")", rest))


def _in_rows(table: str, columns: Sequence[str]) -> dict[int, str]:
    more = ", (" + ", ".join("?" * len(columns)) + ")"
    return {size: _insert(table, columns, more * (size - 1)) for size in _ROWS}


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
_ADD_INTERACTION = _insert(
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
UPDATE sessions SET last_seq = ?, size = ?, updated_at = ?, cursor = coalesce(?, cursor) WHERE id = ?
"""
_CHANGE_STATE = "UPDATE sessions SET state = ? WHERE id = ?"
"""A statement of its own: few steps change the state, and an index contains it."""
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


def write(
    connection: sqlite3.Connection, writes: Writes, before: Mapping[SessionId, Head], keys: Mapping[SessionId, int]
) -> None:
    """Write a batch in the caller's transaction.

    `before` are the heads as they were, and `keys` the integers that refer to the sessions.
    """
    many, calls = connection.executemany, dict(writes.calls)
    # Sorted by session, so that rows of neighboring index entries are written together.
    _add(connection, _ADD_EVENTS, sorted([(keys[row[0]], *row[1:]) for row in writes.events]))
    opened = [call_row(calls.pop(call_id)) for call_id in writes.opened]
    _add(connection, _ADD_CALLS, [(row[0], keys[SessionId(str(row[1]))], *row[2:]) for row in opened])
    if calls:
        many(_MOVE_CALL, [call_move_row(call) for call in calls.values()])
    _add(connection, _ADD_SENDS, sorted([(keys[row[0]], *row[1:]) for row in writes.sends]))
    _move_sends(connection, [(*row[:4], keys[row[4]], *row[5:]) for row in writes.send_changes])
    for change in writes.interactions:
        if isinstance(change, InteractionMove):
            connection.execute(_MOVE_INTERACTION, (*change[:-1], keys[change.session_id]))
        else:
            connection.execute(_ADD_INTERACTION, (change[0], keys[change.session_id], *change[2:]))
    for answer in writes.answers:
        connection.execute(_KEEP_ANSWER, (*answer, writes.now))
    for session_id, kept in writes.snapshots.items():
        connection.execute(_KEEP_SNAPSHOT, (keys[session_id], kept.snapshot))
    now, cursors, heads = writes.now, writes.cursors, writes.heads
    many(
        _MOVE_SESSION,
        [(head.last_seq, head.size, now, cursors.get(name), keys[name]) for name, head in heads.items()],
    )
    for name, head in heads.items():
        if name not in before or before[name].state != head.state:
            connection.execute(_CHANGE_STATE, (head.state, keys[name]))


def _add(connection: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[Row]) -> None:
    for statement, part in _in_parts(statements, rows):
        connection.execute(statement, [*chain.from_iterable(part)])


def _move_sends(connection: sqlite3.Connection, changes: Iterable[Row]) -> None:
    last = {change[4:]: change[:4] for change in changes}
    # Most sends of a session end in the same state.
    alike: dict[Row, list[int]] = {}
    for (session, sequence, target), change in last.items():
        alike.setdefault((*change, session, target), []).append(sequence)
    for values, sequences in alike.items():
        for statement, part in _in_parts(_MOVE_SENDS, sequences):
            connection.execute(statement, (*values, *part))


def _in_parts(statements: Mapping[int, str], rows: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    start = 0
    for size, statement in statements.items():
        while len(rows) - start >= size:
            yield statement, rows[start : start + size]
            start += size
