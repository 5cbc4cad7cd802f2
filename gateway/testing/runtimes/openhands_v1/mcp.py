"""The MCP client of an agent-server: it connects at the first message, and again only after a restart.

It uses streamable HTTP. A session id of the server is kept for ever: after a 404 every call fails, because the client
never initializes again. A cut plain JSON response is noticed at once; a cut event stream hangs until the time limit.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jsonschema_rs

from gateway.testing.http_wire import NotingTransport
from gateway.testing.runtimes.openhands_v1.events import Frame, mcp_failed, mcp_seen
from gateway.testing.runtimes.openhands_v1.manners import Manners
from gateway.testing.runtimes.openhands_v1.rules import McpEntry
from gateway.testing.wire import Wire

PROTOCOL = "2025-11-25"
_MOST_PAGES = 100


class Broken(Exception):
    """A request that got no result; the text is for the agent."""


@dataclass(slots=True)
class _Server:
    entry: McpEntry
    tools: dict[str, Frame] = field(default_factory=dict[str, Frame])
    session: str | None = None
    requests: int = 0


class McpClients:
    """The MCP servers of one agent."""

    def __init__(self, entries: Mapping[str, McpEntry], manners: Manners, wire: Wire | None) -> None:
        self._servers = {name: _Server(entry) for name, entry in entries.items()}
        self._manners = manners
        transport = None if wire is None else NotingTransport(wire)
        # Loading the machine's certificates is slow, and simulated servers do not use TLS.
        self._http = httpx2.AsyncClient(timeout=None, verify=False, transport=transport, headers=_HEADERS)

    @property
    def listed(self) -> dict[str, Frame]:
        """The tools of all reached servers, by the names that the agent knows."""
        return {self._name(server, tool): given for server, _, tool, given in self._all()}

    def has(self, name: str) -> bool:
        """Return whether the agent knows a tool."""
        return name in self.listed

    def owner(self, name: str) -> tuple[str, str]:
        """Return the server of a tool, and the tool's name there."""
        return next((server, tool) for server, _, tool, _ in self._all() if self._name(server, tool) == name)

    async def begin(self) -> None:
        """List the tools of all servers; one that does not answer is left out silently."""
        await asyncio.gather(*(self._begin(server) for server in self._servers.values()))

    def objection(self, name: str, arguments: Frame) -> str | None:
        """Return why arguments do not fit a tool's schema; the server never hears of such a call.

        An argument must be declared, whatever the schema says about others; the values of an enum are not checked.
        """
        schema = self.listed[name]["inputSchema"]
        declared: Frame = schema.get("properties", {})
        if unknown := sorted(arguments.keys() - declared.keys()):
            return f"Error validating tool {name!r}: {unknown[0]}: Extra inputs are not permitted"
        loose = {key: {word: given for word, given in one.items() if word != "enum"} for key, one in declared.items()}
        try:
            jsonschema_rs.validate({**schema, "properties": loose}, self.coerced(name, arguments))
        except jsonschema_rs.ValidationError as exc:
            return f"Error validating tool {name!r}: {exc.message}"
        return None

    def coerced(self, name: str, arguments: Frame) -> Frame:
        """Return arguments as the event and the request have them: numbers as floats, and no needless nulls."""
        schema = self.listed[name]["inputSchema"]
        declared, required = schema.get("properties", {}), schema.get("required", [])
        return {
            key: float(value) if declared.get(key, {}).get("type") == "number" and type(value) is int else value
            for key, value in arguments.items()
            if value is not None or key in required
        }

    async def call(self, name: str, arguments: Frame) -> Frame:
        """Call a tool; return the observation of the agent, also if the call broke."""
        server_name, tool = self.owner(name)
        server = self._servers[server_name]
        limit = self._manners.mcp_limit.total_seconds()
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": server.requests}}
        try:
            async with asyncio.timeout(limit):
                result = await self._request(server, "tools/call", params)
        except TimeoutError:
            return mcp_failed(name, f"MCP tool {name!r} timed out after {limit:g} seconds.")
        except Broken as exc:
            return mcp_failed(name, f"Error calling MCP tool {name}: {exc}")
        known = [block for given in result.get("content", []) if (block := _block(given)) is not None]
        return mcp_seen(name, known, is_error=bool(result.get("isError")))

    async def stop(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _begin(self, server: _Server) -> None:
        server.session, server.requests, server.tools = None, 0, {}
        client = {"name": "mcp", "version": "0.1.0"}
        try:
            async with asyncio.timeout(self._manners.mcp_listing.total_seconds()):
                given = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
                await self._request(server, "initialize", given)
                await self._send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
                server.tools = await self._list(server)
        except (TimeoutError, Broken):
            return

    async def _list(self, server: _Server) -> dict[str, Frame]:
        found: dict[str, Frame] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._request(server, "tools/list", {} if cursor is None else {"cursor": cursor})
            found |= {tool["name"]: tool for tool in page["tools"]}
            if (cursor := page.get("nextCursor")) is None:
                break
        return found

    async def _request(self, server: _Server, method: str, params: Frame) -> Frame:
        number = server.requests
        server.requests += 1
        answer = await self._send(server, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        if answer is None or "error" in answer:
            raise Broken("no response" if answer is None else str(answer["error"].get("message")))
        return answer["result"]

    async def _send(self, server: _Server, body: Frame) -> Frame | None:
        headers = dict(server.entry.headers)
        if body.get("method") != "initialize":
            headers["mcp-protocol-version"] = PROTOCOL
        if server.session is not None:
            headers["mcp-session-id"] = server.session
        try:
            async with self._http.stream("POST", server.entry.url, json=body, headers=headers) as response:
                if response.status_code == 404 and server.session is not None:
                    raise Broken("Session terminated")
                if response.is_error:
                    raise Broken(f"HTTP {response.status_code}")
                server.session = response.headers.get("mcp-session-id", server.session)
                if "id" not in body:
                    return None
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await self._read_stream(response, body["id"])
                return _parse(await response.aread())
        except httpx2.TransportError as exc:
            raise Broken(str(exc) or "Server disconnected without sending a response.") from exc

    async def _read_stream(self, response: httpx2.Response, number: int) -> Frame:
        data: list[str] = []
        try:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    data.append(line[5:].strip())
                elif not line and data:
                    message = _parse("\n".join(data).encode())
                    data.clear()
                    if message.get("id") == number and "method" not in message:
                        return message
        except httpx2.TransportError:
            pass
        # The client does not notice that the stream has ended.
        await asyncio.Event().wait()
        raise AssertionError

    def _all(self) -> list[tuple[str, _Server, str, Frame]]:
        return [
            (name, server, tool, given)
            for name, server in self._servers.items()
            for tool, given in server.tools.items()
        ]

    def _name(self, server: str, tool: str) -> str:
        return tool if len(self._servers) == 1 else f"{server}_{tool}"


_HEADERS = {"accept": "application/json, text/event-stream", "user-agent": "python-httpx/0.28.1"}


def _parse(body: bytes) -> Frame:
    try:
        message: Any = json.loads(body)
    except ValueError as exc:
        raise Broken("the response is not JSON") from exc
    if not isinstance(message, dict):
        raise Broken("the response is not an object")
    return message  # pyright: ignore[reportUnknownVariableType] -- JSON


def _block(given: Frame) -> Frame | None:
    match given:
        case {"type": "text", "text": str(said)}:
            return {"cache_prompt": False, "type": "text", "text": said}
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return {"cache_prompt": False, "type": "image", "image_urls": [f"data:{kind};base64,{data}"]}
        case _:
            return None
