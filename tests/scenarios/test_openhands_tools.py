"""Conversations that we create in OpenHands call the backend's tools through the gateway."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Response

from gateway.serve import read_configuration
from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.rules import Frame
from gateway.testing.runtimes.openhands.server import SimConversation
from tests.faults.proxy import Proxy
from tests.ports import free_port
from tests.scenarios.environment import GOOD, Running, plain_http, until
from tests.scenarios.fleet import WORK, OpenHandsEnvironment, openhands_environment
from tests.scenarios.hooks import success
from tests.scenarios.replica_processes import Fleet, fleet
from tests.scenarios.test_canary import files

TICKET = re.compile(r"dtt_[A-Za-z0-9_-]{20,}")
PATIENCE = timedelta(seconds=8)
"""Of the agent's MCP client; a process loads the library of MCP when the first one comes."""
MANNERS = Manners(loading=timedelta(0), stale_state=None, mcp_patience=PATIENCE)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path, manners=MANNERS) as made:
        made.options(conversation_id=None, conversation={}, ack_timeout="10s")
        yield made
        assert made.server.violations == []
        assert [one.violations for one in made.server.conversations.values() if one.violations] == []


async def create(environment: OpenHandsEnvironment, gateway: Running, **body: Any) -> tuple[str, SimConversation]:
    """Create a conversation; returns the session's id, and the conversation once its agent listens."""
    row = await gateway.post("/v1/sessions", {"runtime": "work", **body}, status=201)
    conversation = environment.server.conversation(row["native_id"])
    await conversation.wait_event(lambda event: event.get("action") == "system")
    return row["session_id"], conversation


def tools(conversation: SimConversation) -> list[str]:
    """The tools that the agent's model was told."""
    (system,) = [event for event in conversation.events if event.get("action") == "system"]
    return [tool["function"]["name"] for tool in system["args"]["tools"]]


def said(seen: Frame) -> Any:
    """What an MCP observation tells the agent."""
    assert seen["observation"] == "mcp"
    return json.loads(seen["content"])


async def test_a_created_conversation_lists_and_calls_the_backends_tools(environment: OpenHandsEnvironment) -> None:
    environment.hooks.scripts["ask"] = success({"cards": 2})
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        assert "ask" in tools(conversation)
        seen = said(await conversation.agent_calls("ask", GOOD))
        assert (seen["isError"], seen["structuredContent"]) == (False, {"cards": 2})
        (asked,) = environment.hooks.of("ask")
        assert asked.data["session_id"] == session_id
        (server,) = conversation.mcp.servers
        assert server.url.startswith(f"{gateway.url}/mcp/t/")
        # The server's default is 60 s; a webhook may take 600 s after a 202.
        assert server.timeout == 600
        opened = (await gateway.events(session_id))[0]
        assert (opened["event"]["kind"], opened["losses"]) == ("session.opened", [])


async def test_own_mcp_servers_of_the_options_stay(environment: OpenHandsEnvironment) -> None:
    theirs = {"url": "http://127.0.0.1:9/theirs", "timeout": 5}
    environment.options(conversation={"mcp_config": {"shttp_servers": [theirs]}})
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        assert [server.url.rpartition("/")[0] for server in conversation.mcp.servers] == [
            "http://127.0.0.1:9",
            f"{gateway.url}/mcp/t",
        ]
        assert "ask" in tools(conversation)


async def test_a_runtime_that_cannot_reach_us_is_told_no_tools_and_that_is_on_record(
    environment: OpenHandsEnvironment, tmp_path: Path
) -> None:
    async with environment.running(linked=False) as gateway:
        environment.configure({"public_url": None})
        await gateway.post("/v1/reload", status=200)
        session_id, conversation = await create(environment, gateway)
        assert tools(conversation) == []
        opened = (await gateway.events(session_id))[0]
        assert [(loss["how"], loss["path"]) for loss in opened["losses"]] == [("dropped", "/tools")]
        # The YAML says where this runtime reaches us, though nobody else may.
        environment.options(mcp_url=gateway.url)
        await gateway.post("/v1/reload", status=200)
        assert "ask" in tools((await create(environment, gateway))[1])


