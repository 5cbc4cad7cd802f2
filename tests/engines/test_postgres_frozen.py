"""A client of PostgreSQL that stands still in the middle of a statement: the server waits for it, and nobody else does.

Between a statement's Parse and its Bind the server waits for its client without any time-out: the transaction is not
idle, and no statement of it runs.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import asyncpg
import pytest

from gateway.store.postgres import PostgresEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, row_of, said, texts
from tests.engines import postgres_server
from tests.engines.pgbouncer import start_pooler
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

A, B = "instance a", "instance b"
LONG = timedelta(hours=1)
ENDED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""How the library says that the server has ended its connection, by how much of the end it has read."""


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


@asynccontextmanager
async def stuck(dsn: str, script: str) -> AsyncGenerator["asyncpg.Connection[Any]"]:
    """A client that stands still after the Parse of a statement, in a transaction that holds what `script` takes."""
    frozen = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        await frozen.execute(f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = '3s'; {script}")
        # asyncpg sends Parse and Describe and asks for their answer; Bind, Execute and Sync are never sent.
        await frozen.prepare("SELECT $1::text")
        yield frozen
    finally:
        frozen.terminate()


def lock_of(schema: str, session_id: str) -> str:
    # The schema is the test's own.
    return f"SELECT 1 FROM \"{schema}\".sessions WHERE session_id = '{session_id}' FOR UPDATE"  # noqa: S608


async def owned_by(engine: PostgresEngine, *, by: str) -> int:
    """Look for orphans, as an instance does each second, until one was found; answers its fence."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for row in await engine.take_over(by, runtimes={"finn"}, limit=5):
                assert row.session_id == ALICE
                return row.fence
            await asyncio.sleep(0.2)


@pytest.fixture
async def plain(schema: str) -> AsyncIterator[str]:
    """A role that may only make a schema; answers its DSN."""
    parts = urlsplit(postgres_server.dsn())
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query)["host"][0]
    operator = await asyncpg.connect(postgres_server.dsn())
    database = await operator.fetchval("SELECT current_database()")
    await operator.execute(
        f'CREATE ROLE "{schema}" LOGIN PASSWORD \'plain\'; GRANT CREATE ON DATABASE "{database}" TO "{schema}"'
    )
    try:
        yield f"postgresql:///{database}?{urlencode({'host': host, 'user': schema, 'password': 'plain'})}"
    finally:
        await operator.execute(f'DROP OWNED BY "{schema}" CASCADE; DROP ROLE "{schema}"')
        await operator.close()


@pytest.fixture
def pooler() -> Iterator[str]:
    with start_pooler(connections=4) as dsn:
        yield dsn


async def check_takeover(dsn: str, schema: str) -> None:
    """Take a session over from a dead owner that stands still in a statement, with its row in hand."""
    async with PostgresEngine(dsn, FakeClock(), schema=schema) as engine:
        await open_session(engine)
        await engine.beat(A, url="http://a", ttl=timedelta(seconds=1))
        assert await engine.take(A, ALICE) is not None
        async with stuck(dsn, lock_of(schema, ALICE)) as frozen:
            await engine.beat(B, url="http://b", ttl=LONG)
            fence = await owned_by(engine, by=B)
            # What it wakes up to is an end: nothing of it can be committed.
            with pytest.raises(ENDED):
                await frozen.execute("COMMIT")
        await engine.commit(Step(ALICE, (said("by b"),), fence=fence))
        assert await texts(engine) == ["by b"]


async def test_a_dead_owner_that_stands_still_in_a_statement_does_not_keep_its_sessions(
    schema: str, plain: str
) -> None:
    await check_takeover(plain, schema)


async def test_one_behind_a_pooler_does_not_keep_them_either(schema: str, pooler: str) -> None:
    await check_takeover(pooler, schema)


async def test_a_living_owner_does_not_wait_for_a_neighbor_that_stands_still_in_a_statement(schema: str) -> None:
    dsn = postgres_server.dsn()
    async with PostgresEngine(dsn, FakeClock(), schema=schema) as engine:
        await open_session(engine)
        await engine.beat(A, url="http://a", ttl=LONG)
        assert await engine.take(A, ALICE) is not None
        async with stuck(dsn, lock_of(schema, ALICE)):
            committing = asyncio.create_task(engine.commit(Step(ALICE, (said("by a"),))))
            async with asyncio.timeout(PATIENCE):
                while not committing.done():
                    await engine.take_over(A, runtimes={"finn"}, limit=5)
                    await asyncio.sleep(0.2)
            await committing
        assert await texts(engine) == ["by a"]


async def test_only_transactions_on_our_tables_that_nobody_brings_to_an_end_are_ended(schema: str) -> None:
    dsn, other_schema = postgres_server.dsn(), postgres_server.new_schema()
    async with (
        PostgresEngine(dsn, FakeClock(), schema=schema) as engine,
        PostgresEngine(dsn, FakeClock(), schema=other_schema) as other,
    ):
        for one in (engine, other):
            await open_session(one, BOB)
        await engine.beat(A, url="http://a", ttl=LONG)
        loader = await asyncpg.connect(dsn)
        sending = asyncio.Event()

        async def rows() -> AsyncIterator[bytes]:
            # More than the server gathers before it writes.
            yield b"".join(b"a%d\t1\n" % number for number in range(2_000))
            await sending.wait()
            yield b"b\t2\n"

        loading = asyncio.create_task(loader.copy_to_table("notes", schema_name=schema, source=rows()))
        async with (
            stuck(dsn, lock_of(other_schema, BOB)) as elsewhere,
            stuck(dsn, f'TABLE "{schema}".sessions') as reading,
            stuck(dsn, lock_of(schema, BOB)) as writing,
        ):
            # Only who stands still for that long is ended.
            await asyncio.sleep(3.5)
            await engine.take_over(A, runtimes={"finn"}, limit=5)
            # Nobody tells those who were not ended.
            await asyncio.sleep(0.2)
            # Rows that are loaded come one by one, for as long as their source takes.
            sending.set()
            assert await loading == "COPY 2001"
            await loader.close()
            with pytest.raises(ENDED):
                await writing.execute("COMMIT")
            for spared in (elsewhere, reading):
                assert await spared.execute("COMMIT") == "COMMIT"
        assert [await engine.note(name) for name in ("a1999", "b", "c")] == ["1", "2", None]
        assert (await row_of(other, BOB)).last_sequence == 1
    await postgres_server.drop_schema(other_schema)
