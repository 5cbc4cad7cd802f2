"""The integrations that people would write by hand, each a process of its own: no gateway, and nothing kept.

`httpx`: python-socketio and httpx as their documentation shows them. `best`: the same with aiohttp, uvloop and
orjson. `raw`: hand-written protocols on both sides, which shows how fast the fake peers themselves can go.
None of them validates, signs, journals or deduplicates anything.
"""

import asyncio
import sys
from importlib import import_module
from typing import Any

import aiohttp
import httpx
import orjson
import uvloop

from tests.bench.raw_floor import raw

# Untyped library.
socketio: Any = import_module("socketio")


async def direct_httpx(runtime: str, webhook: str) -> None:
    """Answer tool calls with httpx."""
    client = socketio.AsyncClient()
    async with httpx.AsyncClient(timeout=60) as http:

        async def answer(call: dict[str, Any]) -> None:
            response = await http.post(webhook, json=_request(call))
            await client.emit("message", _result(call, response.json()))

        client.on("event", answer)
        await _stay(client, f"{runtime}?agentId=httpx&apiKey=key")


async def best_direct(runtime: str, webhook: str) -> None:
    """Answer tool calls with aiohttp and orjson."""
    client = socketio.AsyncClient(json=_QuickJson)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:

        async def answer(call: dict[str, Any]) -> None:
            body = orjson.dumps(_request(call))
            async with http.post(webhook, data=body, headers={"content-type": "application/json"}) as response:
                said = orjson.loads(await response.read())
            await client.emit("message", _result(call, said))

        client.on("event", answer)
        await _stay(client, f"{runtime}?agentId=best&apiKey=key")


async def _stay(client: Any, url: str) -> None:
    await client.connect(url, transports=["websocket"])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await client.disconnect()


class _QuickJson:
    """The two functions that python-socketio asks of a `json=` module."""

    loads = staticmethod(orjson.loads)

    @staticmethod
    def dumps(value: Any, **_options: Any) -> str:
        return orjson.dumps(value).decode()


def _request(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool.requested",
        "data": {"native_call_id": call["toolCallId"], "tool": call["toolName"], "arguments": call["arguments"]},
    }


def _result(call: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool-result",
        "triggering": True,
        "toolCallId": call["toolCallId"],
        "toolName": call["toolName"],
        "outcome": said["outcome"],
        "result": said["result"],
    }


FLOORS = {"httpx": direct_httpx, "best": best_direct, "raw": raw}
"""Each is the agent of its own name."""


def main(name: str, runtime: str, webhook: str) -> None:
    """Run one floor until stdin ends."""
    factory = None if name == "httpx" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(FLOORS[name](runtime, webhook))


if __name__ == "__main__":
    main(*sys.argv[1:4])
