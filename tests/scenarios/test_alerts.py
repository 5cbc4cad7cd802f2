"""Alerts about common nights fire in a real Prometheus: failing calls, a wrong secret, people, a lost gateway."""

from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from fastapi import Response

from gateway.events import QuestionAsked
from tests.scenarios.environment import GOOD, Scene, ended, until
from tests.scenarios.hooks import Asked, Said
from tests.scenarios.plain_runtime import plain_gateway
from tests.scenarios.test_dashboard import prometheus


async def firing(http: httpx.AsyncClient) -> dict[str, set[str]]:
    """Return the executors of the firing alerts, by alert; an alert without an executor has an empty one."""
    alerts = (await http.get("/api/v1/alerts")).json()["data"]["alerts"]
    found: dict[str, set[str]] = {}
    for one in alerts:
        if one["state"] == "firing":
            found.setdefault(one["labels"]["alertname"], set()).add(one["labels"].get("executor", ""))
    return found


async def test_failing_calls_a_wrong_secret_and_a_gateway_that_is_gone_ring(newer: Scene, tmp_path: Path) -> None:
    status = 500

    def fail(_asked: Asked) -> Said:
        return Response("no database", status_code=status)

    newer.hooks.scripts["ask"] = fail
    newer.configure({"executors": {"cards": {"attempts": 1, "breaker": "off"}}})
    async with AsyncExitStack() as outer, AsyncExitStack() as inner:
        gateway = await inner.enter_async_context(newer.running())
        http = await outer.enter_async_context(prometheus(tmp_path / "prometheus", gateway))

        async def rings(alert: str) -> bool:
            await ended(await newer.agent.call("ask", GOOD))
            return "cards" in (await firing(http)).get(alert, ())

        await until(lambda: rings("DragomanCallsFailing"))
        assert "DragomanExecutorRefuses" not in await firing(http)
        status = 401
        await until(lambda: rings("DragomanExecutorRefuses"))
        assert "DragomanDown" not in await firing(http)
        await inner.aclose()

        async def gone() -> bool:
            return "DragomanDown" in await firing(http)

        await until(gone)


async def test_a_question_that_nobody_answers_rings(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as (gateway, runtime), prometheus(tmp_path / "prometheus", gateway) as http:
        runtime.say(QuestionAsked(id="q", text="Which?"))

        async def rings() -> bool:
            return "DragomanInboxWaits" in await firing(http)

        await until(rings)
