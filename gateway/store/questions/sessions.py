"""Queries for sessions and their journals. Pure."""

from collections.abc import Sequence

import orjson

from gateway.errors import NotFound, Truncated
from gateway.events import Envelope, SessionId
from gateway.store.apply import CLOSED
from gateway.store.encoding import decode_envelope, read_cursor
from gateway.store.questions.question import Listing, Question, Row, Where, columns, last, one, page_of
from gateway.store.records import EventRecord, moment
from gateway.store.rows import Page, SessionFilter, SessionRow

SESSION = """
SELECT s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.last_seq, s.min_seq, s.opened_at,
    s.updated_at, s.fence, s.owner, s.cursor, p.snapshot, s.id
FROM @sessions s LEFT JOIN @snapshots p ON p.session_id = s.@key
"""
"""A session with its snapshot, as `session_row` reads it."""
_BY_ID = f"{SESSION}WHERE s.session_id = $1"

_EVENTS = f"""
SELECT s.min_seq, {columns(EventRecord._fields, "e")}
FROM @sessions s LEFT JOIN (
    SELECT * FROM @events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
) e ON true
WHERE s.session_id = $1 ORDER BY e.seq
"""
# Each engine needs its own form: with the other's, SQLite copies the inner table and PostgreSQL sorts the outer one.
_EVENTS_OF_SQLITE = f"""
SELECT s.min_seq, {columns(EventRecord._fields, "e")}
FROM @sessions s LEFT JOIN @events e ON e.session_id = s.@key AND e.seq > $2 AND $3 > 0
WHERE s.session_id = $1 ORDER BY e.seq LIMIT max($3, 1)
"""


def events(session_id: SessionId, after: int, limit: int) -> Question[list[Envelope]]:
    """Query the events after a sequence; the statement reads one consistent state.

    Raises (when the rows are read):
        NotFound: there is no such session. Truncated: retention has removed some of these events.
    """

    def read(rows: Sequence[Row]) -> list[Envelope]:
        if not rows:
            raise NotFound(f"no session {session_id!r}")
        if after + 1 < rows[0][0]:
            raise Truncated(rows[0][0])
        return [decode_envelope(EventRecord._make(row[1:])) for row in rows if row[2] is not None]

    return Question(_EVENTS, (session_id, after, max(limit, 0)), read, sqlite=_EVENTS_OF_SQLITE)


def session_row(row: Row) -> SessionRow:
    """Decode a row of `SESSION`."""
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


def session(session_id: SessionId) -> Question[SessionRow | None]:
    return one(_BY_ID, (session_id,), session_row)


_SESSIONS = Listing("sessions", SESSION, session_row, last)


def sessions(page: Page, which: SessionFilter, *, newest_first: bool) -> Question[tuple[list[SessionRow], str | None]]:
    where = Where()
    if page.after:
        where.add("s.id < {0}" if newest_first else "s.id > {0}", read_cursor(page.after, "sessions", int)[0])
    if which.runtime is not None:
        where.add("s.runtime = {0}", which.runtime)
    if which.native_id is not None:
        where.add("s.native_id = {0}", which.native_id)
    if which.open_only:
        where.add("s.state <> {0}", CLOSED)
    order = "s.id DESC" if newest_first else "s.id"
    return page_of(_SESSIONS, page, where, order=order)
