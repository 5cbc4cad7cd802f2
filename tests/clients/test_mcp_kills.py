"""kill -9 of a real gateway while an MCP client by others waits for a call, at a desk and with an agent's ticket."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from gateway.testing.serving import Served
from tests.faults.backend import SECRET, RecordingBackend
from tests.faults.environment import until
from tests.faults.instance import Instance
from tests.http.mcp_clients import connected
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

TOKEN = "of-a-desk-0123456789"
ARGUMENTS = {"n": 7}
NOTICED = 40.0
"""Seconds within which a client knows of the gateway's end: five minutes pass if it waits for the rest of a stream."""

AGENT = """
import asyncio
import json
import os
import sys
from typing import Any

URL = os.environ["URL"]
HEADERS = {"authorization": f"Bearer {os.environ['TOKEN']}"}


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    pass


async def call_with_fastmcp(tool: str, arguments: dict[str, Any]) -> Any:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    async with Client(StreamableHttpTransport(URL, headers=HEADERS), progress_handler=ignore) as client:
        return await client.call_tool_mcp(tool, arguments)


async def call_with_mcp(tool: str, arguments: dict[str, Any]) -> Any:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(URL, headers=HEADERS) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        return await session.call_tool(tool, arguments, progress_callback=ignore)


async def main() -> None:
    call = {"fastmcp": call_with_fastmcp, "mcp": call_with_mcp}[sys.argv[1]]
    while line := await asyncio.to_thread(sys.stdin.readline):
        tool, arguments = json.loads(line)
        try:
            result = await call(tool, arguments)
            said: list[Any] = ["result", result.isError, [block.text for block in result.content], result.meta]
        except Exception as exc:
            said = ["broken", type(exc).__name__, str(exc)]
        print(json.dumps(said), flush=True)


asyncio.run(main())
"""
"""Calls a tool over a new connection for each line that it reads, and prints the result; with fastmcp as in the agents
of OpenHands, or with the SDK before the newest."""


@dataclass
class Scene:
    """A gateway that can be killed and started again, with a desk and a server of OpenHands, and its backend."""

    gateway: Instance
    backend: RecordingBackend
    openhands: OpenHandsServer

    async def start(self) -> None:
        await self.gateway.serve()
        await until(self.gateway.ready)

    async def kill_during_call(self, tool: str, count: int) -> None:
        """Kill the gateway once its backend works on a call, and start another one."""
        await self.backend.wait(lambda seen: seen.tool == tool, count=count)
        self.gateway.signal(signal.SIGKILL)
        await self.gateway.died()
        self.backend.open()

    async def ticket(self) -> tuple[str, str]:
        """Create a conversation; returns what its agent got: an address and a ticket."""
        answer = await self.gateway.http.post("/v1/sessions", json={"runtime": "agent"}, timeout=PATIENCE)
        assert answer.status_code == 201, answer.text
        (server,) = self.openhands.conversation(answer.json()["native_id"]).mcp.servers
        assert server.api_key is not None
        return server.url, server.api_key


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    backend = RecordingBackend()
    served, gateway = Served(backend.app), Instance(tmp_path)
    manners = Manners(loading=timedelta(0), stale_state=None)
    async with OpenHandsServer(manners=manners) as openhands:
        await served.start()
        webhook = {"type": "webhook", "url": f"{served.url}/tools", "secret": SECRET, "breaker": "off"}
        gateway.configure({
            "public_url": gateway.url,
            "engine": {"type": "sqlite", "path": str(tmp_path / "dragoman.db")},
            "instance": {"url": gateway.url, "lease": "2s"},
            "runtimes": {
                "desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": TOKEN}]},
                "agent": {"adapter": "openhands", "url": openhands.url, "conversation": {}},
            },
            "tools": {name: {"description": name, "parameters": {"type": "object"}} for name in ("again", "once")},
            "executors": {"again": {**webhook, "idempotent": True}, "once": webhook},
            "routes": [{"match": {"tool": name}, "to": name} for name in ("again", "once")],
        })  # fmt: skip
        yield (made := Scene(gateway, backend, openhands))
        made.backend.open()
        await gateway.close()
        await served.stop()


