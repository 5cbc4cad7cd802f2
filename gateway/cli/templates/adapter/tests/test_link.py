"""Runs the conformance suite for links against a peer that speaks raw JSON."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from gateway.adapter.port import Connector, Frame
from gateway.testing.conformance.link import LinkSuite
from peer import KEY, SESSION, PigeonPeer

from pigeon_adapter import ADAPTER


class TestPigeonLink(LinkSuite):
    adapter = ADAPTER
    native_id = SESSION
    sends = 50
    send_within = 10.0
    key = KEY

    def serve(self) -> AbstractAsyncContextManager[Any]:
        return PigeonPeer().serve()

    def connector(self, peer: Any) -> AbstractAsyncContextManager[Connector]:
        options = {
            "adapter": ADAPTER.name,
            "url": peer.url,
            "api_key": KEY,
            "session_id": SESSION,
            "send_timeout": "2s",
        }
        return ADAPTER.connector(ADAPTER.options.model_validate(options))

    def inbound(self, number: int, padding: str = "") -> Frame:
        return Frame("events", {"number": number + 1, "type": "message", "from": "agent", "text": f"{number}{padding}"})

    def outbound(self, number: int, padding: str = "") -> Frame:
        return Frame("messages", {"type": "message", "text": f"{number}{padding}"})
