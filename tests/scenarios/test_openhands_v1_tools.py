"""The backend's tools at an OpenHands V1 agent: known at the first message, linked and counted once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import mcp.client.streamable_http  # noqa: F401 # pyright: ignore[reportUnusedImport] - loaded before a test waits for it
import pytest

import gateway.http.mcp.server  # noqa: F401 # pyright: ignore[reportUnusedImport] - the same
from gateway.cli.doctor_gateway import check_links
from gateway.testing.runtimes.openhands_v1.server import AgentServer, SimConversation
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, GOOD, QUICK, Running, until
from tests.scenarios.fleet import Environment, base
from tests.scenarios.hooks import Hooks, success

KEY = "oh_v1-canary-4RtY"
LATE = 0.5


class AgentServerEnvironment(Environment):
    """An environment with one agent-server and one created conversation."""

    server: AgentServer

    @property
    def agent(self) -> SimConversation:
        [work] = self.server.conversations.values()
        assert isinstance(work, SimConversation)
        return work


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[AgentServerEnvironment]:
    async with Hooks() as hooks, AgentServer(session_api_key=KEY) as server:
        made = AgentServerEnvironment(tmp_path, hooks, "work", base(tmp_path, hooks))
        made.server, made.tuning = server, replace(QUICK, tools_late=LATE, gauges=0.1)
        made.options(
            adapter="openhands-v1", url=server.url, session_api_key=KEY, autostart=True,
            conversation={"agent": {"kind": "openhands", "llm": {"model": "openai/gpt-4o", "api_key": "sk-canary"}}},
        )  # fmt: skip
        hooks.scripts["ask"] = success({"cards": 2})
        yield made
        assert server.violations == []


async def lacks_tools(gateway: Running) -> dict[str, Any]:
    """Read what is known about the tools of the only session."""
    [runtime] = (await gateway.get("/v1/runtimes"))["data"]
    [link] = runtime["links"]
    return {name: link[name] for name in ("lacks_tools", "lacks_tools_reason")}


@pytest.mark.requirement("OV18", "OV46")
async def test_tools_are_unknown_before_the_first_message_and_then_listed(environment: AgentServerEnvironment) -> None:
    async with environment.running() as gateway:
        assert await lacks_tools(gateway) == {"lacks_tools": None, "lacks_tools_reason": None}
        env = {"DRAGOMAN_URL": gateway.url, "DRAGOMAN_KEY": API_KEY}
        checks = await asyncio.to_thread(lambda: [(check.state, check.text) for check in check_links(env)])
        name = f"work/{environment.agent.conversation_id}"
        assert ("note", f"the tools of {name} are not known before the first message") in checks
        await gateway.post(
            f"/v1/sessions/{await gateway.session()}/events",
            {"kind": "message.posted", "content": [{"type": "text", "text": "Hello"}]},
            status=202,
        )
        await environment.agent.finish("Hi.")

        async def known() -> bool | None:
            return (await lacks_tools(gateway))["lacks_tools"] is False or None

        await until(known, within=PATIENCE)


@pytest.mark.requirement("OV47", "OV48", "OV51")
async def test_a_call_is_linked_to_its_action_and_runs_once(environment: AgentServerEnvironment) -> None:
    async with environment.running() as gateway:
        seen = await environment.agent.agent_calls("ask", GOOD)
        assert seen["kind"] == "ObservationEvent"
        [row] = (await gateway.get("/v1/calls"))["data"]
        [linked] = await gateway.events(kind="call.linked")
        assert linked["event"]["call_id"] == row["call_id"]
        [requested] = [one for one in await gateway.events(kind="tool.requested") if one["event"]["runs_in"] == "host"]
        assert requested["event"]["tool"] == "ask"
        assert len(environment.hooks.asked) == 1


@pytest.mark.requirement("OV49a")
async def test_our_server_answers_without_sessions_and_in_plain_json(environment: AgentServerEnvironment) -> None:
    """Its client never initializes again, and hangs for the rest of a stream that is cut."""
    accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    params = {"name": "ask", "arguments": GOOD, "_meta": {"progressToken": 1}}
    async with environment.running(), httpx.AsyncClient(timeout=PATIENCE) as http:
        await environment.agent.prepare()
        [entry] = environment.agent.creation.servers.values()
        for method, given in (
            (
                "initialize",
                {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "mcp", "version": "1"}},
            ),
            ("tools/list", {}),
            ("tools/call", params),
        ):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
            answer = await http.post(entry.url, json=body, headers={**entry.headers, **accept})
            assert answer.headers["content-type"].partition(";")[0] == "application/json"
            assert "mcp-session-id" not in answer.headers
            assert "result" in answer.json(), answer.text
