"""Writes the rows of a batch into the SQLite tables."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from gateway.events import SessionId
from gateway.store.apply import Writes
from gateway.store.records import (
    CALL_COLUMNS,
    CALL_MOVE_COLUMNS,
    SEND_CHANGE_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    SendRow,
    call_move_row,
    call_row,
)
from gateway.store.step import RUNTIME

Row = Sequence[Any]

_ROWS = (64, 16, 4, 1)
"""Rows of one statement. sqlite3 releases the GIL for each statement, and the event loop is slow to return it."""
TAIL = 16
"""The row of a session lacks fewer events than this."""


def _insert(table: str, columns: Sequence[str], rest: str = "") -> str:
    marks = ", ".join("?" * len(columns))
    return " ".join(("INSERT INTO", table, "(", ", ".join(columns), ") VALUES (", marks, ")", rest))


def _in_rows(table: str, columns: Sequence[str]) -> dict[int, str]:
    more = ", (" + ", ".join("?" * len(columns)) + ")"
    return {size: _insert(table, columns, more * (size - 1)) for size in _ROWS}


def _update_in_rows(table: str, columns: Sequence[str], *keys: str, **computed: str) -> dict[int, str]:
    """Write UPDATEs of several rows, each given as the values of `columns` and then of `keys`.

    `computed` has the expressions of other columns, or instead of a value; `{name}` in one is the given value.
    """
    names = (*columns, *keys)

    def write(places: Sequence[str], source: str) -> str:
        given = dict(zip(names, places, strict=True))
        values = {name: given[name] for name in columns} | {name: it.format(**given) for name, it in computed.items()}
        changes = ", ".join(f"{name} = {value}" for name, value in values.items())
        where = " AND ".join(f"{table}.{name} = {given[name]}" for name in keys)
        return f"UPDATE {table} SET {changes} {source} WHERE {where}"  # noqa: S608

    marks = "(" + ", ".join("?" * len(names)) + ")"
    joined = [f"new.column{number}" for number in range(1, len(names) + 1)]
    many = {size: write(joined, f"FROM (VALUES {', '.join([marks] * size)}) AS new") for size in _ROWS if size > 1}
    # One row is the usual case, and costs a third without the join.
    return many | {1: write([f"?{number}" for number in range(1, len(names) + 1)], "")}


_ADD_EVENTS = _in_rows("events", EventRecord._fields)
_ADD_CALLS = _in_rows("calls", CALL_COLUMNS)
_ADD_SENDS = _in_rows("outbound", (*SEND_COLUMNS, "listed"))
_MOVE_CALLS = _update_in_rows("calls", CALL_MOVE_COLUMNS[:-1], CALL_MOVE_COLUMNS[-1])
_MOVE_SENDS = _update_in_rows(
    "outbound",
    SEND_CHANGE_COLUMNS[:4],
    *SEND_CHANGE_COLUMNS[4:],
    listed="max(outbound.listed, {state} <> 'delivered')",
)
_MOVE_SESSIONS = _update_in_rows(
    "sessions", ("last_seq", "size", "updated_at", "cursor"), "id", cursor="coalesce({cursor}, sessions.cursor)"
)
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

    `before` has the heads before the batch, and `keys` the integers that refer to the sessions.
    """
    calls = dict(writes.calls)
    # Sorted by session, so that rows of neighboring index entries are written together.
    _write(connection, _ADD_EVENTS, sorted([(keys[row[0]], *row[1:]) for row in writes.events]))
    opened = [call_row(calls.pop(call_id)) for call_id in writes.opened]
    _write(connection, _ADD_CALLS, [(row[0], keys[SessionId(str(row[1]))], *row[2:]) for row in opened])
    _write(connection, _MOVE_CALLS, [call_move_row(call) for call in calls.values()])
    _write(connection, _ADD_SENDS, sorted([(keys[row[0]], *row[1:], _is_listed(row)) for row in writes.sends]))
    # One statement may not change a row twice: the last change counts.
    changes = {row[4:]: row for row in writes.send_changes}
    _write(connection, _MOVE_SENDS, [(*row[:4], keys[row[4]], *row[5:]) for row in changes.values()])
    for change in writes.interactions:
        if isinstance(change, InteractionMove):
            connection.execute(_MOVE_INTERACTION, (*change[:-1], keys[change.session_id]))
        else:
            connection.execute(_ADD_INTERACTION, (change[0], keys[change.session_id], *change[2:]))
    for answer in writes.answers:
        connection.execute(_KEEP_ANSWER, (*answer, writes.now))
    for session_id, kept in writes.snapshots.items():
        connection.execute(_KEEP_SNAPSHOT, (keys[session_id], kept.snapshot))
    cursors, moved, turned = writes.cursors, list[Row](), list[Row]()
    for name, head in writes.heads.items():
        known = before.get(name)
        if known is None or known.state != head.state:
            turned.append((head.state, keys[name]))
        elif name not in cursors and known.last_seq // TAIL == head.last_seq // TAIL:
            continue
        moved.append((head.last_seq, head.size, writes.now, cursors.get(name), keys[name]))
    _write(connection, _MOVE_SESSIONS, moved)
    for row in turned:
        connection.execute(_CHANGE_STATE, row)


def _is_listed(send: SendRow) -> bool:
    target, due_at = send[2], send[6]
    return target != RUNTIME or due_at is not None


def _write(connection: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[Row]) -> None:
    start = 0
    for size, statement in statements.items():
        while len(rows) - start >= size:
            connection.execute(statement, [*chain.from_iterable(rows[start : start + size])])
            start += size
