"""How conversations of V1 are created, what their requests contain, and how other servers are recognized."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.openhands.v1.connector import open_connector
from gateway.adapter.port import McpEndpoint, Order, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.collector import Collector, enter
from tests.adapters.openhands.raw_agent_server import CONVERSATION, KEY, RawAgentServer, RestAnswer, agent_message
from tests.adapters.openhands.raw_v1 import V0_INFO, RawAppServer
from tests.adapters.openhands.v1_links import SHORT, linked, options_for

TICKET, LLM_KEY, SECRET = "ticket-canary-0123456789", "llm-canary-0123456789", "secret-canary-0123456789"
MCP = McpEndpoint("https://gateway.example/mcp/t/1", SecretStr(TICKET), timedelta(seconds=90))
ASK = Tool("ask", "Ask for cards.", {"type": "object"})
ORDER = Order(tools=(ASK,), mcp=MCP, key="0190a0b0-0000-7000-8000-000000000001")
CREATED = RestAnswer(201, {"id": CONVERSATION, "execution_status": "idle"})
AGENT: dict[str, Any] = {"kind": "openhands", "llm": {"model": "openai/gpt-4o", "api_key": LLM_KEY}}
WHOLE: dict[str, Any] = {
    "agent": {**AGENT, "tools": ["terminal"]},
    "working_dir": "/srv/work",
    "confirmation_policy": "risky",
    "risk_threshold": "MEDIUM",
    "security_analyzer": True,
    "max_iterations": 7,
    "secrets": {"TOKEN": SECRET},
    "tags": {"team": "a"},
}


@asynccontextmanager
async def creating(server: RawAgentServer, conversation: dict[str, Any]) -> AsyncGenerator[Any]:
    options = options_for(server.url, conversation_id=None, conversation=conversation)
    async with open_connector(options, SHORT) as connector:
        yield connector


def request_of(server: RawAgentServer) -> dict[str, Any]:
    (body,) = [one.body for one in server.requests if one.method == "POST"]
    return body


@pytest.mark.requirement("OV16", "OV17", "OV45")
async def test_a_conversation_is_created_with_our_id_our_tools_and_no_first_message() -> None:
    async with RawAgentServer().serve() as server, creating(server, WHOLE) as connector:
        server.answers["conversations"].append(CREATED)
        created = await connector.create(ORDER)
        assert (created.native_id, created.tools, created.losses) == (CONVERSATION, ("ask",), ())
        body = request_of(server)
        conversation_id = body.pop("conversation_id")
        assert body == {
            "agent": {
                "kind": "Agent",
                "llm": {"usage_id": "agent", "model": "openai/gpt-4o", "stream": True, "api_key": LLM_KEY},
                "tools": [{"name": "terminal"}],
                "mcp_config": {
                    "dragoman": {
                        "url": MCP.url,
                        "transport": "http",
                        "headers": {"Authorization": f"Bearer {TICKET}"},
                    }
                },
            },
            "workspace": {"kind": "LocalWorkspace", "working_dir": "/srv/work"},
            "confirmation_policy": {"kind": "ConfirmRisky", "threshold": "MEDIUM", "confirm_unknown": True},
            "max_iterations": 7,
            "stuck_detection": True,
            "autotitle": False,
            "security_analyzer": {"kind": "LLMSecurityAnalyzer"},
            "secrets": {"TOKEN": {"kind": "StaticSecret", "value": SECRET}},
            "tags": {"team": "a"},
        }
        assert TICKET not in conversation_id
        # A repeated creation is the same conversation, another order another one.
        server.answers["conversations"].append(CREATED)
        await connector.create(ORDER)
        assert server.requests[-1].body["conversation_id"] == conversation_id


@pytest.mark.requirement("OV1")
@pytest.mark.parametrize(("version", "is_wrapped"), [("1.30.0", True), ("1.58.2", False)])
async def test_the_form_of_the_mcp_servers_follows_the_version(version: str, is_wrapped: bool) -> None:
    async with RawAgentServer(version).serve() as server, creating(server, {"agent": AGENT}) as connector:
        server.answers["conversations"].append(CREATED)
        await connector.create(ORDER)
        assert ("mcpServers" in request_of(server)["agent"]["mcp_config"]) == is_wrapped


@pytest.mark.requirement("OV52")
async def test_an_acp_agent_is_created_by_its_settings_without_a_model_of_ours() -> None:
    agent = {"kind": "acp", "server": "custom", "command": ["agent", "--acp"], "model": "opus", "http_mcp": True}
    conversation = {"agent": agent, "secrets": {"ANTHROPIC_API_KEY": SECRET}}
    async with RawAgentServer().serve() as server, creating(server, conversation) as connector:
        server.answers["conversations"].append(CREATED)
        created = await connector.create(ORDER)
        assert created.tools == ("ask",)
        body = request_of(server)
        assert "agent" not in body
        assert body["agent_settings"] == {
            "agent_kind": "acp",
            "acp_server": "custom",
            "acp_model": "opus",
            "acp_command": ["agent", "--acp"],
            "mcp_config": {
                "dragoman": {"url": MCP.url, "transport": "http", "headers": {"Authorization": f"Bearer {TICKET}"}}
            },
        }
        assert body["secrets"]["ANTHROPIC_API_KEY"]["value"] == SECRET


@pytest.mark.requirement("OV53")
async def test_an_acp_agent_without_mcp_over_http_loses_the_tools() -> None:
    conversation = {"agent": {"kind": "acp", "server": "gemini-cli"}}
    async with RawAgentServer().serve() as server, creating(server, conversation) as connector:
        server.answers["conversations"].append(CREATED)
        created = await connector.create(ORDER)
        assert (created.tools, [loss.path for loss in created.losses]) == ((), ["/tools/ask"])
        assert TICKET not in str(request_of(server))


@pytest.mark.requirement("OV17")
@pytest.mark.parametrize("has_it", [True, False])
async def test_a_creation_without_an_answer_is_looked_up_by_its_id(has_it: bool) -> None:
    async with RawAgentServer().serve() as server, creating(server, {"agent": AGENT}) as connector:
        server.break_creation = True
        made: dict[str, Any] = {"id": CONVERSATION, "agent": {"mcp_config": {"dragoman": {"url": MCP.url}}}}
        server.found = RestAnswer(200, made) if has_it else RestAnswer(404, {"detail": "Not Found"})
        if has_it:
            assert (await connector.create(ORDER)).native_id == CONVERSATION
            return
        with pytest.raises(LinkLost) as lost:
            await connector.create(ORDER)
        assert lost.value.unsent


@pytest.mark.requirement("OV17")
async def test_a_conversation_without_tools_is_looked_up_as_well() -> None:
    async with RawAgentServer().serve() as server, creating(server, {"agent": AGENT}) as connector:
        server.break_creation = True
        server.found = RestAnswer(200, {"id": CONVERSATION, "agent": {}})
        assert (await connector.create(Order(key=ORDER.key))).native_id == CONVERSATION


@pytest.mark.requirement("OV17")
async def test_an_existing_conversation_with_other_tools_is_not_ours() -> None:
    async with RawAgentServer().serve() as server, creating(server, {"agent": AGENT}) as connector:
        server.answers["conversations"].append(RestAnswer(200, {"id": CONVERSATION, "agent": {"mcp_config": {}}}))
        with pytest.raises(LinkRefused, match="CONVERSATION_EXISTS"):
            await connector.create(ORDER)


@pytest.mark.requirement("OV6")
@pytest.mark.parametrize("code", [400, 401, 404, 409, 422, 429, 500, 503])
async def test_no_error_of_a_creation_quotes_a_key(code: int) -> None:
    words = f"{KEY} {TICKET} {LLM_KEY} {SECRET}"
    detail: Any = [{"type": "bad", "loc": ["body", "agent"], "msg": words, "input": words}] if code == 422 else words
    async with RawAgentServer().serve() as server, creating(server, WHOLE) as connector:
        server.answers["conversations"].append(RestAnswer(code, {"detail": detail, "exception": words}))
        with pytest.raises((LinkLost, LinkRefused)) as failure:
            await connector.create(ORDER)
        assert isinstance(failure.value, LinkLost) == (code in {429, 500, 503})
        assert str(code) in str(failure.value)
        for secret in (KEY, TICKET, LLM_KEY, SECRET):
            assert secret not in str(failure.value)


@pytest.mark.requirement("OV46", "OV47", "OV53")
async def test_the_system_prompt_says_which_tools_the_agent_has() -> None:
    async with RawAgentServer().serve() as server, creating(server, {"agent": AGENT}) as connector:
        assert await connector.declared(CONVERSATION) is None
        mcp = {"name": "ask", "description": "Ask.", "inputSchema": {"type": "object"}}
        tools = [
            {"title": "terminal", "description": "Run."},
            {"title": "dragoman_ask", "mcp_tool": mcp},
            {"title": 7},
            "?",
        ]
        prompt = {"kind": "SystemPromptEvent", "id": "p", "source": "agent", "tools": tools}
        server.stored = [agent_message("m", "Hi"), prompt]
        assert await connector.declared(CONVERSATION) == (
            Tool("terminal", "Run.", {}),
            Tool("ask", "Ask.", {"type": "object"}),
        )
        server.stored = [{**prompt, "tools": []}]
        assert await connector.declared(CONVERSATION) is None


# Other servers ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OV2")
@pytest.mark.parametrize("version", ["1.22.9", "1.0.0", "0.62.0"])
async def test_an_older_server_is_refused_by_name(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        with pytest.raises(LinkRefused, match="OLD_SERVER") as refusal:
            await enter(linked(server, Collector()))
        assert refusal.value.terminal
        assert version.rpartition(".")[0] in str(refusal.value)


@pytest.mark.requirement("OV2")
@pytest.mark.parametrize("version", ["1.23.0", "1.99.0", "2.0.0"])
async def test_unknown_minors_are_accepted(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        await enter(linked(server, Collector()))


@pytest.mark.requirement("OV72")
@pytest.mark.parametrize("pages", [True, False])
async def test_an_app_server_is_recognized_and_the_option_for_it_named(pages: bool) -> None:
    async with RawAppServer(pages=pages).serve() as server, open_connector(options_for(server.url), SHORT) as connector:
        with pytest.raises(LinkRefused, match="in place of `url`") as refusal:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert (refusal.value.code, refusal.value.terminal) == ("WRONG_PROTOCOL", True)


@pytest.mark.requirement("OV72")
async def test_a_server_of_v0_is_recognized_and_the_adapter_for_it_named() -> None:
    async with RawAgentServer().serve() as server:
        server.info = V0_INFO
        server.answers["openapi.json"].append(RestAnswer(404, {"detail": "Not Found"}))
        with pytest.raises(LinkRefused, match="adapter openhands"):
            await enter(linked(server, Collector()))


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_server_that_cannot_tell_its_version_now_is_asked_again(code: int) -> None:
    async with RawAgentServer().serve() as server:
        server.info_status = code
        with pytest.raises(LinkLost):
            await enter(linked(server, Collector()))


@pytest.mark.requirement("OV6")
@pytest.mark.parametrize("native_id", ["..", "a/b", "not-a-uuid", CONVERSATION + "/..", ""])
async def test_what_is_no_uuid_never_reaches_the_server(native_id: str) -> None:
    async with RawAgentServer().serve() as server, open_connector(options_for(server.url), SHORT) as connector:
        with pytest.raises(LinkRefused, match="BAD_CONVERSATION_ID"):
            await enter(connector.connect(native_id, Collector()))
        assert server.requests == []
