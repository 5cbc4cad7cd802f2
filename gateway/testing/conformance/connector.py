"""The conformance suite for connectors that create sessions: inherit `ConnectorSuite` and run pytest.

It tests the treatment of an `Order`; `link.py` tests the links. The runtime is a plain HTTP server on loopback, whose
responses the adapter's tests supply. It needs pytest with pytest-asyncio in auto mode.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from gateway.adapter.port import Adapter, Connector, Created, McpEndpoint, Order, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.strict_json import pointer
from gateway.testing.conformance.collector import within

_CARDS = {"type": "object", "properties": {"rank": {"enum": ["7", "K"]}}, "additionalProperties": False}
_TOOLS = (
    Tool("ask_for_cards", "Ask another player for cards.", _CARDS),
    Tool("pass/turn~now", "Let the next one play.", {}),
)
_TICKET = "a-ticket-of-nobody-else"
_MCP = McpEndpoint("https://gateway.example/mcp/t/1", SecretStr(_TICKET), timedelta(seconds=90))


class HttpRuntime:
    """A runtime's REST interface; `received` contains the bodies of all requests."""

    def __init__(self, suite: "ConnectorSuite") -> None:
        self.url = ""
        self.received = ""
        self._suite = suite

    async def answer(self, request: web.Request) -> web.Response:
        self.received += await request.text()
        status, body = self._suite.answer(request.method, request.path)
        return web.json_response(body, status=status)


class ConnectorSuite:
    """Inherit this as `class TestMyConnector(ConnectorSuite)`, set `adapter` and override the methods that raise."""

    adapter: Adapter

    def options(self, url: str) -> Any:
        """Make options with which sessions are created at the runtime at this URL."""
        raise NotImplementedError

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        """Return the runtime's response: a status and JSON."""
        raise NotImplementedError

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[tuple[HttpRuntime, Connector]]:
        """Start the runtime and connect to it; a protocol that creates sessions in another way overrides this."""
        runtime = HttpRuntime(self)
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", runtime.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runtime.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with self.adapter.connector(self.options(runtime.url)) as connector:
                yield runtime, connector
        finally:
            await runner.cleanup()

    def test_the_options_fit_the_capabilities(self) -> None:
        options, able = self.options("http://127.0.0.1:1"), self.adapter.capabilities
        assert options.mcp_clients is None, (
            "`mcp_clients` of the options is not None, so that the gateway never calls `connector`: return None"
        )
        assert not options.delegates or {"thread.sent", "thread.received"} <= able.emits, (
            "`delegates` of the options is True, and `emits` lacks `thread.sent` or `thread.received`, between which"
            " states are a delegate's: decode both kinds, or return False"
        )

    async def test_each_tool_of_an_order_is_sent_or_lost(self) -> None:
        how, order = self.adapter.capabilities.takes_tools, Order(tools=_TOOLS)
        async with self.connected() as (runtime, connector):
            created = await within(connector.create(order))
        self._check(created, order)
        if how == "create":
            assert all(name in runtime.received for name in created.tools), "`tools` lists a tool that was not sent"
        else:
            assert not created.tools, f"takes_tools={how!r} sends no tools without an MCP endpoint"

    async def test_tools_at_an_mcp_endpoint_are_sent_or_lost(self) -> None:
        order = Order(tools=_TOOLS, mcp=_MCP)
        assert _TICKET not in repr(order)
        if self.adapter.capabilities.takes_tools != "mcp":
            return
        async with self.connected() as (runtime, connector):
            created = await within(connector.create(order))
        self._check(created, order)
        if created.tools:
            assert _MCP.url in runtime.received
            assert _TICKET in runtime.received

    async def test_a_name_and_instructions_are_sent_or_lost(self) -> None:
        order = Order({"team": "a"}, name="Table 4711", instructions="Deal seven each.")
        async with self.connected() as (runtime, connector):
            created = await within(connector.create(order))
        self._check(created, order)
        lost = {loss.path for loss in created.losses}
        for member in ("name", "instructions"):
            assert (getattr(order, member) in runtime.received) != (f"/{member}" in lost), f"send or lose /{member}"

    async def test_an_order_for_nothing_loses_nothing(self) -> None:
        async with self.connected() as (_, connector):
            created = await within(connector.create(Order()))
        assert (created.tools, created.losses) == ((), ())

    async def test_declared_tools_are_listed_or_unknown(self) -> None:
        order = Order(tools=_TOOLS)
        async with self.connected() as (_, connector):
            created = await within(connector.create(order))
            try:
                declared = await within(connector.declared(created.native_id))
            except (LinkLost, LinkRefused):
                return
        if declared is not None:
            names = [tool.name for tool in declared]
            assert all(isinstance(tool, Tool) for tool in declared)
            assert len(names) == len(set(names)), "two tools have the same name"

    def _check(self, created: Created, order: Order) -> None:
        """Check the result of an order."""
        names = {tool.name for tool in order.tools}
        assert created.native_id
        assert set(created.tools) <= names, "`tools` lists a tool that the order does not have"
        assert len(created.tools) == len(set(created.tools))
        assert not created.unaccounted(order), "list each tool in `tools` or in `losses`"
        dropped = {loss.path for loss in created.losses if loss.how == "dropped"}
        if created.tools:
            both = dropped & {"/tools", *(pointer("/tools", name) for name in created.tools)}
            assert not both, "a tool is in `tools` and in `losses`"
        places = ("/tools", "/name", "/instructions", "/mcp")
        assert all(loss.path.startswith(places) for loss in created.losses), "a loss must name a member of the order"
