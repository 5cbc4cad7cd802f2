"""Each adapter at a server of each other protocol: no link is made, whatever the two have in common."""

from contextlib import AsyncExitStack
from itertools import permutations
from typing import Any

import pytest

from adapters.herm import ADAPTER as HERM
from gateway.errors import LinkLost, LinkRefused
from gateway.plugins import installed_adapters
from gateway.testing.conformance.link import Collector, enter, within
from gateway.testing.runtimes.herm.server import HermServer
from gateway.testing.runtimes.huma.server import HumaServer
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from tests.adapters.herm.links import linked, options_for
from tests.adapters.herm.raw_herm import SESSION, RawHerm, RestAnswer
from tests.adapters.openhands.raw_openhands import CONVERSATION
from tests.adapters.openhands.raw_v1 import RawAppServer, RawV1

OPTIONS: dict[str, dict[str, Any]] = {
    "huma-0.1": {"api_key": "k", "agent_id": "finn"},
    "huma-0.2": {"api_key": "k", "agent_id": "finn"},
    "openhands": {"session_api_key": "k", "conversation_id": CONVERSATION},
    "herm": {"api_key": "k", "session_id": SESSION},
}
SERVERS: dict[str, Any] = {
    "huma-0.1": lambda: HumaServer("0.1", api_key="k"),
    "huma-0.2": lambda: HumaServer("0.2", api_key="k"),
    "openhands": OpenHandsServer,
    "herm": lambda: HermServer(api_key="k"),
}
FLAT: dict[str, Any] = {"id": "sevt_1", "type": "agent.message", "processed_at": "2026-11-20T12:00:00Z", "content": []}
QUEUED: dict[str, Any] = {"id": "sevt_2", "type": "user.message", "processed_at": None, "content": []}


@pytest.mark.parametrize(("name", "foreign"), tuple(permutations(OPTIONS, 2)))
async def test_an_adapter_makes_no_link_to_a_server_of_another_protocol(name: str, foreign: str) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SERVERS[foreign]())
        adapter = installed_adapters()[name]
        given = {"adapter": name, "url": server.url, "connect_timeout": "3s", **OPTIONS[name]}
        connector = await stack.enter_async_context(adapter.connector(adapter.options.model_validate(given)))
        collector = Collector()
        with pytest.raises((LinkLost, LinkRefused)):
            await enter(connector.connect(OPTIONS[name].get("agent_id", CONVERSATION), collector))
        assert not collector.frames


@pytest.mark.parametrize("name", ["huma-0.1", "huma-0.2", "herm"])
@pytest.mark.parametrize("foreign", [RawV1, RawAppServer])
async def test_an_adapter_makes_no_link_to_a_v1_server(name: str, foreign: type[RawV1] | type[RawAppServer]) -> None:
    adapter = installed_adapters()[name]
    async with foreign().serve() as server:
        given = {"adapter": name, "url": server.url, "connect_timeout": "3s", **OPTIONS[name]}
        async with adapter.connector(adapter.options.model_validate(given)) as connector:
            with pytest.raises((LinkLost, LinkRefused)):
                await enter(connector.connect("finn", Collector()))


@pytest.mark.parametrize("event", [FLAT, QUEUED])
async def test_herm_refuses_a_history_of_claude_managed_agents(event: dict[str, Any]) -> None:
    async with RawHerm().serve() as server, HERM.connector(options_for(server)) as connector:
        server.lists.append(RestAnswer(200, {"data": [event], "next_page": None, "prev_page": None}))
        with pytest.raises(
            LinkRefused, match="looks like Claude Managed Agents, which needs its own adapter"
        ) as refused:
            await enter(connector.connect(SESSION, Collector()))
    assert (refused.value.code, refused.value.terminal) == ("WRONG_PROTOCOL", True)


async def test_herm_ends_a_link_whose_first_event_is_one_of_claude_managed_agents() -> None:
    collector = Collector()
    async with RawHerm().serve() as server, linked(server, collector) as link:
        await server.stream(FLAT)
        assert "looks like Claude Managed Agents" in await within(link.wait_closed())
    assert not collector.frames
