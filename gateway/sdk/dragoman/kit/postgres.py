"""Claims in PostgreSQL, for workers on several machines; requires asyncpg."""

import asyncio
import contextlib
import logging
import secrets
import ssl
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

from dragoman.kit.store import KEPT, Callback, Claimed, KeyReused, Owed, StoreUnavailable
from dragoman.postgres_dsn import asyncpg_dsn, find_dropped, why_refused

try:
    import asyncpg
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError("dragoman.kit.postgres requires asyncpg: pip install asyncpg", name=exc.name) from exc

_PATIENCE = 5.0
"""Seconds for one statement, and between two checks of the connection that shows that this worker is alive."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS dragoman_kit_claims (
    key text PRIMARY KEY, digest text NOT NULL, owner bigint NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(), answer bytea
);
CREATE INDEX IF NOT EXISTS dragoman_kit_claims_by_age ON dragoman_kit_claims (claimed_at);
CREATE TABLE IF NOT EXISTS dragoman_kit_callbacks (
    key text PRIMARY KEY, owner bigint NOT NULL, url text NOT NULL, tool text NOT NULL,
    deadline double precision NOT NULL
);
"""
_TAKEOVER_PAUSE = 10.0
"""Seconds without takeovers after this worker lost its own connection: a restart of the server breaks all workers'
connections, and each worker needs a moment to lock again."""
_SETUP = 7_203_684_115
"""The lock for creating the tables."""
_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""asyncpg's errors of a failed connection; the last one if the server ended during a protocol step."""

log = logging.getLogger("dragoman.kit")


