"""Queries for the events of all sessions in one order. Pure.

In SQLite the position of an event is its id. In PostgreSQL it is the transaction that wrote the event, the session
within it, and the sequence. Transactions commit out of order, so a query reads only transactions below a bound: the
oldest one of a writer of this schema that is running. Later, no event can appear below it.

A writer locks `written` before PostgreSQL gives it a transaction id, until its end. So of the transactions that ran at
a snapshot, those whose holder has this lock are writers; other programs, in this database or another one, are not. A
transaction without any lock in the list, which is read after the snapshot, has ended meanwhile or has just begun. It
is doubtful, and a later snapshot tells whether it has ended.

Removed events show as a gap: ids without a row, or a range of sequences that starts before its session's first one.
"""

from collections.abc import Sequence

import orjson

from gateway.store.encoding import decode_envelope
from gateway.store.questions.question import Question, Row, Where, has_labels, one
from gateway.store.records import EventRecord, moment_or_none
from gateway.store.rows import EventFilter, Generation, Holder, Placed, PlacedPage, Position, Rows, SessionName

_EVENT = ", ".join("s.session_id" if name == "session_id" else f"e.{name}" for name in EventRecord._fields)
_SESSION = "s.runtime, s.native_id, s.labels"

# The values are the position (three), the number of transactions, the limit and the bound; then those of the filter.
_READ = f"""
WITH bound (xid) AS (VALUES ($6::bigint)), part AS MATERIALIZED (
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
_WRITERS = """
WITH held AS MATERIALIZED (
    SELECT locktype, database, relation, transactionid, virtualtransaction, pid, mode FROM pg_locks WHERE granted
), writers AS MATERIALIZED (
    SELECT virtualtransaction, pid FROM held
    WHERE locktype = 'relation' AND relation = '@written'::regclass AND mode = 'RowExclusiveLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), owned AS MATERIALIZED (
    SELECT transactionid, virtualtransaction FROM held WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
)
"""
_BOUND = f"""
{_WRITERS}
SELECT
    least(
        min(xid::text::bigint) FILTER (WHERE o.virtualtransaction IN (SELECT virtualtransaction FROM writers)),
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    ),
    coalesce(array_agg(xid::text::bigint) FILTER (WHERE o.transactionid IS NULL), '{{}}')
FROM pg_snapshot_xip(pg_current_snapshot()) AS xid LEFT JOIN owned o ON o.transactionid = xid::xid
"""
_STILL_RUNNING = """
SELECT min(xid) FROM unnest($1::bigint[]) AS xid
WHERE NOT pg_visible_in_snapshot(xid::text::xid8, pg_current_snapshot())
"""
_HOLDER = f"""
{_WRITERS}
SELECT w.pid, current_database(), a.application_name, a.usename, a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
FROM writers w JOIN owned o USING (virtualtransaction) LEFT JOIN pg_stat_activity a ON a.pid = w.pid
ORDER BY a.xact_start NULLS FIRST LIMIT 1
"""

# The facts are a row of their own before the events, since a join with the events would copy their bodies.
_READ_OF_SQLITE = f"""
WITH reach (id) AS MATERIALIZED (
    SELECT coalesce(
        (SELECT id FROM events WHERE id > $1 ORDER BY id LIMIT 1 OFFSET $4 - 1), (SELECT max(id) FROM events), $1
    )
)
SELECT
    (SELECT id FROM reach) < (SELECT max(id) FROM events),
    (SELECT id FROM reach),
    (SELECT id FROM reach) - $1 > (
        SELECT count(*) FROM events e CROSS JOIN sessions s ON s.id = e.session_id
        WHERE e.id > $1 AND e.id <= (SELECT id FROM reach) AND e.seq >= s.min_seq
    ),
    $6 < 0,
    NULL AS major, NULL AS part, {", ".join(f"NULL AS {name}" for name in EventRecord._fields)}, NULL, NULL, NULL
UNION ALL
SELECT * FROM (
    SELECT 0, 0, 0, 0, e.id, 0, {_EVENT}, {_SESSION}
    FROM events e CROSS JOIN sessions s ON s.id = e.session_id
    WHERE e.id > $1 AND e.id <= (SELECT id FROM reach) AND e.seq >= s.min_seq AND {{sessions}} AND {{kinds}}
    ORDER BY e.id LIMIT $5
)
"""
_END = "SELECT coalesce((SELECT max(id) FROM @events), 0)"


def generation() -> Question[Generation]:
    """Ask for the history of the store."""

    def read(rows: Sequence[Row]) -> Generation:
        name, previous, shared, backup_at = rows[0]
        return Generation(name, previous, shared, moment_or_none(backup_at))

    return Question("SELECT name, previous, shared, backup_at FROM @generation", (), read)


def bound() -> Question[tuple[int, list[int]]]:
    """Query the bound and the doubtful transactions; PostgreSQL only."""
    return Question(_BOUND, (), lambda rows: (rows[0][0], rows[0][1]))


def end() -> Question[Position]:
    """Query the position behind all events; SQLite only."""
    return Question(_END, (), lambda rows: (rows[0][0], 0, 0))


def still_running(doubtful: Sequence[int]) -> Question[int | None]:
    """Query the oldest of some transactions that has not ended; PostgreSQL only."""
    return Question(_STILL_RUNNING, (doubtful,), lambda rows: rows[0][0])


def holder() -> Question[Holder | None]:
    """Query the writer whose transaction has run longest; PostgreSQL only."""
    return one(_HOLDER, (), lambda row: Holder(*row))


def read_all(after: Position, which: EventFilter, *, bound: int, limit: int, searched: int) -> Question[PlacedPage]:
    """Query the matching events behind a position and below a bound."""
    limit = max(limit, 1)

    def read(rows: Rows[Row]) -> PlacedPage:
        more, major, is_gap, held_back = rows[0][:4]
        events = [_placed(row[4:]) for row in rows if row[4] is not None]
        is_full = rows.more or len(events) == limit
        position = events[-1].position if is_full else max((major, 0, 0), after)
        return PlacedPage(events, position, is_full or bool(more), bool(is_gap), bool(held_back))

    sessions = Where((*after, max(searched, 1), limit, bound))
    sessions.equal(**{"s.session_id": which.session_id, "s.runtime": which.runtime})
    has_labels(sessions, which.labels)
    kinds = Where(sessions.values)
    if which.kinds:
        kinds.is_in("e.kind", which.kinds)
    conditions = {"sessions": sessions.conditions or "true", "kinds": kinds.conditions or "true"}
    of_postgres = {**conditions, "sessions": f"(s.session_id IS NULL OR ({conditions['sessions']}))"}
    sqlite = _READ_OF_SQLITE.format(**conditions)
    return Question(_READ.format(**of_postgres), kinds.values, read, sqlite, ("body", "about"))


def _placed(row: Row) -> Placed:
    major, part, *record, runtime, native_id, labels = row
    envelope = decode_envelope(EventRecord._make(record))
    session = SessionName(envelope.session_id, runtime, native_id, orjson.loads(labels))
    return Placed((major, part, envelope.sequence if part else 0), session, envelope)