async def test_check_says_that_a_runtime_cannot_reach_us(environment: OpenHandsEnvironment) -> None:
    def warnings() -> list[str]:
        return [problem.message for problem in read_configuration(environment.config).problems]

    environment.configure({"public_url": None})
    assert any("its sessions get none of the tools" in one and "mcp_url" in one for one in warnings())
    for over in ({"public_url": "http://127.0.0.1:9"}, {"tools": None}):
        environment.configure(over)
        assert not any("none of the tools" in one for one in warnings())


async def test_check_says_that_an_agent_has_a_tool_of_that_name_itself(environment: OpenHandsEnvironment) -> None:
    environment.configure({"tools": {"think": {"description": "Thinks."}, "think_hard": {"description": "Thinks."}}})

    def warned() -> list[str]:
        problems = read_configuration(environment.config).problems
        return [problem.message for problem in problems if "has its own tool of this name" in problem.message]

    (said,) = warned()
    assert "'work'" in said
    # Nobody tells an agent of ours where a conversation exists already.
    environment.options(conversation=None, conversation_id=WORK)
    assert warned() == []


async def test_what_outlasts_the_hold_is_waited_on_by_get_result(environment: OpenHandsEnvironment) -> None:
    environment.configure({"mcp": {"hold": "200ms"}})
    environment.hooks.scripts["ask"] = Response(status_code=202)
    async with environment.running(linked=False) as gateway:
        _, conversation = await create(environment, gateway)
        text = said(await conversation.agent_calls("ask", GOOD))["content"][0]["text"]
        (asked,) = await environment.hooks.wait_for(name="ask")
        assert text.startswith("Not finished. Call get_result")
        async with plain_http() as http:
            assert (await http.post(asked.data["callback_url"], json=success({"cards": 2}))).status_code == 200
        waited = said(await conversation.agent_calls("get_result", {"call_id": asked.data["call_id"]}))
        assert waited["structuredContent"] == {"cards": 2}