class Agent:
    """A client in a process of its own that calls tools."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, tool: str) -> list[Any]:
        """Call a tool; returns `result`, whether it is an error, its texts and `_meta`, or `broken` and why."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([tool, ARGUMENTS]).encode() + b"\n")
        return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def agent(request: pytest.FixtureRequest, library: str, url: str, token: str) -> AsyncGenerator[Agent]:
    """Start a client by others."""
    if library == "typescript":
        *node, folder = request.getfixturevalue("typescript")
        command = [*node, f"{folder}/agent.mjs"]
    else:
        command = [*request.getfixturevalue("python"), "-c", AGENT, library]
    environ = {**os.environ, "URL": url, "TOKEN": token, "NO_PROXY": "*"}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, env=environ, start_new_session=True
    )
    try:
        yield Agent(process)
    finally:
        # Node runs as a child of Python.
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.mark.parametrize("library", ["fastmcp", "mcp", "typescript"])
async def test_a_client_before_2026_07_28_learns_at_once_that_the_gateway_died_during_its_call(
    scene: Scene, request: pytest.FixtureRequest, library: str
) -> None:
    await scene.start()
    async with agent(request, library, f"{scene.gateway.url}/mcp/r/desk", TOKEN) as ada:
        scene.backend.close("tools")
        asking = asyncio.create_task(ada.call("once"))
        await scene.kill_during_call("once", 1)
        async with asyncio.timeout(NOTICED):
            assert (await asking)[0] == "broken"


async def test_a_client_of_2026_07_28_survives_a_stream_that_the_death_of_the_gateway_cuts(scene: Scene) -> None:
    await scene.start()

    begun = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        begun.set()

    session = (await scene.gateway.http.post("/v1/sessions", json={"runtime": "agent"})).json()["session_id"]
    access = (await scene.gateway.http.get(f"/v1/sessions/{session}/mcp")).json()
    scene.backend.close("tools")

    async def call() -> None:
        async with connected(access["url"], access["token"], "auto") as client:
            await client.call_tool("once", ARGUMENTS, progress_callback=hear)

    asking = asyncio.create_task(call())
    (seen,) = await scene.backend.wait(lambda one: one.tool == "once")
    # With the first report, the response begins.
    await scene.gateway.http.post(f"/v1/calls/{seen.content['call_id']}/progress", json={"done": 1})
    async with asyncio.timeout(NOTICED):
        await begun.wait()
        await scene.kill_during_call("once", 1)
        with pytest.raises(BaseExceptionGroup) as raised:
            await asking
    assert raised.group_contains(MCPError, match="SSE stream ended without a response")


@pytest.mark.parametrize("library", ["fastmcp", "mcp"])
async def test_an_agent_gets_the_outcome_of_a_call_that_a_crash_cut_and_only_its_next_call_runs(
    scene: Scene, request: pytest.FixtureRequest, library: str
) -> None:
    await scene.start()
    async with agent(request, library, *await scene.ticket()) as coder:
        for number, tool in enumerate(("once", "again")):
            scene.backend.close("tools")
            asking = asyncio.create_task(coder.call(tool))
            await scene.kill_during_call(tool, 1)
            assert (await asking)[0] == "broken"
            await scene.start()

            async def ended(count: int = number + 1) -> bool:
                rows = (await scene.gateway.http.get("/v1/calls")).json()["data"]
                return [row["state"] in {"succeeded", "failed"} for row in rows] == [True] * (2 * count - 1)

            await until(ended)
            before = len(scene.backend.seen)
            kind, is_error, (note, *_, text), meta = await coder.call(tool)
            assert (kind, "did not run again" in note, meta) == ("result", True, {"dragoman/replayed": True})
            # An idempotent executor was asked again under the same key; nobody knows what the other one did.
            assert (is_error, text.startswith("outcome unknown: ")) == ((tool == "once"), tool == "once")
            assert len(scene.backend.seen) == before
            _, is_error, [*_, text], meta = await coder.call(tool)
            assert (is_error, "answer" in text, meta) == (False, True, None)
            assert len({seen.key for seen in scene.backend.seen if seen.tool == tool}) == 2
