"""The simulated servers let the right clients in, keep agents over lost connections, and create agents."""

import socket
from typing import Any

import httpx
import pytest

from gateway.testing.runtimes.huma.server import HumaServer, Manners
from tests.simulators.raw_client import RawClient, connected

KEY = "ak_test"
AGENT: dict[str, Any] = {
    "name": "Finn",
    "agentType": "HUMA-0.1",
    "metadata": {
        "className": "Finn",
        "personality": "calm",
        "instructions": "play",
        "routerType": "conversational",
        "tools": [
            {
                "name": "ask_for_cards",
                "description": "Ask.",
                "parameters": [{"name": "rank", "type": "string", "description": "The rank.", "required": True}],
            }
        ],
    },
}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("apiKey=ak_test", "MISSING_AGENT_ID"),
        ("agentId=finn", "UNAUTHORIZED"),
        ("agentId=finn&apiKey=wrong", "UNAUTHORIZED"),
        ("agentId=nobody&apiKey=ak_test", "AGENT_NOT_FOUND"),
        ("agentId=old&apiKey=ak_test", "AGENT_EXPIRED"),
    ],
)
async def test_a_client_that_may_not_come_in_is_told_why(query: str, code: str) -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        server.agent("finn")
        server.agent("old")
        server.refuse("old", "AGENT_EXPIRED")
        client = RawClient()
        with pytest.raises(Exception, match=r"[Cc]onnect|refused|namespaces"):
            await client.connect(f"{server.url}/?{query}")
        assert await client.next() == ("connect_error", {"message": code, "data": {"code": code}})
        assert server.refused == [code]
        await client.close()


async def test_a_refusal_can_be_lifted() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        server.refuse("finn", "UNAUTHORIZED")
        server.refuse("finn", None)
        async with connected(server.url, "finn", KEY):
            await agent.wait_connected()


async def test_a_call_right_after_the_connection_reaches_the_client() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            await agent.wait_connected()
            call = await agent.call("ask", {})
            assert (await client.next())[1]["toolCallId"] == call.call_id


async def test_everything_is_broadcast_to_all_sockets_of_an_agent_and_to_no_other() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        finn = server.agent("finn")
        server.agent("other")
        async with (
            connected(server.url, "finn", KEY) as one,
            connected(server.url, "finn", KEY) as two,
            connected(server.url, "other", KEY) as other,
        ):
            await finn.wait_connections(2)
            await finn.call("ask", {}, "c")
            assert [(await client.next())[1]["toolCallId"] for client in (one, two)] == ["c", "c"]
            assert other.arrived.empty()


async def test_a_call_outlives_a_cut_connection_and_a_restarted_server() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            call = await agent.call("ask", {})
            await client.next()
            assert await agent.drop() == 1
            assert (await client.next())[0] == "disconnect"
        await agent.wait_disconnected()
        url = server.url
        await server.stop()
        await server.start()
        assert server.url == url
        async with connected(server.url, "finn", KEY) as client:
            frame = {"type": "tool-result", "triggering": True, "toolCallId": call.call_id, "toolName": "ask"}
            await client.send(frame | {"outcome": "success"})
            await call.result()
        assert agent.violations == []


async def test_a_stopped_server_refuses_connections_and_keeps_its_port_until_it_ends() -> None:
    async with HumaServer("0.2") as server, httpx.AsyncClient() as http:
        await server.stop()
        with pytest.raises(httpx.ConnectError):
            await http.get(server.url)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(address)
        await server.start()
        assert (await http.get(server.url)).status_code == 404
        await server.stop()
    with socket.socket() as other:
        # The closed connection stays in TIME_WAIT.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(address)
        other.listen()


async def test_an_orderly_disconnect_reaches_the_client() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            await agent.wait_connected()
            await agent.disconnect()
            assert await client.next() == ("disconnect", "server disconnect")
            await agent.wait_disconnected()


async def test_broken_packets_can_be_sent_as_they_are() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            await agent.emit_text('2["event",{"type":"tool-call","arguments":{"n":123456789012345678901234567890}}]')
            channel, payload = await client.next()
            assert (channel, payload["arguments"]["n"]) == ("event", 123456789012345678901234567890)