async def test_no_ticket_is_in_any_log_answer_journal_or_file(
    environment: OpenHandsEnvironment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.configure({"logging": {"level": "debug"}})
    seen: list[tuple[str, str]] = []
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        (server,) = conversation.mcp.servers
        assert server.api_key is not None
        assert TICKET.fullmatch(server.api_key)
        await conversation.agent_calls("ask", GOOD)
        await conversation.agent_calls("ask", {})
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        async with plain_http() as http:
            for headers in (server.headers, {"s": server.api_key}, {"authorization": f"Bearer {server.api_key}x"}):
                told = [await http.post(server.url, json=body, headers=headers) for body in (listing, [listing], {})]
                seen += [("mcp", answer.text) for answer in (*told, await http.get(server.url, headers=headers))]
        rotated = await gateway.http.post(f"/v1/sessions/{session_id}/mcp/rotate?of=ticket")
        seen.append(("rotate", rotated.text))
        # What the server says of a creation that it does not take quotes all of it.
        environment.options(conversation={"mcp_config": {"strange": []}})
        await gateway.post("/v1/reload", status=200)
        refused = await gateway.http.post("/v1/sessions", json={"runtime": "work"})
        assert refused.status_code == 502
        environment.server.violations.clear()
        seen.append(("refusal", refused.text))
        seen.append(("journal", json.dumps(await gateway.events(session_id))))
        pages = ("v1/sessions", "v1/calls", "v1/dead-letters", "v1/runtimes", "v1/capabilities", "metrics")
        seen += [(page, (await gateway.http.get(f"/{page}")).text) for page in pages]
    seen += files(tmp_path)
    log = capsys.readouterr().err
    assert "request served" in log
    assert [(where, found) for where, text in (*seen, ("log", log)) for found in TICKET.findall(text)] == []


# Processes -------------------------------------------------------------------------------------------------


def processes(environment: OpenHandsEnvironment) -> AbstractAsyncContextManager[Fleet]:
    """Run gateways one after the other on one file, on one port."""
    return fleet(environment, engine={"type": "sqlite", "path": str(environment.folder / "dragoman.db")})


@pytest.mark.slow
async def test_the_agents_repeat_joins_the_call_that_a_killed_gateway_left_open(
    environment: OpenHandsEnvironment,
) -> None:
    environment.hooks.scripts["ask"] = Response(status_code=202)
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    async with processes(environment) as gateways:
        one = await gateways.serve("one", port=port, public_url=here)
        _, conversation = await create(environment, one)
        calling = asyncio.create_task(conversation.agent_calls("ask", GOOD))
        (asked,) = await environment.hooks.wait_for(name="ask")
        await one.wait_call(str((await one.get("/v1/calls"))["data"][0]["native_call_id"]), "accepted")
        one.signal(signal.SIGKILL)
        await one.ended()
        await calling
        # The agent is told nothing, and stands still until its user says something.
        assert conversation.state == "error"
        await gateways.serve("two", port=port, public_url=here, mcp={"hold": "200ms"})
        seen = said(await conversation.agent_calls("ask", GOOD))
        assert str(asked.data["call_id"]) in seen["content"][0]["text"]
        async with plain_http() as http:
            assert (await http.post(asked.data["callback_url"], json=success({"cards": 2}))).status_code == 200
        seen = said(await conversation.agent_calls("get_result", {"call_id": asked.data["call_id"]}))
        assert seen["structuredContent"] == {"cards": 2}
        assert len(environment.hooks.of("ask")) == 1


@pytest.mark.slow
async def test_a_conversation_whose_gateway_died_before_it_was_on_record_is_found_when_it_calls(
    environment: OpenHandsEnvironment,
) -> None:
    at = urlsplit(environment.server.url)
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    async with Proxy((str(at.hostname), int(at.port or 0))) as wire, processes(environment) as gateways:
        environment.options(rest_url=wire.url, labels={"team": "shop"})
        one = await gateways.serve("one", port=port, public_url=here)
        creating = asyncio.create_task(one.http.post("/v1/sessions", json={"runtime": "work"}))

        async def begun() -> bool:
            return bool(environment.server.conversations)

        # The server answers when the agent has listed its tools; that answer never arrives.
        await until(begun)
        wire.half_open()
        (conversation,) = environment.server.conversations.values()
        await conversation.wait_event(lambda event: event.get("action") == "system")
        assert "ask" in tools(conversation)
        one.signal(signal.SIGKILL)
        await one.ended()
        with pytest.raises(httpx.TransportError):
            await creating
        wire.heal()
        two = await gateways.serve("two", port=port, public_url=here)
        assert (await two.get("/v1/sessions"))["data"] == []
        assert said(await conversation.agent_calls("ask", GOOD))["structuredContent"] == GOOD
        (row,) = (await two.get("/v1/sessions"))["data"]
        assert (row["native_id"], row["labels"]) == (conversation.conversation_id, {"team": "shop"})
        assert environment.hooks.asked[-1].data["session_id"] == row["session_id"]
        assert len(environment.server.conversations) == 1


@pytest.mark.slow
async def test_a_conversation_calls_at_one_replica_what_another_one_carries(environment: OpenHandsEnvironment) -> None:
    port = free_port()
    environment.options(mcp_url=f"http://127.0.0.1:{port}")
    async with fleet(environment, lease="4s") as gateways:
        one = await gateways.serve("one")
        two = await gateways.serve("two", port=port)
        session_id, conversation = await create(environment, one)
        await one.wait_carries(session_id)
        assert not await two.carries(session_id)
        assert said(await conversation.agent_calls("ask", GOOD))["structuredContent"] == GOOD
        one.signal(signal.SIGKILL)
        await one.ended()
        await two.wait_carries(session_id)
        assert said(await conversation.agent_calls("ask", {**GOOD, "rank": "8"}))["structuredContent"]["rank"] == "8"
        assert len(environment.hooks.of("ask")) == 2
