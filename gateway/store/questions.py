"""The questions that databases answer, each one statement; what is said otherwise in one of them is said there.

They are written as PostgreSQL understands them, tables as `@calls` and values as `$1`; SQLite is asked the same once
both are written its way.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import orjson

from gateway.errors import NotFound, Truncated
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.store.apply import CLOSED
from gateway.store.call import Call
from gateway.store.encoding import decode_envelope, read_cursor, write_cursor
from gateway.store.records import (
    CALL_COLUMNS,
    LISTED,
    SEND_COLUMNS,
    EventRecord,
    InteractionRecord,
    call_from,
    interaction_row,
    micros,
    moment,
    send_from,
    whole_micros,
)
from gateway.store.retention import Chosen, Item, Shelf, consider
from gateway.store.rows import (
    ANY_DEAD,
    CallFilter,
    DeadFilter,
    InteractionRow,
    Page,
    RetentionPolicy,
    Send,
    SessionRow,
    StoredAnswer,
)
from gateway.store.step import InteractionState

T = TypeVar("T")
Row = Sequence[Any]


def columns(names: Sequence[str], table: str = "") -> str:
    """List columns, of a table where one is named."""
    return ", ".join(f"{table}{name}" for name in names)


_CALL = columns(CALL_COLUMNS)
_INTERACTION = columns(InteractionRecord._fields)
_SENDS = f"""
SELECT {columns(SEND_COLUMNS, "o.")}, {columns(EventRecord._fields, "e.")}
FROM @outbound o JOIN @events e ON e.session_id = o.session_id AND e.seq = o.seq
"""
SESSION = """
SELECT s.session_id, s.runtime, s.protocol, s.native_id, s.state, s.labels, s.last_seq, s.min_seq, s.opened_at,
    s.updated_at, s.fence, s.owner, s.cursor, p.snapshot, s.id
