"""Queries for sends. Pure."""

import re
from datetime import datetime

from gateway.events import Envelope, SessionId
from gateway.store.encoding import decode_envelope, read_cursor
from gateway.store.questions.listed import PENDING_SENDS, YOUNG_SENDS
from gateway.store.questions.question import Listing, Question, Row, Where, columns, each, page_of
from gateway.store.records import SEND_COLUMNS, EventRecord, micros, moment_or_none, send_from
from gateway.store.rows import DeadFilter, Page, Rows, Send
from gateway.store.states import DEAD_SEND, PENDING
from gateway.store.step import RUNTIME

_SENDS = f"""
SELECT {columns(SEND_COLUMNS, "o")}, {columns(EventRecord._fields, "e")}
FROM @outbound o JOIN @events e ON e.session_id = o.session_id AND e.seq = o.seq
"""
_SENDS_OF = f"""
SELECT {columns(SEND_COLUMNS, "o")} FROM @outbound o WHERE o.session_id = @key($1) AND o.seq = $2 ORDER BY o.target
"""
_BODY = ("body", "about")
_COUNT_DEAD = f"""
SELECT (SELECT count(*) FROM (SELECT 1 FROM @calls WHERE dead = 1 LIMIT $1) AS c)
    + (SELECT count(*) FROM (SELECT 1 FROM @outbound WHERE {DEAD_SEND} LIMIT $1) AS s)
"""
_FOLLOWS_A_DELAYED_SEND = f"""
EXISTS (
    SELECT 1 FROM @outbound e
    WHERE e.target = o.target AND e.{PENDING} AND e.session_id = o.session_id AND e.seq < o.seq AND e.due_at > {{0}}
)
"""
# Steps through the index from session to session and reads only the first row of each, because a busy session may have
# thousands of rows. The target is the first value.
_WAITING = f"""
WITH RECURSIVE waiting (session_id) AS (
    SELECT min(w.session_id) FROM @outbound w WHERE w.{PENDING} AND w.target = $1
    UNION ALL
    SELECT (
        SELECT min(w.session_id) FROM @outbound w
        WHERE w.{PENDING} AND w.target = $1 AND w.session_id > waiting.session_id
    ) FROM waiting WHERE waiting.session_id IS NOT NULL
)
SELECT {{column}} FROM waiting WHERE session_id IS NOT NULL
"""
_OF_FIRST = f"""(
    SELECT {{column}} FROM @outbound f
    WHERE f.{PENDING} AND f.target = $1 AND f.session_id = waiting.session_id ORDER BY f.seq LIMIT 1
)"""
_SESSIONS = _WAITING.format(column="session_id")
_FIRST_IS_DUE = f"coalesce({_OF_FIRST.format(column='f.due_at')}, 0)"
_NEXT_DUE = _WAITING.format(column=f"min({_OF_FIRST.format(column='coalesce(f.due_at, f.created_at)')})")
_ROWS = re.compile("@outbound [oewf]")
_IS_PENDING = re.compile(rf"([oewf])\.{PENDING}")
_RUNTIMES_NEXT_DUE = f"""
SELECT min(due) FROM (
    SELECT coalesce(due_at, created_at) AS due, min(seq) FROM {PENDING_SENDS} WHERE target = $1 GROUP BY session_id
)
"""
UNDELIVERED = f"""
SELECT target, count(*) FROM @outbound WHERE session_id = @key($1) AND seq < $2 AND {PENDING} GROUP BY target
"""
REVIVE = f"""
UPDATE @outbound SET state = 'pending', attempt = 0, due_at = $4, reason = NULL
WHERE session_id = @key($1) AND seq = $2 AND target = $3 AND {DEAD_SEND} RETURNING 1
"""
DISMISS = f"""
UPDATE @outbound SET state = 'moot', due_at = NULL, reason = $4
WHERE session_id = @key($1) AND seq = $2 AND target = $3 AND {DEAD_SEND} RETURNING 1
"""
MOOT = f"""
UPDATE @outbound SET state = 'moot', due_at = NULL, reason = $3
WHERE session_id = @key($1) AND target = $2 AND {PENDING}
"""


