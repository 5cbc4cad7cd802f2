"""An MCP client with the official library: lists the tools of a gateway, and calls one."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent

from gateway.testing.runtimes.alone import WAIT, FirstCall, Options, tell, tell_asked, told

_LOOK = 0.1
_CALL_LIMIT = 120.0


async def _is_let_in(url: str, headers: dict[str, str]) -> bool:
    """Wait until the URL responds; return whether it accepts the token.

    Raises:
        TimeoutError: it did not respond.
    """
    tell("waiting for a gateway")
    async with httpx2.AsyncClient(headers=headers, timeout=5, trust_env=False) as http, asyncio.timeout(WAIT):
        while True:
            try:
                return (await http.get(url)).status_code != 401
            except httpx2.TransportError:
                await asyncio.sleep(_LOOK)


async def _call(client: Client, first: FirstCall) -> bool:
    tell_asked(first)
    began = time.monotonic()
    result = await client.call_tool(first.tool, first.arguments)
    text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    outcome = "failure" if result.is_error else "success"
    tell(f"← {told(outcome, text, timedelta(seconds=time.monotonic() - began))}")
    return not result.is_error


async def _run(given: argparse.Namespace) -> int:
    headers = {"Authorization": f"Bearer {given.token or given.env.get('MCP_TOKEN') or ''}"}
    try:
        known = await _is_let_in(given.url, headers)
    except TimeoutError:
        tell(f"← no result: {given.url} does not respond")
        return 1
    if not known:
        tell("← no result: invalid token; pass a client's token with --token, or as MCP_TOKEN in --env-file")
        return 1
    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=_CALL_LIMIT, trust_env=False) as http,
            Client(streamable_http_client(given.url, http_client=http)) as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
            tell(f"MCP client at {given.url}, tools: {', '.join(names)}")
            return 0 if given.call is None or await _call(client, given.call) else 1
    except* (MCPError, httpx2.HTTPError) as failed:
        for one in _leaves(failed):
            tell(f"← no result: {one}")
    return 1


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for one in group.exceptions:
        yield from _leaves(one) if isinstance(one, BaseExceptionGroup) else (one,)


def main() -> None:
    """List the tools, call one if requested, and exit."""
    options = Options("mcp", "An MCP client that lists the tools of a gateway, and calls one.")
    add = options.parser.add_argument
    add("--url", default="http://127.0.0.1:8080/mcp/r/desk", help="the gateway's URL for MCP clients (%(default)s)")
    add("--token", metavar="TOKEN", help="the client's token; default: MCP_TOKEN")
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(_run(options.read())))


if __name__ == "__main__":
    main()
