"""The writer's view of the SQLite tables: reads what a batch needs before it decides, and writes its rows.

The file belongs to this process alone, so heads of sessions and open calls stay in memory. A batch reads everything
else with one statement per table.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gateway.events import CallId, Direction, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.questions.listed import LIST
from gateway.store.questions.question import columns
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
    call_from,
    call_move_row,
    call_row,
)
from gateway.store.sqlite.dialect import in_sqlite
from gateway.store.step import RUNTIME, Step

_HEADS_KEPT = 20_000
_SIZES = tuple(2**power for power in range(9))


def _queries_by_size(selected: str, table: str, *keys: str) -> dict[int, str]:
    # A join in this order: for IN SQLite sorts the values first, and for `(…) IN` it reads the whole index.
    marks = f"({', '.join('?' * len(keys))})"
    alike = " AND ".join([f"{key} = wanted.column{number}" for number, key in enumerate(keys, 1)])
    rest = in_sqlite(f"SELECT {selected} FROM wanted CROSS JOIN {table} ON {alike}")  # noqa: S608 - names of the schema
    # A few fixed lengths, so that sqlite3's statement cache holds them all.
    return {size: f"WITH wanted AS (VALUES {', '.join([marks] * size)}) {rest}" for size in _SIZES}


_HEADS = _queries_by_size(f"id, {', '.join(Head._fields)}", "@sessions", "session_id")
_CALLS = _queries_by_size(columns(CALL_COLUMNS, "calls"), "calls", "call_id")
_SEEN = _queries_by_size("session_id, direction, dedupe_key", "events", "session_id", "direction", "dedupe_key")


_Row = Sequence[Any]

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


class Store:
    """The writer's connection and its memory; `decide` reads it as its `Known`."""

    def __init__(self, connection: sqlite3.Connection, *, young: int) -> None:
        """List open rows after `young` events and calls."""
        self.connection = connection
        self._heads: dict[SessionId, Head] = {}
        self._keys: dict[SessionId, int] = {}
        """The integers by which other tables refer to the sessions in `_heads`."""
        self._calls: dict[CallId, Call] = {}
        """The open calls, and the ended ones that the batch asks about."""
        self._ended: list[CallId] = []
        """Calls to forget with the next batch."""
        self._seen: set[tuple[int, Direction, str]] = set()
        self._list_after = self._young = young
        """The first commit lists the open rows of earlier processes."""
        self.head = self._heads.get
        self.call = self._calls.get

    def seen(self, key: DedupeKey) -> bool:
        session_id, direction, dedupe_key = key
        return (self._keys[session_id], direction, dedupe_key) in self._seen

    def begin(self) -> None:
        """Start the transaction of a batch."""
        for call_id in self._ended:
            self._calls.pop(call_id, None)
        self._ended = []
        self._seen = set()
        if len(self._heads) > _HEADS_KEPT:
            self._heads.clear()
            self._keys.clear()
        self.connection.execute("BEGIN IMMEDIATE")

    def fetch(self, steps: Iterable[Step]) -> None:
        """Read the rows that deciding these steps needs and memory lacks."""
        sessions: set[SessionId] = set()
        calls: set[CallId] = set()
        keyed: set[DedupeKey] = set()
        for step in steps:
            session_id = step.session_id
            if session_id not in self._heads:
                sessions.add(session_id)
            for change in step.calls:
                call_id = change.call_id
                if call_id not in self._calls:
                    calls.add(call_id)
            for new in step.events:
                if new.dedupe_key is not None:
                    keyed.add((session_id, new.direction, new.dedupe_key))
        if sessions:
            self._fetch_heads(sessions)
        if calls:
            for row in self._find(_CALLS, [(call_id,) for call_id in calls]):
                call = call_from(row)
                self._calls[call.call_id] = call
                if not call.is_open:
                    self._ended.append(call.call_id)
        if keyed:
            known = [(self._keys[name], *rest) for name, *rest in keyed if name in self._keys]
            self._seen.update(self._find(_SEEN, known))

    def fetch_head(self, session_id: SessionId) -> None:
        """Read one session's head, if memory does not hold it."""
        if session_id not in self._heads:
            self._fetch_heads((session_id,))

    def key(self, session_id: SessionId) -> int | None:
        """Return the integer by which other tables refer to a session; None if it does not exist."""
        self.fetch_head(session_id)
        return self._keys.get(session_id)

    def _fetch_heads(self, sessions: Iterable[SessionId]) -> None:
        for key, *row in self._find(_HEADS, [(session_id,) for session_id in sessions]):
            head = Head(*row)
            self._heads[head.session_id], self._keys[head.session_id] = head, key

    def _find(self, statements: dict[int, str], wanted: list[Any]) -> Iterator[Any]:
        for start in range(0, len(wanted), _SIZES[-1]):
            part = wanted[start : start + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(part))
            part += [part[-1]] * (size - len(part))
            yield from self.connection.execute(statements[size], [value for key in part for value in key])

    def commit(self, writes: Writes) -> None:
        """Write the rows of a batch, and commit its transaction."""
        _write_rows(self.connection, writes, self._heads, self._keys)
        young = self._young + len(writes.events) + len(writes.opened)
        if young >= self._list_after:
            for statement in LIST:
                self.connection.execute(statement)
            young = 0
        self.connection.execute("COMMIT")
        self._young = young
        self._heads.update(writes.heads)
        for call_id, call in writes.calls.items():
            if call.is_open:
                self._calls[call_id] = call
            else:
                self._calls.pop(call_id, None)

    def forget_head(self, session_id: SessionId) -> None:
        """Read one session's head again before it is used."""
        self._heads.pop(session_id, None)

    def forget(self) -> None:
        """Read everything again before it is used."""
        self._heads.clear()
        self._keys.clear()
        self._calls.clear()


