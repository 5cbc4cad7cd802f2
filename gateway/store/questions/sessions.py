"""Queries for sessions and their journals. Pure."""

import re
from collections.abc import Callable, Collection

import orjson

from gateway.errors import NotFound, Truncated
from gateway.events import Envelope, SessionId
from gateway.store.apply import CLOSED
from gateway.store.encoding import EXCERPT, decode_envelope, decode_excerpt, read_cursor
from gateway.store.questions.question import (
    SEARCHED,
    WINDOW,
    Listing,
    Question,
    Row,
    Text,
    Where,
    Windowed,
    columns,
    has_labels,
    last,
    one,
    page_of,
    page_of_window,
)
from gateway.store.records import EventRecord, micros, moment
from gateway.store.rows import Page, Rows, SessionFilter, SessionRow

_SESSION = """s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.last_seq, s.min_seq, s.opened_at,
    s.updated_at, s.fence, s.owner, s.shared_seq, s.cursor"""
SESSION = f"""
SELECT {_SESSION}, s.id
FROM @sessions s
"""
"""A session, as `session_row` reads it."""
_BY_ID = f"{SESSION}WHERE s.session_id = $1"
_SNAPSHOT = "SELECT snapshot FROM @snapshots WHERE session_id = @key($1)"
_BODY = ("body", "about")

_EVENT = columns(EventRecord._fields, "e")
_EXCERPT = re.sub(r"e\.(body|about)", rf"substr(e.\1, 1, {EXCERPT}) AS \1", _EVENT)
_EVENTS = f"""
SELECT s.min_seq, {_EVENT}
FROM @sessions s LEFT JOIN (
    SELECT * FROM @events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
) e ON true
WHERE s.session_id = $1 ORDER BY e.seq
"""
# Each engine needs its own form: with the other's, SQLite copies the inner table and PostgreSQL sorts the outer one.
_EVENTS_OF_SQLITE = f"""
SELECT s.min_seq, {_EVENT}
FROM @sessions s LEFT JOIN @events e ON e.session_id = s.@key AND e.seq > $2 AND $3 > 0
WHERE s.session_id = $1 ORDER BY e.seq LIMIT max($3, 1)
"""


def events(session_id: SessionId, after: int, limit: int, *, excerpts: bool = False) -> Question[Rows[Envelope]]:
    """Query the events after a sequence, or excerpts of them; the statement reads one consistent state.

    Raises (when the rows are read):
        NotFound: there is no such session. Truncated: retention has removed some of these events.
    """

    limit = max(limit, 0)

    def read(rows: Rows[Row]) -> Rows[Envelope]:
        if not rows:
            raise NotFound(f"no session {session_id!r}")
        if after + 1 < rows[0][0]:
            raise Truncated(rows[0][0])
        found = [decode(EventRecord._make(row[1:])) for row in rows if row[2] is not None]
        return Rows(found, more=rows.more or len(found) == limit)

    decode, text, sqlite = _form(_EVENTS, _EVENTS_OF_SQLITE, excerpts=excerpts)
    return Question(text, (session_id, after, limit), read, sqlite=sqlite, sized=_BODY)


def _form(text: str, sqlite: str, *, excerpts: bool) -> tuple[Callable[[EventRecord], Envelope], str, str]:
    """Return the function that reads whole events, or excerpts, and the statements."""
    if not excerpts:
        return decode_envelope, text, sqlite
    return decode_excerpt, text.replace(_EVENT, _EXCERPT), sqlite.replace(_EVENT, _EXCERPT)


_KINDS = f"""
SELECT s.min_seq, {_EVENT}, s.last_seq
FROM @sessions s LEFT JOIN (
    SELECT * FROM @events WHERE session_id = $1 AND seq > $2 AND seq <= $3 AND {{kinds}} ORDER BY seq LIMIT $4
) e ON true
WHERE s.session_id = $1 ORDER BY e.seq
"""
_KINDS_OF_SQLITE = f"""
SELECT s.min_seq, {_EVENT}, s.last_seq
FROM @sessions s LEFT JOIN @events e ON e.session_id = s.@key AND e.seq > $2 AND e.seq <= $3 AND {{kinds}}
WHERE s.session_id = $1 ORDER BY e.seq LIMIT $4
"""


def events_of_kinds(
    session_id: SessionId, kinds: Collection[str], after: int, limit: int, *, excerpts: bool = False
) -> Question[tuple[list[Envelope], int | None]]:
    """Query the events of some kinds among the next `WINDOW` ones, and the sequence after which the next page starts.

    Raises (when the rows are read):
        NotFound: there is no such session. Truncated: retention has removed some of these events.
    """
    limit = max(limit, 1)
    end = after + WINDOW
    where = Where((session_id, after, end, limit))
    where.is_in("kind", kinds)

    def read(rows: Rows[Row]) -> tuple[list[Envelope], int | None]:
        if not rows:
            raise NotFound(f"no session {session_id!r}")
        first, *_, last_sequence = rows[0]
        if after + 1 < first:
            raise Truncated(first)
        found = [decode(EventRecord._make(row[1:-1])) for row in rows if row[2] is not None]
        if rows.more or len(found) == limit:
            return found, found[-1].sequence
        return found, end if end < last_sequence else None

    decode, text, sqlite = _form(
        _KINDS.format(kinds=where.conditions), _KINDS_OF_SQLITE.format(kinds=where.conditions), excerpts=excerpts
    )
    return Question(text, where.values, read, sqlite=sqlite, sized=_BODY)


