"""The writer's side of the SQLite tables: what a batch must know before it decides, and how its rows are written.

The file belongs to this process alone, so heads of sessions and open calls are kept in memory; everything
else a batch asks about is fetched with one statement per table.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from gateway.events import CallId, SessionId
from gateway.store.apply import DedupeKey, Writes
from gateway.store.call import Call
from gateway.store.records import (
    CALL_COLUMNS,
    SEND_COLUMNS,
    EventRecord,
    Head,
    InteractionMove,
    InteractionRecord,
    call_from,
    call_row,
    send_change_row,
    send_row,
)
from gateway.store.step import CallOpen, Step

_HEADS_KEPT = 20_000
_SIZES = (1, 4, 16, 64, 256)
_ROWS = (16, 8, 4, 2, 1)
"""Rows that one statement writes. sqlite3 gives the GIL away for every statement, and the loop is slow to return it."""


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


def _in_sizes(columns: Sequence[str], rest: str) -> dict[int, str]:
    # A few fixed lengths, so that sqlite3's statement cache holds them all.
    return {size: select(columns, rest + ", ".join(["?"] * size) + ")") for size in _SIZES}


_HEADS = _in_sizes(Head._fields, "FROM sessions WHERE session_id IN (")
_CALLS = _in_sizes(CALL_COLUMNS, "FROM calls WHERE call_id IN (")
# A join in this order, since for `(…) IN (VALUES …)` SQLite looks through the whole index.
_KEYS = {
    size: f"""
    WITH wanted AS (VALUES {", ".join(["(?, ?, ?)"] * size)})
    SELECT e.session_id, e.direction, e.dedupe_key FROM wanted CROSS JOIN events e
    ON e.session_id = wanted.column1 AND e.direction = wanted.column2 AND e.dedupe_key = wanted.column3
    """  # noqa: S608 - only marks are put in
    for size in _SIZES
}

_ADD_EVENTS = _in_rows("events", EventRecord._fields)
_ADD_CALLS = _in_rows("calls", CALL_COLUMNS)
_ADD_SENDS = _in_rows("outbound", SEND_COLUMNS)
_CHANGING = (
    "state", "attempt", "deadline_at", "due_at", "canceling_until", "outcome_seq", "outcome_sha", "unknown", "error",
    "finished_at", "dead", "late", "progressed",
)  # fmt: skip
_MOVE_CALL = " ".join(("UPDATE calls SET", ", ".join(f"{name} = ?" for name in _CHANGING), "WHERE call_id = ?"))
_CHANGED = itemgetter(*map(CALL_COLUMNS.index, (*_CHANGING, "call_id")))
_MOVE_SEND = """
UPDATE outbound SET state = ?, attempt = ?, due_at = ?, reason = ? WHERE session_id = ? AND seq = ? AND target = ?
"""
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
INSERT INTO snapshots (session_id, snapshot, keep_from) VALUES (?, ?, ?)
ON CONFLICT (session_id) DO UPDATE SET snapshot = excluded.snapshot, keep_from = excluded.keep_from
"""


