"""The official client of MCP, of both eras, and plain JSON-RPC, against a gateway on real sockets."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

import httpx
import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.http.conftest import bearer
from tests.pace import PATIENCE

Mode = Literal["legacy", "auto"]
MODES: tuple[Mode, ...] = ("auto", "legacy")
NEWEST = "2026-07-28"
VERSIONS = (None, "2025-06-18", "2025-11-25", NEWEST)
"""What plain requests say in their header."""
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The `_meta` that each request of the newest version has."""


def connected(url: str, token: str, mode: Mode) -> AbstractAsyncContextManager[Client]:
    """Connect the official client with a token."""
    return connected_with(url, bearer(token), mode)


@asynccontextmanager
async def connected_with(url: str, headers: Mapping[str, str], mode: Mode) -> AsyncGenerator[Client]:
    """Connect the official client with headers."""
    # Nothing here is encrypted, and reading the certificates of the machine takes long.
    http = httpx2.AsyncClient(headers=dict(headers), timeout=PATIENCE, verify=False)
    async with http, Client(streamable_http_client(url, http_client=http), mode=mode) as client:
        yield client


def texts(result: types.CallToolResult) -> list[str]:
    """The text blocks of a result."""
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


class Plain:
    """Sends JSON-RPC by hand; without a version as clients before the header do, which need no handshake either."""

    def __init__(self, http: httpx.AsyncClient, path: str, token: str, version: str | None = None) -> None:
        self._http, self._path, self._version = http, path, version
        self._headers = {**bearer(token), "accept": "application/json, text/event-stream"}
        if version is not None:
            self._headers["mcp-protocol-version"] = version

    async def send(self, body: Any, **headers: str) -> httpx.Response:
        """Post a body: bytes as they are, everything else as JSON."""
        kind = {"content-type": "application/json"}
        if self._version == NEWEST and not isinstance(body, bytes):
            params: dict[str, Any] = body["params"]
            meta = {**ENVELOPE, **params.get("_meta", {})}
            headers = {"mcp-method": body["method"], "mcp-name": params.get("name", ""), **headers}
            return await self._http.post(
                self._path,
                json={**body, "params": {**params, "_meta": meta}},
                headers={**self._headers, **headers},
                timeout=PATIENCE,
            )
        if isinstance(body, bytes):
            return await self._http.post(
                self._path, content=body, headers={**self._headers, **kind, **headers}, timeout=PATIENCE
            )
        return await self._http.post(self._path, json=body, headers={**self._headers, **headers}, timeout=PATIENCE)

    async def call(
        self, tool: str, arguments: dict[str, Any] | None = None, *, number: int = 1, **meta: Any
    ) -> dict[str, Any]:
        """Call a tool; returns the JSON-RPC answer."""
        answer = await self.send(call(tool, arguments, number=number, **meta))
        assert answer.status_code == 200
        return answer.json()


def call(tool: str, arguments: dict[str, Any] | None = None, *, number: int = 1, **meta: Any) -> dict[str, Any]:
    """Write a `tools/call`."""
    params = {"name": tool, "arguments": arguments or {}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
