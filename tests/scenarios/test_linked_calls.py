"""OpenHands agents call our tools over MCP: what their runtime tells of it and the call are one, on every way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response

from gateway.core.own_actions import TICKET
from gateway.events import SessionId
from gateway.testing.runtimes.openhands.conversation import SimConversation
from gateway.testing.runtimes.openhands.events import Seen, action_event, observation_event
from gateway.testing.runtimes.openhands.mcp import McpServer, McpServers
from gateway.testing.runtimes.openhands.rules import complete
from tests.http.mcp_clients import Plain
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import OpenHandsEnvironment, condition, openhands_environment
from tests.scenarios.hooks import SECRET, Gate, success, update
from tests.scenarios.replicas import cluster, owner_and_other

GOOD = {"player": "Victoria", "rank": "7"}
COPIED = ("tool.requested", "tool.finished", "call.linked")


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path) as made:
        made.options(ack_timeout="10s")
        yield made
        assert made.agent.violations == []


async def given_tools(environment: OpenHandsEnvironment, gateway: Running) -> None:
    """Let the agent know our tools, as if its conversation had been created with them."""
    work, session_id = environment.agent, await gateway.session()
    await gateway.wait_events("session.moved", state="awaiting_input")
    server = McpServer(f"{gateway.url}/mcp/{session_id}", await ticket_of(gateway, session_id), 60)
    work.mcp = McpServers(work.conversation_id, (server,))
    await work.mcp.begin()
    assert work.mcp.has("ask")


async def own(gateway: Running) -> list[dict[str, Any]]:
    """What is on record of the runtime's own actions and their ends."""
    found = [*await gateway.events(kind="tool.requested"), *await gateway.events(kind="tool.finished")]
    return [one for one in found if one["origin"] and one["origin"]["adapter"] == "openhands"]


async def test_a_call_is_shown_once_and_counted_once(environment: OpenHandsEnvironment) -> None:
    environment.hooks.scripts["ask"] = success("Go fish!", updates=[update("cards.moved", left=3)])
    async with environment.running() as gateway:
        await given_tools(environment, gateway)
        seen = await environment.agent.agent_calls("ask", GOOD)
        assert "Go fish!" in seen["content"]
        finished = await gateway.wait_events("tool.finished", 2)
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert (call["tool"], call["answer_to"], call["state"]) == ("ask", "caller", "succeeded")
        [linked] = await gateway.events(kind="call.linked")
        assert linked["event"]["call_id"] == call["call_id"]
        asked, ended = await own(gateway)
        assert (asked["event"]["tool"], asked["event"]["runs_in"]) == ("call_tool_mcp", "runtime")
        assert (linked["caused_by"], linked["origin"]) == (asked["sequence"], None)
        assert linked["event"]["native_call_id"] == asked["event"]["native_call_id"]
        assert [asked["linked_to"], ended["linked_to"]] == [call["call_id"]] * 2
        assert [one["linked_to"] for one in finished if one["origin"]["adapter"] == "caller"] == [None]
        history = await gateway.get(f"/v1/calls/{call['call_id']}")
        assert [one["event"]["kind"] for one in history["events"]] == ["tool.requested", "call.linked", "tool.finished"]
        metrics = await gateway.metrics()
        counted = {name: value for name, value in metrics.items() if name.startswith("dragoman_calls_total")}
        assert counted == {'dragoman_calls_total{outcome="success",runtime="work",tool="ask"}': 1}
    assert len(environment.hooks.of("ask")) == 1


# Either order ----------------------------------------------------------------------------------------------


def plain(environment: OpenHandsEnvironment, gateway: Running, session_id: str, token: str) -> Plain:
    """The agent's MCP client by hand, apart from what its runtime tells."""
    assert environment.agent.runs
    return Plain(gateway.http, f"/mcp/{session_id}", token)


async def by_hand(environment: OpenHandsEnvironment, gateway: Running) -> Plain:
    await gateway.wait_events("session.moved", state="awaiting_input")
    session_id = await gateway.session()
    return plain(environment, gateway, session_id, await ticket_of(gateway, session_id))


async def ticket_of(gateway: Running, session_id: str) -> str:
    """What a ticket is exchanged for where it is let in."""
    return await gateway.gateway.tool_tokens.token(SessionId(session_id), TICKET)


