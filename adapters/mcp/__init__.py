"""The adapter for MCP clients, such as coding agents, which connect to the gateway with their own tokens.

May import `adapter`, `errors`, `events`.
"""

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
)


@dataclass(frozen=True, slots=True)
class McpAdapter:
    """The adapter for MCP clients; `gateway/http/mcp/` handles their requests."""

    name: str = "mcp"
    protocol: str = "mcp/2026-07-28"
    ports: int = PORTS_VERSION
    options: type[McpOptions] = McpOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it never receives a frame."""
        from adapters.mcp.codec import McpCodec

        del options
        return McpCodec()

    def connector(self, options: McpOptions) -> AbstractAsyncContextManager[Connector]:
        """Never called, because MCP clients connect to the gateway."""
        raise NotImplementedError("MCP clients connect to the gateway; it has nothing to connect to")


ADAPTER = McpAdapter()
