"""`dragoman doctor` warns of rules about tools that agents have only run themselves."""

import asyncio
from pathlib import Path
from typing import Any

from gateway.cli.doctor_gateway import check_rules
from gateway.events import ToolRequested
from gateway.settings.model import Settings
from tests.scenarios.environment import API_KEY, until
from tests.scenarios.plain_runtime import plain_gateway

SETTINGS: dict[str, Any] = {
    "executors": {"cards": {"type": "static", "result": "done"}},
    "tools": {"refund": {"description": "Refund.", "parameters": {"type": "object"}}},
    "routes": [
        {"match": {"tool": "bas?"}, "deny": "No shell."},
        {"match": {"tool": "both"}, "to": "cards", "approve": True},
        {"match": {"tool": "bash", "runtime": "other"}, "deny": "Not there."},
        {"match": {"tool": "edit*"}, "to": "cards", "approve": True},
        {"match": {"tool": "refund"}, "to": "cards", "approve": True},
        {"match": {"tool": "*"}, "to": "cards"},
    ],
}


async def test_rules_about_tools_that_only_runtimes_have_run_are_warned_of(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path, settings=SETTINGS) as (running, runtime):
        settings, env = Settings.model_validate(SETTINGS), {"DRAGOMAN_URL": running.url, "DRAGOMAN_KEY": API_KEY}

        async def found() -> list[tuple[str, str]]:
            return await asyncio.to_thread(lambda: [(one.state, one.text) for one in check_rules(settings, env)])

        assert await found() == []
        ran = [
            ("bash", "runtime"),
            ("edit\x1b[31m", "runtime"),
            ("both", "runtime"),
            ("both", "host"),
            ("refund", "host"),
        ]
        for number, (tool, place) in enumerate(ran):
            runtime.say(ToolRequested.model_validate({"native_call_id": f"n-{number}", "tool": tool, "runs_in": place}))

        async def held() -> bool | None:
            rows = (await running.http.get("/v1/interactions", params={"state": "waiting"})).json()["data"]
            return len(rows) == 2 or None

        await until(held)
        name = (await running.get("/v1/runtimes"))["data"][0]["name"]
        assert await found() == [
            ("warning", f"routes[0] denies 'bash', which agents of {name} have only run themselves so far"),
            ("warning", f"routes[3] holds 'edit\\x1b[31m', which agents of {name} have only run themselves so far"),
        ]
        settings = Settings.model_validate(SETTINGS | {"routes": SETTINGS["routes"][-1:]})
        assert await found() == []


async def test_without_a_gateway_the_rules_are_not_checked_and_that_is_said() -> None:
    env = {"DRAGOMAN_URL": "http://127.0.0.1:1", "DRAGOMAN_KEY": API_KEY}
    (check,) = await asyncio.to_thread(lambda: list(check_rules(Settings.model_validate(SETTINGS), env)))
    assert (check.state, check.text[:12]) == ("note", "not checked:")
