"""The tools of an OpenHands agent (OH34), and the address of our MCP server in settings and creations (OH60). Pure."""

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, cast

from adapters.openhands import wire
from gateway.adapter.port import McpEndpoint, Tool

_MASKED = re.compile(r"\*{3,}")


def find_tools(events: Iterable[Any]) -> tuple[Tool, ...] | None:
    """Return the tools in the first system prompt of these events; None without a prompt."""
    for event in events:
        match event:
            case {"action": wire.PROMPT, "args": {"tools": list()}}:
                listed: list[Any] = event["args"]["tools"]
                return tuple(tool for one in listed if (tool := _read(one)) is not None)
            case _:
                pass
    return None


def with_server(config: Mapping[str, Any], endpoint: McpEndpoint) -> dict[str, Any]:
    """Append an MCP server to `mcp_config`."""
    return {**config, "shttp_servers": [*config.get("shttp_servers", []), _server(endpoint)]}


def with_registered(settings: Mapping[str, Any], endpoint: McpEndpoint) -> dict[str, Any] | None:
    """Return the settings with our MCP server; None if they already contain it.

    An entry with our URL or token is ours and is replaced. Other entries remain. Equal entries are written once: the
    server shows those of its config.toml among the stored ones, and would add them again with each write.

    Raises:
        ValueError: the settings cannot be written back unchanged.
    """
    shown: object = settings.get("mcp_config")
    config = _config(shown)
    mine = _server(endpoint)
    written: dict[str, Any] = {}
    for name, servers in config.items():
        others: list[Any] = []
        for one in servers:
            if one not in others and not (name == "shttp_servers" and _is_ours(one, mine)):
                others.append(one)
        written[name] = others
    ours = [one for one in config.get("shttp_servers", []) if _is_ours(one, mine)]
    if len(ours) == 1 and _equal(ours[0], mine):
        return None
    written["shttp_servers"] = [*written.get("shttp_servers", []), mine]
    plain = {key: value for key, value in settings.items() if key not in wire.SHOWN_SETTINGS and value is not None}
    return {**plain, "mcp_config": written}


def _config(shown: object) -> dict[str, list[Any]]:
    if shown is None:
        return {}
    if not isinstance(shown, dict):
        raise ValueError("mcp_config is not an object")
    config = cast("dict[str, object]", shown)
    for name, servers in config.items():
        if not isinstance(servers, list):
            raise ValueError(f"mcp_config.{name[:64]} is not a list")
        if any(_is_masked(one) for one in cast("list[object]", servers)):
            raise ValueError("the server masks keys of its MCP servers; a write would destroy them")
    return cast("dict[str, list[Any]]", config)


def _server(endpoint: McpEndpoint) -> dict[str, Any]:
    seconds = min(max(ceil(endpoint.timeout.total_seconds()), wire.USUAL_MCP_TIMEOUT), wire.LONGEST_MCP_TIMEOUT)
    return {"url": endpoint.url, "api_key": endpoint.ticket.get_secret_value(), "timeout": seconds}


def _is_ours(entry: object, mine: Mapping[str, Any]) -> bool:
    match entry:
        case {"url": str(url)} if url == mine["url"]:
            return True
        case {"api_key": str(key)}:
            return key == mine["api_key"]
        case _:
            return entry == mine["url"]


def _equal(entry: object, mine: Mapping[str, Any]) -> bool:
    return isinstance(entry, dict) and mine.items() <= cast("dict[str, Any]", entry).items()


def _is_masked(value: object) -> bool:
    waiting: list[object] = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                if _MASKED.fullmatch(text) or wire.HIDDEN in text:
                    return True
            case dict() as members:  # pyright: ignore[reportUnknownVariableType]
                waiting.extend(cast("dict[str, object]", members).values())
            case list() as items:  # pyright: ignore[reportUnknownVariableType]
                waiting.extend(cast("list[object]", items))
            case _:
                pass
    return False


def _read(listed: Any) -> Tool | None:
    match listed:
        case {"function": {"name": str(name)}}:
            function: dict[str, Any] = listed["function"]
            description, parameters = function.get("description"), function.get("parameters")
            schema = cast("dict[str, Any]", parameters) if isinstance(parameters, dict) else {}
            return Tool(name, description if isinstance(description, str) else "", schema)
        case _:
            return None