FROM @sessions s LEFT JOIN @snapshots p ON p.session_id = s.session_id
"""
"""A session with its snapshot, as `session_row` reads it."""

_EVENTS = f"""
SELECT s.min_seq, {columns(EventRecord._fields, "e.")}
FROM @sessions s LEFT JOIN (
    SELECT * FROM @events WHERE session_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
) e ON true
WHERE s.session_id = $1 ORDER BY e.seq
"""
# SQLite would copy all of the inner table first, and PostgreSQL would sort all of the outer one.
_EVENTS_OF_SQLITE = f"""
SELECT s.min_seq, {columns(EventRecord._fields, "e.")}
FROM @sessions s LEFT JOIN @events e ON e.session_id = s.session_id AND e.seq > $2 AND $3 > 0
WHERE s.session_id = $1 ORDER BY e.seq LIMIT max($3, 1)
"""

_FIRST_OF_ITS_SESSION = """
NOT EXISTS (
    SELECT 1 FROM @outbound e
    WHERE e.target = o.target AND e.state = 'pending' AND e.session_id = o.session_id AND e.seq < o.seq{and_held}
)
"""
_NEXT_SEND_DUE = "SELECT min(coalesce(o.due_at, o.created_at)) FROM @outbound o"

_APART = "o.session_id NOT IN (SELECT value FROM json_each({0}))"

# Only sessions that can lose something, and no more of them than the budget can touch.
_SHELVES = """
WITH needed AS (
    SELECT session_id, request_seq AS seq FROM @calls WHERE state IN ('queued', 'dispatched', 'accepted')
    UNION ALL SELECT session_id, seq FROM @outbound
    WHERE state = 'pending' AND (target = 'runtime' OR created_at >= CAST($6 AS bigint))
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
    CAST($1 AS bigint) = 1
    OR e.recorded_at < CASE s.state WHEN 'closed' THEN CAST($2 AS bigint) ELSE CAST($3 AS bigint) END
    OR (s.state <> 'closed' AND s.min_seq <= s.last_seq - CAST($4 AS bigint))
)
ORDER BY e.recorded_at, s.session_id LIMIT $5
"""
_ITEMS = """
SELECT seq, recorded_at, coalesce(length(body), 0) + coalesce(length(about), 0)
FROM @events WHERE session_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3
"""

FLOOR = """
SELECT min(seq) FROM (
    SELECT request_seq AS seq FROM @calls WHERE session_id = $1 AND state IN ('queued', 'dispatched', 'accepted')
    UNION ALL SELECT seq FROM @outbound
    WHERE session_id = $1 AND state = 'pending' AND (target = 'runtime' OR created_at >= CAST($2 AS bigint))
    UNION ALL SELECT request_seq FROM @interactions WHERE session_id = $1 AND state = 'waiting'
    UNION ALL SELECT request_seq FROM @interactions
    WHERE session_id = $1 AND state NOT IN ('waiting', 'answered', 'expired', 'moot')
    UNION ALL SELECT request_seq FROM @calls WHERE session_id = $1
        AND state NOT IN ('queued', 'dispatched', 'accepted', 'succeeded', 'failed', 'canceled', 'expired')
    UNION ALL SELECT seq FROM @outbound WHERE session_id = $1
        AND state NOT IN ('pending', 'delivered', 'moot') AND state NOT IN ('refused', 'unknown', 'dead')
    UNION ALL SELECT keep_from FROM @snapshots WHERE session_id = $1 AND keep_from IS NOT NULL
) AS needed
"""
"""The first event of a session that must stay."""
UNDELIVERED = """
SELECT target, count(*) FROM @outbound WHERE session_id = $1 AND seq < $2 AND state = 'pending' GROUP BY target
"""
REVIVE = """
UPDATE @outbound SET state = 'pending', attempt = 0, due_at = $4, reason = NULL
WHERE session_id = $1 AND seq = $2 AND target = $3 AND state IN ('refused', 'unknown', 'dead') RETURNING 1
"""
DISMISS = f"""
UPDATE @outbound SET state = 'moot', due_at = NULL, reason = $4
WHERE session_id = $1 AND seq = $2 AND target = $3 AND ({LISTED}) RETURNING 1
"""
SET_NOTE = """
INSERT INTO @notes (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
DROP_CALLS = """
DELETE FROM @calls WHERE id IN (
    SELECT c.id FROM @calls c
    WHERE c.id < coalesce((SELECT id FROM @calls WHERE created_at >= $1 ORDER BY id LIMIT 1), 9223372036854775807)
        AND c.finished_at < $1
        AND NOT EXISTS (
            SELECT 1 FROM @outbound o
            WHERE o.session_id = c.session_id AND o.seq = c.outcome_seq AND o.state = 'pending'
        )
    ORDER BY c.id LIMIT $2
)
RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One statement, its values, and what the rows that come back mean."""

    text: str
    values: Sequence[object]
    read: Callable[[Sequence[Row]], T]
    sqlite: str = ""
    """What SQLite is asked instead, where the text would send it a long way round."""


class _Where:
    """Collects the conditions of a list, and their values in order."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._texts: list[str] = []

    def add(self, text: str, *values: object) -> None:
        """Add a condition whose values stand as `{0}`, `{1}`, … in it."""
        places = [f"${len(self.values) + n}" for n in range(1, len(values) + 1)]
        self._texts.append(text.format(*places))
        self.values += values

    def equal(self, **wanted: object) -> None:
        """Add that these columns hold these values, those that are not None."""
        for column, value in wanted.items():
            if value is not None:
                self.add(column + " = {0}", value)

    def text(self) -> str:
        return f"WHERE {' AND '.join(self._texts)}" if self._texts else ""


def events(session_id: SessionId, after: int, limit: int) -> Question[list[Envelope]]:
    """Read events behind a sequence, out of one state of the store."""

    def read(rows: Sequence[Row]) -> list[Envelope]:
        if not rows:
            raise NotFound(f"no session {session_id!r}")
        if after + 1 < rows[0][0]:
            raise Truncated(rows[0][0])
        return [decode_envelope(EventRecord._make(row[1:])) for row in rows if row[2] is not None]

    return Question(_EVENTS, (session_id, after, max(limit, 0)), read, sqlite=_EVENTS_OF_SQLITE)


def _one(text: str, values: Sequence[object], show: Callable[[Row], T]) -> Question[T | None]:
    return Question(text, values, lambda rows: show(rows[0]) if rows else None)


def _all(text: str, values: Sequence[object], show: Callable[[Row], T]) -> Question[list[T]]:
    return Question(text, values, lambda rows: [show(row) for row in rows])


def _page(
    page: Page, text: str, where: _Where, order: str, show: Callable[[Row], T], place: Callable[[Row], Row]
) -> Question[tuple[list[T], str | None]]:
    limit = max(page.limit, 1)

    def read(rows: Sequence[Row]) -> tuple[list[T], str | None]:
        cursor = write_cursor(*place(rows[limit - 1])) if len(rows) > limit else None
        return [show(row) for row in rows[:limit]], cursor

    values = [*where.values, limit + 1]
    return Question(f"{text} {where.text()} ORDER BY {order} LIMIT ${len(values)}", values, read)


def _last(row: Row) -> Row:
    return row[-1:]


def session_row(row: Row) -> SessionRow:
    """Read a row of `SESSION`."""
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
    return _one(SESSION + "WHERE s.session_id = $1", (session_id,), session_row)


def sessions(page: Page, *, runtime: str | None, open_only: bool) -> Question[tuple[list[SessionRow], str | None]]:
    where = _Where()
    where.add("s.id > {0}", read_cursor(page.after, int)[0] if page.after else 0)
    if runtime is not None:
        where.add("s.runtime = {0}", runtime)
    if open_only:
        where.add("s.state <> {0}", CLOSED)
    return _page(page, SESSION, where, "s.id", session_row, _last)


def call(call_id: CallId) -> Question[Call | None]:
    return _one(f"SELECT {_CALL} FROM @calls WHERE call_id = $1", (call_id,), call_from)


def latest_call(session_id: SessionId, native_call_id: str) -> Question[Call | None]:
    text = f"""
    SELECT {_CALL} FROM @calls
    WHERE session_id = $1 AND native_call_id = $2 AND redrive_of IS NULL ORDER BY n DESC LIMIT 1
    """
    return _one(text, (session_id, native_call_id), call_from)


def open_calls(session_id: SessionId) -> Question[list[Call]]:
    text = f"""
    SELECT {_CALL} FROM @calls
    WHERE session_id = $1 AND state IN ('queued', 'dispatched', 'accepted') ORDER BY id
    """
    return _all(text, (session_id,), call_from)


def calls(which: CallFilter, page: Page) -> Question[tuple[list[Call], str | None]]:
    where = _Where()
    if page.after:
        where.add("id < {0}", read_cursor(page.after, int)[0])
    where.equal(session_id=which.session_id, runtime=which.runtime, tool=which.tool, executor=which.executor)
    if which.since is not None:
        where.add("created_at >= {0}", micros(which.since))
    # Written out, so that the small indexes of dead and of unknown calls fit.
    if which.dead is not None:
        where.add("dead = 1" if which.dead else "dead = 0")
    if which.unknown is not None:
        where.add("unknown = 1" if which.unknown else "unknown = 0")
    if which.states:
        marks = ", ".join(f"{{{n}}}" for n in range(len(which.states)))
        where.add(f"state IN ({marks})", *sorted(which.states))
    return _page(page, f"SELECT {_CALL}, id FROM @calls", where, "id DESC", call_from, _last)


def pending_sends(
    session_id: SessionId | None, target: str, due_before: datetime | None, limit: int, *, apart: str | None = None
) -> Question[list[Send]]:
    """Ask for pending rows; of sessions that are not in a JSON list, where SQLite is given one."""
    where = _Where()
    where.add("o.state = 'pending' AND o.target = {0}", target)
    if apart is not None:
        where.add(_APART, apart)
    if session_id is not None:
        where.add("o.session_id = {0}", session_id)
    if due_before is not None:
        due = micros(due_before)
        where.add("(o.due_at IS NULL OR o.due_at <= {0})", due)
        where.add(_FIRST_OF_ITS_SESSION.format(and_held=" AND e.due_at > {0}"), due)
    values = [*where.values, max(limit, 0)]
    text = f"{_SENDS} {where.text()} ORDER BY o.session_id, o.seq LIMIT ${len(values)}"
    return _all(text, values, _send)


def next_send_due(target: str, *, apart: str | None = None) -> Question[datetime | None]:
    """Ask when the next pending row is due; of sessions that are not in a JSON list, where SQLite is given one."""
    where = _Where()
    where.add("o.target = {0} AND o.state = 'pending'", target)
    if apart is not None:
        where.add(_APART, apart)
    where.add(_FIRST_OF_ITS_SESSION.format(and_held=""))
    text = f"{_NEXT_SEND_DUE} {where.text()}"
    return Question(text, where.values, lambda rows: None if rows[0][0] is None else moment(rows[0][0]))


def pending_of(sessions: str, target: str, limit: int) -> Question[list[Send]]:
    """Ask SQLite for the pending rows of the sessions in a JSON list."""
    text = f"""
    {_SENDS} WHERE o.state = 'pending' AND o.target = $1 AND o.session_id IN (SELECT value FROM json_each($2))
    ORDER BY o.session_id, o.seq LIMIT $3
    """
    return _all(text, (target, sessions, limit), _send)


def sends_of(session_id: SessionId, sequence: int) -> Question[list[Send]]:
    text = _SENDS + "WHERE o.session_id = $1 AND o.seq = $2 ORDER BY o.target"
    return _all(text, (session_id, sequence), _send)


def dead_sends(page: Page, which: DeadFilter) -> Question[tuple[list[Send], str | None]]:
    where = _Where()
    where.add(f"({LISTED})")
    if page.after:
        place = read_cursor(page.after, int, str, int, str)
        where.add("(o.created_at, o.session_id, o.seq, o.target) < ({0}, {1}, {2}, {3})", *place)
    if which.runtime is not None:
        of_runtime = "SELECT 1 FROM @sessions s WHERE s.session_id = o.session_id AND s.runtime = {0}"
        where.add(f"EXISTS ({of_runtime})", which.runtime)
    if which.target is not None:
        where.add("o.target = {0}", which.target)
    if which.since is not None:
        where.add("o.created_at >= {0}", micros(which.since))
    order = "o.created_at DESC, o.session_id DESC, o.seq DESC, o.target DESC"
    return _page(page, _SENDS, where, order, _send, _send_place)


def _send(row: Row) -> Send:
    return send_from(row, decode_envelope(EventRecord._make(row[len(SEND_COLUMNS) :])))


def _send_place(row: Row) -> Row:
    session_id, sequence, target, *_, created_at = row[: len(SEND_COLUMNS)]
    return created_at, session_id, sequence, target


def interactions(
    page: Page, *, session_id: SessionId | None, state: InteractionState | None
) -> Question[tuple[list[InteractionRow], str | None]]:
    where = _Where()
    where.add("id > {0}", read_cursor(page.after, int)[0] if page.after else 0)
    where.equal(session_id=session_id, state=state)
    return _page(page, f"SELECT {_INTERACTION}, id FROM @interactions", where, "id", _interaction, _last)


def interaction(interaction_id: InteractionId) -> Question[InteractionRow | None]:
    text = f"SELECT {_INTERACTION} FROM @interactions WHERE interaction_id = $1"
    return _one(text, (interaction_id,), _interaction)


def _interaction(row: Row) -> InteractionRow:
    return interaction_row(InteractionRecord._make(row[: len(InteractionRecord._fields)]))


def answer(key: str, scope: str, now: int) -> Question[StoredAnswer | None]:
    text = """
    SELECT request_sha, response, expires_at FROM @idempotency WHERE scope = $1 AND key = $2 AND expires_at > $3
    """
    return _one(text, (scope, key, now), lambda row: StoredAnswer(row[0], row[1], moment(row[2])))


def note(name: str) -> Question[str | None]:
    return _one("SELECT value FROM @notes WHERE name = $1", (name,), lambda row: row[0])


def total_size() -> Question[int]:
    """Ask how many bytes of events there are."""
    text = "SELECT CAST(coalesce(sum(size), 0) AS bigint) FROM @sessions"
    return Question(text, (), lambda rows: rows[0][0])


def shelves(policy: RetentionPolicy, *, now: int, total: int, budget: int) -> Question[list[Shelf]]:
    """Look for sessions that may lose events; who removes them looks again."""
    values = (
        int(total > policy.max_bytes),
        now - whole_micros(policy.closed_age),
        now - whole_micros(policy.open_age),
        policy.open_events,
        max(budget, 0) + 1,
        now - whole_micros(policy.copy_age),
    )
    return _all(_SHELVES, values, lambda row: Shelf(row[0], bool(row[1]), *row[2:]))


def items(session_id: SessionId, seq: int, n: int) -> Question[list[Item]]:
    """Look at some events of a session, as a sweep sees them."""
    return _all(_ITEMS, (session_id, seq, n), Item._make)


class AnswersQuestions(ABC):
    """What an engine over a database can say once it can answer a `Question`."""

    @abstractmethod
    async def _answer(self, question: Question[T]) -> T:
        """Ask the database."""

    @abstractmethod
    def _now(self) -> int:
        """Say what time it is, in microseconds."""

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        return await self._answer(events(session_id, after, limit))

    async def session(self, session_id: SessionId) -> SessionRow | None:
        return await self._answer(session(session_id))

    async def sessions(
        self, page: Page, *, runtime: str | None = None, open_only: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        return await self._answer(sessions(page, runtime=runtime, open_only=open_only))

    async def call(self, call_id: CallId) -> Call | None:
        return await self._answer(call(call_id))

    async def latest_call(self, session_id: SessionId, native_call_id: str) -> Call | None:
        return await self._answer(latest_call(session_id, native_call_id))

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        return await self._answer(calls(which, page))

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]:
        return await self._answer(open_calls(session_id))

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Sequence[Send]:
        return await self._answer(pending_sends(session_id, target, due_before, limit))

    async def next_send_due(self, target: str) -> datetime | None:
        return await self._answer(next_send_due(target))

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]:
        return await self._answer(sends_of(session_id, sequence))

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
        return await self._answer(dead_sends(page, which))

    async def interactions(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[InteractionRow], str | None]:
        return await self._answer(interactions(page, session_id=session_id, state=state))

    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None:
        return await self._answer(interaction(interaction_id))

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        return await self._answer(answer(key, scope, self._now()))

    async def note(self, name: str) -> str | None:
        return await self._answer(note(name))

    async def _choose(self, policy: RetentionPolicy, now: int, budget: int) -> Chosen:
        """Look for events that may go; who removes them looks again."""
        total = await self._answer(total_size())
        found = await self._answer(shelves(policy, now=now, total=total, budget=budget))
        choosing = consider(found, policy, now=now, total=total, budget=budget)
        wanted: list[Item] | None = None
        while True:
            try:
                place = next(choosing) if wanted is None else choosing.send(wanted)
            except StopIteration as end:
                return end.value
            wanted = await self._answer(items(*place))
