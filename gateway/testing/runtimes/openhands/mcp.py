"""The MCP client of an OpenHands server, which uses the official client library as 0.62 does.

Each operation opens a new connection: the list of tools when the agent loop starts, without a conversation id, and each
call, with one.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from gateway.testing.runtimes.openhands.events import Seen
from gateway.testing.runtimes.openhands.rules import Frame, Violation
from gateway.testing.wire import Wire

if TYPE_CHECKING:
    from mcp.client.client import Client
    from mcp_types import CallToolResult

PATIENCE = timedelta(seconds=30)
"""The time limit of the client for each response; a server's `timeout` cannot extend it."""
USUAL_TIMEOUT, LONGEST_TIMEOUT = 60, 3_600
_LISTS = ("sse_servers", "stdio_servers", "shttp_servers")


class McpBroken(Exception):
    """A call that ended without a result for the agent."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.text = text


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server with streamable HTTP."""

    url: str
    api_key: str | None
    timeout: int | None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request; three of them contain the key."""
        if not self.api_key:
            return {}
        return {"Authorization": f"Bearer {self.api_key}", "s": self.api_key, "X-Session-API-Key": self.api_key}


def read_servers(config: object) -> tuple[McpServer, ...]:
    """Parse an `mcp_config`; only servers with streamable HTTP are used.

    Raises:
        Violation: a real server would respond with 422.
    """
    if config is None:
        return ()
    if not isinstance(config, dict):
        raise Violation("mcp_config must be an object")
    members = cast("Frame", config)
    if unknown := sorted(members.keys() - set(_LISTS)):
        raise Violation(f"mcp_config: extra inputs are not permitted: {unknown[0][:64]!r}")
    for name in _LISTS:
        if not isinstance(members.get(name, []), list):
            raise Violation(f"mcp_config.{name} must be a list")
    return tuple(_read_server(one) for one in members.get("shttp_servers", []))


def _read_server(given: object) -> McpServer:
    server = {"url": given} if isinstance(given, str) else cast("Frame", given)
    if not isinstance(given, str | dict) or not isinstance(url := server.get("url"), str):
        raise Violation("an MCP server is a URL, or has one")
    parts = urlsplit(url.strip())
    if parts.scheme not in {"http", "https", "ws", "wss"} or not parts.netloc:
        raise Violation("the URL of an MCP server must include a scheme and a host")
    api_key, timeout = server.get("api_key"), server.get("timeout", USUAL_TIMEOUT)
    if not isinstance(api_key, str | None):
        raise Violation("the api_key of an MCP server must be a string")
    if isinstance(timeout, bool) or not isinstance(timeout, int | None):
        raise Violation("the timeout of an MCP server must be an integer")
    if timeout is not None and not 0 < timeout <= LONGEST_TIMEOUT:
        raise Violation(f"the timeout of an MCP server must be 1 to {LONGEST_TIMEOUT} seconds")
    return McpServer(url.strip(), api_key, timeout)


class McpServers:
    """The MCP servers of one run of an agent loop."""

    def __init__(
        self,
        conversation_id: str,
        servers: tuple[McpServer, ...],
        patience: timedelta = PATIENCE,
        wire: Wire | None = None,
    ) -> None:
        self.servers = servers
        self.listed: list[Frame] = []
        """The tools at the start of the agent loop, in the form for its model."""
        self._conversation_id = conversation_id
        self._patience = patience.total_seconds()
        self._wire = wire

    async def begin(self) -> None:
        """List the tools of all reachable servers."""
        for server in self.servers:
            for tool in await self._tools(server, {}) or []:
                shown = {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}
                self.listed.append({"type": "function", "function": shown})

    def has(self, tool: str) -> bool:
        """Return whether the agent's model knows a tool."""
        return any(one["function"]["name"] == tool for one in self.listed)

    async def call(self, tool: str, arguments: Frame) -> Seen:
        """Call a tool at the first server that has it now.

        Raises:
            McpBroken: no server has it, or the connection failed.
        """
        named = {"X-OpenHands-ServerConversation-ID": self._conversation_id}
        for server in self.servers:
            if any(one["name"] == tool for one in await self._tools(server, named) or []):
                break
        else:
            raise McpBroken("ValueError", f"No matching MCP agent found for tool name: {tool}")
        wait = min(self._patience, server.timeout or self._patience)
        late = f"Timed out while waiting for response to ClientRequest. Waited {wait} seconds."
        if wait != self._patience:
            late = f'Tool "{tool}" timed out after {float(wait)} seconds'
        began = asyncio.get_running_loop().time()
        try:
            async with _connected(server, named, self._patience, self._wire) as client:
                result = await _call(client, tool, arguments, wait)
        except Exception as exc:
            # The client of 0.62 does not notice a lost connection while it waits for a response.
            await asyncio.sleep(began + self._patience - asyncio.get_running_loop().time())
            raise McpBroken(type(exc).__name__, str(exc)) from exc
        if result is None or isinstance(result, str):
            return _seen(tool, arguments, {"isError": True, "error": result or late, "content": []})
        raw = result.model_dump(mode="json", by_alias=True)
        content = [{**_without_meta(block), "annotations": None, "meta": None} for block in raw["content"]]
        shown = {"meta": raw.get("_meta"), "content": content, "structuredContent": raw.get("structuredContent")}
        return _seen(tool, arguments, {**shown, "isError": result.is_error})

    async def _tools(self, server: McpServer, headers: dict[str, str]) -> list[Frame] | None:
        try:
            async with _connected(server, headers, self._patience, self._wire) as client:
                listed = await client.list_tools()
        except Exception:  # noqa: BLE001
            # The real server logs the error and continues without this server.
            return None
        return [tool.model_dump(mode="json", by_alias=True) for tool in listed.tools]


def _seen(tool: str, arguments: Frame, result: Frame) -> Seen:
    return Seen("mcp", json.dumps(result), {"name": tool, "arguments": arguments})


def _without_meta(block: Frame) -> Frame:
    return {key: value for key, value in block.items() if key != "_meta"}


async def _call(client: "Client", tool: str, arguments: Frame, within: float) -> "CallToolResult | str | None":
    """Call a tool; return the server's error as a text, or None after a timeout."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    calling = asyncio.create_task(client.session.call_tool(tool, arguments, progress_callback=_ignore_progress))
    try:
        done, _ = await asyncio.wait({calling}, timeout=within)
        if done:
            return await calling
    except MCPError as exc:
        if exc.code == CONNECTION_CLOSED:
            raise
        return str(exc)
    finally:
        calling.cancel()
    return None


async def _ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Ignore progress, which the client of 0.62 always requests."""


@asynccontextmanager
async def _connected(
    server: McpServer, headers: dict[str, str], patience: float, wire: Wire | None
) -> "AsyncGenerator[Client]":
    # Imported here because the library is slow to load, and most simulated servers have no MCP servers.
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    from gateway.testing.http_wire import NotingTransport

    # Loading the machine's certificates is slow, and simulated servers do not use TLS.
    noting = None if wire is None else NotingTransport(wire)
    http = httpx2.AsyncClient(headers={**server.headers, **headers}, timeout=None, verify=False, transport=noting)
    transport = streamable_http_client(server.url, http_client=http)
    async with http, Client(transport, mode="legacy", read_timeout_seconds=patience) as client:
        yield client
