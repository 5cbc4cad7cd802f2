"""The PostgreSQL engine when a standby takes over: what was acknowledged is there, once."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from gateway.errors import EngineUnavailable
from gateway.store.postgres import PostgresEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said, texts
from tests.engines.postgres_proxy import between
from tests.engines.postgres_server import OwnServer, start_own_server
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def primary() -> Iterator[OwnServer]:
    with start_own_server() as server:
        yield server


@pytest.fixture
def standby(primary: OwnServer) -> Iterator[OwnServer]:
    with start_own_server(copy_of=primary) as server:
        yield server


_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def attach(primary: OwnServer, *, synchronous: bool) -> None:
    """Wait until the standby follows, and have commits wait for it."""
    operator = await asyncpg.connect(primary.dsn)
    if synchronous:
        await operator.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await operator.execute("SELECT pg_reload_conf()")
    wanted = "sync" if synchronous else "async"
    async with asyncio.timeout(PATIENCE):
        while True:
            states = await operator.fetch("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
            if [state[0] for state in states] == [wanted]:
                break
            await asyncio.sleep(0.05)
    await operator.close()


async def followed(primary: OwnServer) -> None:
    """Wait until the standby has all that there is by now."""
    operator = await asyncpg.connect(primary.dsn)
    now = await operator.fetchval("SELECT pg_current_wal_lsn()::text")
    async with asyncio.timeout(PATIENCE):
        while True:
            if await operator.fetchval("SELECT bool_and(replay_lsn >= $1::text::pg_lsn) FROM pg_stat_replication", now):
                break
            await asyncio.sleep(0.02)
    await operator.close()


async def test_a_standby_that_takes_over_has_all_that_was_acknowledged_once(
    primary: OwnServer, standby: OwnServer
) -> None:
    async with between(primary.dsn) as name, PostgresEngine(name.dsn, FakeClock()) as engine:
        await attach(primary, synchronous=True)
        await open_session(engine)
        acknowledged: list[str] = []
        ending = asyncio.Event()

        async def commit(worker: int) -> None:
            number = 0
            while not ending.is_set():
                number += 1
                while True:
                    try:
                        await engine.commit(Step(ALICE, (said(f"{worker} {number}"),)))
                    except EngineUnavailable:
                        await asyncio.sleep(0.1)
                    else:
                        break
                acknowledged.append(f"{worker} {number}")

        async with asyncio.TaskGroup() as tasks:
            for worker in range(8):
                tasks.create_task(commit(worker))
            async with asyncio.timeout(PATIENCE):
                while len(acknowledged) < 50:  # noqa: ASYNC110 - a list
                    await asyncio.sleep(0.02)
            # What is committed from here on may or may not reach the standby, and waits for it.
            standby.freeze()
            operator = await asyncpg.connect(primary.dsn)
            async with asyncio.timeout(PATIENCE):
                while not await operator.fetchval(_WAITING):  # noqa: ASYNC110 - a table
                    await asyncio.sleep(0.02)
            operator.terminate()
            primary.kill()
            standby.thaw()
            await asyncio.to_thread(standby.promote)
            before = len(acknowledged)
            operator = await asyncpg.connect(standby.dsn)
            await operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await operator.execute("SELECT pg_reload_conf()")
            await operator.close()
            name.point_at(standby.dsn)
            async with asyncio.timeout(PATIENCE):
                while True:
                    if len(acknowledged) > before + 50:
                        break
                    await asyncio.sleep(0.02)
            ending.set()
        assert sorted(await texts(engine)) == sorted(acknowledged)
        assert (await engine.health()).writable


async def test_a_transaction_that_no_standby_had_is_done_again_there(primary: OwnServer, standby: OwnServer) -> None:
    """The number of such a transaction may belong to another one by then."""
    async with between(primary.dsn) as name, PostgresEngine(name.dsn, FakeClock()) as engine:
        await open_session(engine)
        await attach(primary, synchronous=False)
        # The tables have to be there, where only the last transaction is missing.
        await followed(primary)
        standby.freeze()
        name.choose = lambda: "after"
        waiting = asyncio.create_task(engine.commit(Step(ALICE, (said("a"),))))
        async with asyncio.timeout(PATIENCE):
            while True:
                if name.cuts:
                    break
                await asyncio.sleep(0.005)
        name.choose = lambda: "before"
        primary.kill()
        name.point_at(standby.dsn)
        standby.kill()
        # It starts again with what it had received and written, and follows nobody.
        standby.start(primary_conninfo="")
        await asyncio.to_thread(standby.promote)
        operator = await asyncpg.connect(standby.dsn)
        for _ in range(20):
            await operator.execute("CREATE TABLE IF NOT EXISTS other (n int); INSERT INTO other VALUES (1)")
        await operator.close()
        name.choose = lambda: "never"
        await asyncio.wait_for(waiting, PATIENCE)
        assert await texts(engine) == ["a"]


async def test_replicas_of_which_none_is_synchronous_are_reported(primary: OwnServer, standby: OwnServer) -> None:
    async with PostgresEngine(primary.dsn, FakeClock()) as engine:
        await attach(primary, synchronous=False)
        assert "failover" in (await engine.health()).extra["warning synchronous_standby_names"]
        await attach(primary, synchronous=True)
        async with asyncio.timeout(PATIENCE):
            # Each connection of the server reads its settings anew in its own time.
            while "warning synchronous_standby_names" in (await engine.health()).extra:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