def _write_rows(
    connection: sqlite3.Connection, writes: Writes, before: Mapping[SessionId, Head], keys: Mapping[SessionId, int]
) -> None:
    """Write a batch in the caller's transaction.

    `before` has the heads before the batch, and `keys` the integers that refer to the sessions.
    """
    calls = dict(writes.calls)
    # Sorted by session, so that rows of neighboring index entries are written together.
    _execute(connection, _ADD_EVENTS, sorted([(keys[row[0]], *row[1:]) for row in writes.events]))
    opened = [call_row(calls.pop(call_id)) for call_id in writes.opened]
    _execute(connection, _ADD_CALLS, [(row[0], keys[SessionId(str(row[1]))], *row[2:]) for row in opened])
    _execute(connection, _MOVE_CALLS, [call_move_row(call) for call in calls.values()])
    _execute(connection, _ADD_SENDS, sorted([(keys[row[0]], *row[1:], _is_listed(row)) for row in writes.sends]))
    # One statement may not change a row twice: the last change counts.
    changes = {row[4:]: row for row in writes.send_changes}
    _execute(connection, _MOVE_SENDS, [(*row[:4], keys[row[4]], *row[5:]) for row in changes.values()])
    for change in writes.interactions:
        if isinstance(change, InteractionMove):
            connection.execute(_MOVE_INTERACTION, (*change[:-1], keys[change.session_id]))
        else:
            connection.execute(_ADD_INTERACTION, (change[0], keys[change.session_id], *change[2:]))
    for answer in writes.answers:
        connection.execute(_KEEP_ANSWER, (*answer, writes.now))
    for session_id, kept in writes.snapshots.items():
        connection.execute(_KEEP_SNAPSHOT, (keys[session_id], kept.snapshot))
    cursors, moved, turned = writes.cursors, list[_Row](), list[_Row]()
    for name, head in writes.heads.items():
        known = before.get(name)
        if known is None or known.state != head.state:
            turned.append((head.state, keys[name]))
        elif name not in cursors and known.last_seq // TAIL == head.last_seq // TAIL:
            continue
        moved.append((head.last_seq, head.size, writes.now, cursors.get(name), keys[name]))
    _execute(connection, _MOVE_SESSIONS, moved)
    for row in turned:
        connection.execute(_CHANGE_STATE, row)


def _is_listed(send: SendRow) -> bool:
    target, due_at = send[2], send[6]
    return target != RUNTIME or due_at is not None


def _execute(connection: sqlite3.Connection, statements: Mapping[int, str], rows: Sequence[_Row]) -> None:
    start = 0
    for size, statement in statements.items():
        while len(rows) - start >= size:
            connection.execute(statement, [*chain.from_iterable(rows[start : start + size])])
            start += size