def action(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    args = complete("call_tool_mcp", name=tool, arguments=arguments)
    return action_event("call_tool_mcp", args, source="agent")


async def acts(work: SimConversation, tool: str = "ask", given: dict[str, Any] = GOOD, *, live: bool = True) -> int:
    """The runtime tells that the agent calls a tool; returns the number of it."""
    return (await work.add(action(tool, given), live=live))["id"]


async def ends(work: SimConversation, number: int, *, live: bool = True) -> None:
    """The runtime tells what came of it."""
    seen = Seen("mcp", '{"isError": false, "content": []}', {"name": "ask", "arguments": GOOD})
    await work.add(observation_event(seen, cause=number), live=live)


async def test_an_action_that_only_a_reconnect_tells_of_is_linked_to_the_call_before_it(
    environment: OpenHandsEnvironment,
) -> None:
    async with environment.running() as gateway:
        client = await by_hand(environment, gateway)
        work, seen = environment.agent, len(await gateway.events())
        number = await acts(work, live=False)
        await client.call("ask", GOOD)
        await ends(work, number, live=False)
        assert [one["event"]["kind"] for one in (await gateway.events())[seen:]] == ["tool.requested", "tool.finished"]
        await work.drop()
        await gateway.wait_events("call.linked")
        asked, ended = await until(lambda: both(gateway))
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert [asked["linked_to"], ended["linked_to"]] == [call["call_id"]] * 2
        # Once more the same, which changes nothing.
        connections = work.connections
        await work.drop()
        await work.wait_connections(connections + 1)
        await gateway.wait_events("link.changed", 3, state="up")
        assert len(await gateway.events(kind="call.linked")) == 1
        metrics = await gateway.metrics()
        assert sum(value for name, value in metrics.items() if name.startswith("dragoman_calls_total")) == 1


async def both(gateway: Running) -> list[dict[str, Any]] | None:
    found = await own(gateway)
    return found if len(found) == 2 else None


async def test_a_call_that_is_open_over_a_restart_keeps_its_action(environment: OpenHandsEnvironment) -> None:
    environment.hooks.scripts["ask"] = Response(status_code=202)
    environment.configure({"mcp": {"hold": "100ms"}})
    async with environment.running() as gateway:
        client = await by_hand(environment, gateway)
        first = await acts(environment.agent)
        await gateway.wait_events("tool.requested")
        await client.call("ask", GOOD)
        [call] = (await gateway.get("/v1/calls"))["data"]
        second = await acts(environment.agent, "free", {})
        await gateway.wait_events("tool.requested", 3)
    # What happened meanwhile: one has ended.
    await ends(environment.agent, first)
    async with environment.running() as gateway:
        client = await by_hand(environment, gateway)
        [ended] = await gateway.wait_events("tool.finished")
        assert (ended["linked_to"], ended["origin"]["adapter"]) == (call["call_id"], "openhands")
        await client.call("free", {})
        links = await gateway.wait_events("call.linked", 2)
        assert [one["event"]["native_call_id"] for one in links] == [str(first), str(second)]
        await gateway.post(f"/v1/calls/{call['call_id']}/outcome", success("seven"), status=200)
        assert len(await gateway.events(kind="call.linked")) == 2
        calls = (await gateway.get("/v1/calls"))["data"]
        assert {one["tool"]: one["state"] for one in calls} == {"ask": "succeeded", "free": "succeeded"}


async def test_a_call_at_one_replica_is_linked_by_the_one_that_carries_the_session_and_by_the_next(
    environment: OpenHandsEnvironment,
) -> None:
    environment.hooks.scripts["ask"] = Response(status_code=202)
    environment.configure({"mcp": {"hold": "100ms"}})
    store, work = cluster(environment), environment.agent
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session(environment.runtime)
        owner, other = await owner_and_other(session_id, [a, b])
        client = plain(environment, other, session_id, await ticket_of(other, session_id))
        number = await acts(work)
        await until(lambda: recorded(other, session_id, "tool.requested", 1))
        await client.call("ask", GOOD)
        [linked] = await until(lambda: recorded(other, session_id, "call.linked", 1))
        unseen = await acts(work, "free", {})
        await until(lambda: recorded(other, session_id, "tool.requested", 3))
        owner.faults.cut_off = True
        await other.wait_carries(session_id)
        await ends(work, number)
        [ended] = await until(lambda: recorded(other, session_id, "tool.finished", 1))
        assert ended["linked_to"] == linked["event"]["call_id"]
        await client.call("free", {})
        links = await until(lambda: recorded(other, session_id, "call.linked", 2))
        assert links[-1]["event"]["native_call_id"] == str(unseen)
        owner.faults.cut_off = False


async def recorded(gateway: Running, session_id: str, kind: str, count: int) -> list[dict[str, Any]] | None:
    found = await gateway.events(session_id, kind)
    return found if len(found) >= count else None


# What the agent gives up -----------------------------------------------------------------------------------


async def test_what_another_client_stops_is_canceled_at_the_executor(environment: OpenHandsEnvironment) -> None:
    gate = Gate()
    environment.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with environment.running() as gateway:
        await given_tools(environment, gateway)
        calling = asyncio.create_task(environment.agent.agent_calls("ask", GOOD))
        [asked] = await environment.hooks.wait_for(name="ask")
        await environment.agent.accept({"action": "change_agent_state", "args": {"agent_state": "stopped"}})
        [told] = await environment.hooks.wait_for(name="tool.canceled")
        assert told.data["call_id"] == asked.data["call_id"]
        call = await gateway.get(f"/v1/calls/{asked.data['call_id']}")
        assert (call["state"], call["outcome"]["outcome"]) == ("canceled", "canceled")
        gate.open()
        # The runtime waits for its answer all the same, and tells of a second end.
        assert "has not been executed" in (await calling)["content"]
        finished = await gateway.wait_events("tool.finished", 3)
        assert [one["linked_to"] for one in finished].count(asked.data["call_id"]) == 2
        counted = {n: v for n, v in (await gateway.metrics()).items() if n.startswith("dragoman_calls_total")}
        assert counted == {'dragoman_calls_total{outcome="canceled",runtime="work",tool="ask"}': 1}


# Followers and copies --------------------------------------------------------------------------------------


async def test_followers_are_told_when_an_action_turns_out_to_be_a_call(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await given_tools(environment, gateway)
        session_id = await gateway.session()
        last = (await gateway.events())[-1]["sequence"]
        async with gateway.stream(session_id, after=last) as source:
            await environment.agent.agent_calls("free", {})
            live = [*await source.until("tool.finished"), *await source.until("tool.finished")]
        told = [(one["event"], one["data"]["linked_to"]) for one in live if one["event"] != "session.moved"]
        [call] = (await gateway.get("/v1/calls"))["data"]
        assert told == [
            ("tool.requested", None),
            ("tool.requested", None),
            ("call.linked", None),
            ("tool.finished", None),
            ("tool.finished", call["call_id"]),
        ]
        # Whoever reads it later is told at once.
        async with gateway.stream(session_id, after=last) as source:
            again = [*await source.until("tool.finished"), *await source.until("tool.finished")]
        found = [one["data"]["linked_to"] for one in again if one["event"].startswith("tool.")]
        assert found == [call["call_id"], None, None, call["call_id"]]
        # However the pages of history fall.
        for limit in range(1, 6):
            page = await gateway.get(f"/v1/sessions/{session_id}/events", after=last, limit=limit)
            first = next((one for one in page["data"] if one["event"]["kind"] == "tool.requested"), None)
            assert first is None or first["linked_to"] == call["call_id"]


async def test_copies_are_made_of_the_call_alone(environment: OpenHandsEnvironment) -> None:
    log = {"url": f"{environment.hooks.url}/copies/log", "secret": SECRET}
    copied = [{"match": {"event": kind}, "copy_to": "log"} for kind in COPIED]
    environment.configure({"destinations": {"log": log}, "routes": [*copied, {"match": {"tool": "*"}, "to": "cards"}]})
    environment.hooks.scripts["/copies/log"] = Response()
    async with environment.running() as gateway:
        await given_tools(environment, gateway)
        await environment.agent.agent_calls("free", {})
        # One that was made at another server which has a tool of this name.
        number = await acts(environment.agent)
        await ends(environment.agent, number)
        seen = await condition(lambda: found if len(found := copies(environment)) >= 5 else None)
        events = [one for one in await gateway.events() if one["event"]["kind"] in COPIED]
        assert [one["sequence"] for one in seen] == [one["sequence"] for one in events if one["linked_to"] is None]
        assert [one["event"]["kind"] for one in seen] == [
            "tool.requested", "call.linked", "tool.finished", "tool.requested", "tool.finished",
        ]  # fmt: skip


def copies(environment: OpenHandsEnvironment) -> list[dict[str, Any]]:
    return [one.data for one in environment.hooks.asked if "event_id" in one.data]


# Who says so -----------------------------------------------------------------------------------------------


async def test_an_executor_whose_progress_pretends_to_be_a_link_links_nothing(
    environment: OpenHandsEnvironment,
) -> None:
    environment.hooks.scripts["ask"] = Response(status_code=202)
    async with environment.running() as gateway:
        client = await by_hand(environment, gateway)
        held = asyncio.create_task(client.call("ask", GOOD))
        [asked] = await environment.hooks.wait_for(name="ask")
        number = await acts(environment.agent, "free", {})
        [action_of] = await gateway.wait_events("tool.requested", tool="call_tool_mcp")
        call_id = asked.data["call_id"]
        forged = {
            "kind": "call.linked", "call_id": call_id, "native_call_id": str(number), "linked_to": call_id,
            "tool": "free", "caused_by": action_of["sequence"],
        }  # fmt: skip
        where = httpx.URL(asked.data["progress_url"]).raw_path.decode()
        await gateway.post(where, forged, status=202)
        await gateway.post(where, {"event": forged}, status=202)
        said = success("seven", updates=[{"name": "call.linked", "context": forged, "description": "linked"}])
        await gateway.post(f"/v1/calls/{call_id}/outcome", said, status=200)
        assert (await held)["result"]["content"][-1]["text"] == "seven"
        await ends(environment.agent, number)
        await gateway.wait_events("tool.finished", 2)
        assert await gateway.events(kind="call.linked") == []
        assert [one["linked_to"] for one in await own(gateway)] == [None, None]
        counted = {n for n in await gateway.metrics() if n.startswith("dragoman_calls_total")}
        assert len(counted) == 2
        # Nor does a client.
        refused = await gateway.post(f"/v1/sessions/{await gateway.session()}/events", forged, status=422)
        assert "clients may not post 'call.linked'" in refused["detail"]
