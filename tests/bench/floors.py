"""The integrations that people would write by hand, each a process of its own: no gateway, and nothing kept.

`httpx`: python-socketio and httpx as their documentation shows them. `best`: the same with aiohttp, uvloop and
orjson. `raw`: hand-written protocols on both sides, which shows how fast the fake peers themselves can go.
None of them validates, signs, journals or deduplicates anything.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any

import aiohttp
import httpx
import orjson
import uvloop
from httpx_sse import aconnect_sse

from tests.bench.raw_floor import raw
from tests.bench.runtime import floor_agents

# Untyped library.
socketio: Any = import_module("socketio")


async def direct_httpx(runtime: str, webhook: str, agents: list[str]) -> None:
    """Answer tool calls with httpx."""
    async with httpx.AsyncClient(timeout=60) as http:

        async def answer(client: Any, call: dict[str, Any]) -> None:
            response = await http.post(webhook, json=_request(call))
            await client.emit("message", _result(call, response.json()))

        await _stay([socketio.AsyncClient() for _ in agents], answer, runtime, agents)


async def best_direct(runtime: str, webhook: str, agents: list[str]) -> None:
    """Answer tool calls with aiohttp and orjson."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:

        async def answer(client: Any, call: dict[str, Any]) -> None:
            body = orjson.dumps(_request(call))
            async with http.post(webhook, data=body, headers={"content-type": "application/json"}) as response:
                said = orjson.loads(await response.read())
            await client.emit("message", _result(call, said))

        await _stay([socketio.AsyncClient(json=_QuickJson) for _ in agents], answer, runtime, agents)


Answer = Callable[[Any, dict[str, Any]], Awaitable[None]]


async def _stay(clients: list[Any], answer: Answer, runtime: str, agents: list[str]) -> None:
    for client, agent in zip(clients, agents, strict=True):
        client.on("event", partial(answer, client))
        await client.connect(f"{runtime}?agentId={agent}&apiKey=key", transports=["websocket"])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for client in clients:
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


async def chunks(herm: str, _webhook: str, _agents: list[str]) -> None:
    """Read pieces of a message from Herm, and do nothing with them."""

    async def read() -> None:
        async with (
            httpx.AsyncClient(timeout=60) as http,
            aconnect_sse(http, "GET", f"{herm}/v1/sessions/floor/events/stream") as stream,
        ):
            async for event in stream.aiter_sse():
                orjson.loads(event.data)

    reading = asyncio.create_task(read())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    reading.cancel()


FLOORS = {"httpx": direct_httpx, "best": best_direct, "raw": raw, "chunks": chunks}
"""The agents of each are those of `floor_agents`."""


def main(name: str, runtime: str, webhook: str, count: int) -> None:
    """Run one floor until stdin ends."""
    factory = None if name == "httpx" else uvloop.new_event_loop
    agents = floor_agents(name, count)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(FLOORS[name](runtime, webhook, agents))


if __name__ == "__main__":
    main(*sys.argv[1:4], count=int(sys.argv[4]))
