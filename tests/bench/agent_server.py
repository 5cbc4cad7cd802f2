"""The peers' side of OpenHands V1: the simulated agent-server, whose agents call one tool over MCP."""

import asyncio
from typing import Any

from gateway.testing.runtimes.openhands_v1.agent import SimConversation
from gateway.testing.runtimes.openhands_v1.manners import Manners
from gateway.testing.runtimes.openhands_v1.server import AgentServer
from tests.bench.runtime import TOOL

ARGUMENTS = {"targetPlayer": "Bob", "rank": "7"}


class BusyAgents:
    """A server that starts with its first conversations."""

    def __init__(self) -> None:
        self._server: AgentServer | None = None

    async def add(self, order: dict[str, Any]) -> object:
        """Make conversations; return the server's URL and their ids."""
        if self._server is None:
            self._server = AgentServer(manners=Manners(runs=10_000))
            await self._server.start()
        return {
            "url": self._server.url,
            "ids": [self._server.add().conversation_id for _ in range(order["conversations"])],
        }

    async def followed(self, order: dict[str, Any]) -> object:
        """Wait until each conversation has a socket."""
        for one in self._named(order):
            await one.wait_connections(within=order["patience"])
        return None

    async def act(self, order: dict[str, Any]) -> object:
        """Let the agents call the tool, each one call after the other; return the number of failures."""

        async def work(one: SimConversation) -> int:
            seen = [await one.agent_calls(TOOL, ARGUMENTS) for _ in range(order["calls"])]
            return sum(event["kind"] != "ObservationEvent" or event["observation"]["is_error"] for event in seen)

        return sum(await asyncio.gather(*map(work, self._named(order))))

    def _named(self, order: dict[str, Any]) -> list[SimConversation]:
        assert self._server is not None, "no conversation was made"
        known = self._server.conversations
        found = [known[name] for name in order["ids"]]
        return [one for one in found if isinstance(one, SimConversation)]
