"""The environments with a Herm session and with OpenHands conversations in place of a HUMA agent."""

import json
from pathlib import Path
from typing import Any

from gateway.testing.runtimes.herm.server import Asked, HermServer, Manners as HermManners, SimSession
from gateway.testing.runtimes.openhands.progress import Manners as OpenHandsManners
from gateway.testing.runtimes.openhands.server import OpenHandsServer, SimConversation
from gateway.testing.runtimes.openhands_v1.agent import SimConversation as SimV1Conversation
from gateway.testing.runtimes.openhands_v1.manners import Manners as V1Manners
from gateway.testing.runtimes.openhands_v1.server import AgentServer
from tests.faults.environment import FaultEnvironment
from tests.faults.instance import Instance
from tests.faults.judge import Told, Wanted, new_nonce

WORK = "c0ffee"


class HermScene(FaultEnvironment):
    """The environment with one Herm session, `ada`."""

    runtime = "ada"
    list_timeout = "2s"

    def __init__(self, folder: Path, *, manners: HermManners | None = None, **more: Any) -> None:
        super().__init__(folder, **more)
        self.server = HermServer(manners=manners)
        self.agent: SimSession = self.server.session("session_ada")
        self.calls: list[Asked] = []

    async def start_runtime(self) -> None:
        await self.server.start()

    async def stop_runtime(self) -> None:
        await self.server.__aexit__()

    def runtime_url(self) -> str:
        return self.server.url

    def runtime_settings(self, url: str) -> dict[str, Any]:
        return {
            "adapter": "herm",
            "url": url,
            "api_key": self.server.api_key,
            "session_id": "session_ada",
            "idle_timeout": "2s",
            "send_timeout": "2s",
            "list_timeout": self.list_timeout,
            "connect_timeout": "2s",
        }

    def links(self) -> tuple[int, bool]:
        return self.agent.streams_opened, self.agent.streams > 0

    def wanted(self) -> list[Wanted]:
        return [
            Wanted(
                asked.asked_id,
                str(asked.payload["tool"]),
                [
                    Told("failure" if answer.get("is_error") else "success", said := json.dumps(answer), said)
                    for answer in asked.answers
                ],
                arguments=json.dumps(asked.payload["input"], sort_keys=True),
                withdrawn=asked.closed,
            )
            for asked in self.calls
        ]

    def call(self, tool: str, **arguments: Any) -> Asked:
        """Let the agent ask for a tool."""
        asked = self.agent.call(tool, {"n": next(self._numbers), "nonce": new_nonce(), **arguments})
        self.calls.append(asked)
        return asked


class OpenHandsScene(FaultEnvironment):
    """The environment with one OpenHands conversation, whose agent runs its tools itself."""

    runtime = "work"

    def __init__(self, folder: Path, *, manners: OpenHandsManners | None = None, **more: Any) -> None:
        super().__init__(folder, **more)
        self.server = OpenHandsServer(manners=manners)
        self.agent: SimConversation = self.server.conversation(WORK)

    async def start_runtime(self) -> None:
        await self.server.start()

    async def stop_runtime(self) -> None:
        await self.server.__aexit__()

    def runtime_url(self) -> str:
        return self.server.url

    def runtime_settings(self, url: str) -> dict[str, Any]:
        return {
            "adapter": "openhands",
            "url": url,
            "conversation_id": WORK,
            "ack_timeout": "1s",
            "connect_timeout": "2s",
        }

    def links(self) -> tuple[int, bool]:
        return self.agent.connections, bool(self.agent.sockets)

    def wanted(self) -> list[Wanted]:
        return []

    def heard(self) -> list[str]:
        """The messages that reached the agent, in order."""
        return [one.payload["args"]["content"] for one in self.agent.received if one.payload["action"] == "message"]


class OpenHandsV1Scene(FaultEnvironment):
    """The environment with one conversation of an OpenHands agent-server, which the gateway creates."""

    runtime = "work"

    def __init__(self, folder: Path, *, manners: V1Manners | None = None, hold: str = "50s", **more: Any) -> None:
        super().__init__(folder, **more)
        self.server = AgentServer(manners=manners)
        self._hold = hold
        """The setting `mcp.hold`."""

    @property
    def agent(self) -> SimV1Conversation:
        """The conversation."""
        (made,) = self.server.conversations.values()
        assert isinstance(made, SimV1Conversation)
        return made

    async def start_runtime(self) -> None:
        await self.server.start()

    async def stop_runtime(self) -> None:
        await self.server.__aexit__()

    def runtime_url(self) -> str:
        return self.server.url

    def runtime_settings(self, url: str) -> dict[str, Any]:
        agent = {"kind": "openhands", "llm": {"model": "simulated"}}
        return {"adapter": "openhands-v1", "url": url, "conversation": {"agent": agent}, "autostart": True}

    def settings(self, instance: Instance, **engine: Any) -> dict[str, Any]:
        tool = {"description": "A tool.", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        return super().settings(instance, **engine) | {
            "tools": {"again": tool, "once": tool},
            "mcp": {"hold": self._hold},
        }

    def links(self) -> tuple[int, bool]:
        if not self.server.conversations:
            return 0, False
        return self.agent.connections, self.agent.sockets > 0

    def wanted(self) -> list[Wanted]:
        return []

    def heard(self) -> list[str]:
        """The messages that reached the agent, in order."""
        return [one.payload[1] for one in self.agent.received if one.payload[0] == "message"]
