"""Databases that the first release has made, kept as SQL, are opened, brought up to date and gone on with."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.store.postgres.connection import Address
from gateway.store.postgres.operations import schema_of as postgres_schema_of
from gateway.store.postgres.tables import MIGRATIONS as POSTGRES_MIGRATIONS
from gateway.store.sqlite.backup import schema_of as sqlite_schema_of
from gateway.store.sqlite.schema import NEWEST
from tests.engines import postgres_server
from tests.scenarios.environment import until
from tests.scenarios.hooks import SECRET, Hooks
from tests.scenarios.plain_runtime import plain_gateway

pytestmark = pytest.mark.slow

KEPT = Path(__file__).parents[1] / "engines"


@pytest.fixture(params=["sqlite", "postgres"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """A store of the first release."""
    script = (KEPT / f"first_release_{request.param}.sql").read_text(encoding="utf-8")
    if request.param == "sqlite":
        path = tmp_path / "kept.db"
        with closing(sqlite3.connect(path)) as file:
            file.executescript(script)
        yield {"type": "sqlite", "path": str(path)}
        return
    schema = postgres_server.new_schema()
    operator = await asyncpg.connect(postgres_server.dsn())
    await operator.execute(script.replace("first_release", schema))
    await operator.close()
    yield {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}
    await postgres_server.drop_schema(schema)


async def test_a_store_of_the_first_release_is_gone_on_with(tmp_path: Path, engine: dict[str, Any]) -> None:
    async with Hooks() as hooks:
        settings = {
            "engine": engine,
            "destinations": {"log": {"url": f"{hooks.url}/copies/log", "secret": SECRET}},
            "executors": {"cards": {"type": "static", "result": {"cards": ["7"]}}},
            "routes": [{"match": {"tool": "ask"}, "to": "cards"}],
        }
        async with plain_gateway(tmp_path, settings=settings) as (running, runtime):
            events = await running.events()
            kinds = [one["event"]["kind"] for one in events]
            assert kinds[0] == "session.opened"
            assert {"tool.requested", "tool.finished", "question.asked", "message.posted"} <= set(kinds)
            assert "opaque" not in kinds
            assert [one["sequence"] for one in events] == [*range(1, len(events) + 1)]
            [call] = (await running.get("/v1/calls"))["data"]
            assert (call["native_call_id"], call["state"]) == ("native-1", "succeeded")
            # The question that it left open has expired long since, and its runtime is told so.
            assert (await runtime.hears("question.answered"))["answer"] == ""
            [question] = (await running.get("/v1/interactions"))["data"]
            assert (question["kind"], question["state"]) == ("question.asked", "expired")

            async def listed() -> dict[str, dict[str, Any]] | None:
                found = {one["target"]: one for one in (await running.get("/v1/dead-letters"))["data"]}
                return found if len(found) == 2 else None

            letters = await until(listed)
            # Nobody knows whether the first release had said it.
            assert letters["runtime"]["state"] == "unknown"
            await running.post(f"/v1/dead-letters/{letters['destination:log']['id']}/redrive", status=202)
            [copied] = await hooks.wait_for(1, name="message.posted")
            assert copied.data["event"]["content"] == [{"type": "text", "text": "to be copied"}]
    if engine["type"] == "sqlite":
        assert sqlite_schema_of(Path(engine["path"])) == NEWEST
    else:
        address = Address(engine["dsn"], engine["schema"])
        assert await postgres_schema_of(address) == len(POSTGRES_MIGRATIONS)
