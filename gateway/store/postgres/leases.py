"""The leases of instances and the owners of sessions in PostgreSQL, by the database's clock only.

Each instance has one row with the end of its lease; an expired lease is never renewed. A change of owner locks the
sessions first and reads them in a separate statement, so it sees every change that was committed before the lock.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from gateway.events import SessionId
from gateway.store.postgres.once import Transaction, Work
from gateway.store.postgres.pool import Pool
from gateway.store.postgres.store import lock
from gateway.store.questions.sessions import SESSION, session_row
from gateway.store.roster import takeover_limit
from gateway.store.rows import Instance, Regained, SessionRow

log = structlog.get_logger(__name__)

# The server has no timeout for a client that stalls within a statement, so its transaction could lock rows
# indefinitely. This applies the limit between two statements. COPY is excluded, because it normally waits for its rows.
# The server rolls the transaction back; a gateway that resumes afterwards repeats it.
_END_STUCK = """
SELECT pid, application_name, pg_terminate_backend(pid) FROM pg_stat_activity a
WHERE datname = current_database() AND usename = current_user AND state = 'active' AND wait_event = 'ClientRead'
    AND state_change < clock_timestamp() - interval '3 seconds'
    AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_copy p WHERE p.pid = a.pid)
    AND EXISTS (
        SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE l.pid = a.pid AND n.nspname = $1 AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
    )
