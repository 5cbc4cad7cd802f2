"""The PostgreSQL engine behind PgBouncer in transaction mode: no state of a server's session is used."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.errors import Repeated
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tuning import PostgresTuning
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, row_of, said, texts
from tests.engines import postgres_server
from tests.engines.pgbouncer import start_pooler
from tests.engines.postgres_proxy import Proxy, between
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def pooler() -> Iterator[str]:
    with start_pooler() as dsn:
        yield dsn


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


async def test_engines_share_two_connections_of_a_pooler(pooler: str, schema: str) -> None:
    async with between(pooler) as proxy:
        await share(proxy, schema)


async def share(proxy: Proxy, schema: str) -> None:
    # On a slow machine, the last steps and queries wait for a connection longer than production allows.
    tuning = PostgresTuning(commit=PATIENCE, ask=PATIENCE)
    engines = [PostgresEngine(proxy.dsn, FakeClock(), schema=schema, tuning=tuning) for _ in range(3)]
    await asyncio.gather(*(engine.__aenter__() for engine in engines))
    assert (await engines[0].health()).extra["pooler"] == "yes"
    for name in (ALICE, BOB):
        await open_session(engines[0], name)
    steps = [
        engine.commit(Step(name, (said("x", dedupe_key=f"{number}"),)))
        for number in range(100)
        for engine in engines
        for name in (ALICE, BOB)
    ]
    reads = [engine.read(name) for engine in engines for name in (ALICE, BOB) for _ in range(20)]
    answers = await asyncio.wait_for(asyncio.gather(*steps, *reads, return_exceptions=True), PATIENCE)
    # Each event is said by three engines: one has written it, the others are told that it is there.
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert (len(refused), {type(one) for one in refused}) == (400, {Repeated})
    # Whatever a pooler cannot carry costs a connection, and the next one makes up for it.
    assert proxy.opened <= 3 * (1 + 8 + 1)
    for name in (ALICE, BOB):
        assert (await row_of(engines[1], name)).last_sequence == 101
        assert len(await texts(engines[2], name)) == 100
    await asyncio.gather(*(engine.__aexit__(None, None, None) for engine in engines))


async def test_notifications_come_through_where_there_is_a_direct_way(pooler: str, schema: str) -> None:
    direct = postgres_server.dsn()
    async with (
        PostgresEngine(pooler, FakeClock(), schema=schema) as deaf,
        PostgresEngine(pooler, FakeClock(), schema=schema, direct_dsn=direct) as hearing,
    ):
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        unheard: list[str | None] = []
        hearing.listen(heard.put_nowait)
        deaf.listen(unheard.append)
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() is None
            # A pooler cannot be listened through, but rung through.
            deaf.notify("session:alice")
            assert await heard.get() == "session:alice"
            hearing.notify("session:bob")
            deaf.notify("session:carol")
            # The server tells in the order in which it was told, whoever listens.
            while await heard.get() != "session:carol":
                pass
            assert await deaf.session(ALICE) is None
        assert unheard == []
