"""Queries for events that retention may remove. Pure."""

from dataclasses import replace

from gateway.events import SessionId
from gateway.store.apply import CLOSED
from gateway.store.questions.listed import OPEN_CALLS, PENDING_SENDS
from gateway.store.questions.question import Question, each
from gateway.store.records import whole_micros
from gateway.store.retention import Item, SessionHistory
from gateway.store.rows import RetentionPolicy
from gateway.store.states import OPEN_CALL, PENDING, WAITING
from gateway.store.step import RUNTIME


def _needed(copies_from: str, *, of: str = "", until: str = "", calls: str, sends: str = "@outbound") -> str:
    """Write the query for events that must stay, in all sessions or before the sequence `until` of one.

    Undelivered copies made before `copies_from` do not keep their events.
    """
    pending = f"{PENDING} AND (target = '{RUNTIME}' OR created_at >= CAST({copies_from} AS bigint))"
    # One SELECT per condition, because each has its own small index.
    rows = (
        ("request_seq", calls, OPEN_CALL),
        ("seq", sends, pending),
        ("request_seq", "@interactions", WAITING),
    )
    return " UNION ALL ".join(
        f"SELECT session_id, {seq} AS seq FROM {table} WHERE "
        + (f"session_id = @key({of}) AND {seq} < {until} AND ({holds})" if of else holds)
        for seq, table, holds in rows
    )


# Only sessions with removable events, and at most as many as the budget covers. The CROSS JOIN fixes the join order,
# because SQLite otherwise scans all events.
_REMOVABLE = f"""
WITH needed AS (
    {{needed}}
), floors AS (
    SELECT session_id, min(seq) AS floor FROM needed GROUP BY session_id
)
SELECT s.session_id, s.state = '{CLOSED}', s.min_seq, s.last_seq, coalesce(f.floor, s.last_seq + 1), e.recorded_at
FROM @sessions s CROSS JOIN @events e
LEFT JOIN floors f ON f.session_id = s.@key
WHERE e.session_id = s.@key AND e.seq = s.min_seq AND coalesce(f.floor, s.last_seq + 1) > s.min_seq AND (
    CAST($1 AS bigint) = 1
    OR e.recorded_at < CASE s.state WHEN '{CLOSED}' THEN CAST($2 AS bigint) ELSE CAST($3 AS bigint) END
    OR (s.state <> '{CLOSED}' AND s.min_seq <= s.last_seq - CAST($4 AS bigint))
)
ORDER BY e.recorded_at, s.session_id LIMIT $5
"""
_REMOVABLE_OF_SQLITE = _REMOVABLE.format(needed=_needed("$6", calls=OPEN_CALLS, sends=PENDING_SENDS))
_REMOVABLE_OF_POSTGRES = _REMOVABLE.format(needed=_needed("$6", calls="@calls"))
_ITEMS = """
SELECT seq, recorded_at, coalesce(length(body), 0) + coalesce(length(about), 0)
FROM @events WHERE session_id = @key($1) AND seq >= $2 ORDER BY seq LIMIT $3
"""


def _floor(calls: str) -> str:
    return f"SELECT min(seq) FROM ({_needed('$2', of='$1', until='$3', calls=calls)}) AS needed"


FLOOR, FLOOR_OF_SQLITE = _floor("@calls"), _floor(OPEN_CALLS)
"""The first event before a sequence of a session that must stay."""


def total_size() -> Question[int]:
    """Query the size of all events in bytes."""
    text = "SELECT CAST(coalesce(sum(size), 0) AS bigint) FROM @sessions"
    return Question(text, (), lambda rows: rows[0][0])


def removable_sessions(policy: RetentionPolicy, *, now: int, total: int, budget: int) -> Question[list[SessionHistory]]:
    """Query the sessions with removable events; the removal checks them again."""
    values = (
        int(total > policy.max_bytes),
        now - whole_micros(policy.closed_age),
        now - whole_micros(policy.open_age),
        policy.open_events,
        max(budget, 0) + 1,
        now - whole_micros(policy.copy_age),
    )
    question = each(_REMOVABLE_OF_POSTGRES, values, lambda row: SessionHistory(row[0], bool(row[1]), *row[2:]))
    return replace(question, sqlite=_REMOVABLE_OF_SQLITE)


def items(session_id: SessionId, seq: int, n: int) -> Question[list[Item]]:
    """Query the next `n` events of a session from `seq` on."""
    return each(_ITEMS, (session_id, seq, n), Item._make)
