"""The application under servers that were not made for it: uvicorn with its defaults and either parser."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import pytest
import uvicorn

from gateway.http.app import build_app
from tests.http.conftest import plain_client
from tests.http.environment import Environment
from tests.pace import PATIENCE

_PARSERS: tuple[Literal["h11"], Literal["httptools"]] = ("h11", "httptools")


@pytest.fixture(params=_PARSERS)
async def elsewhere(request: pytest.FixtureRequest, environment: Environment) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application under uvicorn as it is installed."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build_app(environment.gateway), http=request.param, log_config=None)
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(PATIENCE):
            # Uvicorn has no event for it.
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0)
        async with plain_client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client
    finally:
        server.should_exit = True
        async with asyncio.timeout(PATIENCE):
            await running


async def test_a_session_is_opened_followed_and_closed(elsewhere: httpx.AsyncClient) -> None:
    opened = await elsewhere.post("/v1/sessions", json={"runtime": "finn", "native_id": "agent-7"})
    assert opened.status_code == 201
    path = f"/v1/sessions/{opened.json()['session_id']}"
    async with elsewhere.stream("GET", f"{path}/events/stream?after=0") as stream, asyncio.timeout(PATIENCE):
        lines = stream.aiter_lines()
        assert await anext(lines) == ": heartbeat"
        posted = await elsewhere.post(f"{path}/events", json={"kind": "turn.steered", "text": "left"})
        assert posted.status_code == 202
        kinds: list[str] = []
        while "turn.steered" not in kinds:
            line = await anext(lines)
            if line.startswith("data: "):
                kinds.append(json.loads(line.removeprefix("data: "))["event"]["kind"])
    assert kinds[0] == "session.opened"
    assert (await elsewhere.head(f"{path}/events/stream")).status_code == 200
    assert (await elsewhere.delete(path)).status_code == 204


async def test_refusals_are_problems(elsewhere: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    too_large = await elsewhere.post(path, json={"kind": "turn.steered", "text": "x" * 5_000_000})
    unreadable = await elsewhere.post(path, content=b"{", headers={"content-type": "application/json"})
    strange = await elsewhere.post(path, json={}, headers={"authorization": "Bearer wrong"})
    for answer, status, problem in (
        (too_large, 413, "too-large"),
        (unreadable, 400, "invalid-json"),
        (strange, 401, "unauthorized"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{problem}")
