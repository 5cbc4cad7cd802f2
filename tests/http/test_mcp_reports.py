"""What an executor inside the gateway reports reaches whoever waits for its call over MCP."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.http.environment import Environment, environment_of, until
from tests.http.mcp_clients import MODES, Mode, connected, texts
from tests.http.test_calls_from_outside import SEVEN, TOOLS
from tests.pace import PATIENCE


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS) as made:
        yield made


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_hears_what_an_executor_reports(
    environment: Environment, wire: httpx.AsyncClient, url: str, session_id: str, mode: Mode
) -> None:
    token = (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (progress, total) == (1.0, None)
        heard.put_nowait(message)

    async def asked() -> bool | None:
        return bool(environment.backend.asked) or None

    environment.backend.gate, environment.backend.answers["ask_for_cards"] = asyncio.Event(), SEVEN
    async with connected(f"{url}/mcp/{session_id}", token, mode) as client, asyncio.timeout(PATIENCE):
        asking = asyncio.create_task(client.call_tool("ask_for_cards", {"rank": "7"}, progress_callback=hear))
        await until(asked)
        environment.backend.asked[0].report({"percent": 40})
        if mode == "auto":
            assert await heard.get() == '{"percent":40}'
        environment.backend.gate.set()
        assert texts(await asking) == ['{"cards":["7H"]}']
    # A client before 2026-07-28 would hang if its stream were cut, so it gets JSON, which carries no progress.
    assert heard.empty()
