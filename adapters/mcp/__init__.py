"""MCP: coding agents and other clients come to us, each with a token of its own; nobody is connected to."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.mcp.options import McpOptions
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector

_CAPABILITIES = Capabilities(
    accepts=frozenset(),
    emits=frozenset({"tool.requested", "tool.canceled"}),
    turns="inferred",
    delivery="response",
    linked=False,
)


@dataclass(frozen=True, slots=True)
class McpAdapter:
    """The adapter for MCP clients; what they say and are told is the business of `gateway/http/mcp/`."""

    name: str = "mcp"
    protocol: str = "mcp/2026-07-28"
    ports: int = PORTS_VERSION
    options: type[McpOptions] = McpOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec, which no frame ever passes."""
        from adapters.mcp.codec import McpCodec

        del options
        return McpCodec()

    def connector(self, options: McpOptions) -> AbstractAsyncContextManager[Connector]:
        """Nobody asks for it, since the protocol is not linked."""
        raise NotImplementedError("MCP clients come to the gateway; there is nothing to connect to")


ADAPTER = McpAdapter()
