"""What the PostgreSQL engine remembers of sessions: a commit is one round trip, and right all the same."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway.errors import Fenced, Repeated, Stale
from gateway.events import CallId, SessionId
from gateway.store.apply import Writes
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.known import KnownRows
from gateway.store.postgres.tuning import PostgresTuning
from gateway.store.records import Head
from gateway.store.step import RUNTIME, Committed, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    answered,
    asked,
    call,
    open_call,
    open_session,
    row_of,
    said,
    settled,
    texts,
)
from tests.engines import postgres_server
from tests.engines.postgres_proxy import Proxy, between

pytestmark = pytest.mark.slow

CALL = CallId("call-1")


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with between(postgres_server.dsn()) as proxy:
        yield proxy


@pytest.fixture
async def engine(schema: str) -> AsyncIterator[PostgresEngine]:
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        await open_session(engine)
        yield engine


@pytest.fixture
async def other(engine: PostgresEngine, schema: str) -> AsyncIterator[PostgresEngine]:
    """Another gateway on the same schema."""
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as other:
        yield other


def end(call_id: str = CALL) -> Step:
    return Step(ALICE, (answered(),), calls=(settled(call_id),))


async def test_a_commit_of_what_is_known_is_one_round_trip(proxy: Proxy, schema: str) -> None:
    async with PostgresEngine(proxy.dsn, FakeClock(), schema=schema) as engine:
        await open_session(engine)
        turns: list[int] = []
        # The statements of the first are prepared, which is a round trip of its own.
        for number in range(2):
            name, native = f"call-{number}", f"native-{number}"
            opening = Step(ALICE, (asked(native, dedupe_key=native),), calls=(call(name, native_call_id=native),))
            settling = Step(ALICE, (answered(native),), calls=(settled(name),), sends=(Enqueue(0, RUNTIME),), fence=0)
            begun = proxy.turns
            await engine.commit(opening)
            done = await engine.commit(settling)
            sent = SendChange(done.last_sequence, RUNTIME, "delivered")
            await engine.commit(Step(ALICE, send_changes=(sent,)))
            turns.append(proxy.turns - begun)
    assert turns[1] == 3
    assert turns[0] > 3


async def test_a_server_that_said_nothing_for_a_while_is_asked_before_it_commits(proxy: Proxy, schema: str) -> None:
    tuning = PostgresTuning(fresh=0.05)
    async with PostgresEngine(proxy.dsn, FakeClock(), schema=schema, tuning=tuning) as engine:
        await open_session(engine)
        for text in ("prepared", "known"):
            await engine.commit(Step(ALICE, (said(text),)))
        # So long nothing was said.
        await asyncio.sleep(0.1)
        begun = proxy.turns
        await engine.commit(Step(ALICE, (said("later"),)))
        # What is lost before COMMIT has certainly not happened.
        assert proxy.turns - begun >= 3


async def test_what_another_gateway_has_written_meanwhile_is_seen(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    await engine.commit(Step(ALICE, (said("one"),)))
    await other.commit(Step(ALICE, (said("two"),)))
    with pytest.raises(Stale):
        await engine.commit(Step(ALICE, (said("lost"),), last_sequence=2))
    done = await engine.commit(Step(ALICE, (said("three"),), last_sequence=3))
    assert done.last_sequence == 4
    assert await texts(other) == ["one", "two", "three"]


async def test_a_fence_that_was_passed_on_stops_what_its_former_owner_remembers(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    await engine.beat("a", url="http://a", ttl=timedelta(hours=1))
    row = await engine.take("a", ALICE)
    assert row is not None
    await engine.commit(Step(ALICE, (said("mine"),), fence=row.fence))
    await other.release("a", [ALICE])
    await other.beat("b", url="http://b", ttl=timedelta(hours=1))
    assert await other.take("b", ALICE) is not None
    with pytest.raises(Fenced):
        await engine.commit(Step(ALICE, (said("too late"),), fence=row.fence))
    assert await texts(other) == ["mine"]


async def test_a_call_that_another_gateway_has_ended_is_ended(engine: PostgresEngine, other: PostgresEngine) -> None:
    await open_call(engine)
    # Without an event, so that the last sequence stays.
    ended = settled(outcome_index=None)
    await other.commit(Step(ALICE, calls=(ended,)))
    with pytest.raises(Stale):
        await engine.commit(end())
    assert (await row_of(other)).last_sequence == 2


async def test_what_is_there_already_is_not_written_a_second_time(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    await other.commit(Step(ALICE, (said("once", dedupe_key="k"),)))
    await engine.commit(Step(ALICE, (said("more"),)))
    with pytest.raises(Repeated):
        await engine.commit(Step(ALICE, (said("once", dedupe_key="k"),)))
    await open_call(engine)
    await engine.commit(end())
    with pytest.raises(Stale):
        await open_call(engine)
    assert await texts(engine) == ["once", "more"]


async def test_of_steps_committed_together_only_the_refused_one_is_missing(engine: PostgresEngine) -> None:
    await open_session(engine, BOB)
    for name in (ALICE, BOB):
        await engine.commit(Step(name, (said("first"),)))
    steps = (
        Step(ALICE, (said("second"),)),
        Step(BOB, (said("refused"),), fence=7),
        Step(BOB, (said("second"),)),
    )
    answers = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Committed, Fenced, Committed]
    assert [await texts(engine, name) for name in (ALICE, BOB)] == [["first", "second"]] * 2


async def test_only_so_many_sessions_are_remembered(schema: str) -> None:
    names, tuning = [SessionId(f"s-{number}") for number in range(9)], PostgresTuning(remembered=2)
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema, tuning=tuning) as engine:
        for name in names:
            await open_session(engine, name)
            await engine.commit(Step(name, (asked(),), calls=(call(f"call of {name}"),)))
        for name in names:
            await engine.commit(Step(name, (answered(),), calls=(settled(f"call of {name}"),)))
        assert [(await row_of(engine, name)).last_sequence for name in names] == [3] * 9


def test_of_more_sessions_than_are_remembered_those_written_last_are() -> None:
    known, names = KnownRows(remembered=4), [SessionId(f"s-{number}") for number in range(9)]
    for name in names:
        writes = Writes(0)
        writes.heads[name] = Head(name, "finn", "running", 1, 1, 0, 0)
        known.keep(writes, "1")
    assert [name for name in names if known.head(name)] == names[-3:]
