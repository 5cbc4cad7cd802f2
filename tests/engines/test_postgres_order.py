"""The order of all events in PostgreSQL: transactions that commit out of the order of their ids, and forgotten ones."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.events import SessionId
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.connection import Address, connect
from gateway.store.questions.order import read_all
from gateway.store.rows import ANY_EVENT, FROM_THE_START, Placed, RetentionPolicy
from gateway.store.step import Step
from gateway.testing.conformance.engine_order import read_on
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, said
from tests.engines import postgres_server
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

_LATE = (
    "LOCK TABLE {schema}.written IN ROW EXCLUSIVE MODE",
    """
    INSERT INTO {schema}.events (session_id, seq, event_id, kind, direction, recorded_at, body)
    VALUES ('bob', 2, 'late', 'turn.steered', 'to_runtime', 1, '{{"kind": "turn.steered", "text": "x"}}')
    """,
    "UPDATE {schema}.sessions SET last_seq = 2 WHERE session_id = 'bob'",
    """
    INSERT INTO {schema}.written (xid, at, sessions, firsts, lasts)
    VALUES (pg_current_xact_id()::text::bigint, now(), '{{bob}}', '{{2}}', '{{2}}')
    """,
)
"""What a commit of the engine writes, in a transaction that stays open."""


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


@pytest.fixture
async def engine(schema: str) -> AsyncIterator[PostgresEngine]:
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        yield engine


@pytest.fixture
async def operator() -> AsyncIterator[Any]:
    connection = await postgres_server.reach(postgres_server.dsn())
    yield connection
    await connection.close()


def places(found: list[Placed]) -> list[tuple[str, int]]:
    return [(one.session.session_id, one.envelope.sequence) for one in found]


async def read_until(engine: PostgresEngine, after: tuple[int, int, int], count: int) -> list[Placed]:
    """Read on until so many events are found; transactions of other tests hold some back for a while."""
    found: list[Placed] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            some, after = await read_on(engine, after)
            found += some
    return found


async def test_a_transaction_that_commits_after_later_ones_is_neither_skipped_nor_repeated(
    engine: PostgresEngine, operator: Any, schema: str
) -> None:
    await open_session(engine)
    await open_session(engine, BOB)
    place = (await read_until(engine, FROM_THE_START, 2))[-1].position
    transaction = operator.transaction()
    await transaction.start()
    for statement in _LATE:
        await operator.execute(statement.format(schema=schema))
    await engine.commit(Step(ALICE, (said("a"), said("b"))))
    page = await engine.read_all(place, ANY_EVENT, limit=50, searched=50)
    assert (page.events, page.held_back, page.more) == ([], True, False)
    await transaction.commit()
    assert places(await read_until(engine, page.position, 3)) == [("bob", 2), ("alice", 2), ("alice", 3)]
    assert places(await read_until(engine, place, 3)) == [("bob", 2), ("alice", 2), ("alice", 3)]


async def test_two_writers_beside_open_transactions_lose_nothing_for_a_reader(
    engine: PostgresEngine, operator: Any, schema: str
) -> None:
    names = [SessionId(f"s-{number}") for number in range(8)]
    for name in names:
        await open_session(engine, name)
    (*_, last) = await read_until(engine, FROM_THE_START, len(names))
    place = last.position

    async def hold_back() -> None:
        while True:
            async with operator.transaction():
                await operator.execute(
                    f"LOCK TABLE {schema}.written IN ROW EXCLUSIVE MODE; SELECT pg_current_xact_id()"
                )
                await asyncio.sleep(random.uniform(0, 0.02))

    async def write(engine: PostgresEngine, name: SessionId) -> None:
        for number in range(25):
            await engine.commit(Step(name, tuple(said() for _ in range(1 + number % 2))))

    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as other:
        holding = asyncio.create_task(hold_back())
        writing = asyncio.gather(*(write((engine, other)[n % 2], name) for n, name in enumerate(names)))
        found: list[Placed] = []
        while not writing.done():
            page = await engine.read_all(place, ANY_EVENT, limit=7, searched=5)
            found, place = [*found, *page.events], page.position
        await writing
        holding.cancel()
        await asyncio.wait([holding])
    found += await read_until(engine, place, len(names) * 37 - len(found))
    for name in names:
        assert [number for of, number in places(found) if of == name] == list(range(2, 39))


@pytest.fixture
async def stranger() -> AsyncIterator[Any]:
    """A connection to another database of the server."""
    operator = await postgres_server.reach(postgres_server.dsn())
    name = postgres_server.new_schema().replace("test_", "stranger_")
    await operator.execute(f"CREATE DATABASE {name}")
    connection = await postgres_server.reach(postgres_server.dsn(), database=name)
    yield connection
    await connection.close()
    await operator.execute(f"DROP DATABASE {name}")
    await operator.close()


async def test_a_write_transaction_in_another_database_holds_back_no_event(
    engine: PostgresEngine, stranger: Any
) -> None:
    await open_session(engine)
    place = await engine.end()
    async with stranger.transaction():
        await stranger.execute("SELECT pg_current_xact_id()")
        for number in range(3):
            await engine.commit(Step(ALICE, (said(str(number)),)))
        page = await engine.read_all(place, ANY_EVENT, limit=50, searched=50)
        assert (places(list(page.events)), page.held_back) == ([("alice", n) for n in (2, 3, 4)], False)
        assert await engine.held_back_by() is None


async def test_a_prepared_or_another_write_of_this_database_holds_back_no_event(
    engine: PostgresEngine, operator: Any, schema: str
) -> None:
    await open_session(engine)
    place = await engine.end()
    async with operator.transaction():
        # It writes tables of this schema, but no events.
        await operator.execute(f"INSERT INTO {schema}.notes VALUES ('one', 'of an operator')")  # noqa: S608
        await engine.commit(Step(ALICE, (said(),)))
        page = await engine.read_all(place, ANY_EVENT, limit=50, searched=50)
        assert (places(list(page.events)), page.held_back) == ([("alice", 2)], False)


async def test_who_holds_back_events_is_named(engine: PostgresEngine, operator: Any, schema: str) -> None:
    await open_session(engine)
    place = (await read_until(engine, FROM_THE_START, 1))[-1].position
    async with operator.transaction():
        await operator.execute(f"LOCK TABLE {schema}.written IN ROW EXCLUSIVE MODE; SELECT pg_current_xact_id()")
        await engine.commit(Step(ALICE, (said(),)))
        assert (await engine.read_all(place, ANY_EVENT, limit=50, searched=50)).held_back
        holder = await engine.held_back_by()
        assert holder is not None
        assert (holder.pid, holder.database) == (operator.get_server_pid(), "postgres")
    assert await engine.held_back_by() is None
    assert places(await read_until(engine, place, 1)) == [("alice", 2)]


async def test_the_end_never_goes_back_beside_writers_and_strangers(
    engine: PostgresEngine, stranger: Any, schema: str
) -> None:
    names = [SessionId(f"s-{number}") for number in range(4)]
    for name in names:
        await open_session(engine, name)
    done = asyncio.Event()

    async def disturb() -> None:
        while not done.is_set():
            async with stranger.transaction():
                await stranger.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(random.uniform(0, 0.005))

    async def write(name: SessionId) -> None:
        for _ in range(50):
            await engine.commit(Step(name, (said(),)))

    disturbing = asyncio.create_task(disturb())
    writing = asyncio.gather(*map(write, names))
    ends = [await engine.end()]
    while not writing.done():
        ends.append(await engine.end())
    done.set()
    await asyncio.gather(writing, disturbing)
    assert ends == sorted(ends)
    assert len({*ends}) > 10


async def test_forgotten_transactions_are_a_gap_for_readers_before_them(
    engine: PostgresEngine, operator: Any, schema: str
) -> None:
    await open_session(engine)
    for _ in range(3):
        await engine.commit(Step(ALICE, (said(),)))
    whole = await read_until(engine, FROM_THE_START, 4)
    third = whole[2].position[0]
    for _ in range(2):
        await operator.execute(f"UPDATE {schema}.written SET at = now() - interval '4 days' WHERE xid <= {third}")  # noqa: S608
        await engine.sweep(RetentionPolicy())
        page = await engine.read_all(FROM_THE_START, ANY_EVENT, limit=50, searched=50)
        assert (page.is_gap, places(list(page.events))) == (True, [("alice", 4)])
        page = await engine.read_all(whole[2].position, ANY_EVENT, limit=50, searched=50)
        assert (page.is_gap, places(list(page.events))) == (False, [("alice", 4)])
    rows = await operator.fetch(f"SELECT xid, sessions FROM {schema}.written ORDER BY xid")  # noqa: S608
    assert [(row["xid"], row["sessions"]) for row in rows] == [(third, []), (whole[3].position[0], ["alice"])]


async def test_transactions_of_another_server_are_forgotten_at_the_start(operator: Any, schema: str) -> None:
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        await open_session(engine)
        await operator.execute(f"UPDATE {schema}.written SET xid = xid + 1000000000")  # noqa: S608
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        end = await engine.end()
        await engine.commit(Step(ALICE, (said(),)))
        assert places(await read_until(engine, end, 1)) == [("alice", 2)]


async def test_a_read_neither_scans_all_transactions_nor_compiles_its_plan(
    engine: PostgresEngine, schema: str, operator: Any
) -> None:
    await open_session(engine)
    fill = "INSERT INTO {}.written SELECT -n, now(), '{{}}', '{{}}', '{{}}' FROM generate_series(1, 50000) n"
    await operator.execute(fill.format(schema))
    question = read_all(FROM_THE_START, ANY_EVENT, bound=1, limit=1, searched=1)
    link = await connect(Address(postgres_server.dsn(), schema))
    plan = [line for (line,) in await link.ask(f"EXPLAIN {question.text}", *question.values)]
    settings = await link.ask("SHOW jit")
    await link.close()
    assert not [line for line in plan if "Seq Scan on written" in line]
    assert [one for (one,) in settings] == ["off"]
