"""An agent of any protocol may send null for an optional argument; the backend's request omits it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from gateway.testing.runtimes.openhands.progress import Manners
from tests.http.mcp_clients import Plain
from tests.scenarios.environment import Running, Scene, ended, until
from tests.scenarios.fleet import (
    HermEnvironment,
    OpenHandsEnvironment,
    herm_environment,
    openhands_environment,
)
from tests.scenarios.hooks import Hooks, success

TOKEN = "desk-nulls-7Hn3-0123456789"
FIND: dict[str, Any] = {
    "find": {
        "description": "Find the player who holds a rank.",
        "parameters": {
            "type": "object",
            "properties": {"rank": {"type": "string"}, "targetPlayer": {"type": "string"}},
            "required": ["rank"],
        },
    }
}
SENT = {"rank": "7", "targetPlayer": None}


async def is_dropped(gateway: Running, hooks: Hooks, session_id: str | None = None) -> None:
    """The backend got the call without the null, and the record has it, and says that it was dropped."""
    (asked,) = hooks.of("find")
    assert asked.data["arguments"] == {"rank": "7"}
    events = await gateway.events(session_id, "tool.requested")
    (recorded,) = [one for one in events if one["event"].get("runs_in", "host") == "host"]
    assert recorded["event"]["arguments"] == SENT
    assert [(one["how"], one["path"]) for one in recorded["losses"]] == [("dropped", "/arguments/targetPlayer")]


async def test_huma_agents(both: Scene) -> None:
    both.configure({"tools": FIND})
    both.hooks.scripts["find"] = success("Victoria")
    async with both.running() as gateway:
        call = await both.agent.call("find", SENT, call_id="c-1")
        assert "Victoria" in str((await ended(call)).result)
        await is_dropped(gateway, both.hooks)
        # The same id with the same arguments is the same call, and gets the outcome on record.
        again = await both.agent.call("find", SENT, call_id="c-1")
        await ended(again)
        assert len(both.hooks.of("find")) == 1


async def test_an_agent_keeps_its_nulls_where_the_configuration_says_so(newer: Scene) -> None:
    newer.configure({"tools": {"find": {**FIND["find"], "nulls": "keep"}}})
    async with newer.running():
        call = await newer.agent.call("find", SENT)
        assert "null is not allowed" in str((await ended(call)).error)
        assert newer.hooks.of("find") == []


async def test_a_restart_asks_again_with_the_same_arguments(newer: Scene) -> None:
    newer.configure({"tools": FIND})
    newer.hooks.scripts["find"] = Response(status_code=503, headers={"retry-after": "2"})
    async with newer.running():
        await newer.agent.call("find", SENT, call_id="c-1")
        await newer.hooks.wait_for(1)
    newer.hooks.scripts["find"] = success("Victoria")
    # What was sent decides, and no longer the configuration.
    newer.configure({"tools": {"find": {**FIND["find"], "nulls": "keep"}}})
    async with newer.running() as gateway:
        await gateway.wait_call("c-1", "succeeded")
        assert [one.data["arguments"] for one in newer.hooks.of("find")] == [{"rank": "7"}] * 2


@pytest.fixture
async def herm(tmp_path: Path) -> AsyncIterator[HermEnvironment]:
    async with herm_environment(tmp_path) as made:
        yield made


async def test_herm_agents_live_and_caught_up(herm: HermEnvironment) -> None:
    herm.configure({"tools": FIND})
    herm.hooks.scripts["find"] = success("Victoria")
    async with herm.running() as gateway:
        await herm.agent.call("find", SENT).answered()
        await is_dropped(gateway, herm.hooks)
    asked = herm.agent.call("find", SENT)
    async with herm.running() as gateway:
        await asked.answered()
        assert [one.data["arguments"] for one in herm.hooks.of("find")] == [{"rank": "7"}] * 2
        for recorded in await gateway.events(kind="tool.requested"):
            assert [one["path"] for one in recorded["losses"]] == ["/arguments/targetPlayer"]


@pytest.fixture
async def openhands(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    manners = Manners(loading=timedelta(0), stale_state=None, mcp_patience=timedelta(seconds=20))
    async with openhands_environment(tmp_path, manners=manners) as made:
        made.options(conversation_id=None, conversation={}, ack_timeout="10s")
        yield made


async def test_openhands_agents_over_mcp(openhands: OpenHandsEnvironment) -> None:
    openhands.configure({"tools": FIND})
    openhands.hooks.scripts["find"] = success({"player": "Victoria"})
    async with openhands.running(linked=False) as gateway:
        row = await gateway.post("/v1/sessions", {"runtime": "work"}, status=201)
        conversation = openhands.server.conversation(row["native_id"])
        await conversation.wait_event(lambda event: event.get("action") == "system")
        seen = await conversation.agent_calls("find", SENT)
        assert "Victoria" in seen["content"]
        await is_dropped(gateway, openhands.hooks, row["session_id"])

        async def linked() -> bool | None:
            return bool(await gateway.events(row["session_id"], "call.linked")) or None

        # The action in the conversation and the call are still known to be the same.
        await until(linked)


async def test_mcp_clients(newer: Scene) -> None:
    desk = {"adapter": "mcp", "clients": [{"name": "ada", "token": TOKEN}]}
    newer.configure({"tools": FIND, "runtimes": {"desk": desk}})
    newer.hooks.scripts["find"] = success("Victoria")
    async with newer.running() as gateway:
        client = Plain(gateway.http, "/mcp/r/desk", TOKEN)
        assert not (await client.call("find", SENT))["result"]["isError"]
        await is_dropped(gateway, newer.hooks, await gateway.session("desk"))