"""
_BEAT = """
INSERT INTO @instances AS i (instance, url, expires_at) VALUES ($1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (instance) DO UPDATE SET url = excluded.url, expires_at = clock_timestamp() + $3::interval
WHERE i.expires_at > clock_timestamp()
RETURNING 1
"""
_LIVES = "EXISTS (SELECT 1 FROM @instances WHERE instance = $1 AND expires_at > clock_timestamp())"
_OWNER_LIVES = "EXISTS (SELECT 1 FROM @instances i WHERE i.instance = s.owner AND i.expires_at > clock_timestamp())"
_TAKE = f"""
UPDATE @sessions s SET owner = $1, fence = s.fence + 1
WHERE s.session_id = $2 AND s.state <> 'closed' AND s.owner IS DISTINCT FROM $1 AND {_LIVES} AND NOT {_OWNER_LIVES}
"""
_LAST_OWNER = "SELECT owner FROM @sessions WHERE session_id = $1"
_OWN = f"""
{SESSION}
WHERE s.session_id = ANY ($2::text[]) AND s.owner = $1 AND s.state <> 'closed' AND {_LIVES} ORDER BY s.id
"""
_ROLL = f"""
SELECT {_LIVES}, (SELECT count(*) FROM @instances WHERE expires_at > clock_timestamp()),
    ARRAY(SELECT instance FROM @instances WHERE expires_at <= clock_timestamp())
"""
_IS_ORPHAN = "s.state <> 'closed' AND s.runtime = ANY ($1::text[]) AND (s.owner IS NULL OR s.owner = ANY ($2::text[]))"
_ANY_ORPHAN = f"SELECT 1 FROM @sessions s WHERE {_IS_ORPHAN} LIMIT 1"
_COUNT = """
SELECT count(*), count(*) FILTER (WHERE owner = $1) FROM @sessions WHERE state <> 'closed'
"""
_LOCK_ORPHANS = f"""
SELECT s.session_id, s.owner FROM @sessions s WHERE {_IS_ORPHAN} ORDER BY s.id LIMIT $3 FOR UPDATE SKIP LOCKED
"""
_TAKE_OVER = "UPDATE @sessions SET owner = $1, fence = fence + 1 WHERE session_id = ANY ($2::text[])"
# Locks sessions in sorted order, as every batch of steps does. Skips sessions that have another owner by now.
_REGAIN = f"""
WITH former AS (
    SELECT session_id FROM @sessions WHERE owner = ANY ($2::text[]) AND state <> 'closed'
    ORDER BY session_id FOR UPDATE
)
UPDATE @sessions s SET owner = $1, fence = s.fence + 1 FROM former f
WHERE s.session_id = f.session_id AND s.owner = ANY ($2::text[]) AND {_LIVES}
"""
_END_FORMERS = f"""
UPDATE @instances SET expires_at = least(expires_at, clock_timestamp()) WHERE instance = ANY ($2::text[]) AND {_LIVES}
"""
_MINE = f"""
SELECT session_id, fence, last_seq FROM @sessions s WHERE owner = $1 AND state <> 'closed' AND {_LIVES}
"""
_RELEASE = "UPDATE @sessions SET owner = NULL WHERE owner = $1 AND session_id = ANY ($2::text[])"
_LOCK_OWN = "SELECT session_id FROM @sessions WHERE owner = $1 AND state <> 'closed' ORDER BY session_id FOR UPDATE"
_END = "UPDATE @instances SET expires_at = least(expires_at, clock_timestamp()) WHERE instance = $1"
INSTANCES = """
WITH owned AS (
    SELECT owner, count(*) AS n FROM @sessions WHERE state <> 'closed' AND owner IS NOT NULL GROUP BY owner
)
SELECT i.instance, i.url, i.expires_at > clock_timestamp(), coalesce(o.n, 0)
FROM @instances i LEFT JOIN owned o ON o.owner = i.instance
WHERE i.expires_at > clock_timestamp() OR o.n > 0 ORDER BY i.instance
"""
_OWNER = """
SELECT i.instance, i.url, true,
    (SELECT count(*) FROM @sessions o WHERE o.owner = i.instance AND o.state <> 'closed')
FROM @sessions s JOIN @instances i ON i.instance = s.owner
WHERE s.session_id = $1 AND i.expires_at > clock_timestamp()
"""
_HOLDER_LIVES = "EXISTS (SELECT 1 FROM @instances i WHERE i.instance = h.instance AND i.expires_at > clock_timestamp())"
_HOLDER = f"""
SELECT h.instance, {_HOLDER_LIVES}, {_LIVES} FROM (SELECT 1) AS one LEFT JOIN @holds h ON h.name = $2
"""
_BEGIN_HOLD = "INSERT INTO @holds (name, instance) VALUES ($2, $1) ON CONFLICT (name) DO NOTHING"
_LOCK_HOLD = "SELECT 1 FROM @holds WHERE name = $1 FOR UPDATE"
_HOLD = f"""
UPDATE @holds h SET instance = $1
WHERE h.name = $2 AND {_LIVES} AND (h.instance = $1 OR NOT {_HOLDER_LIVES})
RETURNING 1
"""


async def beat(pool: Pool, instance: str, url: str, ttl: timedelta) -> bool:
    """Acquire or renew a lease in one repeatable statement; return False if the lease has expired."""
    return bool(await pool.ask(_BEAT, instance, url, ttl))


async def take(pool: Pool, instance: str, session_id: SessionId) -> SessionRow | None:
    """Make an instance the owner of an open session unless another live instance owns it; return its row, or None."""

    async def work(turn: Transaction) -> SessionRow | None:
        owners = await turn.link.ask(_LAST_OWNER, session_id)
        await turn.link.ask(_TAKE, instance, session_id)
        rows = await turn.link.ask(_OWN, instance, [session_id])
        turn.idle = not rows
        if not rows:
            return None
        previous = owners[0][0]
        return replace(session_row(rows[0]), previous_owner=None if previous == instance else previous)

    return await pool.transact(work, begin=lock([session_id]))


def take_over(instance: str, runtimes: Collection[str], limit: int) -> Work[Sequence[SessionRow]]:
    """Make an instance the owner of open sessions without a live owner, up to a limit and its fair share.

    First terminates transactions that hold locks while their client stalls within a statement.
    """

    async def work(turn: Transaction) -> Sequence[SessionRow]:
        for pid, name, _ in await turn.link.ask(_END_STUCK, turn.link.address.schema):
            log.warning("stalled client transaction terminated", process=pid, application=name)
        rows = await _take_over(turn, instance, [*runtimes], limit)
        turn.idle = not rows
        return rows

    return work


async def _take_over(turn: Transaction, instance: str, runtimes: Sequence[str], limit: int) -> Sequence[SessionRow]:
    ask = turn.link.ask
    ((lives, living, dead),) = await ask(_ROLL, instance)
    # Counting all sessions is expensive, and usually there is no orphan.
    if not lives or limit <= 0 or not await ask(_ANY_ORPHAN, runtimes, dead):
        return []
    ((total, owned),) = await ask(_COUNT, instance)
    most = takeover_limit(limit, owned=owned, total=total, living=living)
    owners: dict[str, str | None] = {row[0]: row[1] for row in await ask(_LOCK_ORPHANS, runtimes, dead, most)}
    if not owners:
        return []
    await ask(_TAKE_OVER, instance, [*owners])
    rows = [session_row(row) for row in await ask(_OWN, instance, [*owners])]
    return [replace(row, previous_owner=owners[row.session_id]) for row in rows]


def regain(instance: str, former: Collection[str]) -> Work[Sequence[Regained]]:
    """Make an instance the owner of its former instances' open sessions; return all sessions that it owns."""

    async def work(turn: Transaction) -> Sequence[Regained]:
        ask = turn.link.ask
        await ask(_REGAIN, instance, [*former])
        await ask(_END_FORMERS, instance, [*former])
        return [Regained(*row) for row in await ask(_MINE, instance)]

    return work


async def release(pool: Pool, instance: str, session_ids: Collection[SessionId] | None) -> None:
    """Release some sessions, or all sessions, names and the lease if `session_ids` is None."""
    if session_ids is not None:
        if session_ids:
            await pool.transact(_release_some(instance, [*session_ids]), begin=lock(session_ids))
        return

    async def work(turn: Transaction) -> None:
        ask = turn.link.ask
        await ask(_END, instance)
        await ask(_RELEASE, instance, [row[0] for row in await ask(_LOCK_OWN, instance)])
        await ask("DELETE FROM @holds WHERE instance = $1", instance)

    await pool.transact(work)


def _release_some(instance: str, session_ids: Sequence[SessionId]) -> Work[None]:
    async def work(turn: Transaction) -> None:
        await turn.link.ask(_RELEASE, instance, session_ids)

    return work


async def owner(pool: Pool, session_id: SessionId) -> Instance | None:
    rows = await pool.ask(_OWNER, session_id)
    return Instance(*rows[0]) if rows else None


async def instances(pool: Pool) -> Sequence[Instance]:
    return [Instance(*row) for row in await pool.ask(INSTANCES)]


async def hold(pool: Pool, instance: str, name: str) -> bool:
    """Acquire a name; return whether this instance holds it. Writes nothing if the instance already does."""
    ((holder, holder_lives, lives),) = await pool.ask(_HOLDER, instance, name)
    if not lives or holder_lives:
        return lives and holder == instance

    async def work(turn: Transaction) -> bool:
        ask = turn.link.ask
        await ask(_BEGIN_HOLD, instance, name)
        await ask(_LOCK_HOLD, name)
        return bool(await ask(_HOLD, instance, name))

    return await pool.transact(work)


async def release_name(pool: Pool, instance: str, name: str) -> None:
    """Release a name if this instance holds it."""

    async def work(turn: Transaction) -> None:
        await turn.link.ask("DELETE FROM @holds WHERE name = $2 AND instance = $1", instance, name)

    await pool.transact(work)
