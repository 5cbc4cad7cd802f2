"""The questions that SQLite answers, each a function over a connection that only reads."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from gateway.errors import NotFound, Truncated
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.store.apply import CLOSED
from gateway.store.call import Call
from gateway.store.encoding import decode_envelope, read_cursor, send_row, write_cursor
from gateway.store.records import (
    CALL_COLUMNS,
    LISTED,
    EventRecord,
    InteractionRecord,
    SendRecord,
    call_from,
    interaction_row,
    micros,
    moment,
    whole_micros,
)
from gateway.store.retention import Cut, Item, Shelf, choose
from gateway.store.rows import (
    CallFilter,
    DeadFilter,
    InteractionRow,
    Page,
    RetentionPolicy,
    SendRow,
    SessionRow,
    StoredAnswer,
)
from gateway.store.sqlite.store import select
from gateway.store.step import InteractionState

_EVENTS = select(EventRecord._fields, "FROM events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?")
_SESSIONS = """
SELECT s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.last_seq, s.min_seq, s.opened_at,
    s.updated_at, s.fence, s.owner, s.cursor, p.snapshot, s.id
FROM sessions s LEFT JOIN snapshots p ON p.session_id = s.session_id
"""
_CALL = select(CALL_COLUMNS, "FROM calls WHERE call_id = ?")
_LATEST_CALL = select(
    CALL_COLUMNS,
    "FROM calls WHERE session_id = ? AND native_call_id = ? AND redrive_of IS NULL ORDER BY n DESC LIMIT 1",
)
_OPEN_CALLS = select(
    CALL_COLUMNS,
    "FROM calls WHERE session_id = ? AND state IN ('queued', 'dispatched', 'accepted') ORDER BY id",
)
_SENDS = select(
    [*(f"o.{name}" for name in SendRecord._fields), *(f"e.{name}" for name in EventRecord._fields)],
    "FROM outbound o JOIN events e ON e.session_id = o.session_id AND e.seq = o.seq",
)
_INTERACTION = select(InteractionRecord._fields, "FROM interactions WHERE interaction_id = ?")
_CALLS = select([*CALL_COLUMNS, "id"], "FROM calls")
_INTERACTIONS = select([*InteractionRecord._fields, "id"], "FROM interactions")
_SHELVES = """
WITH needed AS (
    SELECT session_id, request_seq AS seq FROM calls WHERE state IN ('queued', 'dispatched', 'accepted')
    UNION ALL SELECT session_id, seq FROM outbound
    WHERE state = 'pending' AND (target = 'runtime' OR created_at >= ?)
    UNION ALL SELECT session_id, request_seq FROM interactions WHERE state = 'waiting'
    UNION ALL SELECT session_id, request_seq FROM interactions
    WHERE state NOT IN ('waiting', 'answered', 'expired', 'moot')
    UNION ALL SELECT session_id, request_seq FROM calls
    WHERE state NOT IN ('queued', 'dispatched', 'accepted', 'succeeded', 'failed', 'canceled', 'expired')
    UNION ALL SELECT session_id, seq FROM outbound
    WHERE state NOT IN ('pending', 'delivered', 'moot') AND state NOT IN ('refused', 'unknown', 'dead')
    UNION ALL SELECT session_id, keep_from FROM snapshots WHERE keep_from IS NOT NULL
), floors AS (
    SELECT session_id, min(seq) AS floor FROM needed GROUP BY session_id
)
SELECT s.session_id, s.state, s.min_seq, s.last_seq, coalesce(f.floor, s.last_seq + 1), e.recorded_at
FROM sessions s JOIN events e ON e.session_id = s.session_id AND e.seq = s.min_seq
LEFT JOIN floors f ON f.session_id = s.session_id
"""
_ITEMS = """
SELECT seq, recorded_at, coalesce(length(body), 0) + coalesce(length(about), 0)
FROM events WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?
"""


def read_events(connection: sqlite3.Connection, session_id: SessionId, after: int, limit: int) -> list[Envelope]:
    """Read events behind a sequence, out of one state of the store."""
    connection.execute("BEGIN")
    try:
        found = connection.execute("SELECT min_seq FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
        rows = connection.execute(_EVENTS, (session_id, after, max(limit, 0))).fetchall()
    finally:
        connection.execute("COMMIT")
    if found is None:
        raise NotFound(f"no session {session_id!r}")
    if after + 1 < found[0]:
        raise Truncated(found[0])
    return [decode_envelope(EventRecord._make(row)) for row in rows]


def read_session(connection: sqlite3.Connection, session_id: SessionId) -> SessionRow | None:
    row = connection.execute(_SESSIONS + "WHERE s.session_id = ?", (session_id,)).fetchone()
    return None if row is None else _session_row(row)


def list_sessions(
    connection: sqlite3.Connection, page: Page, *, runtime: str | None, open_only: bool
) -> tuple[list[SessionRow], str | None]:
    where, values = ["s.id > ?"], [read_cursor(page.after, int)[0] if page.after else 0]
    if runtime is not None:
        where.append("s.runtime = ?")
        values.append(runtime)
    if open_only:
        where.append("s.state <> ?")
        values.append(CLOSED)
    rows, more = _page(connection, page, _SESSIONS, where, values, "s.id")
    return [_session_row(row) for row in rows], write_cursor(rows[-1][-1]) if more else None


def _session_row(row: Sequence[Any]) -> SessionRow:
    return SessionRow(
        session_id=row[0],
        runtime=row[1],
        protocol=row[2],
        native_id=row[3],
        state=row[4],
        labels=orjson.loads(row[5]),
        last_sequence=row[6],
        first_sequence=row[7],
        opened_at=moment(row[8]),
        updated_at=moment(row[9]),
        fence=row[10],
        owner=row[11],
        cursor=row[12],
        snapshot=row[13],
    )


def read_call(connection: sqlite3.Connection, call_id: CallId) -> Call | None:
    return _call(connection.execute(_CALL, (call_id,)).fetchone())


def read_latest_call(connection: sqlite3.Connection, session_id: SessionId, native_call_id: str) -> Call | None:
    return _call(connection.execute(_LATEST_CALL, (session_id, native_call_id)).fetchone())


def _call(row: Sequence[Any] | None) -> Call | None:
    return None if row is None else call_from(row)


def list_open_calls(connection: sqlite3.Connection, session_id: SessionId) -> list[Call]:
    return [call_from(row) for row in connection.execute(_OPEN_CALLS, (session_id,))]


def list_calls(connection: sqlite3.Connection, which: CallFilter, page: Page) -> tuple[list[Call], str | None]:
    where: list[str] = []
    values: list[Any] = []
    if page.after:
        where.append("id < ?")
        values.append(read_cursor(page.after, int)[0])
    wanted = {
        "session_id": which.session_id,
        "runtime": which.runtime,
        "tool": which.tool,
        "executor": which.executor,
    }
    for column, value in wanted.items():
        if value is not None:
            where.append(column + " = ?")
            values.append(value)
    if which.states:
        where.append("state IN (" + ", ".join("?" * len(which.states)) + ")")
        values += which.states
    if which.unknown is not None:
        where.append("unknown = ?")
        values.append(int(which.unknown))
    if which.dead is not None:
        # Written out, so that SQLite sees that the small index of dead calls will do.
        where.append("dead = 1" if which.dead else "dead = 0")
    if which.since is not None:
        where.append("created_at >= ?")
        values.append(micros(which.since))
    rows, more = _page(connection, page, _CALLS, where, values, "id DESC")
    return [call_from(row) for row in rows], write_cursor(rows[-1][-1]) if more else None


_FIRST_OF_ITS_SESSION = (
    "NOT EXISTS (SELECT 1 FROM outbound e WHERE e.target = o.target AND e.state = 'pending'"
    " AND e.session_id = o.session_id AND e.seq < o.seq)"
)
_NONE_HELD_BEFORE = _FIRST_OF_ITS_SESSION.removesuffix(")") + " AND e.due_at > ?)"


def list_pending_sends(
    connection: sqlite3.Connection,
    session_id: SessionId | None,
    target: str,
    due_before: datetime | None,
    limit: int,
) -> list[SendRow]:
    where, values = ["o.target = ?", "o.state = 'pending'"], [target]
    due: list[Any] = []
    if session_id is not None:
        where.append("o.session_id = ?")
        values.append(session_id)
    if due_before is not None:
        where += ["(o.due_at IS NULL OR o.due_at <= ?)", _NONE_HELD_BEFORE]
        due += [micros(due_before)] * 2
    statement = " ".join((_SENDS, "WHERE", " AND ".join(where), "ORDER BY o.session_id, o.seq LIMIT ?"))
    return [_send(row) for row in connection.execute(statement, (*values, *due, max(limit, 0)))]


def read_next_send_due(connection: sqlite3.Connection, target: str) -> datetime | None:
    where = " AND ".join(("o.target = ?", "o.state = 'pending'", _FIRST_OF_ITS_SESSION))
    statement = " ".join(("SELECT min(coalesce(o.due_at, o.created_at)) FROM outbound o WHERE", where))
    found = connection.execute(statement, (target,)).fetchone()[0]
    return None if found is None else moment(found)


def list_sends_of(connection: sqlite3.Connection, session_id: SessionId, sequence: int) -> list[SendRow]:
    statement = _SENDS + " WHERE o.session_id = ? AND o.seq = ? ORDER BY o.target"
    return [_send(row) for row in connection.execute(statement, (session_id, sequence))]


def list_dead_sends(connection: sqlite3.Connection, page: Page, which: DeadFilter) -> tuple[list[SendRow], str | None]:
    where = [f"({LISTED})"]
    values: list[Any] = []
    if page.after:
        where.append("(o.created_at, o.session_id, o.seq, o.target) < (?, ?, ?, ?)")
        values += read_cursor(page.after, int, str, int, str)
    if which.runtime is not None:
        where.append("EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = o.session_id AND s.runtime = ?)")
        values.append(which.runtime)
    if which.target is not None:
        where.append("o.target = ?")
        values.append(which.target)
    if which.since is not None:
        where.append("o.created_at >= ?")
        values.append(micros(which.since))
    order = "o.created_at DESC, o.session_id DESC, o.seq DESC, o.target DESC"
    rows, more = _page(connection, page, _SENDS, where, values, order)
    cursor = None
    if more:
        last = SendRecord._make(rows[-1][: len(SendRecord._fields)])
        cursor = write_cursor(last.created_at, last.session_id, last.seq, last.target)
    return [_send(row) for row in rows], cursor


def _send(row: Sequence[Any]) -> SendRow:
    cut = len(SendRecord._fields)
    return send_row(SendRecord._make(row[:cut]), EventRecord._make(row[cut:]))


def list_interactions(
    connection: sqlite3.Connection, page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> tuple[list[InteractionRow], str | None]:
    where: list[str] = ["id > ?"]
    values: list[Any] = [read_cursor(page.after, int)[0] if page.after else 0]
    for column, value in (("session_id", session_id), ("state", state)):
        if value is not None:
            where.append(column + " = ?")
            values.append(value)
    rows, more = _page(connection, page, _INTERACTIONS, where, values, "id")
    found = [interaction_row(InteractionRecord._make(row[:-1])) for row in rows]
    return found, write_cursor(rows[-1][-1]) if more else None


def read_interaction(connection: sqlite3.Connection, interaction_id: InteractionId) -> InteractionRow | None:
    row = connection.execute(_INTERACTION, (interaction_id,)).fetchone()
    return None if row is None else interaction_row(InteractionRecord._make(row))


def read_answer(connection: sqlite3.Connection, key: str, scope: str, now: int) -> StoredAnswer | None:
    row = connection.execute(
        "SELECT request_sha, response, expires_at FROM idempotency WHERE scope = ? AND key = ? AND expires_at > ?",
        (scope, key, now),
    ).fetchone()
    return None if row is None else StoredAnswer(row[0], row[1], moment(row[2]))


def read_note(connection: sqlite3.Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def choose_to_sweep(
    connection: sqlite3.Connection, policy: RetentionPolicy, now: int, budget: int
) -> tuple[dict[SessionId, Cut], bool]:
    """Look for events that may go; the writer checks again before it removes them."""

    def peek(session_id: SessionId, seq: int, n: int) -> list[Item]:
        rows = connection.execute(_ITEMS, (session_id, seq, n))
        return [Item._make(row) for row in rows]

    total = connection.execute("SELECT coalesce(sum(size), 0) FROM sessions").fetchone()[0]
    copies_from = now - whole_micros(policy.copy_age)
    rows = connection.execute(_SHELVES, (copies_from,))
    shelves = [Shelf(row[0], row[1] == CLOSED, *row[2:]) for row in rows]
    return choose(shelves, peek, policy, now=now, total=total, budget=budget)


def _page(
    connection: sqlite3.Connection, page: Page, statement: str, where: Sequence[str], values: Sequence[Any], order: str
) -> tuple[list[Any], bool]:
    limit = max(page.limit, 1)
    condition = ("WHERE", " AND ".join(where)) if where else ()
    text = " ".join((statement, *condition, "ORDER BY", order, "LIMIT ?"))
    rows = connection.execute(text, (*values, limit + 1)).fetchall()
    return rows[:limit], len(rows) > limit
