"""HUMA 0.2.0: agents that speak over Socket.IO in typed, flat events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.huma_v0_2.options import HumaOptions
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector, Tool


@dataclass(frozen=True, slots=True)
class HumaAdapter:
    """The adapter for HUMA 0.2.0."""

    name: str = "huma-0.2"
    protocol: str = "huma/0.2.0"
    ports: int = PORTS_VERSION
    options: type[HumaOptions] = HumaOptions

    @property
    def capabilities(self) -> Capabilities:
        """What HUMA 0.2.0 can do."""
        from adapters.huma_v0_2.capabilities import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; no option changes what the words mean."""
        from adapters.huma_v0_2.codec import HumaCodec

        del options
        return HumaCodec()

    def connector(self, options: HumaOptions, tools: tuple[Tool, ...]) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.huma_v0_2.connector import open_connector

        return open_connector(options, tools)


ADAPTER = HumaAdapter()
