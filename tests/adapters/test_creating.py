"""What becomes of an order at each adapter, by the conformance suite."""

from typing import Any

import pytest

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Adapter, Tool
from gateway.testing.conformance.connector import ConnectorSuite
from gateway.testing.conformance.link import within

CONVERSATION = "42ecbe9af07a4b3f925f0223b213814c"
AGENT = {"name": "Finn", "class_name": "Finn", "personality": "Calm.", "instructions": "Play cards."}
BASH = {"name": "execute_bash", "description": "Execute a command.", "parameters": {"type": "object"}}


class TestHuma01(ConnectorSuite):
    adapter: Adapter = HUMA_0_1

    def options(self, url: str) -> Any:
        given = {"adapter": self.adapter.name, "url": url, "api_key": "k", "agent": AGENT}
        return self.adapter.options.model_validate(given)

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        assert (method, path) == ("POST", "/api/agents")
        return 201, {"id": "agent-9"}


class TestHuma02(TestHuma01):
    adapter: Adapter = HUMA_0_2


class TestHerm(ConnectorSuite):
    adapter: Adapter = HERM

    def options(self, url: str) -> Any:
        return HERM.options.model_validate({"adapter": "herm", "url": url, "api_key": "k", "agent_id": "agent_1"})

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        assert (method, path) == ("POST", "/v1/agents/agent_1/sessions")
        return 201, {"id": "session_1"}


class TestOpenHands(ConnectorSuite):
    adapter: Adapter = OPENHANDS
    prompt: Any = {"content": "You are an agent.", "tools": [{"type": "function", "function": BASH}]}

    def options(self, url: str) -> Any:
        return OPENHANDS.options.model_validate({"adapter": "openhands", "url": url, "conversation": {}})

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        if method == "POST":
            return 200, {"status": "ok", "conversation_id": CONVERSATION}
        assert path == f"/api/conversations/{CONVERSATION}/events"
        state = {"id": 0, "observation": "agent_state_changed", "extras": {"agent_state": "loading"}}
        prompt = {"id": 1, "source": "agent", "action": "system", "args": self.prompt}
        return 200, {"events": [state] if self.prompt is None else [state, prompt], "has_more": False}

    async def test_the_system_prompt_says_which_tools_the_agent_has(self) -> None:
        async with self.connected() as (_, connector):
            declared = await within(connector.declared(CONVERSATION))
        assert declared == (Tool("execute_bash", "Execute a command.", {"type": "object"}),)

    async def test_what_is_no_tool_in_a_system_prompt_is_passed_over(self) -> None:
        self.prompt = {"tools": ["?", {"function": {"name": 7}}, {"function": {"name": "think", "description": 7}}]}
        async with self.connected() as (_, connector):
            declared = await within(connector.declared(CONVERSATION))
        assert declared == (Tool("think", "", {}),)

    @pytest.mark.parametrize("prompt", [None, {}, {"tools": None}])
    async def test_without_a_system_prompt_that_lists_them_nobody_can_be_asked(self, prompt: Any) -> None:
        self.prompt = prompt
        async with self.connected() as (_, connector):
            assert await within(connector.declared(CONVERSATION)) is None


async def test_of_huma_and_herm_no_page_reads_an_agent_s_tools() -> None:
    for suite in (TestHuma01(), TestHuma02(), TestHerm()):
        async with suite.connected() as (_, connector):
            assert await within(connector.declared("agent-9")) is None


@pytest.mark.parametrize(
    ("named", "value", "message"), [("delegates", True, "lacks `thread.sent`"), ("mcp_clients", (), "never calls")]
)
def test_the_suite_fails_where_options_and_capabilities_differ(named: str, value: Any, message: str) -> None:
    class Wrong(TestHuma02):
        def options(self, url: str) -> Any:
            options = super().options(url)
            kind: Any = options.__class__
            changed: Any = type("Changed", (kind,), {named: property(lambda _: value)})
            return changed.model_validate(options.model_dump())

    with pytest.raises(AssertionError, match=message):
        Wrong().test_the_options_fit_the_capabilities()
