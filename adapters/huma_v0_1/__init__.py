"""HUMA 0.1: agents that speak over Socket.IO in enveloped events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.huma_v0_1 import wire
from adapters.huma_v0_1.codec import HumaCodec
from adapters.huma_v0_1.options import HumaOptions
from gateway.ports.adapter import PORTS_VERSION, Capabilities, Codec, Connector, Tool
from gateway.ports.values import MAX_DEPTH

_CAPABILITIES = Capabilities(
    accepts=frozenset({"context.updated", "message.posted", "tool.finished", "opaque"}),
    emits=frozenset({"tool.requested", "tool.canceled", "message.posted", "typing.changed", "session.moved"}),
    turns="inferred",
    delivery="silence",
    rejects_with=frozenset({wire.REJECTED}),
    replaces_context=True,
    hydrates=False,
    answers_cancel=True,
    creates_sessions=True,
    limits={
        "name": wire.NAME_LENGTH,
        "frame_bytes": wire.MAX_FRAME,
        "arguments_depth": MAX_DEPTH,
        "image_bytes": wire.IMAGE_BYTES,
    },
)


@dataclass(frozen=True, slots=True)
class HumaAdapter:
    """The adapter for HUMA 0.1."""

    name: str = "huma-0.1"
    protocol: str = "huma/0.1"
    ports: int = PORTS_VERSION
    options: type[HumaOptions] = HumaOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; the options say how much the wire takes."""
        return HumaCodec(options.max_frame if isinstance(options, HumaOptions) else wire.MAX_FRAME)

    def connector(self, options: HumaOptions, tools: tuple[Tool, ...]) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.huma_v0_1.connector import open_connector

        return open_connector(options, tools)


ADAPTER = HumaAdapter()