def pending_sends(
    session_id: SessionId | None, target: str, after: int, due_before: datetime | None, limit: int
) -> Question[Rows[Send]]:
    where, sessions, limit = Where(), _SESSIONS, max(limit, 0)
    where.add(f"o.{PENDING} AND o.target = {{0}}", target)
    if session_id is not None:
        where.add("o.session_id = @key({0}) AND o.seq > {1}", session_id, after)
    if due_before is not None:
        due = micros(due_before)
        where.add("(o.due_at IS NULL OR o.due_at <= {0})", due)
        sessions += f" AND {_FIRST_IS_DUE} <= ${len(where.values)}"
        where.add(f"NOT {_FOLLOWS_A_DELAYED_SEND}", due)
    # The session of the event, so that events of other sessions are not looked up.
    young = f"{YOUNG_SENDS} AND {where.conditions.replace('o.session_id = ', 'e.session_id = ')}"
    if session_id is None:
        where.add(f"o.session_id IN ({sessions})")
    values = [*where.values, limit]
    page = f"LIMIT ${len(values)}"
    text = f"{_SENDS} {where.text()} ORDER BY o.session_id, o.seq {page}"
    sqlite = _use_pending_index(text)
    if target == RUNTIME:
        listed = _use_pending_index(f"SELECT o.* FROM @outbound o {where.text()}")
        young = _use_pending_index(young).replace("o.listed = 1 AND ", "")
        # Sorted before the events are read, because their bodies may be large.
        rows = f"({listed} UNION ALL {young} ORDER BY session_id, seq {page}) AS o"
        sqlite = _SENDS.replace("@outbound o", f"{rows} CROSS")

    def read(rows: Rows[Row]) -> Rows[Send]:
        return Rows(map(_send, rows), more=rows.more or len(rows) == limit)

    return Question(text, values, read, sqlite=sqlite, sized=_BODY)


def next_send_due(target: str) -> Question[datetime | None]:
    sqlite = _RUNTIMES_NEXT_DUE if target == RUNTIME else _use_pending_index(_NEXT_DUE)
    return Question(_NEXT_DUE, (target,), lambda rows: moment_or_none(rows[0][0]), sqlite=sqlite)


def _use_pending_index(text: str) -> str:
    # Without the hint SQLite reads all sends of a session once for each pending row.
    text = _IS_PENDING.sub(r"\1.listed = 1 AND \g<0>", text)
    return _ROWS.sub(r"\g<0> INDEXED BY outbound_pending", text)


def sends_of(event: Envelope) -> Question[list[Send]]:
    """Query the sends of an event, which share it."""
    return each(_SENDS_OF, (event.session_id, event.sequence), lambda row: send_from(row, event))


def count_dead(most: int) -> Question[int]:
    return Question(_COUNT_DEAD, (most,), lambda rows: rows[0][0])


def dead_sends(page: Page, which: DeadFilter) -> Question[tuple[list[Send], str | None]]:
    where = Where()
    where.add(DEAD_SEND)
    if page.after:
        place = read_cursor(page.after, "sends", int, str, int, str)
        where.add("(o.created_at, o.session_id, o.seq, o.target) < ({0}, @key({1}), {2}, {3})", *place)
    if which.runtime is not None:
        of_runtime = "SELECT 1 FROM @sessions s WHERE s.@key = o.session_id AND s.runtime = {0}"
        where.add(f"EXISTS ({of_runtime})", which.runtime)
    if which.target is not None:
        where.add("o.target = {0}", which.target)
    if which.since is not None:
        where.add("o.created_at >= {0}", micros(which.since))
    where.has_cause("o.reason", which.cause)
    order = "o.created_at DESC, o.session_id DESC, o.seq DESC, o.target DESC"
    return page_of(Listing("sends", _SENDS, _send, _send_place, _BODY), page, where, order=order)


def _send(row: Row) -> Send:
    return send_from(row, decode_envelope(EventRecord._make(row[len(SEND_COLUMNS) :])))


def _send_place(row: Row) -> Row:
    session_id, sequence, target, *_, created_at = row[: len(SEND_COLUMNS)]
    return created_at, session_id, sequence, target
