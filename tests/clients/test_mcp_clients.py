"""MCP clients that others have made, each in an environment of its own, against a real gateway on real sockets.

The newest Python SDK, of both eras, is what `tests/http/test_mcp.py` speaks with.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.events import Outcome
from gateway.executors.port import Answered
from tests.http.conftest import plain_client, serving
from tests.http.environment import environment_of
from tests.pace import PATIENCE

NAMES = ("quick", "broken", "slow", "later", "endless")
TOKEN = "of-a-desk-0123456789"
CONFIGURATION: dict[str, Any] = {
    "tools": {name: {"description": name, "parameters": {"type": "object"}} for name in NAMES},
    "mcp": {"hold": "3s"},
    "desks": {"desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": TOKEN, "progress": True}]}},
}

pytestmark = pytest.mark.slow

PYTHON = """
import asyncio
import json
import os
import re
import sys

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client


def say(*told):
    print(json.dumps(told), flush=True)


def texts(result):
    return [block.text for block in result.content]


async def main():
    headers = {"authorization": f"Bearer {os.environ['TOKEN']}"}
    async with (
        streamablehttp_client(os.environ["URL"], headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        say("listed", [tool.name for tool in (await session.list_tools()).tools])
        say("quick", texts(await session.call_tool("quick", {})))
        broken = await session.call_tool("broken", {})
        say("broken", broken.isError, texts(broken))

        heard, begun = [], asyncio.Event()

        async def hear(progress, total, message):
            if message:
                heard.append(message)
                begun.set()

        slow = await session.call_tool("slow", {}, progress_callback=hear)
        say("slow", heard, texts(slow))

        [unfinished] = texts(await session.call_tool("later", {}))
        say("later", unfinished)
        named = json.loads(re.search(r"\\{.*\\}", unfinished)[0])
        say("waited", texts(await session.call_tool("get_result", named)))

        begun.clear()
        number = session._request_id
        endless = asyncio.create_task(session.call_tool("endless", {}, progress_callback=hear))
        await begun.wait()
        # It says so to nobody by itself.
        params = types.CancelledNotificationParams(requestId=number)
        await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        endless.cancel()
        await asyncio.wait({endless})
        say("canceled")
        # What says so is on its way until the test has seen it arrive.
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
"""


@pytest.mark.parametrize("language", ["typescript", "python"])
async def test_a_foreign_client_is_served(request: pytest.FixtureRequest, language: str) -> None:
    programs: list[str] = request.getfixturevalue(language)
    command = [*programs, "-c", PYTHON] if language == "python" else [*programs[:-1], f"{programs[-1]}/client.mjs"]
    async with (
        environment_of(CONFIGURATION) as environment,
        serving(environment.gateway) as (_, url),
        plain_client(url) as http,
    ):
        backend = environment.backend
        backend.answers["quick"] = Answered(Outcome(outcome="success", result={"n": 7}))
        backend.answers["broken"] = Answered(Outcome(outcome="failure", error="it broke"))

        async def accepted(tool: str) -> str:
            return await _sought(lambda: _accepted(tool))

        async def _accepted(tool: str) -> str | None:
            rows = (await http.get("/v1/calls", params={"tool": tool})).json()["data"]
            return next((row["call_id"] for row in rows if row["state"] == "accepted"), None)

        async def report(call_id: str, *said: int) -> None:
            for done in said:
                assert (await http.post(f"/v1/calls/{call_id}/progress", json={"done": done})).status_code == 202

        async def settle(call_id: str, result: str) -> None:
            body = {"outcome": "success", "result": result}
            assert (await http.post(f"/v1/calls/{call_id}/outcome", json=body)).status_code == 200

        environ = {**os.environ, "URL": f"{url}/mcp/r/desk", "TOKEN": TOKEN, "NO_PROXY": "*"}
        running = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environ)
        assert running.stdin is not None
        assert running.stdout is not None
        told = _lines(running.stdout)
        async with asyncio.timeout(90):
            assert await anext(told) == ["listed", [*NAMES, "get_result"]]
            assert await anext(told) == ["quick", ['{"n":7}']]
            assert await anext(told) == ["broken", True, ["it broke"]]
            slow = await accepted("slow")
            await report(slow, 1, 2)
            await settle(slow, "slowly")
            assert await anext(told) == ["slow", ['{"done":1}', '{"done":2}'], ["slowly"]]
            later = await accepted("later")
            assert await anext(told) == [
                "later",
                f'Not finished. Call get_result with {{"call_id":"{later}"}} to wait; do not call later again.',
            ]
            await settle(later, "at last")
            assert await anext(told) == ["waited", ["at last"]]
            endless = await accepted("endless")
            await report(endless, 1)
            assert await anext(told) == ["canceled"]
            await _sought(lambda: _canceled(backend.canceled))
            assert [one.data["call_id"] for one in backend.canceled] == [endless]
            running.stdin.close()
            assert await running.wait() == 0
        # Each was carried out once.
        assert [one.data["tool"] for one in backend.asked] == list(NAMES)


async def _canceled(seen: list[Any]) -> bool | None:
    return bool(seen) or None


async def _sought(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(PATIENCE):
        # What is waited for happens in another process.
        while (found := await look()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def _lines(said: asyncio.StreamReader) -> AsyncIterator[Any]:
    async for line in said:
        yield json.loads(line)
