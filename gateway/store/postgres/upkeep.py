"""All writes to PostgreSQL except steps and leases: sessions, stored answers, notes, erasure and retention."""

from collections import Counter
from collections.abc import Mapping

from gateway.errors import Conflict, NotFound
from gateway.events import SessionId
from gateway.store.apply import CLOSED, Writes, begin, decide
from gateway.store.encoding import NOTHING_LEFT, strip_about
from gateway.store.port import NewSession
from gateway.store.postgres.known import KnownRows
from gateway.store.postgres.once import Transaction, Work
from gateway.store.postgres.schema import check
from gateway.store.postgres.store import KEEP_ANSWERS, write
from gateway.store.questions.calls import DROP_CALLS
from gateway.store.questions.interactions import SET_NOTE
from gateway.store.questions.retention import FLOOR
from gateway.store.questions.sends import DISMISS, MOOT, REVIVE, UNDELIVERED
from gateway.store.questions.sessions import abouts
from gateway.store.records import EventRecord, Head, micros
from gateway.store.retention import BATCH, RemovedRows, add_up
from gateway.store.rows import StoredAnswer
from gateway.store.step import RUNTIME

_HEAD = ", ".join(Head._fields)
_FIND = f"SELECT {_HEAD} FROM @sessions WHERE runtime = $1 AND native_id = $2 FOR UPDATE"
_ADD_SESSION = f"""
INSERT INTO @sessions (session_id, runtime, protocol, native_id, state, labels, last_seq, min_seq, fence, size,
    opened_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, 0, 1, 0, 0, $7, $7)
ON CONFLICT DO NOTHING RETURNING {_HEAD}
"""
_LOCK = f"SELECT {_HEAD} FROM @sessions WHERE session_id = $1 FOR UPDATE"
_PROBE = """
INSERT INTO @probe (id, tried_at) VALUES (1, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET tried_at = excluded.tried_at
"""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'
"""
_ERASE = """
UPDATE @events e SET body = NULL, about = n.about
FROM unnest($2::bigint[], $3::bytea[]) n (seq, about) WHERE e.session_id = $1 AND e.seq = n.seq
"""
_MEASURE = """
UPDATE @sessions SET size = (SELECT coalesce(sum(length(about)), 0) FROM @events WHERE session_id = $1)
WHERE session_id = $1
"""
_CUT = """
WITH removed AS (
    DELETE FROM @events WHERE session_id = $1 AND seq < $2
    RETURNING coalesce(length(body), 0) + coalesce(length(about), 0) AS size
), sends AS (
    DELETE FROM @outbound WHERE session_id = $1 AND seq < $2
), questions AS (
    DELETE FROM @interactions WHERE session_id = $1 AND request_seq < $2
), moved AS (
    UPDATE @sessions SET min_seq = greatest(min_seq, $2), size = size - (SELECT coalesce(sum(size), 0) FROM removed)
    WHERE session_id = $1
)
SELECT count(*) FROM removed
"""
_KEPT = "clock_timestamp() - interval '3 days'"
# A stream can resume for three days. The last forgotten transaction stays without sessions, so that a reader behind it
# sees that events are missing.
_FORGET_WRITTEN = f"""
WITH kept AS (
    SELECT coalesce((SELECT xid FROM @written WHERE at >= {_KEPT} ORDER BY xid LIMIT 1), 9223372036854775807) AS xid
), forgotten AS (
    DELETE FROM @written w USING kept
    WHERE w.xid < kept.xid AND EXISTS (SELECT 1 FROM @written o WHERE o.xid < kept.xid AND o.sessions <> '{{}}')
    RETURNING w.xid
)
INSERT INTO @written (xid, at, sessions, firsts, lasts)
SELECT max(xid), '-infinity', '{{}}', '{{}}', '{{}}' FROM forgotten HAVING count(*) > 0
"""
# The fate of a transaction is queried within a day, and an instance does not return after a week. Its sessions and
# names become free when its lease expires, with or without this row.
_FORGET = (
    """
    DELETE FROM @holds h WHERE NOT EXISTS (
        SELECT 1 FROM @instances i WHERE i.instance = h.instance AND i.expires_at > clock_timestamp()
    )
    """,
    "DELETE FROM @commits WHERE at < clock_timestamp() - interval '1 day'",
    """
    DELETE FROM @instances i WHERE i.expires_at < clock_timestamp() - interval '7 days'
        AND NOT EXISTS (SELECT 1 FROM @sessions s WHERE s.owner = i.instance AND s.state <> 'closed')
    """,
    _FORGET_WRITTEN,
)


def open_session(new: NewSession, labels: str, record: EventRecord, *, now: int) -> Work[tuple[SessionId, bool]]:
    """Create a session or reopen a closed one; return its id and whether it is new.

    `labels` contains the session's labels as JSON, `record` its first event.
    """

    async def work(turn: Transaction) -> tuple[SessionId, bool]:
        ask = turn.link.ask
        for name, value in new.notes.items():
            await ask(SET_NOTE, name, value)
        found = await ask(_FIND, new.runtime, new.native_id)
        if not found:
            # Waits for a concurrent insert of the same session, and writes nothing if that insert commits.
            added = await ask(
                _ADD_SESSION, new.session_id, new.runtime, new.protocol, new.native_id, new.state, labels, now
            )
            if added:
                await _begin(turn, Head._make(added[0]), new, record, now)
                return new.session_id, True
            found = await ask(_FIND, new.runtime, new.native_id)
        if not found:
            raise Conflict(f"session {new.session_id!r} exists with another native id or runtime")
        head = Head._make(found[0])
        if head.state == CLOSED:
            await _begin(turn, head, new, record, now)
            await ask(
                "UPDATE @sessions SET labels = $2, protocol = $3 WHERE session_id = $1",
                head.session_id,
                labels,
                new.protocol,
            )
        else:
            turn.idle = not new.notes
        return head.session_id, False

    return work


async def _begin(turn: Transaction, head: Head, new: NewSession, record: EventRecord, now: int) -> None:
    step, known, writes = begin(new.first, head.session_id, new.state), KnownRows(), Writes(now)
    await known.fetch(turn.link, [step])
    decide(step, [record], known=known, writes=writes)
    await write(turn.link, writes, known=known, token=turn.token, spent=turn.spent)
    turn.marked = True


def remember(key: str, scope: str, answer: StoredAnswer, now: int) -> Work[bool]:
    """Store an answer unless its key has an unexpired one."""

    async def work(turn: Transaction) -> bool:
        values = (scope, key, answer.request_sha, answer.response, micros(answer.expires_at))
        return bool(await turn.link.ask(KEEP_ANSWERS, *([value] for value in values), now))

    return work


def revive(session_id: SessionId, sequence: int, target: str, due_at: int) -> Work[bool]:
    """Make a dead outbound row pending again."""

    async def work(turn: Transaction) -> bool:
        return bool(await turn.link.ask(REVIVE, session_id, sequence, target, due_at))

    return work


def dismiss(session_id: SessionId, sequence: int, target: str, reason: str) -> Work[bool]:
    """Make a dead outbound row moot."""

    async def work(turn: Transaction) -> bool:
        return bool(await turn.link.ask(DISMISS, session_id, sequence, target, reason))

    return work


def set_note(name: str, value: str | None) -> Work[None]:
    """Set a note, or remove it if `value` is None."""

    async def work(turn: Transaction) -> None:
        if value is None:
            await turn.link.ask("DELETE FROM @notes WHERE name = $1", name)
        else:
            await turn.link.ask(SET_NOTE, name, value)

    return work


def probe(schema: str) -> Work[tuple[int, dict[str, str]]]:
    """Write a row; return the size of all tables in bytes and the server's settings."""

    async def work(turn: Transaction) -> tuple[int, dict[str, str]]:
        found = await check(turn.link)
        await turn.link.ask(_PROBE)
        return (await turn.link.ask(_SIZE, schema))[0][0], found

    return work


