"""A simulated conversation speaks to the MCP servers of its creation as 0.62 does, seen by a server of the protocol."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import mcp_types as types
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.testing.runtimes.openhands.conversation import SimConversation
from gateway.testing.runtimes.openhands.server import Manners, OpenHandsServer
from gateway.testing.serving import Served

CAPTURES = Path(__file__).parents[1] / "vectors" / "openhands" / "captures"
BOUND = 60.0
MANNERS = Manners(loading=timedelta(0), stale_state=None)
PATIENCE = 2.0
"""Seconds the MCP client waits in tests that need it to give up; every other test keeps the client's own 30 s."""
IMPATIENT = replace(MANNERS, mcp_patience=timedelta(seconds=PATIENCE))
KEY = "the-key-of-tools"
LATE = "Timed out while waiting for response to ClientRequest."
Context = ServerRequestContext[Any, Any]


class Tools:
    """An MCP server with the tools of the recorded conversation, and one that never answers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Headers, dict[str, Any]]] = []
        """The method of each message, the headers of its request, and its parameters."""
        self.there = True
        self.asleep = asyncio.Event()
        self._server = Server("tools", on_list_tools=self._list, on_call_tool=self._call)
        self._served = Served(self)

    async def __aenter__(self) -> "Tools":
        await self._served.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._served.stop()

    @property
    def url(self) -> str:
        return f"{self._served.url}/tools"

    def cut(self) -> None:
        self._served.reset(lambda _scope: True)

    def methods(self, after: int = 0) -> list[str]:
        return [method for method, _, _ in self.heard[after:]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        message = json.loads(body) if body else {"method": scope["method"]}
        self.heard.append((message["method"], Headers(scope=scope), message.get("params") or {}))
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return waiting.pop() if waiting else await receive()

        manager = StreamableHTTPSessionManager(self._server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, again, send)

    async def _list(self, _ctx: Context, _params: object) -> types.ListToolsResult:
        names = ("add", "boom", "refuse", "sleep") if self.there else ()
        schema = {"type": "object"}
        return types.ListToolsResult(
            tools=[types.Tool(name=n, description=n.upper(), input_schema=schema) for n in names]
        )

    async def _call(self, _ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        match params.name:
            case "add":
                total = given["a"] + given["b"]
                text = types.TextContent(text=str(total))
                return types.CallToolResult(content=[text], structured_content={"result": total})
            case "boom":
                return types.CallToolResult(content=[types.TextContent(text="boom")], is_error=True)
            case "refuse":
                raise MCPError(types.INVALID_PARAMS, "no such thing")
            case _:
                self.asleep.set()
                # Longer than any test waits: it is cut off.
                await asyncio.sleep(60)
                raise AssertionError


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with Tools() as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[OpenHandsServer]:
    async with OpenHandsServer(manners=MANNERS) as made:
        yield made


async def create(server: OpenHandsServer, config: object) -> httpx.Response:
    # Nothing here is encrypted, and reading the certificates of the machine takes long.
    async with httpx.AsyncClient(base_url=server.url, verify=False) as http:  # noqa: S501
        return await http.post("/api/conversations", json={"mcp_config": config})


async def created(server: OpenHandsServer, *servers: object) -> SimConversation:
    answer = await create(server, {"shttp_servers": list(servers)})
    conversation = server.conversation(answer.json()["conversation_id"])
    await conversation.wait_event(lambda event: event.get("action") == "system")
    return conversation


def shape(value: Any) -> Any:
    """What a JSON value has, and of which type, without what it says."""
    match value:
        case dict():
            return {key: shape(member) for key, member in cast("dict[str, Any]", value).items()}
        case list():
            return [shape(item) for item in cast("list[Any]", value)]
        case _:
            return type(value).__name__


def recorded(name: str, capture: str = "mcp") -> dict[str, Any]:
    """The first such event that a real server has sent, of the tool `add` where it is about one."""
    events = map(json.loads, (CAPTURES / f"{capture}.jsonl").read_text().splitlines())
    return next(event for event in events if name in {event.get("action"), event.get("observation"), event.get("id")})


async def test_tools_are_listed_before_the_agent_begins_with_the_key_in_three_headers(
    server: OpenHandsServer, tools: Tools
) -> None:
    conversation = await created(server, {"url": tools.url, "api_key": KEY, "timeout": 5})
    assert tools.methods() == ["initialize", "notifications/initialized", "tools/list"]
    for _, headers, _ in tools.heard:
        assert (headers["authorization"], headers["s"], headers["x-session-api-key"]) == (f"Bearer {KEY}", KEY, KEY)
        assert "x-openhands-serverconversation-id" not in headers
    (system,) = [event for event in conversation.events if event.get("action") == "system"]
    assert [tool["function"]["name"] for tool in system["args"]["tools"]] == ["add", "boom", "refuse", "sleep"]
    assert system["args"]["tools"][0]["function"]["parameters"] == {"type": "object"}


async def test_a_call_is_told_in_the_shapes_that_a_real_server_was_recorded_with(
    server: OpenHandsServer, tools: Tools
) -> None:
    conversation = await created(server, {"url": tools.url, "api_key": KEY})
    before = len(tools.heard)
    seen = await conversation.agent_calls("add", {"a": 2, "b": 3})
    action = next(event for event in conversation.events if event.get("action") == "call_tool_mcp")
    real, real_seen = recorded("call_tool_mcp"), recorded("mcp")
    for ours, theirs in ((action, real), (seen, real_seen)):
        assert ours.keys() - {"timeout"} == theirs.keys() - {"timeout"}
        for key in ("args", "extras", "content"):
            assert ours.get(key) == theirs.get(key)
        assert ours["message"] == theirs["message"]
        assert ours["tool_call_metadata"]["function_name"] == theirs["tool_call_metadata"]["function_name"]
    assert shape(json.loads(seen["content"])) == shape(json.loads(real_seen["content"]))
    # Each operation connects anew, and names its conversation; a result is held to the schema that is listed for it.
    steps = ["initialize", "notifications/initialized"]
    assert tools.methods(before) == [*steps, "tools/list", *steps, "tools/call", "tools/list"]
    for _, headers, _ in tools.heard[before:]:
        assert headers["x-openhands-serverconversation-id"] == conversation.conversation_id
    assert "progressToken" in tools.heard[-2][2]["_meta"]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("boom", {"meta": None, "structuredContent": None, "isError": True}),
        ("refuse", {"isError": True, "error": "no such thing", "content": []}),
    ],
)
async def test_how_a_call_fails(server: OpenHandsServer, tools: Tools, tool: str, said: dict[str, Any]) -> None:
    conversation = await created(server, {"url": tools.url})
    content = json.loads((await conversation.agent_calls(tool, {}))["content"])
    assert {**content, **said} == content
    assert "notifications/cancelled" not in tools.methods()


async def test_a_call_without_an_answer_ends_when_the_client_gives_up(tools: Tools) -> None:
    async with OpenHandsServer(manners=IMPATIENT) as server:
        conversation = await created(server, {"url": tools.url})
        content = json.loads((await conversation.agent_calls("sleep", {}))["content"])
    assert content == {"isError": True, "error": f"{LATE} Waited {PATIENCE} seconds.", "content": []}
    assert "notifications/cancelled" not in tools.methods()


async def test_a_server_that_is_less_patient_says_so(server: OpenHandsServer, tools: Tools) -> None:
    conversation = await created(server, {"url": tools.url, "timeout": 1})
    content = json.loads((await conversation.agent_calls("sleep", {}))["content"])
    assert content == {"isError": True, "error": 'Tool "sleep" timed out after 1.0 seconds', "content": []}
    assert "notifications/cancelled" not in tools.methods()


async def test_a_connection_that_breaks_is_noticed_late_and_ends_in_error(tools: Tools) -> None:
    loop = asyncio.get_running_loop()
    async with OpenHandsServer(manners=IMPATIENT) as server:
        conversation = await created(server, {"url": tools.url})
        began = loop.time()
        calling = asyncio.create_task(conversation.agent_calls("sleep", {}))
        async with asyncio.timeout(BOUND):
            await tools.asleep.wait()
        tools.cut()
        await calling
    assert loop.time() - began >= PATIENCE
    assert not any(event.get("observation") == "mcp" for event in conversation.events)
    # The action comes to its end first, and the state has no reason.
    action, told, moved = conversation.events[-3:]
    real = recorded("error", "mcp_broken")
    assert (action["action"], told["cause"]) == ("call_tool_mcp", action["id"])
    assert told.keys() == real.keys() - {"timeout"}
    assert told["extras"] == real["extras"]
    assert real["content"].startswith(told["content"])
    assert moved["extras"] == {"agent_state": "error", "reason": ""}


async def test_an_agent_may_be_told_that_its_call_broke_and_goes_on(tools: Tools) -> None:
    async with OpenHandsServer(manners=replace(MANNERS, tells_broken_calls=True)) as server:
        conversation = await created(server, {"url": tools.url})
        tools.there = False
        told = await conversation.agent_calls("add", {"a": 1, "b": 1})
        action = conversation.events[-2]
    assert (action["action"], told["observation"], told["cause"]) == ("call_tool_mcp", "error", action["id"])
    assert told["content"] == "Error executing MCP tool add: No matching MCP agent found for tool name: add"
    assert told["extras"] == {"error_id": ""}
    assert conversation.state == "running"


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_call_that_is_carried_out_when_its_conversation_is_stopped_is_given_up(
    tools: Tools, evicted: bool
) -> None:
    async with OpenHandsServer(manners=MANNERS) as server:
        conversation = await created(server, {"url": tools.url})
        calling = asyncio.create_task(conversation.agent_calls("sleep", {}))
        async with asyncio.timeout(BOUND):
            await tools.asleep.wait()
        await (conversation.evict() if evicted else conversation.stop())
        action, told, moved = conversation.events[-3:]
        calling.cancel()
    assert (action["action"], told["cause"]) == ("call_tool_mcp", action["id"])
    assert told["extras"] == {"error_id": "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_STOPPED"}
    assert (moved["extras"]["agent_state"], conversation.status_name) == ("stopped", "STOPPED")


async def test_a_tool_that_is_gone_ends_in_error_and_one_that_never_was_is_told_without_an_action(
    server: OpenHandsServer, tools: Tools
) -> None:
    conversation = await created(server, {"url": tools.url})
    seen = await conversation.agent_calls("sing", {})
    assert (seen["observation"], "cause" in seen, "sing is not registered" in seen["content"]) == ("error", False, True)
    tools.there = False
    await conversation.agent_calls("add", {"a": 1, "b": 1})
    assert conversation.state == "error"


async def test_an_agent_never_calls_a_tool_that_has_the_name_of_its_own(server: OpenHandsServer, tools: Tools) -> None:
    conversation = await created(server, {"url": tools.url})
    with pytest.raises(ValueError, match="an agent calls its built-in 'think'"):
        await conversation.agent_calls("think", {})
    assert "tools/call" not in tools.methods()


async def test_an_agent_loop_that_begins_anew_knows_no_servers_of_its_creation(
    server: OpenHandsServer, tools: Tools
) -> None:
    conversation = await created(server, {"url": tools.url})
    heard = len(tools.heard)
    conversation.end()
    assert conversation.begin()
    await conversation.warm_up()
    assert (await conversation.agent_calls("add", {"a": 1, "b": 1}))["observation"] == "error"
    assert len(tools.heard) == heard


async def test_a_server_that_is_not_there_is_left_out(server: OpenHandsServer, tools: Tools) -> None:
    conversation = await created(server, "http://127.0.0.1:9/", {"url": tools.url})
    assert (await conversation.agent_calls("add", {"a": 1, "b": 1}))["observation"] == "mcp"


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"servers": []},
        {"shttp_servers": {}},
        {"shttp_servers": [{"api_key": KEY}]},
        {"shttp_servers": [{"url": "gateway/mcp", "api_key": KEY}]},
        {"shttp_servers": [{"url": "http://gateway/mcp", "api_key": 7}]},
        {"shttp_servers": [{"url": "http://gateway/mcp", "api_key": KEY, "timeout": 0}]},
        {"shttp_servers": [{"url": "http://gateway/mcp", "api_key": KEY, "timeout": 3601}]},
        {"shttp_servers": [{"url": "http://gateway/mcp", "api_key": KEY, "timeout": 1.5}]},
    ],
)
async def test_a_creation_that_the_server_does_not_take_is_quoted_whole(
    server: OpenHandsServer, config: object
) -> None:
    answer = await create(server, config)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["input"] == {"mcp_config": config}
    assert not server.conversations
    assert len(server.violations) == 1
