"""HUMA 0.1: agents that speak over Socket.IO in enveloped events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.huma_v0_1.options import HumaOptions
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector, Tool


@dataclass(frozen=True, slots=True)
class HumaAdapter:
    """The adapter for HUMA 0.1."""

    name: str = "huma-0.1"
    protocol: str = "huma/0.1"
    ports: int = PORTS_VERSION
    options: type[HumaOptions] = HumaOptions

    @property
    def capabilities(self) -> Capabilities:
        """What HUMA 0.1 can do."""
        from adapters.huma_v0_1.capabilities import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; the options say how much the wire takes."""
        from adapters.huma_v0_1.codec import HumaCodec
        from adapters.huma_v0_1.wire import MAX_FRAME

        return HumaCodec(options.max_frame if isinstance(options, HumaOptions) else MAX_FRAME)

    def connector(self, options: HumaOptions, tools: tuple[Tool, ...]) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.huma_v0_1.connector import open_connector

        return open_connector(options, tools)


ADAPTER = HumaAdapter()
