"""What others do on a PostgreSQL server under load: open transactions, time-outs, long locks, and a promoted standby.

It costs time, and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.engines.postgres_proxy import between
from tests.engines.postgres_server import OwnServer, start_own_server
from tests.faults.environment import until
from tests.faults.load import WORKERS, Load
from tests.faults.scene import Scene
from tests.faults.stores import PostgresSchema, given, postgres
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

LOCKED = 12.0
"""Seconds of a lock: longer than a statement waits for one, and than the gateway tries a commit."""
TIMES_OUT = 4.0
"""Seconds in which statements time out: longer than a lease lasts."""


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """A server that only these tests use, so that they may do to it what they like."""
    with start_own_server() as own:
        yield own


async def finish(scene: Scene) -> None:
    """Hold everybody's records together once all is quiet."""
    await until(scene.ready, within=PATIENCE)
    await scene.settled(within=PATIENCE)
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


async def set_for_all(dsn: str, setting: str) -> None:
    """Change a setting of the server for every connection, also those that stand."""
    operator = await asyncpg.connect(dsn, server_settings={"statement_timeout": "0"})
    try:
        await operator.execute(f"ALTER SYSTEM {setting}")
        await operator.execute("SELECT pg_reload_conf()")
    finally:
        await operator.close()


@pytest.mark.fault("Transaction left open on PostgreSQL, which blocks vacuum", on="postgres")
async def test_a_transaction_that_is_left_open_holds_back_vacuum_and_no_call(tmp_path: Path, server: OwnServer) -> None:
    async with postgres(server.dsn) as store, Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        async with left_open(store):
            async with Load(scene) as load:
                await load.more(100)
            assert await dead_rows(store) > 100
        async with Load(scene) as load:
            await load.more(20)

        async def clean() -> bool:
            return await dead_rows(store) == 0

        # The gateway still writes what was delivered, and its connections tell the server's statistics late.
        await until(clean, within=PATIENCE)
        await finish(scene)


@asynccontextmanager
async def left_open(store: PostgresSchema) -> AsyncGenerator[None]:
    other = await asyncpg.connect(store.dsn)
    try:
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT 1")
        yield
    finally:
        await other.close()


async def dead_rows(store: PostgresSchema) -> int:
    """Let vacuum remove what it may; answers what it had to leave."""
    for table in ("sessions", "calls"):
        await store.fetch(f"VACUUM @{table}")
    query = "SELECT sum(n_dead_tup)::int FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = ANY ($2)"
    return int((await store.fetch(query, store.schema, ["sessions", "calls"]))[0][0])


@pytest.mark.fault("PostgreSQL statements time out behind a lock (`statement_timeout`)", on="postgres")
async def test_statements_that_time_out_for_a_while_lose_nothing(tmp_path: Path, server: OwnServer) -> None:
    async with postgres(server.dsn) as store:
        # What the test itself asks has all the time there is.
        store.dsn = f"{server.dsn}?statement_timeout=0"
        async with Scene(tmp_path, "0.1", store=given(store)) as scene:
            await scene.run()
            async with Load(scene) as load:
                await load.more(20)
                await set_for_all(server.dsn, "SET statement_timeout = '50ms'")
                try:
                    # Heartbeats and reads go by the server's time-out, writes have one of their own.
                    async with locked(store, "sessions", "calls", "events", "instances"):
                        # How long that lasts is the fault.
                        await asyncio.sleep(TIMES_OUT)
                finally:
                    await set_for_all(server.dsn, "RESET statement_timeout")
                await load.more(WORKERS + 1)
            assert "canceling statement due to statement timeout" in server.log()
            await finish(scene)


@pytest.mark.fault("PostgreSQL tables locked beyond the statement timeout", on="postgres")
async def test_a_lock_that_outlasts_every_wait_loses_nothing(tmp_path: Path, server: OwnServer) -> None:
    async with postgres(server.dsn) as store, Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(20)
            async with locked(store, "sessions", "calls"):
                # How long that lasts is the fault.
                await asyncio.sleep(LOCKED)
            await load.more(WORKERS + 1, within=PATIENCE)
        assert "canceling statement due to lock timeout" in server.log()
        await finish(scene)


@asynccontextmanager
async def locked(store: PostgresSchema, *tables: str) -> AsyncGenerator[None]:
    """Let nobody else read or write some tables."""
    other = await asyncpg.connect(store.dsn)
    try:
        async with other.transaction():
            # Commits take the tables in another order; where that is a deadlock, they give way, not the fault.
            await other.execute("SET LOCAL deadlock_timeout = '60s'")
            await other.execute(store.named(f"LOCK TABLE {', '.join(f'@{table}' for table in tables)}"))
            yield
    finally:
        await other.close()


@pytest.mark.fault("Primary killed, synchronous standby promoted", on="postgres")
async def test_a_standby_that_takes_over_has_every_call(tmp_path: Path) -> None:
    with start_own_server() as primary, start_own_server(copy_of=primary) as standby:
        await attach(primary)
        async with (
            between(primary.dsn) as name,
            postgres(name.dsn) as store,
            Scene(tmp_path, "0.2", store=given(store)) as scene,
        ):
            await scene.run()
            async with Load(scene) as load:
                await load.more(20)
                # What is committed from here on waits for the standby, and dies with the primary.
                standby.freeze()
                operator = await asyncpg.connect(primary.dsn)

                async def waiting() -> bool:
                    rows = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    return bool(await operator.fetchval(rows))

                await until(waiting)
                operator.terminate()
                primary.kill()
                standby.kill()
                await asyncio.to_thread(standby.start, primary_conninfo="")
                await asyncio.to_thread(standby.promote)
                await set_for_all(standby.dsn, "RESET synchronous_standby_names")
                name.point_at(standby.dsn)
                await load.more(WORKERS + 1)
            await finish(scene)


async def test_a_database_that_has_lost_its_last_commits_is_named_in_the_log(tmp_path: Path, server: OwnServer) -> None:
    lost = "the store has lost recorded events"
    async with postgres(server.dsn) as store, Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        await scene.ask("again", within=PATIENCE)
        await scene.settled()
        tables = [
            row[0] for row in await store.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", store.schema)
        ]
        for table in tables:
            await store.fetch(f"CREATE TABLE @kept_{table} AS TABLE @{table}")
        await scene.ask("again", within=PATIENCE)
        await scene.settled()
        assert lost not in scene.gateway.whole_log()
        operator = await asyncpg.connect(store.dsn)
        async with operator.transaction():
            for table in set(tables) - {"instances"}:
                await operator.execute(store.named(f"TRUNCATE @{table}"))
                await operator.execute(store.named(f"INSERT INTO @{table} OVERRIDING SYSTEM VALUE TABLE @kept_{table}"))
        await operator.close()
        after = await scene.ask("once", within=PATIENCE)
        assert after.reading is not None
        assert after.reading.outcome == "success"
        assert lost in scene.gateway.whole_log()


async def attach(primary: OwnServer) -> None:
    """Have commits wait for the standby, and wait until they do."""
    await set_for_all(primary.dsn, "SET synchronous_standby_names = '*'")
    operator: asyncpg.Connection[Any] = await asyncpg.connect(primary.dsn)

    async def so() -> bool:
        return bool(await operator.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))

    try:
        await until(so, within=PATIENCE)
    finally:
        await operator.close()
