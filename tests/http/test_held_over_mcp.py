"""Held calls of MCP clients: an agent is told at once, other clients wait first, and both get the outcome later."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.http.mcp_clients import Plain
from tests.http.test_approvals import DONE, GATED, LEAD, answer, shown
from tests.http.test_tickets import created, rooms, told
from tests.pace import PATIENCE

WAITS = "Waits for a person's approval. Call get_result with "
HOLD = 0.3


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of({**GATED, "mcp": {"hold": f"{HOLD}s"}}, runtime=rooms()) as made:
        made.backend.answers["refund"] = DONE
        yield made


@pytest.fixture
async def url(environment: Environment) -> AsyncIterator[str]:
    async with serving(environment.gateway) as (_, base):
        yield base


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket without a key."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as made:  # noqa: S501
        yield made


def text_of(result: dict[str, Any]) -> str:
    return result["result"]["content"][0]["text"]


def call_of(text: str) -> str:
    assert text.startswith(WAITS)
    assert text.endswith(" to wait; do not call refund again.")
    return json.loads(text.removeprefix(WAITS).partition(" to wait")[0])["call_id"]


@pytest.mark.parametrize("by_ticket", [True, False])
async def test_a_held_call_is_told_and_its_outcome_is_fetched_later(
    environment: Environment, wire: httpx.AsyncClient, client: httpx.AsyncClient, by_ticket: bool
) -> None:
    session_id = await created(wire)
    path, token = told(environment)
    if not by_ticket:
        path, token = f"/mcp/{session_id}", (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    plain = Plain(client, path, token)
    listed = (await plain.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})).json()
    assert "get_result" in [tool["name"] for tool in listed["result"]["tools"]]
    first = await plain.call("refund", {"amount": 120})
    call_id = call_of(text_of(first))
    assert not first["result"].get("isError")
    assert environment.backend.asked == []
    # The wait for the result takes as long as that for any call.
    assert call_of(text_of(await plain.call("get_result", {"call_id": call_id}))) == call_id
    # The same call again is not a second one.
    assert call_of(text_of(await plain.call("refund", {"amount": 120}))) == call_id
    row = await shown(wire)
    assert row["call_id"] == call_id
    assert (await answer(wire, row, LEAD, decision="deny", reason="not today")).status_code == 200
    denied = await plain.call("get_result", {"call_id": call_id})
    assert text_of(denied) == "The call was not made: a person denied it: not today"


async def test_a_client_that_waits_gets_the_outcome_of_an_allowed_call(
    environment: Environment, wire: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await created(wire)
    path, ticket = told(environment)
    plain = Plain(client, path, ticket)
    call_id = call_of(text_of(await plain.call("refund", {"amount": 120})))
    row = await shown(wire)
    assert (await answer(wire, row, LEAD, decision="allow", binding=row["binding"])).status_code == 200
    assert text_of(await plain.call("get_result", {"call_id": call_id})) == "done"


async def test_neither_tickets_nor_tokens_allow_a_call(
    environment: Environment, wire: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    session_id = await created(wire)
    path, ticket = told(environment)
    await Plain(client, path, ticket).call("refund", {"amount": 120})
    row = await shown(wire)
    token = (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    for key in (ticket, token):
        headers = {"authorization": f"Bearer {key}"}
        refused = await answer(client, row, headers, decision="allow", binding=row["binding"])
        assert refused.status_code == 401
