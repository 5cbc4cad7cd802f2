"""A database that a newer release has written is worked on, and handed back with what waited for that release."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.runtime.tuning import Tuning
from gateway.store.step import NEWER
from tests.engines import postgres_server
from tests.scenarios.environment import Running, until
from tests.scenarios.hooks import SECRET, Hooks
from tests.scenarios.plain_runtime import plain_gateway

pytestmark = pytest.mark.slow


async def newer(verb: str, folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """Let the newer release do something, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.scenarios.newer_release", verb, str(folder), json.dumps(engine)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.fixture(params=["sqlite", "postgres"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    if request.param == "sqlite":
        yield {"type": "sqlite", "path": str(tmp_path / "newer.db")}
        return
    schema = postgres_server.new_schema()
    yield {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}
    await postgres_server.drop_schema(schema)


async def test_what_a_newer_release_wrote_waits_for_it_and_costs_nothing_else(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    often = Tuning(gauges=0.05, sweep=0.05)
    written = await newer("write", tmp_path, engine)
    asked_at, dead_at = written["sequences"]
    async with Hooks() as hooks:
        nothing = {"closed_age": "1ms", "open_age": "1ms", "max_bytes": 1}
        settings = {
            "engine": engine,
            "retention": nothing,
            "destinations": {"log": {"url": f"{hooks.url}/copies/log", "secret": SECRET}},
        }
        async with plain_gateway(tmp_path, settings=settings, tuning=often) as (running, runtime):
            [copied] = await hooks.wait_for(1, name="weather.changed")
            assert copied.data["event"] == {"kind": "weather.changed", "town": "Bonn", "id": "Bonn", "degrees": 21.5}

            dead, late, waiting = await _letters(running)
            assert [one["sequence"] for one in (dead, late, waiting)] == [dead_at, dead_at, asked_at]
            assert (late["lane"], late["state"], late["reason"]) == ("whenever", "pending", NEWER)
            assert (waiting["lane"], waiting["state"], waiting["reason"]) == ("turn", "pending", NEWER)
            assert "newer release" in waiting["advice"]
            assert waiting["envelope"]["event"]["channel"] == "unknown-kind"
            await running.post(f"/v1/dead-letters/{waiting['id']}/redrive", status=409)
            await running.post(f"/v1/dead-letters/{dead['id']}/redrive", status=202)
            assert [one.data["event"]["town"] for one in await hooks.wait_for(2, name="weather.changed")] == [
                "Bonn",
                "Trier",
            ]

            async def counted() -> bool:
                return (await running.metrics()).get("dragoman_dead_letters") == 2

            await until(counted)

            [question] = (await running.get("/v1/interactions"))["data"]
            assert (question["kind"], question["event"]["channel"]) == ("weather.asked", "unknown-kind")
            answer = await running.post(
                f"/v1/interactions/{question['interaction_id']}/answer", {"answer": "x"}, status=409
            )
            assert "newer release" in answer["detail"]

            # Its own lane waits, and nothing else does.
            steer = {"kind": "turn.steered", "text": "left"}
            path = f"/v1/sessions/{written['session_id']}/events"
            await running.post(path, steer, status=202)
            await running.post(path, {"kind": "message.posted", "content": "hello"}, status=202)
            await running.post(path, {"kind": "turn.interrupted"}, status=202)
            await runtime.hears("message.posted")
            await runtime.hears("turn.interrupted")

            async def swept() -> bool:
                session = await running.get(f"/v1/sessions/{written['session_id']}")
                return session["first_sequence"] == asked_at

            await until(swept)
            assert {one["kind"] for one in runtime.heard} == {"message.posted", "turn.interrupted"}
        # Another start reads what the first one wrote.
        async with plain_gateway(tmp_path, settings=settings, tuning=often) as (running, runtime):
            assert len(await _letters(running)) == 2
            assert runtime.heard == []
    told = await newer("say", tmp_path, engine)
    assert [(one["kind"], one.get("town", one.get("text"))) for one in told["heard"]] == [
        ("weather.changed", "Köln"),
        ("turn.steered", "left"),
    ]
    assert told["weather"] == ["Bonn", "Köln", "Trier"]
    assert told["listed"] == [[dead_at, "runtime", "whenever"]]


async def _letters(running: Running) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        found = (await running.get("/v1/dead-letters"))["data"]
        return found if sum(one["reason"] == NEWER for one in found) == 2 else None

    found = await until(look)
    return sorted(found, key=lambda one: (-one["sequence"], one["target"]))
