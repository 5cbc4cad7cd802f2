"""The questions that PostgreSQL answers: each one statement, over what others have committed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson

from gateway.errors import NotFound, Truncated
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.store.apply import CLOSED
from gateway.store.call import Call
from gateway.store.encoding import decode_envelope, read_cursor, send_row, write_cursor
from gateway.store.postgres.pool import Pool
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
from gateway.store.retention import Chosen, Item, Shelf, consider
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
from gateway.store.step import InteractionState


def _columns(names: Sequence[str], table: str = "") -> str:
    return ", ".join(f"{table}{name}" for name in names)


_EVENTS = f"""
SELECT s.min_seq, {_columns(EventRecord._fields, "e.")}
FROM @sessions s LEFT JOIN LATERAL (
    SELECT * FROM @events WHERE session_id = s.session_id AND seq > $2 ORDER BY seq LIMIT $3
) e ON true
WHERE s.session_id = $1 ORDER BY e.seq
"""
SESSION_COLUMNS = (
    "s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.last_seq, s.min_seq, s.opened_at,"
    " s.updated_at, s.fence, s.owner, s.cursor"
)
_SESSIONS = f"""
SELECT {SESSION_COLUMNS}, p.snapshot, s.id FROM @sessions s LEFT JOIN @snapshots p ON p.session_id = s.session_id
"""
_CALL = f"SELECT {_columns(CALL_COLUMNS)} FROM @calls WHERE call_id = $1"
_ENDED = """
SELECT (extract(epoch FROM clock_timestamp() - ended_at) * 1000000)::bigint, finished_at
FROM @calls WHERE call_id = $1 AND finished_at IS NOT NULL
"""
_LATEST_CALL = f"""
SELECT {_columns(CALL_COLUMNS)} FROM @calls
WHERE session_id = $1 AND native_call_id = $2 AND redrive_of IS NULL ORDER BY n DESC LIMIT 1
"""
_OPEN_CALLS = f"""
SELECT {_columns(CALL_COLUMNS)} FROM @calls
WHERE session_id = $1 AND state IN ('queued', 'dispatched', 'accepted') ORDER BY id
"""
_SENDS = f"""
SELECT {_columns(SendRecord._fields, "o.")}, {_columns(EventRecord._fields, "e.")}
FROM @outbound o JOIN @events e ON e.session_id = o.session_id AND e.seq = o.seq
"""
_INTERACTION = f"SELECT {_columns(InteractionRecord._fields)} FROM @interactions WHERE interaction_id = $1"
_CALLS = f"SELECT {_columns(CALL_COLUMNS)}, id FROM @calls"
_INTERACTIONS = f"SELECT {_columns(InteractionRecord._fields)}, id FROM @interactions"

_FIRST_OF_ITS_SESSION = """
NOT EXISTS (
    SELECT 1 FROM @outbound e
    WHERE e.target = o.target AND e.state = 'pending' AND e.session_id = o.session_id AND e.seq < o.seq{and_held}
)
"""
_NEXT_SEND_DUE = f"""
SELECT min(coalesce(o.due_at, o.created_at)) FROM @outbound o
WHERE o.target = $1 AND o.state = 'pending' AND {_FIRST_OF_ITS_SESSION.format(and_held="")}
"""

# Only sessions that can lose something, and no more of them than the budget can touch.
_SHELVES = """
WITH needed AS (
    SELECT session_id, request_seq AS seq FROM @calls WHERE state IN ('queued', 'dispatched', 'accepted')
    UNION ALL SELECT session_id, seq FROM @outbound
    WHERE state = 'pending' AND (target = 'runtime' OR created_at >= $6::bigint)
    UNION ALL SELECT session_id, request_seq FROM @interactions WHERE state = 'waiting'
    UNION ALL SELECT session_id, request_seq FROM @interactions
    WHERE state NOT IN ('waiting', 'answered', 'expired', 'moot')
    UNION ALL SELECT session_id, request_seq FROM @calls
    WHERE state NOT IN ('queued', 'dispatched', 'accepted', 'succeeded', 'failed', 'canceled', 'expired')
    UNION ALL SELECT session_id, seq FROM @outbound
    WHERE state NOT IN ('pending', 'delivered', 'moot') AND state NOT IN ('refused', 'unknown', 'dead')
    UNION ALL SELECT session_id, keep_from FROM @snapshots WHERE keep_from IS NOT NULL
), floors AS (
    SELECT session_id, min(seq) AS floor FROM needed GROUP BY session_id
)
SELECT s.session_id, s.state = 'closed', s.min_seq, s.last_seq, coalesce(f.floor, s.last_seq + 1), e.recorded_at
FROM @sessions s JOIN @events e ON e.session_id = s.session_id AND e.seq = s.min_seq
LEFT JOIN floors f ON f.session_id = s.session_id
WHERE coalesce(f.floor, s.last_seq + 1) > s.min_seq AND (
    $1::bool OR e.recorded_at < CASE s.state WHEN 'closed' THEN $2::bigint ELSE $3::bigint END
    OR (s.state <> 'closed' AND s.min_seq <= s.last_seq - $4::bigint)
)
ORDER BY e.recorded_at, s.session_id LIMIT $5
"""
_ITEMS = """
SELECT seq, recorded_at, coalesce(length(body), 0) + coalesce(length(about), 0)
FROM @events WHERE session_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3
"""


class Where:
    """Collects the conditions of a list, and their values in order."""

    def __init__(self, *values: object) -> None:
        self.values: list[object] = [*values]
        self._texts: list[str] = []

    def add(self, text: str, *values: object) -> None:
        """Add a condition whose values stand as `{0}`, `{1}`, … in it."""
        places = [f"${len(self.values) + n}" for n in range(1, len(values) + 1)]
        self._texts.append(text.format(*places))
        self.values += values

    def text(self) -> str:
        return f"WHERE {' AND '.join(self._texts)}" if self._texts else ""


async def read_events(pool: Pool, session_id: SessionId, after: int, limit: int) -> list[Envelope]:
    """Read events behind a sequence, out of one state of the store."""
    rows = await pool.ask(_EVENTS, session_id, after, max(limit, 0))
    if not rows:
        raise NotFound(f"no session {session_id!r}")
    first = rows[0][0]
    if after + 1 < first:
        raise Truncated(first)
    return [decode_envelope(EventRecord._make(row[1:])) for row in map(tuple, rows) if row[2] is not None]


async def read_session(pool: Pool, session_id: SessionId) -> SessionRow | None:
    rows = await pool.ask(_SESSIONS + "WHERE s.session_id = $1", session_id)
    return session_row(rows[0]) if rows else None


async def list_sessions(
    pool: Pool, page: Page, *, runtime: str | None, open_only: bool
) -> tuple[list[SessionRow], str | None]:
    where = Where()
    where.add("s.id > {0}", read_cursor(page.after, int)[0] if page.after else 0)
    if runtime is not None:
        where.add("s.runtime = {0}", runtime)
    if open_only:
        where.add("s.state <> {0}", CLOSED)
    rows, more = await _page(pool, page, _SESSIONS, where, "s.id")
    return [session_row(row) for row in rows], write_cursor(rows[-1][-1]) if more else None


def session_row(row: Sequence[Any]) -> SessionRow:
    """Show a session as the port does; a row of SESSION_COLUMNS and the snapshot."""
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


async def read_call(pool: Pool, call_id: CallId) -> Call | None:
    return _call(await pool.ask(_CALL, call_id))


async def read_ended(pool: Pool, call_id: CallId, *, now: datetime) -> timedelta | None:
    """Say how long ago a call ended; by our own clock only where a release before, or a transfer, has left no time."""
    rows = await pool.ask(_ENDED, call_id)
    if not rows:
        return None
    span, finished_at = rows[0]
    return timedelta(microseconds=micros(now) - finished_at if span is None else span)


async def read_latest_call(pool: Pool, session_id: SessionId, native_call_id: str) -> Call | None:
    return _call(await pool.ask(_LATEST_CALL, session_id, native_call_id))


def _call(rows: Sequence[Any]) -> Call | None:
    return call_from(rows[0]) if rows else None


async def list_open_calls(pool: Pool, session_id: SessionId) -> list[Call]:
    return [call_from(row) for row in await pool.ask(_OPEN_CALLS, session_id)]


async def list_calls(pool: Pool, which: CallFilter, page: Page) -> tuple[list[Call], str | None]:
    where = Where()
    if page.after:
        where.add("id < {0}", read_cursor(page.after, int)[0])
    wanted = {"session_id": which.session_id, "runtime": which.runtime, "tool": which.tool, "executor": which.executor}
    for column, value in wanted.items():
        if value is not None:
            where.add(column + " = {0}", value)
    if which.since is not None:
        where.add("created_at >= {0}", micros(which.since))
    if which.dead is not None:
        where.add("dead = 1" if which.dead else "dead = 0")
    if which.states:
        where.add("state = ANY ({0}::text[])", [*which.states])
    if which.unknown is not None:
        # Written out, so that the partial index fits.
        where.add("unknown = 1" if which.unknown else "unknown = 0")
    rows, more = await _page(pool, page, _CALLS, where, "id DESC")
    found = [call_from(row) for row in rows]
    return found, write_cursor(rows[-1][-1]) if more else None


async def list_pending_sends(
    pool: Pool, session_id: SessionId | None, target: str, due_before: datetime | None, limit: int
) -> list[SendRow]:
    where = Where()
    where.add("o.state = 'pending' AND o.target = {0}", target)
    if session_id is not None:
        where.add("o.session_id = {0}", session_id)
    if due_before is not None:
        due = micros(due_before)
        where.add("(o.due_at IS NULL OR o.due_at <= {0})", due)
        where.add(_FIRST_OF_ITS_SESSION.format(and_held=" AND e.due_at > {0}"), due)
    where.values.append(max(limit, 0))
    statement = f"{_SENDS} {where.text()} ORDER BY o.session_id, o.seq LIMIT ${len(where.values)}"
    return [_send(row) for row in await pool.ask(statement, *where.values)]


async def read_next_send_due(pool: Pool, target: str) -> datetime | None:
    ((found,),) = await pool.ask(_NEXT_SEND_DUE, target)
    return None if found is None else moment(found)


async def list_sends_of(pool: Pool, session_id: SessionId, sequence: int) -> list[SendRow]:
    statement = _SENDS + "WHERE o.session_id = $1 AND o.seq = $2 ORDER BY o.target"
    return [_send(row) for row in await pool.ask(statement, session_id, sequence)]


async def list_dead_sends(pool: Pool, page: Page, which: DeadFilter) -> tuple[list[SendRow], str | None]:
    where = Where()
    where.add(f"({LISTED})")
    if page.after:
        place = read_cursor(page.after, int, str, int, str)
        where.add("(o.created_at, o.session_id, o.seq, o.target) < ({0}, {1}, {2}, {3})", *place)
    if which.runtime is not None:
        where.add(
            "EXISTS (SELECT 1 FROM @sessions s WHERE s.session_id = o.session_id AND s.runtime = {0})", which.runtime
        )
    if which.target is not None:
        where.add("o.target = {0}", which.target)
    if which.since is not None:
        where.add("o.created_at >= {0}", micros(which.since))
    order = "o.created_at DESC, o.session_id DESC, o.seq DESC, o.target DESC"
    rows, more = await _page(pool, page, _SENDS, where, order)
    cursor = None
    if more:
        last = SendRecord._make(tuple(rows[-1])[: len(SendRecord._fields)])
        cursor = write_cursor(last.created_at, last.session_id, last.seq, last.target)
    return [_send(row) for row in rows], cursor


def _send(row: Sequence[Any]) -> SendRow:
    values, cut = tuple(row), len(SendRecord._fields)
    return send_row(SendRecord._make(values[:cut]), EventRecord._make(values[cut:]))


async def list_interactions(
    pool: Pool, page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> tuple[list[InteractionRow], str | None]:
    where = Where()
    where.add("id > {0}", read_cursor(page.after, int)[0] if page.after else 0)
    for column, value in (("session_id", session_id), ("state", state)):
        if value is not None:
            where.add(column + " = {0}", value)
    rows, more = await _page(pool, page, _INTERACTIONS, where, "id")
    found = [interaction_row(InteractionRecord._make(tuple(row)[:-1])) for row in rows]
    return found, write_cursor(rows[-1][-1]) if more else None


async def read_interaction(pool: Pool, interaction_id: InteractionId) -> InteractionRow | None:
    rows = await pool.ask(_INTERACTION, interaction_id)
    return interaction_row(InteractionRecord._make(rows[0])) if rows else None


async def read_answer(pool: Pool, key: str, scope: str, now: int) -> StoredAnswer | None:
    rows = await pool.ask(
        "SELECT request_sha, response, expires_at FROM @idempotency WHERE scope = $1 AND key = $2 AND expires_at > $3",
        scope,
        key,
        now,
    )
    return StoredAnswer(rows[0][0], rows[0][1], moment(rows[0][2])) if rows else None


async def read_note(pool: Pool, name: str) -> str | None:
    rows = await pool.ask("SELECT value FROM @notes WHERE name = $1", name)
    return rows[0][0] if rows else None


async def choose_to_sweep(pool: Pool, policy: RetentionPolicy, now: int, budget: int) -> Chosen:
    """Look for events that may go; who removes them looks again."""
    ((total,),) = await pool.ask("SELECT coalesce(sum(size), 0)::bigint FROM @sessions")
    shelves = [
        Shelf._make(row)
        for row in await pool.ask(
            _SHELVES,
            total > policy.max_bytes,
            now - whole_micros(policy.closed_age),
            now - whole_micros(policy.open_age),
            policy.open_events,
            max(budget, 0) + 1,
            now - whole_micros(policy.copy_age),
        )
    ]
    choosing = consider(shelves, policy, now=now, total=total, budget=budget)
    items: list[Item] | None = None
    while True:
        try:
            wanted = next(choosing) if items is None else choosing.send(items)
        except StopIteration as end:
            return end.value
        items = [Item._make(row) for row in await pool.ask(_ITEMS, *wanted)]


async def _page(pool: Pool, page: Page, statement: str, where: Where, order: str) -> tuple[Sequence[Any], bool]:
    limit = max(page.limit, 1)
    values = [*where.values, limit + 1]
    rows = await pool.ask(f"{statement} {where.text()} ORDER BY {order} LIMIT ${len(values)}", *values)
    return rows[:limit], len(rows) > limit