_ABOUTS = "SELECT seq, about FROM @events WHERE session_id = @key($1) AND seq > $2 ORDER BY seq LIMIT $3"


def abouts(session_id: SessionId, after: int, limit: int) -> Question[Rows[Row]]:
    """Query the sequences of the events after a sequence, and what is known about these events."""

    def read(rows: Rows[Row]) -> Rows[Row]:
        return Rows(rows, more=rows.more or len(rows) == limit)

    return Question(_ABOUTS, (session_id, after, limit), read, sized=("about",))


# The inner limit keeps PostgreSQL from scanning all events for a rare kind.
_LATEST = f"""
SELECT s.min_seq, {_EVENT}, s.last_seq
FROM @sessions s LEFT JOIN (
    SELECT * FROM (
        SELECT * FROM @events WHERE session_id = $1
            AND seq > (SELECT last_seq FROM @sessions WHERE session_id = $1) - {WINDOW}
        ORDER BY seq DESC LIMIT {WINDOW}
    ) AS newest WHERE kind = $2 ORDER BY seq DESC LIMIT 1
) e ON true
WHERE s.session_id = $1
"""
_LATEST_OF_SQLITE = f"""
SELECT s.min_seq, {_EVENT}, s.last_seq
FROM @sessions s LEFT JOIN @events e ON e.session_id = s.@key AND e.kind = $2 AND e.seq > s.last_seq - {WINDOW}
WHERE s.session_id = $1 ORDER BY e.seq DESC LIMIT 1
"""


def latest_event(session_id: SessionId, kind: str) -> Question[tuple[Envelope | None, int]]:
    """Query the last event of a kind among the newest `WINDOW` ones, and the oldest sequence that was searched.

    Raises (when the rows are read):
        NotFound: there is no such session.
    """

    def read(rows: Rows[Row]) -> tuple[Envelope | None, int]:
        if not rows:
            raise NotFound(f"no session {session_id!r}")
        first, *record, last_sequence = rows[0]
        found = None if record[1] is None else decode_envelope(EventRecord._make(record))
        return found, max(first, last_sequence - WINDOW + 1)

    return Question(_LATEST, (session_id, kind), read, sqlite=_LATEST_OF_SQLITE)


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
        shared_sequence=row[12],
        cursor=row[13],
    )


def session(session_id: SessionId) -> Question[SessionRow | None]:
    return one(_BY_ID, (session_id,), session_row)


def count_open() -> Question[int]:
    return Question(f"SELECT count(*) FROM @sessions WHERE state <> '{CLOSED}'", (), lambda rows: rows[0][0])


def snapshot(session_id: SessionId) -> Question[bytes | None]:
    return one(_SNAPSHOT, (session_id,), lambda row: row[0])


_SIZED = ("native_id", "labels", "cursor")
_HAS_TEXT = """(
    s.session_id ILIKE {0} ESCAPE '!' OR s.runtime || '/' || s.native_id ILIKE {1} ESCAPE '!'
    OR s.labels ILIKE {2} ESCAPE '!'
)"""
_SESSIONS = Listing("sessions", SESSION, session_row, last, _SIZED)
_WINDOWED = Windowed("sessions", _SESSION, "@sessions s", "s.id", session_row, _SIZED)


def sessions(page: Page, which: SessionFilter, *, newest_first: bool) -> Question[tuple[list[SessionRow], str | None]]:
    window = Where()
    if page.after:
        window.add("s.id < {0}" if newest_first else "s.id > {0}", read_cursor(page.after, "sessions", int)[0])
    matching = Where(window.values)
    matching.equal(**{"s.runtime": which.runtime, "s.native_id": which.native_id})
    if which.open_only:
        matching.add("s.state <> {0}", CLOSED)
    if which.states:
        matching.is_in("s.state", which.states)
    if which.since is not None:
        matching.add("s.opened_at >= {0}", micros(which.since))
    if which.until is not None:
        matching.add("s.opened_at < {0}", micros(which.until))
    if which.text is not None:
        text = Text(which.text)
        matching.add(_HAS_TEXT, text.at_start, text.anywhere, Text(text.in_json.decode()).anywhere)
    if which.session_ids:
        matching.is_in("s.session_id", which.session_ids)
    has_labels(matching, which.labels)
    if _may_match_few(which):
        most = SEARCHED if which.text else WINDOW
        return page_of_window(_WINDOWED, page, window, matching, newest_first=newest_first, most=most)
    window.extend(matching.conditions, matching)
    return page_of(_SESSIONS, page, window, order="s.id DESC" if newest_first else "s.id")


def _may_match_few(which: SessionFilter) -> bool:
    """Return whether a page could read many sessions to find one; indexes serve ids, and `runtime` with `native_id`."""
    if which.session_ids:
        return False
    if which.native_id is not None:
        return which.runtime is None
    return bool(which.states or which.labels or which.since or which.until or which.text)
