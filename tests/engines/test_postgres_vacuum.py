"""A transaction that somebody leaves open holds back vacuum: the gateway's log, its health and `doctor` name it."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from gateway.cli.doctor_store import check_postgres
from gateway.settings.model import PostgresStore
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tuning import PostgresTuning
from gateway.testing.conformance.engine_words import FakeClock, open_session
from tests.engines import postgres_server
from tests.engines.postgres_server import OwnServer, start_own_server

pytestmark = pytest.mark.slow

DOUBT = "warning old transaction"
SOON = PostgresTuning(old=0.2)


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    # What pins a database's horizon would be seen by everybody else's tests.
    with start_own_server() as own:
        yield own


@pytest.fixture
async def schema(server: OwnServer) -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name, server=server.dsn)


@asynccontextmanager
async def left_open(dsn: str, *statements: str) -> AsyncGenerator["asyncpg.Connection[Any]"]:
    """A transaction that somebody has begun and forgotten for long enough."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "it's a report"})
    try:
        for statement in statements:
            await connection.execute(statement)
        # How long it stays open is what is looked for.
        await asyncio.sleep(0.3)
        yield connection
    finally:
        await connection.close()


def doctor(server: OwnServer, schema: str) -> list[tuple[str, str, str]]:
    store = PostgresStore.model_validate({"type": "postgres", "dsn": server.dsn, "schema": schema})
    return [(check.state, check.text, check.fix) for check in check_postgres(store, SOON)]


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(("BEGIN", "CREATE TEMP TABLE notes (n int)"), id="it has written"),
        pytest.param(("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"), id="it has read a snapshot"),
    ],
)
async def test_who_holds_back_vacuum_is_named_with_the_mend(
    server: OwnServer, schema: str, begin: tuple[str, ...]
) -> None:
    async with PostgresEngine(server.dsn, FakeClock(), schema=schema, tuning=SOON) as engine:
        await open_session(engine)
        with capture_logs() as logged:
            assert DOUBT not in (await engine.health()).extra
            async with left_open(server.dsn, *begin) as other:
                reason = (await engine.health()).extra[DOUBT]
                pid = other.get_server_pid()
                assert f"process {pid} (application \"it's a report\", role 'postgres', idle in transaction)" in reason
                assert re.search(r"open for 0:00:\d\d;", reason)
                assert f"pg_terminate_backend({pid})" in reason
                assert "idle_in_transaction_session_timeout" in reason
                checks = await asyncio.to_thread(doctor, server, schema)
                assert ("warning", "old transaction") in [check[:2] for check in checks]
                (mend,) = [mend for _, text, mend in checks if text == "old transaction"]
                assert mend.startswith(f"process {pid} ")
                # The gateway looks every few seconds, and its log says it once.
                await engine.health()
            assert DOUBT not in (await engine.health()).extra
        (line,) = [line for line in logged if line["log_level"] == "warning"]
        assert line["event"] == "the database server needs attention"
        assert line["reason"] == reason


async def test_who_holds_nothing_back_is_not_named(server: OwnServer, schema: str) -> None:
    admin = await asyncpg.connect(server.dsn)
    await admin.execute("CREATE DATABASE elsewhere")
    await admin.close()
    elsewhere = f"{server.dsn.removesuffix('/postgres')}/elsewhere"
    async with (
        PostgresEngine(server.dsn, FakeClock(), schema=schema, tuning=SOON) as engine,
        left_open(server.dsn, "BEGIN", "SELECT 1"),
        left_open(elsewhere, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"),
    ):
        assert DOUBT not in (await engine.health()).extra
