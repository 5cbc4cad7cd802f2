"""What the YAML may say about MCP clients that come to us. Pure."""

from typing import Any

from pydantic import ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.adapter.options import McpClient
from gateway.adapter.port import RuntimeOptions

_OF_LINKS = tuple(name for name in RuntimeOptions.model_fields if name not in {"adapter", "labels"})


def _without_links(schema: dict[str, Any]) -> None:
    for name in _OF_LINKS:
        del schema["properties"][name]


class McpOptions(RuntimeOptions):
    """Clients with a token each, at one address: `/mcp/r/` and the runtime's name."""

    model_config = ConfigDict(json_schema_extra=_without_links)

    url: str = ""
    clients: tuple[McpClient, ...] = Field(
        default=(), description="Who may come; each has a session of its own, opened by its first request."
    )

    @property
    def mcp_clients(self) -> tuple[McpClient, ...]:
        return self.clients

    @field_validator(*_OF_LINKS, mode="before")
    @classmethod
    def _not_given(cls, _: object) -> object:
        raise PydanticCustomError("no_link", "is about connecting to a runtime, and MCP clients come to us; remove it")
