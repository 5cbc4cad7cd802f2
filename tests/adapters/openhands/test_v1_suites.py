"""The OpenHands V1 connector against raw servers: what every link and every creation must do."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, cast

import pytest

from adapters.openhands.v1 import ADAPTER
from adapters.openhands.v1.connector import open_connector
from gateway.adapter.port import Connector, Frame
from gateway.testing.conformance.connector import ConnectorSuite
from gateway.testing.conformance.link import LinkSuite, Peer
from tests.adapters.openhands.raw_agent_server import CONVERSATION, KEY, RawAgentServer, agent_message
from tests.adapters.openhands.v1_links import SHORT, options_for

TUNING = replace(SHORT, settle=0.1, page=100)
"""The suite's peer shows no snapshot and echoes nothing unasked, so no wait for either may be long."""


class TestSessionSocket(LinkSuite):
    adapter = ADAPTER
    native_id = CONVERSATION
    sends = 100
    send_within = 10.0
    key = KEY
    version = "1.58.2"

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        self._sequences: dict[int, int] = {}
        return RawAgentServer(self.version).serve()

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        return open_connector(options_for(cast("RawAgentServer", peer).url, send_timeout="2s"), TUNING)

    def inbound(self, number: int, padding: str = "") -> Frame:
        # The index in the store: the suite makes frames in the order in which they happen.
        sequence = self._sequences.setdefault(number, len(self._sequences))
        return Frame("session", {"type": "durable", "seq": sequence, "event": agent_message(f"e-{number}", padding)})

    def outbound(self, number: int, padding: str = "") -> Frame:
        content = [{"type": "text", "text": f"{number}{padding}"}]
        return Frame("POST events", {"role": "user", "content": content, "run": False})


class TestEventsSocket(TestSessionSocket):
    version = "1.44.0"

    def inbound(self, number: int, padding: str = "") -> Frame:
        return Frame("events", agent_message(f"e-{number}", padding))


LLM = {"model": "openai/gpt-4o", "api_key": "llm-canary-key-0123456789"}
ACP: dict[str, Any] = {"kind": "acp", "server": "claude-code"}


class TestCreating(ConnectorSuite):
    adapter = ADAPTER
    agent: dict[str, Any] = {"kind": "openhands", "llm": LLM}
    version = "1.58.2"

    def options(self, url: str) -> Any:
        return options_for(url, conversation_id=None, conversation={"agent": self.agent})

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        if path == "/server_info":
            return 200, {"version": self.version, "sdk_version": self.version, "usable_tools": [], "uptime": 1.0}
        if method == "GET":
            assert path == f"/api/conversations/{CONVERSATION}/events/search"
            return 200, {"items": [], "next_page_id": None}
        assert (method, path) == ("POST", "/api/conversations")
        return 201, {"id": CONVERSATION, "execution_status": "idle"}


class TestCreatingWithAnOlderServer(TestCreating):
    version = "1.23.0"


class TestCreatingAcp(TestCreating):
    agent = ACP


class TestCreatingAcpWithoutMcp(TestCreating):
    agent: dict[str, Any] = {**ACP, "server": "gemini-cli"}


@pytest.mark.parametrize("options", [{}, {"steer": "replace"}])
def test_the_codec_takes_the_option_for_hints(options: dict[str, Any]) -> None:
    assert ADAPTER.codec(options_for("http://127.0.0.1:1", **options)) is not None