class Store:
    """What the writer knows of the tables; `decide` reads it as its `Known`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._heads: dict[SessionId, Head] = {}
        self._open_calls: dict[CallId, Call] = {}
        self._fetched: dict[CallId, Call] = {}
        self._seen: set[DedupeKey] = set()

    def head(self, session_id: SessionId) -> Head | None:
        return self._heads.get(session_id)

    def call(self, call_id: CallId) -> Call | None:
        return self._open_calls.get(call_id) or self._fetched.get(call_id)

    def seen(self, key: DedupeKey) -> bool:
        return key in self._seen

    def begin(self) -> None:
        """Start a batch: its transaction, and a fresh look at what memory does not hold."""
        self._fetched = {}
        self._seen = set()
        if len(self._heads) > _HEADS_KEPT:
            self._heads.clear()
        self.connection.execute("BEGIN IMMEDIATE")

    def fetch(self, steps: Iterable[Step]) -> None:
        """Read what deciding these steps needs and memory does not hold."""
        sessions: set[SessionId] = set()
        calls: set[CallId] = set()
        keys: set[DedupeKey] = set()
        for step in steps:
            sessions.add(step.session_id)
            calls.update([change.call_id for change in step.calls])
            for expectation in step.expects:
                if isinstance(expectation, CallOpen):
                    calls.add(expectation.call_id)
            for new in step.events:
                if new.dedupe_key is not None:
                    keys.add((step.session_id, new.direction, new.dedupe_key))
        for row in self._find(_HEADS, sessions - self._heads.keys()):
            self._heads[row[0]] = Head._make(row)
        for row in self._find(_CALLS, calls - self._open_calls.keys()):
            self._fetched[row[0]] = call_from(row)
        for row in self._find(_KEYS, keys):
            self._seen.add(row)

    def fetch_head(self, session_id: SessionId) -> None:
        """Read one session's head, where memory does not hold it."""
        if session_id not in self._heads:
            for row in self._find(_HEADS, (session_id,)):
                self._heads[session_id] = Head._make(row)

    def _find(self, statements: dict[int, str], wanted: Iterable[str | DedupeKey]) -> Iterator[Any]:
        waiting = list(wanted)
        for start in range(0, len(waiting), _SIZES[-1]):
            part = waiting[start : start + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(part))
            part += [part[-1]] * (size - len(part))
            values = part if isinstance(part[0], str) else [value for key in part for value in key]
            yield from self.connection.execute(statements[size], values)

    def write(self, writes: Writes, now: int) -> None:
        """Write a batch's rows; the transaction is the caller's."""
        many = self.connection.executemany
        if writes.events:
            self._write_rows(_ADD_EVENTS, writes.events)
        if writes.calls:
            new = writes.opened
            self._write_rows(_ADD_CALLS, [call_row(writes.calls[call_id]) for call_id in new])
            fresh = set(new)
            many(
                _MOVE_CALL, [_CHANGED(call_row(call)) for call_id, call in writes.calls.items() if call_id not in fresh]
            )
        if writes.sends:
            self._write_rows(_ADD_SENDS, [send_row(send) for send in writes.sends])
        if writes.send_changes:
            many(_MOVE_SEND, [send_change_row(*change) for change in writes.send_changes])
        for change in writes.interactions:
            self.connection.execute(
                _MOVE_INTERACTION if isinstance(change, InteractionMove) else _ADD_INTERACTION, change
            )
        if writes.answers:
            many(_KEEP_ANSWER, [(*answer, now) for answer in writes.answers])
        if writes.snapshots:
            many(_KEEP_SNAPSHOT, writes.snapshots.values())
        cursors = writes.cursors
        many(
            _MOVE_SESSION,
            [
                (head.last_seq, head.size, now, cursors.get(session_id), session_id)
                for session_id, head in writes.heads.items()
            ],
        )
        many(
            _CHANGE_STATE,
            [
                (head.state, session_id)
                for session_id, head in writes.heads.items()
                if (before := self._heads.get(session_id)) is None or before.state != head.state
            ],
        )

    def _write_rows(self, statements: dict[int, str], rows: Sequence[tuple[object, ...]]) -> None:
        start = 0
        for size, statement in statements.items():
            while len(rows) - start >= size:
                part = rows[start : start + size]
                self.connection.execute(statement, [value for row in part for value in row])
                start += size

    def take_over(self, writes: Writes) -> None:
        """Remember what has now been committed."""
        self._heads.update(writes.heads)
        for call_id, call in writes.calls.items():
            if call.is_open:
                self._open_calls[call_id] = call
            else:
                self._open_calls.pop(call_id, None)

    def forget_head(self, session_id: SessionId) -> None:
        """Trust memory no more about one session."""
        self._heads.pop(session_id, None)

    def forget(self) -> None:
        """Trust memory no more; the tables are asked again."""
        self._heads.clear()
        self._open_calls.clear()
