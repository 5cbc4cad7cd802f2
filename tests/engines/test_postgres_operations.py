"""A PostgreSQL schema in the hands of an operator: migrated, filled from SQLite and back, under new fences."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from gateway.errors import EngineUnavailable, EngineUnusable, Fenced, OperatorError
from gateway.store.copy import TABLES, move
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.connection import Address, connect
from gateway.store.postgres.operations import (
    bring_up_to_date,
    bump_fences,
    dump_command,
    postgres_side,
    restore_command,
    schema_of,
)
from gateway.store.postgres.tables import NEWEST
from gateway.store.roster import RESTORED
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.transfer import sqlite_source, sqlite_target
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, journal, open_session, row_of, said, texts
from tests.engines import postgres_server
from tests.engines.test_transfer import LEFT_BEHIND, NOT_COPIED, Interrupted, everything, fill, goes_on
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


@pytest.fixture
def address() -> Iterator[Address]:
    schema = postgres_server.new_schema()
    yield Address(postgres_server.dsn(), schema)
    asyncio.run(postgres_server.drop_schema(schema))


def engine_at(address: Address) -> PostgresEngine:
    return PostgresEngine(address.dsn, FakeClock(), schema=address.schema)


async def test_migrating_makes_the_tables_once(address: Address) -> None:
    newest = NEWEST
    assert await schema_of(address) == 0
    assert await bring_up_to_date(address) == (0, newest)
    assert await bring_up_to_date(address) == (newest, newest)
    async with engine_at(address):
        assert await schema_of(address) == newest
        assert await bring_up_to_date(address) == (newest, newest)


async def test_a_server_that_is_away_is_said_to_be() -> None:
    with pytest.raises(EngineUnavailable, match=r"PostgreSQL at 127\.0\.0\.1:1, database none cannot be reached"):
        await schema_of(Address("postgresql://nobody@127.0.0.1:1/none", "dragoman"))


async def test_what_gets_no_answer_in_time_is_not_said_to_be_away(address: Address) -> None:
    link = await connect(address)
    with pytest.raises(EngineUnavailable, match=r"no response within 0\.2 s; .*pg_blocking_pids\(\)"):
        await link.ask("SELECT pg_sleep($1)", 5.0, seconds=0.2)
    assert link.lost


async def test_a_timeout_of_a_process_that_did_not_run_does_not_blame_the_server(address: Address) -> None:
    link = await connect(address)
    asking = asyncio.ensure_future(link.ask("SELECT pg_sleep($1)", 5.0, seconds=0.2))
    # The query leaves; then nothing of this process runs, as after SIGSTOP.
    await asyncio.sleep(0.05)
    # The halt is the fault.
    time.sleep(1.5)  # noqa: ASYNC251
    with pytest.raises(EngineUnavailable, match="this process did not run for 1 s, because it was stopped") as caught:
        await asking
    assert "pg_blocking_pids" not in str(caught.value)


# Moving


async def test_everything_moves_from_sqlite_and_back_as_it_was(address: Address, tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path / "old.db", FakeClock()) as engine:
        await fill(engine)
        before = await everything(engine)
    async with sqlite_source(tmp_path / "old.db") as source, postgres_side(address, filled=False) as target:
        there = await move(source, target)
    async with postgres_side(address, filled=True) as source, sqlite_target(tmp_path / "new.db") as target:
        back = await move(source, target)
    assert [one.source for one in there] == [one.target for one in there] == [one.target for one in back]
    assert all(one.source.rows for one in there)
    async with engine_at(address) as engine:
        assert await everything(engine) == before
        await goes_on(engine)
    async with SqliteEngine(tmp_path / "new.db", FakeClock()) as engine:
        assert await everything(engine) == before
        await goes_on(engine)


async def test_a_move_that_breaks_off_leaves_nothing(address: Address, tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path / "old.db", FakeClock()) as engine:
        await fill(engine)
    with pytest.raises(KeyboardInterrupt):
        async with sqlite_source(tmp_path / "old.db") as source, postgres_side(address, filled=False) as target:
            await move(source, Interrupted(target))
    async with sqlite_source(tmp_path / "old.db") as source, postgres_side(address, filled=False) as target:
        assert await move(source, target)
    async with sqlite_source(tmp_path / "old.db") as source, postgres_side(address, filled=False) as target:
        with pytest.raises(EngineUnusable, match=rf"schema {address.schema} is not empty \(table sessions\)"):
            await move(source, target)


_WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE NOT granted AND relnamespace = to_regnamespace($1)
"""


