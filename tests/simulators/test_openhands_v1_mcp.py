"""The MCP client of the simulated agent-server is that of the real one, seen by a server that knows nothing of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gateway.testing.runtimes.openhands_v1.server import AGENT, AgentServer, Manners, SimConversation
from gateway.testing.serving import Served, abort
from tests.pace import PATIENCE
from tests.simulators.raw_openhands_v1 import RawRest, kinds

Frame = dict[str, Any]
SHORT = Manners(mcp_limit=timedelta(milliseconds=500), ending=timedelta(milliseconds=10))
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "number"}, "c": {"enum": ["x"]}},
    "required": ["a"],
}


@dataclass
class Tools:
    """An MCP server with three tools; it keeps all that it is asked."""

    streams: bool = False
    session: str | None = None
    asked: list[tuple[Frame, dict[str, str]]] = field(default_factory=list[tuple[Frame, dict[str, str]]])
    called: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def methods(self) -> list[str]:
        return [body["method"] for body, _ in self.asked]

    async def take(self, request: Request) -> Response:
        body, headers = await request.json(), dict(request.headers)
        self.asked.append((body, headers))
        match body["method"]:
            case "initialize":
                more = {} if self.session is None else {"mcp-session-id": self.session}
                result: Frame = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "t"}}
                return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": result}, headers=more)
            case "notifications/initialized":
                return Response(status_code=202)
            case "tools/list":
                listed = [{"name": name, "inputSchema": ADD, "description": name} for name in ("add", "slow", "cut")]
                return self._answer(body, {"tools": listed})
            case _:
                pass
        if headers.get("mcp-session-id") != self.session:
            return JSONResponse({}, 404)
        name = body["params"]["name"]
        if name == "cut":
            if not self.streams:
                abort(request.receive)
                return Response()
            return StreamingResponse(self._cut(request), media_type="text/event-stream")
        if name == "slow":
            self.called.set()
            await self.may_answer.wait()
            self.ended.set()
        said = str(body["params"]["arguments"]["a"] + 1)
        blocks = [{"type": "text", "text": said}, {"type": "audio", "data": "", "mimeType": "audio/wav"}]
        return self._answer(body, {"content": blocks, "structuredContent": {"n": 1}, "isError": said == "0"})

    def _answer(self, body: Frame, result: Frame) -> Response:
        message = {"jsonrpc": "2.0", "id": body["id"], "result": result}
        if not self.streams:
            return JSONResponse(message)
        told: Frame = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        text = "".join(f"event: message\ndata: {json.dumps(one)}\n\n" for one in (told, message))
        return Response(text, media_type="text/event-stream")

    async def _cut(self, request: Request) -> AsyncIterator[str]:
        yield ": beginning\n\n"
        abort(request.receive)


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    made = Tools()
    app = FastAPI()
    app.add_api_route("/mcp", made.take, methods=["POST"])
    async with Served(app) as served:
        made.url = f"{served.url}/mcp"
        yield made
        made.may_answer.set()


@pytest.fixture
async def server() -> AsyncIterator[AgentServer]:
    async with AgentServer(manners=SHORT) as made:
        yield made


def created(server: AgentServer, *urls: str) -> SimConversation:
    """Create a conversation with servers of these addresses, `one` and `two`."""
    entries = {
        name: {"url": url, "transport": "http", "headers": {"Authorization": f"Bearer {name}"}}
        for name, url in zip(("one", "two"), urls, strict=False)
    }
    return server.add(agent={**AGENT, "mcp_config": entries})


def said(event: Frame) -> tuple[bool, str]:
    observation = event["observation"]
    return observation["is_error"], observation["content"][-1]["text"]


# OV18, OV46
async def test_the_tools_are_listed_inside_the_first_message(server: AgentServer, tools: Tools) -> None:
    work = created(server, tools.url)
    assert tools.asked == []
    async with RawRest(server.url, work.conversation_id) as rest:
        await rest.say("hello")
    assert tools.methods == ["initialize", "notifications/initialized", "tools/list"]
    for body, headers in tools.asked:
        assert headers["authorization"] == "Bearer one"
        assert "text/event-stream" in headers["accept"]
        assert ("mcp-protocol-version" in headers) == (body["method"] != "initialize")
    assert tools.asked[0][0]["params"]["protocolVersion"] == "2025-11-25"
    assert [tool["title"] for tool in work.events[0]["tools"]][-3:] == ["add", "slow", "cut"]


# OV48, OV50
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_and_what_the_agent_sees(server: AgentServer, tools: Tools, streams: bool) -> None:
    tools.streams = streams
    work = created(server, tools.url)
    seen = await work.agent_calls("add", {"a": 1})
    body, _ = tools.asked[-1]
    assert body["params"] == {"name": "add", "arguments": {"a": 1}, "_meta": body["params"]["_meta"]}
    assert "progressToken" in body["params"]["_meta"]
    content = [block["text"] for block in seen["observation"]["content"]]
    assert (content, seen["observation"]["is_error"]) == (["[Tool 'add' executed.]", "2"], False)
    assert said(await work.agent_calls("add", {"a": -1})) == (True, "0")
    action = work.events[-3]["action"] if "action" in work.events[-3] else work.events[-2]["action"]
    assert action == {"data": {"a": -1}, "kind": "MCPToolAction"}


# OV47
async def test_with_two_servers_all_names_have_a_prefix(server: AgentServer, tools: Tools) -> None:
    work = created(server, tools.url, "http://127.0.0.1:9/dead")
    assert said(await work.agent_calls("one_add", {"a": 1})) == (False, "2")
    assert work.events[-2]["tool_name"] == "one_add" or work.events[-3]["tool_name"] == "one_add"
    assert tools.asked[-1][0]["params"]["name"] == "add"
    assert (await work.agent_calls("add", {"a": 1}))["kind"] == "AgentErrorEvent"


# OV46
async def test_a_dead_server_is_left_out_without_a_word(server: AgentServer) -> None:
    work = created(server, "http://127.0.0.1:9/dead")
    await work.agent_says("hello")
    assert kinds(work.events) == ["SystemPrompt", "running", "agent says", "finished"]
    assert "add" not in [tool["title"] for tool in work.events[0]["tools"]]


# OV50
@pytest.mark.parametrize("arguments", [{"a": "x"}, {"a": 1, "undeclared": 1}, {}])
async def test_arguments_that_do_not_fit_never_arrive(server: AgentServer, tools: Tools, arguments: Frame) -> None:
    work = created(server, tools.url)
    seen = await work.agent_calls("add", arguments)
    assert (seen["kind"], "Error validating tool 'add'" in seen["error"]) == ("AgentErrorEvent", True)
    action = next(event for event in work.events if event["kind"] == "ActionEvent")
    told = json.loads(action["tool_call"]["arguments"])
    assert ("action" in action, {key: told[key] for key in arguments}) == (False, arguments)
    assert "tools/call" not in tools.methods


async def test_arguments_are_coerced_and_enums_unchecked(server: AgentServer, tools: Tools) -> None:
    work = created(server, tools.url)
    await work.agent_calls("add", {"a": 1, "b": 2, "c": "y"})
    await work.agent_calls("add", {"a": 1, "b": None})
    sent = [body["params"]["arguments"] for body, _ in tools.asked if body["method"] == "tools/call"]
    assert (json.dumps(sent[0]), sent[1]) == ('{"a": 1, "b": 2.0, "c": "y"}', {"a": 1})
    actions = [event["action"]["data"] for event in work.events if event["kind"] == "ActionEvent"]
    assert actions == sent


# OV67
async def test_whether_a_server_is_reached_is_said_before_a_conversation(server: AgentServer, tools: Tools) -> None:
    async with RawRest(server.url, "") as rest:
        for url, reached in ((tools.url, True), ("http://127.0.0.1:9/dead", False)):
            answer = await rest.http.post("/api/mcp/test", json={"server": {"url": url, "transport": "http"}})
            assert answer.json()["ok"] is reached


# OV49
async def test_a_call_is_given_up_after_the_limit_and_nobody_is_told(server: AgentServer, tools: Tools) -> None:
    work = created(server, tools.url)
    failed, text = said(await work.agent_calls("slow", {"a": 1}))
    assert (failed, text) == (True, "MCP tool 'slow' timed out after 0.5 seconds.")
    assert tools.methods[-1] == "tools/call"


# OV49a, OV71
async def test_a_cut_json_answer_is_noticed_and_a_cut_stream_hangs(tools: Tools) -> None:
    async with AgentServer(manners=Manners(mcp_limit=timedelta(seconds=3))) as server:
        work = created(server, tools.url)
        failed, text = said(await work.agent_calls("cut", {"a": 1}))
        assert (failed, "timed out" in text) == (True, False)
        tools.streams = True
        failed, text = said(await work.agent_calls("cut", {"a": 1}))
        assert (failed, text) == (True, "MCP tool 'cut' timed out after 3 seconds.")


# OV49a
async def test_a_session_that_the_server_forgot_is_lost_for_ever(server: AgentServer, tools: Tools) -> None:
    tools.session = "before"
    work = created(server, tools.url)
    assert said(await work.agent_calls("add", {"a": 1}))[0] is False
    tools.session = "after"
    for _ in range(2):
        assert said(await work.agent_calls("add", {"a": 1})) == (
            True,
            "Error calling MCP tool add: Session terminated",
        )
    assert tools.methods.count("initialize") == 1


# OV46, OV48
async def test_a_restart_connects_again_and_counts_from_the_start(server: AgentServer, tools: Tools) -> None:
    work = created(server, tools.url)
    await work.agent_calls("add", {"a": 1})
    first = tools.asked[-1][0]["id"]
    await server.stop()
    await server.start()
    await work.agent_calls("add", {"a": 1})
    assert (tools.methods.count("initialize"), tools.asked[-1][0]["id"]) == (2, first)
    assert kinds(work.events).count("SystemPrompt") == 1


# OV31, OV49
async def test_an_interrupt_does_not_end_the_request(tools: Tools) -> None:
    async with AgentServer() as server:
        work = created(server, tools.url)
        calling = asyncio.create_task(work.agent_calls("slow", {"a": 1}))
        await asyncio.wait_for(tools.called.wait(), PATIENCE)
        async with RawRest(server.url, work.conversation_id) as rest:
            await rest.post("interrupt")
        assert (await calling)["kind"] == "AgentErrorEvent"
        tools.may_answer.set()
        await asyncio.wait_for(tools.ended.wait(), PATIENCE)
        assert "notifications/cancelled" not in tools.methods
        assert "Observation" not in kinds(work.events)
