"""The PostgreSQL engine passes the suite."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.events import CallId
from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_words import ALICE, FakeClock, answered, open_call, open_session, settled
from tests.engines import postgres_server
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow


class TestPostgresEngine(EngineSuite):
    many = 1_000
    own_clock = True
    ttl = timedelta(seconds=3)

    @pytest.fixture(autouse=True)
    def schemas(self) -> Iterator[dict[Path, str]]:
        """One schema per folder, dropped after the test."""
        self._schemas: dict[Path, str] = {}
        yield self._schemas
        for schema in self._schemas.values():
            asyncio.run(postgres_server.drop_schema(schema))

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        schema = self._schemas.setdefault(folder, postgres_server.new_schema())
        return PostgresEngine(postgres_server.dsn(), clock, schema=schema)

    async def pass_time(self, clock: FakeClock, span: timedelta) -> None:
        clock.turn(span)
        # Leases go by the server's clock, which nobody turns.
        await asyncio.sleep(span.total_seconds())


async def test_how_long_ago_a_call_ended_is_by_the_servers_clock_however_wrong_ours_are() -> None:
    schema, hour = postgres_server.new_schema(), timedelta(hours=1)
    behind, ahead = FakeClock(), FakeClock()
    behind.turn(-hour)
    ahead.turn(hour)
    try:
        async with (
            PostgresEngine(postgres_server.dsn(), behind, schema=schema) as one,
            PostgresEngine(postgres_server.dsn(), ahead, schema=schema) as other,
        ):
            await open_session(one)
            await open_call(one)
            await one.commit(Step(ALICE, (answered(),), calls=(settled(),)))
            for engine in (one, other):
                ended = await engine.ended_for(CallId("call-1"))
                assert ended is not None
                assert timedelta(0) <= ended < timedelta(minutes=10)
            # What has no time of the server's is told by ours.
            operator = await postgres_server.reach(postgres_server.dsn())
            await operator.execute(f'UPDATE "{schema}".calls SET ended_at = NULL')  # noqa: S608 - our own schema
            await operator.close()
            assert await other.ended_for(CallId("call-1")) == 2 * hour
    finally:
        await postgres_server.drop_schema(schema)


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_session_taken_over_names_its_previous_owner(*, by_name: bool) -> None:
    schema = postgres_server.new_schema()
    try:
        async with (
            PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine,
            asyncio.timeout(PATIENCE),
        ):
            await open_session(engine)
            assert await engine.beat("one", url="http://one", ttl=timedelta(milliseconds=500))
            first = await engine.take("one", ALICE)
            assert await engine.beat("other", url="http://other", ttl=timedelta(hours=1))
            assert first is not None
            assert first.previous_owner is None
            second = None
            while second is None:
                if by_name:
                    second = await engine.take("other", ALICE)
                else:
                    second = next(iter(await engine.take_over("other", runtimes={"finn"}, limit=1)), None)
            assert (second.owner, second.previous_owner) == ("other", "one")
    finally:
        await postgres_server.drop_schema(schema)
