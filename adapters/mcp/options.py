"""The YAML options of MCP clients, which connect to the gateway. Pure."""

from typing import Any

from pydantic import ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.adapter.options import McpClient
from gateway.adapter.port import RuntimeOptions

_OF_LINKS = tuple(name for name in RuntimeOptions.model_fields if name not in {"adapter", "labels", "keep_native"})


def _without_links(schema: dict[str, Any]) -> None:
    for name in _OF_LINKS:
        del schema["properties"][name]


class McpOptions(RuntimeOptions):
    """MCP clients with their own tokens at one address: `/mcp/r/` plus the runtime's name."""

    model_config = ConfigDict(json_schema_extra=_without_links)

    url: str = ""
    clients: tuple[McpClient, ...] = Field(
        default=(), description="The permitted clients; the first request of a client opens its session."
    )

    @property
    def mcp_clients(self) -> tuple[McpClient, ...]:
        return self.clients

    @field_validator(*_OF_LINKS, mode="before")
    @classmethod
    def _not_given(cls, _: object) -> object:
        raise PydanticCustomError(
            "no_link", "concerns connecting to a runtime, but MCP clients connect to the gateway; remove it"
        )