class PostgresCallStore:
    """Keeps claims in its own table; the advisory lock of a worker's session shows that the worker is alive.

    Requires sessions, which a pooler in transaction mode does not provide. A worker with a broken connection is
    considered dead: the outcomes of its calls are unknown, and only idempotent ones run again.
    """

    def __init__(self, dsn: str, *, connections: int = 4) -> None:
        if (fault := why_refused(dsn)) is not None:
            raise ValueError(f"the DSN {fault}")
        for text in find_dropped(dsn):
            log.warning("DSN of the store: %s", text)
        self._dsn = asyncpg_dsn(dsn, system_certificates=ssl.get_default_verify_paths().cafile)
        self._connections = connections
        self._takeovers_from = 0.0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "PostgresCallStore":
        self._owner = secrets.randbits(62)
        async with contextlib.AsyncExitStack() as stack:
            with _convert_errors():
                self._pool = await stack.enter_async_context(
                    asyncpg.create_pool(
                        self._dsn, min_size=1, max_size=self._connections, command_timeout=_PATIENCE, timeout=_PATIENCE
                    )
                )
                async with self._pool.acquire(timeout=_PATIENCE) as link, link.transaction():
                    await link.execute("SELECT pg_advisory_xact_lock($1)", _SETUP)
                    await link.execute(_SCHEMA)
                self._session = await self._connect_session()
            keeper = asyncio.create_task(self._keep_lock())
            stack.push_async_callback(self._end_session, keeper)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def claim(self, key: str, digest: str) -> Claimed:
        if self._session.is_closed():
            raise StoreUnavailable("lost the connection that shows that this worker is alive")
        async with self._transaction() as link:
            taken = await link.fetchval(
                "INSERT INTO dragoman_kit_claims (key, digest, owner) VALUES ($1, $2, $3)"
                " ON CONFLICT (key) DO NOTHING RETURNING true",
                key,
                digest,
                self._owner,
            )
            if taken:
                await link.execute(
                    "DELETE FROM dragoman_kit_claims WHERE key IN"
                    " (SELECT key FROM dragoman_kit_claims WHERE claimed_at < now() - $1::interval LIMIT 100)",
                    KEPT,
                )
                return Claimed("new")
            row = await link.fetchrow(
                "SELECT digest, owner, answer FROM dragoman_kit_claims WHERE key = $1 FOR UPDATE", key
            )
            if row is None:
                return Claimed("running")
            if row["digest"] != digest:
                raise KeyReused(key)
            if row["answer"] is not None:
                return Claimed("done", row["answer"])
            if row["owner"] != self._owner and not await _is_dead(link, row["owner"]):
                return Claimed("running")
            await link.execute(
                "UPDATE dragoman_kit_claims SET owner = $2, claimed_at = now() WHERE key = $1", key, self._owner
            )
            return Claimed("abandoned")

    async def accept(self, key: str, callback: Callback) -> None:
        async with self._transaction() as link:
            await link.execute(
                "INSERT INTO dragoman_kit_callbacks (key, owner, url, tool, deadline) VALUES ($1, $2, $3, $4, $5)"
                " ON CONFLICT (key) DO UPDATE SET owner = $2, url = $3, tool = $4, deadline = $5",
                key,
                self._owner,
                callback.url,
                callback.tool,
                callback.deadline,
            )

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        async with self._transaction() as link:
            row = await link.fetchrow(
                "WITH kept AS (UPDATE dragoman_kit_claims SET answer = $3"
                " WHERE key = $1 AND owner = $2 AND answer IS NULL)"
                " SELECT url, tool, deadline FROM dragoman_kit_callbacks WHERE key = $1",
                key,
                self._owner,
                answer,
            )
        return None if row is None else Callback(row["url"], row["tool"], row["deadline"])

    async def settle(self, key: str) -> None:
        async with self._transaction() as link:
            await link.execute("DELETE FROM dragoman_kit_callbacks WHERE key = $1", key)

    async def take_owed(self, idempotent: Collection[str], limit: int) -> Sequence[Owed]:
        if self._session.is_closed() or time.monotonic() < self._takeovers_from:
            return ()
        async with self._transaction() as link:
            await link.execute(
                "DELETE FROM dragoman_kit_callbacks AS o"
                " WHERE NOT EXISTS (SELECT FROM dragoman_kit_claims AS c WHERE c.key = o.key)"
            )
            owners = await link.fetch(
                "SELECT owner FROM dragoman_kit_callbacks UNION"
                " SELECT c.owner FROM dragoman_kit_callbacks JOIN dragoman_kit_claims AS c USING (key)"
            )
            dead = [one for (one,) in owners if one != self._owner and await _is_dead(link, one)]
            rows = await link.fetch(
                "SELECT key, url, tool, deadline, answer"
                " FROM dragoman_kit_callbacks AS o JOIN dragoman_kit_claims AS c USING (key)"
                " WHERE o.owner = ANY($1) AND (answer IS NOT NULL OR c.owner = ANY($1) AND tool <> ALL($2::text[]))"
                " LIMIT $3 FOR UPDATE",
                dead,
                list(idempotent),
                limit,
            )
            keys = [row["key"] for row in rows]
            await link.execute("UPDATE dragoman_kit_callbacks SET owner = $1 WHERE key = ANY($2)", self._owner, keys)
            await link.execute("UPDATE dragoman_kit_claims SET owner = $1 WHERE key = ANY($2)", self._owner, keys)
        return [Owed(row["key"], Callback(row["url"], row["tool"], row["deadline"]), row["answer"]) for row in rows]

    async def forget(self, key: str) -> None:
        async with self._transaction() as link:
            await link.execute(
                "DELETE FROM dragoman_kit_claims WHERE key = $1 AND owner = $2 AND answer IS NULL", key, self._owner
            )

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator["asyncpg.pool.PoolConnectionProxy"]:
        with _convert_errors():
            async with self._pool.acquire(timeout=_PATIENCE) as link, link.transaction():
                yield link

    # Liveness --------------------------------------------------------------------------------------------

    async def _connect_session(self) -> "asyncpg.Connection":
        session = await asyncpg.connect(self._dsn, timeout=_PATIENCE, command_timeout=_PATIENCE)
        # A machine that loses power closes no connection; keepalives let the server notice within half a minute.
        await session.execute(
            "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),"
            " set_config('tcp_keepalives_count', '3', false)"
        )
        await session.execute("SELECT pg_advisory_lock($1)", self._owner)
        return session

    async def _keep_lock(self) -> None:
        """Keep the lock of this worker; claims that another worker took over meanwhile stay with it."""
        is_lost = False
        while True:
            await asyncio.sleep(_PATIENCE)
            try:
                await self._session.execute("SELECT 1")
            except _BROKEN as exc:
                if not is_lost:
                    log.warning("the store is unavailable: %s", type(exc).__name__)
                is_lost = True
                self._session.terminate()
                self._takeovers_from = time.monotonic() + _PATIENCE + _TAKEOVER_PAUSE
                try:
                    self._session = await self._connect_session()
                except _BROKEN:
                    continue
                log.warning("the store is available again")
                is_lost = False

    async def _end_session(self, keeper: "asyncio.Task[None]") -> None:
        keeper.cancel()
        await asyncio.wait({keeper})
        self._session.terminate()


async def _is_dead(link: "asyncpg.pool.PoolConnectionProxy", owner: int) -> bool:
    """Check whether a worker's session has ended, by taking its lock for this transaction."""
    return bool(await link.fetchval("SELECT pg_try_advisory_xact_lock($1)", owner))


@contextlib.contextmanager
def _convert_errors():
    try:
        yield
    except _BROKEN as exc:
        raise StoreUnavailable(f"PostgreSQL: {type(exc).__name__}") from exc
