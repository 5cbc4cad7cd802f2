"""Which tools an OpenHands agent has (OH34), and how a new one is told where to find ours (OH60). Pure."""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, cast

from adapters.openhands import wire
from gateway.adapter.port import McpEndpoint, Tool


def find_tools(events: Iterable[Any]) -> tuple[Tool, ...] | None:
    """Read the tools in the first system prompt among these events; None where there is none."""
    for event in events:
        match event:
            case {"action": wire.PROMPT, "args": {"tools": list()}}:
                listed: list[Any] = event["args"]["tools"]
                return tuple(tool for one in listed if (tool := _read(one)) is not None)
            case _:
                pass
    return None


def with_server(config: Mapping[str, Any], endpoint: McpEndpoint) -> dict[str, Any]:
    """Add an MCP server to `mcp_config`, behind those that are there."""
    seconds = min(max(ceil(endpoint.timeout.total_seconds()), wire.USUAL_MCP_TIMEOUT), wire.LONGEST_MCP_TIMEOUT)
    server = {"url": endpoint.url, "api_key": endpoint.ticket.get_secret_value(), "timeout": seconds}
    return {**config, "shttp_servers": [*config.get("shttp_servers", []), server]}


def _read(listed: Any) -> Tool | None:
    match listed:
        case {"function": {"name": str(name)}}:
            told: dict[str, Any] = listed["function"]
            description, parameters = told.get("description"), told.get("parameters")
            schema = cast("dict[str, Any]", parameters) if isinstance(parameters, dict) else {}
            return Tool(name, description if isinstance(description, str) else "", schema)
        case _:
            return None