async def test_nobody_writes_while_a_schema_is_moved(address: Address) -> None:
    async with engine_at(address) as engine:
        async with postgres_side(address, filled=True) as side:
            late = asyncio.ensure_future(open_session(engine))
            operator = await asyncpg.connect(address.dsn)
            async with asyncio.timeout(PATIENCE):
                while not await operator.fetchval(_WAITING, address.schema):  # noqa: ASYNC110 - a table
                    await asyncio.sleep(0.02)
            await operator.close()
            assert not late.done()
            assert await side.count(TABLES[0]) == 0
        async with asyncio.timeout(PATIENCE):
            assert (await late).session_id == ALICE


async def test_only_a_schema_of_this_release_is_a_source(address: Address) -> None:
    with pytest.raises(EngineUnusable, match="run `dragoman migrate`"):
        async with postgres_side(address, filled=True):
            pass


async def test_no_column_is_forgotten(address: Address) -> None:
    await bring_up_to_date(address)
    connection = await asyncpg.connect(address.dsn)
    rows = await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = $1", address.schema
    )
    await connection.close()
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        if table not in LEFT_BEHIND:
            columns.setdefault(table, set()).add(column)
    assert columns == {table.name: {*table.columns} | (NOT_COPIED & columns[table.name]) for table in TABLES}


# Restoring


async def test_fences_of_a_restored_schema_are_made_new(address: Address) -> None:
    with pytest.raises(EngineUnusable, match="has no tables"):
        await bump_fences(address)
    async with engine_at(address) as engine:
        await open_session(engine)
        await engine.beat("before", url="http://before", ttl=HOUR)
        await engine.hold("before", "sweep")
        row = await engine.take("before", ALICE)
        assert row is not None
        for attempt in (bump_fences(address), _open(address)):
            with pytest.raises(OperatorError, match="in use by 1 running gateway: stop them first"):
                await attempt
        await engine.commit(Step(ALICE, (said("untouched"),), fence=row.fence))
        await engine.beat("before", url="http://before", ttl=timedelta(0))
        assert (await row_of(engine)).owner == "before"
    assert await bump_fences(address) == 1
    async with engine_at(address) as engine:
        assert (await row_of(engine)).fence == row.fence + RESTORED
        assert (await row_of(engine)).owner is None
        assert engine.generation.backup_at == (await journal(engine, ALICE))[-1].recorded_at
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said("of the past"),), fence=row.fence))
        assert not await engine.beat("before", url="http://before", ttl=HOUR)
        await engine.beat("after", url="http://after", ttl=HOUR)
        assert await engine.hold("after", "sweep")
        assert [one.session_id for one in await engine.take_over("after", runtimes={"finn"}, limit=10)] == [ALICE]


async def _open(address: Address) -> None:
    async with postgres_side(address, filled=True):
        pass


@pytest.mark.skipif(not shutil.which("pg_dump"), reason="pg_dump is not installed")
async def test_the_commands_that_are_shown_back_up_and_restore(address: Address, tmp_path: Path) -> None:
    async with engine_at(address) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("kept"),)))
    dump = tmp_path / "with space.dump"
    await _shell(dump_command(address, dump))
    async with engine_at(address) as engine:
        await engine.commit(Step(ALICE, (said("lost"),)))
    await _shell(restore_command(address, dump).removesuffix(" && dragoman restore --bump-fences"))
    assert await bump_fences(address) == 1
    async with engine_at(address) as engine:
        assert await texts(engine) == ["kept"]
        await engine.commit(Step(ALICE, (said("goes on"),), fence=RESTORED))


async def _shell(command: str) -> None:
    done = await asyncio.to_thread(
        lambda: subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)  # noqa: S602
    )
    assert done.returncode == 0, done.stderr


def test_no_password_is_in_the_commands_that_are_shown() -> None:
    dsn = "postgresql://me:secret-1@db.example:5433,other:5432/main?sslmode=require&password=secret-2"
    for shown in (dump_command(Address(dsn, "s"), Path("f")), restore_command(Address(dsn, "s"), Path("f"))):
        assert "secret" not in shown
        assert "postgresql://me@db.example:5433,other:5432/main?sslmode=require'" in shown
