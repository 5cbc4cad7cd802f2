"""The entry of the gateway in the settings of an OpenHands server: written, checked before a link, and restored."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.openhands import ADAPTER
from adapters.openhands.connector import OpenHandsConnector, open_connector
from gateway.adapter.port import McpEndpoint, ToolRegistry
from gateway.testing.conformance.link import Collector, within
from gateway.testing.runtimes.openhands.server import Manners, OpenHandsServer

CONVERSATION = "c0ffee"
ENDPOINT = McpEndpoint("https://gateway.example/mcp/s/work", SecretStr("ticket-canary-4K"), timedelta(seconds=30))


@asynccontextmanager
async def registering(
    *, registered: timedelta | None = None, manners: Manners | None = None
) -> AsyncGenerator[tuple[OpenHandsServer, OpenHandsConnector]]:
    """Open a connector to a simulated server; `registered` is the time for which the settings count as read."""
    kept = {} if registered is None else {"registered": registered}
    async with OpenHandsServer(manners=manners or Manners()) as server:
        server.conversation(CONVERSATION)
        given = {"adapter": "openhands", "url": server.url, "conversation_id": CONVERSATION}
        async with open_connector(ADAPTER.options.model_validate(given), **kept) as connector:
            yield server, connector


def urls(server: OpenHandsServer) -> list[str]:
    config: dict[str, list[dict[str, Any]]] = server.settings.stored["mcp_config"] or {}
    return [one["url"] for one in config.get("shttp_servers", [])]


async def link(connector: OpenHandsConnector) -> None:
    async with connector.connect(CONVERSATION, Collector()):
        pass


async def test_tools_are_registered_once() -> None:
    async with registering() as (server, connector):
        assert isinstance(connector, ToolRegistry)
        assert connector.tools_problem is not None
        await within(connector.register_tools(ENDPOINT))
        await within(connector.register_tools(ENDPOINT))
        assert connector.tools_problem is None
        assert (urls(server), server.settings.writes) == ([ENDPOINT.url], 1)


async def test_a_registration_that_fails_is_a_problem_and_no_error() -> None:
    async with registering(manners=Manners(stores_settings=False)) as (server, connector):
        await within(connector.register_tools(ENDPOINT))
        assert "HTTP 500" in str(connector.tools_problem)
        assert "ticket-canary" not in str(connector.tools_problem)
        assert urls(server) == []


@pytest.mark.parametrize(("registered", "restored"), [(timedelta(0), True), (None, False)])
async def test_a_removed_entry_is_restored_by_the_next_link_once_the_settings_are_read_again(
    registered: timedelta | None, *, restored: bool
) -> None:
    async with registering(registered=registered) as (server, connector):
        await within(connector.register_tools(ENDPOINT))
        server.settings.stored["mcp_config"] = None
        await within(link(connector))
        assert (urls(server), server.settings.writes) == (([ENDPOINT.url], 2) if restored else ([], 1))