async def test_another_channel_and_two_arguments_are_breaches() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            await client.send({}, channel="shout")
            assert "only emit on `message`" in (await client.next())[1]["message"]
            await client.send(("one", "two"))
            assert "exactly one" in (await client.next())[1]["message"]
            assert len(agent.violations) == 2


async def test_large_events_pass() -> None:
    async with HumaServer("0.1", api_key=KEY) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            content = {"name": "n", "context": {"x": "x" * 3_000_000}, "description": ""}
            await client.send({"type": "huma-0.1-event", "content": content})
            await agent.wait_for(lambda frame: len(frame["content"]["context"]["x"]) == 3_000_000)
            assert agent.violations == []


async def test_a_triggering_update_interrupts_open_calls_where_asked_for() -> None:
    async with HumaServer("0.2", api_key=KEY, manners=Manners(interrupts=True)) as server:
        agent = server.agent("finn")
        async with connected(server.url, "finn", KEY) as client:
            call = await agent.call("ask", {})
            await client.next()
            update: dict[str, Any] = {"type": "context-update", "name": "n", "context": {}, "description": ""}
            await client.send(update | {"triggering": False})
            await client.send(update | {"triggering": True})
            cancel = (await client.next())[1]
            assert (cancel["type"], cancel["toolCallId"]) == ("cancel-tool-call", call.call_id)


async def test_agents_are_created_over_http_and_can_be_connected_to() -> None:
    async with HumaServer("0.1", api_key=KEY) as server, httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post("/api/agents", json=AGENT, headers={"X-API-Key": KEY})
        created = answer.json()
        assert answer.status_code == 201
        assert created.keys() == {"id", "name", "agentType", "metadata", "state", "createdAt"}
        assert server.agents[created["id"]].metadata == AGENT["metadata"]
        async with connected(server.url, created["id"], KEY):
            await server.agents[created["id"]].wait_connected()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, '"name"'),
        ({"agentType": "other"}, '"agentType"'),
        ({"metadata": {}}, '"className"'),
        ({"metadata": AGENT["metadata"] | {"tools": {}}}, 'array "tools"'),
        ({"metadata": AGENT["metadata"] | {"tools": AGENT["metadata"]["tools"] * 2}}, "unique"),
        ({"metadata": AGENT["metadata"] | {"tools": [{"name": "t", "description": "d"}]}}, 'array "parameters"'),
        (
            {
                "metadata": AGENT["metadata"]
                | {
                    "tools": [
                        {
                            "name": "t",
                            "description": "d",
                            "parameters": [{"name": "p", "type": "integer", "description": ""}],
                        }
                    ]
                }
            },
            '"type" to be one of',
        ),
    ],
)
async def test_a_malformed_agent_is_not_created(changes: dict[str, Any], message: str) -> None:
    async with HumaServer("0.1", api_key=KEY) as server, httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post("/api/agents", json=AGENT | changes, headers={"X-API-Key": KEY})
        assert (answer.status_code, answer.json()["statusCode"]) == (400, 400)
        assert message in answer.json()["message"]
        assert server.agents == {}


async def test_an_agent_is_not_created_without_the_key() -> None:
    async with HumaServer("0.1", api_key=KEY) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.post("/api/agents", json=AGENT)).status_code == 401


async def test_a_person_can_let_the_agent_call_and_speak_with_curl() -> None:
    async with HumaServer("0.2", api_key=KEY) as server:
        agent = server.agent("finn")
        async with (
            connected(server.url, "finn", KEY) as client,
            httpx.AsyncClient(base_url=f"{server.url}/simulator/agents/finn", headers={"X-API-Key": KEY}) as http,
        ):
            client.answer_calls_with({"outcome": "success", "result": "yes"})
            answer = await http.post("/call", json={"tool": "ask", "arguments": {}})
            assert answer.json()["result"] == "yes"
            said = await http.post("/say", json={"messages": ["hi"]})
            assert said.json() == [{"messageIndex": 0, "success": True}]
            assert (await http.post("/call", json={}, headers={"X-API-Key": "no"})).status_code in {404, 422}
        assert agent.violations == []
