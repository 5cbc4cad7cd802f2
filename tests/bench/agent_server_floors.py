"""The clients of an OpenHands V1 agent-server that people would write by hand: nothing is kept, checked or repeated.

`sockets`: aiohttp's sockets of many conversations, which are read and nothing else. `client`: conversations with the
tool of an MCP server of its own, whose calls go to a webhook by httpx; their events are read with websockets.
"""

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

import aiohttp
import httpx
import uvicorn
import websockets
from starlette.types import Receive, Scope, Send

from tests.bench.runtime import TOOL
from tests.ports import free_port

_AUTH = '{"type": "auth", "session_api_key": ""}'
_ARGUMENTS = {"type": "object", "properties": {"targetPlayer": {"type": "string"}, "rank": {"type": "string"}}}


async def sockets(url: str, ids: list[str]) -> None:
    """Follow conversations with the library of the gateway."""

    async def follow(http: aiohttp.ClientSession, name: str) -> None:
        async with http.ws_connect(f"{url}/sockets/session/{name}?after_seq=-1") as socket:
            await socket.send_str(_AUTH)
            async for message in socket:
                json.loads(message.data)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        following = [asyncio.create_task(follow(http, name)) for name in ids]
        _say({"ids": ids})
        await _until_told()
        for one in following:
            one.cancel()


async def client(url: str, webhook: str, count: int) -> None:
    """Make conversations whose agents call a tool of this process."""
    port = free_port()
    async with httpx.AsyncClient(timeout=60) as http:
        server = uvicorn.Server(uvicorn.Config(_tools(http, webhook), port=port, log_level="warning", access_log=False))
        serving = asyncio.create_task(server.serve())
        ids = [str(uuid4()) for _ in range(count)]
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "transport": "http"}
        agent: dict[str, Any] = {
            "kind": "Agent",
            "llm": {"model": "simulated"},
            "tools": [],
            "mcp_config": {"tools": entry},
        }
        for name in ids:
            body: dict[str, Any] = {"conversation_id": name, "agent": agent, "workspace": {"working_dir": "."}}
            (await http.post(f"{url}/api/conversations", json=body)).raise_for_status()
        following = [asyncio.create_task(_read(url, name)) for name in ids]
        _say({"ids": ids})
        await _until_told()
        for one in following:
            one.cancel()
        server.should_exit = True
        await serving


async def _read(url: str, name: str) -> None:
    address = f"{url.replace('http', 'ws', 1)}/sockets/session/{name}?after_seq=-1"
    async with websockets.connect(address, max_size=None) as socket:
        await socket.send(_AUTH)
        async for message in socket:
            json.loads(message)


def _tools(http: httpx.AsyncClient, webhook: str) -> Any:
    """Make an MCP server without sessions, which answers in plain JSON."""

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        match asked["method"]:
            case "initialize":
                return {
                    "protocolVersion": asked["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "by hand", "version": "1"},
                }
            case "tools/list":
                return {"tools": [{"name": TOOL, "description": "Ask for cards.", "inputSchema": _ARGUMENTS}]}
            case _:
                data = {
                    "native_call_id": str(uuid4()),
                    "tool": asked["params"]["name"],
                    "arguments": asked["params"]["arguments"],
                }
                said = (await http.post(webhook, json={"type": "tool.requested", "data": data})).json()
                content = [{"type": "text", "text": json.dumps(said["result"])}]
                return {"content": content, "isError": said["outcome"] != "success"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body)
        told = b"" if "id" not in asked else _dump({"jsonrpc": "2.0", "id": asked["id"], "result": await answer(asked)})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200 if told else 202, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    return app


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def _until_told() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(name: str, url: str, *more: str) -> None:
    """Run one until stdin ends; a line says which conversations it follows."""
    asyncio.run(sockets(url, more[0].split(",")) if name == "sockets" else client(url, more[0], int(more[1])))


if __name__ == "__main__":
    main(*sys.argv[1:])
