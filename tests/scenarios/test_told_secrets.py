"""An executor that tells secrets back which were sent to it: its result is its own word, its errors are masked."""

from urllib.parse import quote

import httpx
import pytest
from fastapi import Response

from tests.scenarios.environment import GOOD, Running, Scene, ended, plain_http
from tests.scenarios.hooks import SECRET, Asked, success, update

TOKEN, REALM, PLAIN = "told-canary-7Hq2", 'told "canary"\\/Pw3', "public"
HEADERS = {"X-Token": TOKEN, "X-Realm": "${REALM}", "X-Plain": PLAIN}


async def counted(gateway: Running) -> float:
    page = (await gateway.http.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("dragoman_secrets_in_results_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'executor="cards"' in line)


async def call_back(asked: Asked, body: object) -> httpx.Response:
    async with plain_http() as http:
        return await http.post(asked.data["callback_url"], json=body)


async def test_a_result_with_a_secret_is_passed_on_counted_and_logged_once(
    newer: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REALM", REALM)
    newer.configure({"executors": {"cards": {"headers": HEADERS}}})
    async with newer.running() as gateway:
        for count, result in enumerate([TOKEN, {"deep": [f"so {SECRET}."]}, {REALM: 1}], start=1):
            newer.hooks.scripts["ask"] = success(result)
            assert (await ended(await newer.agent.call("ask", GOOD))).result == result
            assert await counted(gateway) == count
        newer.hooks.scripts["ask"] = success(1, updates=[update("table", said=TOKEN)])
        await ended(await newer.agent.call("ask", GOOD))
        assert await counted(gateway) == 4
        newer.hooks.scripts["ask"] = success(f"/tools?realm={quote(REALM)}")
        await ended(await newer.agent.call("ask", GOOD))
        assert await counted(gateway) == 5
        for harmless in (PLAIN, {"n": 2**60}, None):
            newer.hooks.scripts["ask"] = success(harmless)
            await ended(await newer.agent.call("ask", GOOD))
        assert await counted(gateway) == 5
    told = [line for line in capsys.readouterr().err.splitlines() if "result contains a secret" in line]
    assert len(told) == 1
    assert "canary" not in told[0]


async def test_a_callback_is_looked_through_as_well_and_its_error_is_masked(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"headers": {"X-Token": TOKEN}}}})
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        (asked,) = await newer.hooks.wait_for(1)
        assert (await call_back(asked, success(TOKEN))).status_code == 200
        assert (await ended(call)).result == TOKEN
        assert await counted(gateway) == 1
        call = await newer.agent.call("ask", GOOD)
        asked = (await newer.hooks.wait_for(2))[-1]
        failed = {"outcome": "failure", "error": f"{TOKEN} is wrong"}
        assert (await call_back(asked, failed)).status_code == 200
        assert (await call_back(asked, failed)).status_code == 200
        await ended(call)
        (_, one) = await gateway.events(kind="tool.finished")
        assert (one["event"]["error"], TOKEN in str(one)) == ("*** is wrong", False)
