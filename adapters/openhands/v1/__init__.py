"""OpenHands V1: the agent-server, its built-in agent and the ACP agents that it runs.

May import `adapter`, `errors`, `events`, `guard`, `links`, `strict_json`.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.openhands.v1.options import OpenHandsV1Options
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector


@dataclass(frozen=True, slots=True)
class OpenHandsV1Adapter:
    """The adapter for OpenHands V1: agent-servers from 1.23, and app servers."""

    name: str = "openhands-v1"
    ports: int = PORTS_VERSION
    options: type[OpenHandsV1Options] = OpenHandsV1Options

    @property
    def protocol(self) -> str:
        """The protocol and its release."""
        from adapters.openhands.v1.wire import PROTOCOL

        return PROTOCOL

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of OpenHands V1."""
        from adapters.openhands.v1.capabilities import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it uses the option `steer`."""
        from adapters.openhands.v1.codec import OpenHandsV1Codec

        return OpenHandsV1Codec(steering_runs=isinstance(options, OpenHandsV1Options) and options.steer == "replace")

    def connector(self, options: OpenHandsV1Options) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.openhands.v1.connector import open_connector

        return open_connector(options)


ADAPTER = OpenHandsV1Adapter()