def erase(session_id: SessionId, after: int) -> Work[int | None]:
    """Erase the next events of a closed session; return the last erased sequence, or None at the end."""

    async def work(turn: Transaction) -> int | None:
        ask = turn.link.ask
        found = await ask(_LOCK, session_id)
        if not found:
            raise NotFound(f"no session {session_id!r}")
        if Head._make(found[0]).state != CLOSED:
            raise Conflict(f"session {session_id!r} is open; close it before erasing")
        question = abouts(session_id, after, BATCH)
        rows = question.read_postgres([tuple(row) for row in await ask(question.for_postgres, *question.values)])
        await ask(_ERASE, session_id, [row[0] for row in rows], [strip_about(row[1]) for row in rows])
        if rows.more:
            return rows[-1][0]
        await ask("DELETE FROM @snapshots WHERE session_id = $1", session_id)
        await ask("UPDATE @calls SET error = NULL WHERE session_id = $1", session_id)
        await ask(MOOT, session_id, RUNTIME, NOTHING_LEFT)
        await ask(_MEASURE, session_id)
        return None

    return work


def cut(firsts: Mapping[SessionId, int], copies_from: int) -> Work[RemovedRows]:
    """Remove the oldest events of sessions, except those still needed; return the numbers of removed rows.

    Undelivered copies made before `copies_from` do not keep their events.
    """

    async def work(turn: Transaction) -> RemovedRows:
        names = sorted(firsts)
        return add_up([await _cut_one(turn, name, firsts[name], copies_from) for name in names])

    return work


async def _cut_one(turn: Transaction, session_id: SessionId, first: int, copies_from: int) -> RemovedRows:
    ask = turn.link.ask
    if not await ask(_LOCK, session_id):
        return RemovedRows(0, Counter())
    ((floor,),) = await ask(FLOOR, session_id, copies_from, first)
    first = first if floor is None else floor
    copies: Counter[str] = Counter(dict(await ask(UNDELIVERED, session_id, first)))
    ((count,),) = await ask(_CUT, session_id, first)
    return RemovedRows(count, copies)


def drop_calls(before: int, budget: int, now: int) -> Work[int]:
    """Remove calls that ended before a time and have a delivered outcome, and expired answers."""

    async def work(turn: Transaction) -> int:
        await turn.link.ask("DELETE FROM @idempotency WHERE expires_at <= $1", now)
        for statement in _FORGET:
            await turn.link.ask(statement)
        return len(await turn.link.ask(DROP_CALLS, before, max(budget, 0)))

    return work
