"""Held calls in the terminal: what is shown, what allows one, and the list for an audit."""

import csv
import json
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gateway.events import ToolCanceled, ToolRequested
from tests.scenarios.environment import API_KEY, Running, until
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.terminal import dragoman, screen

Plain = tuple[Running, PlainRuntime]
SCOPES = ["read", "drive", "operate", "answer", "approve"]
SETTINGS: dict[str, Any] = {
    "api": {"keys": [{"name": "lead", "key": API_KEY, "scopes": SCOPES}]},
    "executors": {"cards": {"type": "static", "result": "done"}},
    "tools": {"refund": {"description": "Refund.", "parameters": {"type": "object"}}},
    "routes": [{"match": {"tool": "refund"}, "to": "cards", "approve": True}],
}
EVIL = "\u202e\x1b[31m\u200bred"


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Plain]:
    async with plain_gateway(tmp_path, settings=SETTINGS) as made:
        yield made


async def held(plain: Plain, number: int = 1, **arguments: Any) -> dict[str, Any]:
    running, runtime = plain
    runtime.say(ToolRequested(native_call_id=f"c-{number}", tool="refund", arguments=arguments))

    async def look() -> dict[str, Any] | None:
        rows = (await running.http.get("/v1/interactions", params={"state": "waiting"})).json()["data"]
        return next((row for row in rows if row["event"]["arguments"] == arguments), None)

    return await until(look)


async def test_a_held_call_is_shown_whole_and_allowed_at_a_prompt(plain: Plain) -> None:
    running, _ = plain
    row = await held(plain, note=EVIL, amount=2**60)
    listed = await dragoman(running, "inbox")
    assert "\\u202e\\u001b[31m\\u200bred" in listed.out
    assert str(2**60) in listed.out
    assert listed.out.rstrip().endswith(f"routes[0]\t{row['binding']}")
    async with screen(running, "answer", row["interaction_id"][:8], "--allow") as shown:
        await shown.shows("\\u202e")
        await shown.shows(f"--binding {row['binding']}")
        await shown.shows("allow this call?")
        shown.type("yes\n")
        await shown.shows("answered: approval.asked")
    record = (await running.http.get("/v1/approvals")).json()["data"][0]
    assert (record["decision"], record["allowed"]) == ("allow", row["binding"])


async def test_what_nobody_has_heard_is_listed(plain: Plain) -> None:
    running, _ = plain
    body = {"tool": "refund", "arguments": {"amount": 1}}
    path = f"/v1/sessions/{await running.session()}/calls"
    call_id = (await running.post(path, body, status=202))["call_id"]
    (row,) = (await running.get("/v1/interactions"))["data"]
    async with screen(running, "inbox") as shown:
        await shown.shows("its caller last waited")
    assert (await dragoman(running, "approvals")).out.rstrip("\n").split("\t")[8] == row["unheard_since"]
    await running.post(f"/v1/calls/{call_id}/cancel", {}, status=202)
    assert (await dragoman(running, "approvals")).out.rstrip("\n").split("\t")[8] == ""


async def test_a_call_that_is_asked_again_says_so(plain: Plain) -> None:
    running, runtime = plain
    first = await held(plain, amount=1)
    runtime.say(ToolCanceled(native_call_id="c-1"))
    await running.wait_events("tool.canceled")
    runtime.say(ToolRequested(native_call_id="c-2", tool="refund", arguments={"amount": 1}))

    async def look() -> dict[str, Any] | None:
        rows = (await running.http.get("/v1/interactions", params={"state": "waiting"})).json()["data"]
        return next((row for row in rows if row["call_id"] != first["call_id"]), None)

    assert (await until(look))["asked_before"] == 1
    async with screen(running, "inbox") as shown:
        await shown.shows("asked again, 2nd time")


@pytest.mark.parametrize("words", [("--allow",), ("--allow", "--yes"), ("--deny", "--yes"), ("--arguments", "{}")])
async def test_without_a_prompt_the_binding_is_needed(plain: Plain, words: tuple[str, ...]) -> None:
    running, _ = plain
    row = await held(plain, amount=1)
    refused = await dragoman(running, "answer", row["interaction_id"], *words)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert (await running.http.get(f"/v1/interactions/{row['interaction_id']}")).json()["state"] == "waiting"


async def test_bindings_edits_and_reasons_are_options(plain: Plain, tmp_path: Path) -> None:
    running, _ = plain
    first, second, third = [await held(plain, number, amount=number) for number in range(3)]
    stale = await dragoman(running, "answer", first["interaction_id"], "--allow", "--yes", "--binding", "0" * 64)
    assert (stale.code, "not that of" in stale.err) == (1, True)
    file = tmp_path / "arguments.json"
    file.write_text('{"amount": 7}')
    words = ("--allow", "--yes", "--binding", first["binding"], "--arguments", str(file))
    assert (await dragoman(running, "answer", first["interaction_id"], *words)).code == 0
    words = ("--allow", "--yes", "--binding", second["binding"], "--arguments", '{"amount": 8}')
    assert (await dragoman(running, "answer", second["interaction_id"], *words)).code == 0
    denied = await dragoman(running, "answer", third["interaction_id"], "--deny", "--reason", "=HYPERLINK(1)")
    assert denied.code == 0
    listed = await dragoman(running, "approvals", "--csv", "--since", "1h")
    rows = list(csv.DictReader(StringIO(listed.out)))
    assert [json.loads(row["changed_to"] or "null") for row in rows] == [{"amount": 7}, {"amount": 8}, None]
    assert [row["decision"] for row in rows] == ["allow", "allow", "deny"]
    assert rows[2]["reason"] == "'=HYPERLINK(1)"
    assert [json.loads(row["arguments"]) for row in rows] == [{"amount": number} for number in range(3)]
    of_none = await dragoman(running, "approvals", "--session", "plain/unknown")
    assert (of_none.code, "plain/unknown" in of_none.err) == (1, True)
    table = await dragoman(running, "approvals", "--session", first["session_id"])
    assert [line.split("\t")[2] for line in table.out.splitlines()] == ["edited", "edited", "deny"]
