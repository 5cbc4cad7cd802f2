"""A start that takes long: alive at once, not ready, and it says which step it is at."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.reply import Reply
from gateway.http.starting import StartingApp
from gateway.store.postgres import tables
from gateway.store.postgres.tables import OURS
from gateway.store.sqlite.schema import FIRST, MIGRATIONS, NEWEST, open_writer
from tests.engines import postgres_server
from tests.http.environment import environment_of
from tests.scenarios.environment import Scene, plain_http, until
from tests.scenarios.served import Served, serving


@asynccontextmanager
async def starting(newer: Scene, dsn: str, schema: str) -> AsyncGenerator[Served]:
    newer.configure({"engine": {"type": "postgres", "path": None, "dsn": dsn, "schema": schema}})
    async with serving(newer) as served:
        yield served


async def alive(served: Served) -> bool:
    """Whether `/healthz` answers."""
    assert served.process.returncode is None, served.log.read_text()
    try:
        async with plain_http() as http:
            return (await http.get(f"{served.url}/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def told(served: Served, words: str) -> dict[str, Any]:
    """Wait until `/readyz` says so, and check what else is answered meanwhile."""
    async with plain_http() as http:

        async def look() -> dict[str, Any] | None:
            assert served.process.returncode is None, served.log.read_text()
            try:
                answer = await http.get(f"{served.url}/readyz")
            except OSError:
                return None
            except Exception as exc:
                if type(exc).__module__.startswith("httpx"):
                    return None
                raise
            assert answer.status_code == 503
            body: dict[str, Any] = answer.json()
            return body if words in body["checks"].get("start", "") else None

        body = await until(look)
        assert (await http.get(f"{served.url}/healthz")).json() == {"status": "ok"}
        refused = await http.get(f"{served.url}/v1/sessions")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/starting")
        assert refused.headers["retry-after"]
        return body


@pytest.mark.slow
async def test_a_gateway_that_waits_for_its_server_is_alive_and_not_ready(newer: Scene) -> None:
    server = postgres_server.OwnServer()
    try:
        async with starting(newer, server.dsn, "dragoman") as served:
            body = await told(served, "waiting for PostgreSQL at ")
            assert body["checks"]["start"].endswith(" %")
            server.start()
            await until(served.ready)
    finally:
        server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_start_that_waits_for_its_server_can_be_stopped(newer: Scene, number: signal.Signals) -> None:
    server = postgres_server.OwnServer()
    try:
        async with starting(newer, server.dsn, "dragoman") as served:
            await until(partial(alive, served))
            assert await served.stop(number) == 0
            await served.wait_log("stopping before the start is complete")
            assert "it was told to stop before its start was complete" in served.log.read_text()
    finally:
        server.remove()


@pytest.mark.slow
async def test_a_gateway_that_migrates_is_alive_and_not_ready(newer: Scene) -> None:
    schema = postgres_server.new_schema()
    operator = await postgres_server.reach(postgres_server.dsn())
    await operator.execute(
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{OURS} (n bigint PRIMARY KEY, at timestamptz)"
    )
    for statements in tables.MIGRATIONS[:-1]:
        for statement in statements:
            await operator.execute(statement.replace("@", f"{schema}."))
    await operator.execute(f"INSERT INTO {schema}.{OURS} VALUES ({tables.NEWEST - 1}, now())")  # noqa: S608
    try:
        async with operator.transaction():
            # The number of the migration is its last statement.
            await operator.execute(f"LOCK TABLE {schema}.{OURS} IN SHARE MODE")
            share = 1 - 1 / (len(tables.MIGRATIONS[-1]) + 1)
            async with starting(newer, postgres_server.dsn(), schema) as served:
                await told(served, f"migration to {tables.NEWEST}, {100 * share:.0f} %")
    finally:
        await operator.close()
        await postgres_server.drop_schema(schema)


async def test_a_start_tells_of_each_migration_and_of_the_sessions_that_it_loads(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    path = tmp_path / "gateway.db"
    async with environment_of(path=path, report=lambda step, share: seen.append((step, share))) as environment:
        for name in ("one", "another"):
            await environment.attach(name)
    assert seen[0] == (f"migration {FIRST} of {NEWEST}", 0)
    assert seen[-1] == ("loading sessions", 0)
    seen.clear()
    async with environment_of(path=path, report=lambda step, share: seen.append((step, share))):
        assert seen == [("loading sessions", 0), ("loading sessions", 1)]


def test_each_statement_of_a_migration_is_a_part_of_its_share(tmp_path: Path) -> None:
    shares: list[float] = []
    open_writer(tmp_path / "gateway.db", report=lambda _, share: shares.append(share)).close()
    assert shares.count(0) == len(MIGRATIONS)
    assert max(shares) < 1


@pytest.mark.parametrize("prefix", ["", "/gateway"])
async def test_a_start_answers_at_each_path_of_the_checks(prefix: str) -> None:
    app = StartingApp("/gateway")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://gateway.test{prefix}") as http:
        for path in ("healthz", "livez", "health"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"}), path
        for step, share, said in (
            ("", 0.0, "opening the store, 0 %"),
            ("loading sessions", 0.5, "loading sessions, 50 %"),
        ):
            if step:
                app.report(step, share)
            for path in ("readyz", "ready"):
                answer = await http.get(path)
                expected: dict[str, Any] = {
                    "ready": False,
                    "checks": {"start": said},
                    "instance_id": None,
                    "sessions": 0,
                    "failing": [],
                }
                assert (answer.status_code, answer.json()) == (503, expected), path
        assert (await http.get("ui")).json()["type"] == "/problems/starting"
        app.app = Reply({"status": "open"})
        assert (await http.get("ui")).json() == {"status": "open"}
