"""Queries for the events of all sessions in one order. Pure.

In SQLite the position of an event is its id. In PostgreSQL it is the transaction that wrote the event, the session
within it, and the sequence. Transactions commit out of order, so a query reads only transactions below the oldest one
that is running: later, no event can appear among them.

Removed events show as a gap: ids without a row, or a range of sequences that starts before its session's first one.
"""

from collections.abc import Sequence

import orjson

from gateway.store.encoding import decode_envelope
from gateway.store.questions.question import Question, Row, Where, has_labels
from gateway.store.records import EventRecord
from gateway.store.rows import EventFilter, Placed, PlacedPage, Position, SessionName

_EVENT = ", ".join("s.session_id" if name == "session_id" else f"e.{name}" for name in EventRecord._fields)
_SESSION = "s.runtime, s.native_id, s.labels"

# The values are the position (three), the number of transactions, and the limit; then those of the filter.
_READ = f"""
WITH bound AS MATERIALIZED (
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid
), part AS MATERIALIZED (
    SELECT w.* FROM @written w WHERE w.xid >= $1 AND w.xid < (SELECT xid FROM bound) ORDER BY w.xid LIMIT $4
), spans AS MATERIALIZED (
    SELECT w.xid, p.* FROM part w
    CROSS JOIN LATERAL unnest(w.sessions, w.firsts, w.lasts) WITH ORDINALITY AS p (session_id, first, last, n)
    WHERE (w.xid, p.n, p.last) > ($1::bigint, $2::bigint, $3::bigint)
), chosen AS MATERIALIZED (
    SELECT w.xid, w.n, w.first, w.last, s.* FROM spans w
    LEFT JOIN LATERAL (SELECT * FROM @sessions s WHERE s.session_id = w.session_id OFFSET 0) s ON true
    WHERE {{sessions}}
), found AS MATERIALIZED (
    SELECT s.xid AS major, s.n AS part, {_EVENT}, {_SESSION} FROM chosen s
    CROSS JOIN LATERAL (
        SELECT * FROM @events e
        WHERE e.session_id = s.session_id AND e.seq >= s.first AND e.seq <= s.last AND e.seq >= s.min_seq AND {{kinds}}
        ORDER BY e.seq OFFSET 0
    ) e
    WHERE (s.xid, s.n, e.seq) > ($1::bigint, $2::bigint, $3::bigint)
    ORDER BY s.xid, s.n, e.seq LIMIT $5
)
SELECT
    (SELECT count(*) FROM part) = $4,
    CASE (SELECT count(*) FROM part) WHEN $4 THEN (SELECT max(xid) FROM part) + 1 ELSE (SELECT xid FROM bound) END,
    EXISTS (SELECT 1 FROM part WHERE xid > $1 AND sessions = '{{{{}}}}') OR EXISTS (
        SELECT 1 FROM chosen s WHERE s.session_id IS NULL OR s.min_seq > greatest(
            s.first, CASE WHEN s.xid = $1 AND s.n = $2 THEN $3 + 1 ELSE 0 END
        )
    ),
    coalesce((SELECT max(xid) FROM @written) >= (SELECT xid FROM bound), false),
    f.*
FROM (VALUES (1)) AS one LEFT JOIN found f ON true ORDER BY f.major, f.part, f.seq
"""
_END = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

_READ_OF_SQLITE = f"""
WITH reach (id) AS MATERIALIZED (
    SELECT coalesce(
        (SELECT id FROM events WHERE id > $1 ORDER BY id LIMIT 1 OFFSET $4 - 1), (SELECT max(id) FROM events), $1
    )
), found AS MATERIALIZED (
    SELECT e.id AS major, 0 AS part, {_EVENT}, {_SESSION}
    FROM events e CROSS JOIN sessions s ON s.id = e.session_id
    WHERE e.id > $1 AND e.id <= (SELECT id FROM reach) AND e.seq >= s.min_seq AND {{sessions}} AND {{kinds}}
    ORDER BY e.id LIMIT $5
)
SELECT
    (SELECT id FROM reach) < (SELECT max(id) FROM events),
    (SELECT id FROM reach),
    (SELECT id FROM reach) - $1 > (
        SELECT count(*) FROM events e CROSS JOIN sessions s ON s.id = e.session_id
        WHERE e.id > $1 AND e.id <= (SELECT id FROM reach) AND e.seq >= s.min_seq
    ),
    0,
    f.*
FROM (VALUES (1)) LEFT JOIN found f ON true ORDER BY f.major
"""
_END_OF_SQLITE = "SELECT coalesce((SELECT max(id) FROM events), 0)"


def end() -> Question[Position]:
    return Question(_END, (), lambda rows: (rows[0][0], 0, 0), _END_OF_SQLITE)


def read_all(after: Position, which: EventFilter, *, limit: int, searched: int) -> Question[PlacedPage]:
    limit = max(limit, 1)

    def read(rows: Sequence[Row]) -> PlacedPage:
        more, major, is_gap, held_back = rows[0][:4]
        events = [_placed(row[4:]) for row in rows if row[4] is not None]
        is_full = len(events) == limit
        position = events[-1].position if is_full else max((major, 0, 0), after)
        return PlacedPage(events, position, is_full or bool(more), bool(is_gap), bool(held_back))

    sessions = Where((*after, max(searched, 1), limit))
    sessions.equal(**{"s.session_id": which.session_id, "s.runtime": which.runtime})
    has_labels(sessions, which.labels)
    kinds = Where(sessions.values)
    if which.kinds:
        kinds.is_in("e.kind", which.kinds)
    conditions = {"sessions": sessions.conditions or "true", "kinds": kinds.conditions or "true"}
    of_postgres = {**conditions, "sessions": f"(s.session_id IS NULL OR ({conditions['sessions']}))"}
    return Question(_READ.format(**of_postgres), kinds.values, read, _READ_OF_SQLITE.format(**conditions))


def _placed(row: Row) -> Placed:
    major, part, *record, runtime, native_id, labels = row
    envelope = decode_envelope(EventRecord._make(record))
    session = SessionName(envelope.session_id, runtime, native_id, orjson.loads(labels))
    return Placed((major, part, envelope.sequence if part else 0), session, envelope)
