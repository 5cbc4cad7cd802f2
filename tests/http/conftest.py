"""The HTTP face of a real gateway, on real sockets or called directly, and clients with and without keys."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import structlog
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from gateway.http.app import build_app
from gateway.http.server import Server, make_server
from gateway.runtime.app import Gateway
from gateway.settings.model import Limits
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def serving(
    gateway: Gateway, *, within: Callable[[ASGIApp], ASGIApp] | None = None
) -> AsyncGenerator[tuple[Server, str]]:
    """Run the face of a gateway on a free port, `within` a middleware where one is given."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = build_app(gateway)
    if within is not None:
        app.add_middleware(within)
    server = make_server(app, Limits(drain=timedelta(seconds=5)))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(PATIENCE):
            # Uvicorn has no event for it.
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0)
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        async with asyncio.timeout(PATIENCE):
            await running


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    """A gateway at work; most tests need only the clients below."""
    # An executor that never answers a message would hold each stop for the default of 25 seconds.
    async with environment_of({"limits": {"drain": "1s"}}) as made:
        yield made


@pytest.fixture
def lines(environment: Environment) -> Iterator[list[MutableMapping[str, Any]]]:
    """Everything that the gateway logs from now on, whatever its level."""
    structlog.reset_defaults()
    with capture_logs() as captured:
        yield captured


@pytest.fixture
async def url(environment: Environment) -> AsyncIterator[str]:
    async with serving(environment.gateway) as (_, base):
        yield base


def plain_client(url: str) -> httpx.AsyncClient:
    """Make a client over real sockets with the key for everything."""
    # Reading the certificates of the machine takes longer than most tests, and nothing here is encrypted.
    return httpx.AsyncClient(base_url=url, headers=bearer("all-of-it"), timeout=PATIENCE, verify=False)  # noqa: S501


@pytest.fixture
async def wire(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket whose key may do everything."""
    async with plain_client(url) as client:
        yield client


class BoundedTransport(httpx.ASGITransport):
    """Calls an application directly; a client's timeout means nothing without a socket, so this has its own."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(PATIENCE):
            answer = await super().handle_async_request(request)
            if answer.is_success and answer.headers.get("content-type") == "application/json":
                check_answer(request, answer.status_code, json.loads(await answer.aread()))
            return answer


DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "config/openapi.json").read_text(encoding="utf-8"))


def check_answer(request: httpx.Request, status: int, body: Any) -> None:
    """Hold an answer against what the document says of its operation."""
    asked = request.url.raw_path.decode().partition("?")[0]
    method = request.method.lower()
    for path, operations in DOCUMENT["paths"].items():
        if method in operations and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), asked):
            _validator(path, method, str(status)).validate(body)
            return


@cache
def _validator(path: str, method: str, status: str) -> jsonschema_rs.Validator:
    schema = DOCUMENT["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]})


def in_process(gateway: Gateway, headers: dict[str, str]) -> httpx.AsyncClient:
    """Make a client that calls the application without a socket, for all that no socket can change."""
    transport = BoundedTransport(build_app(gateway), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=PATIENCE)


@pytest.fixture
async def api(environment: Environment) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose key may do everything."""
    async with in_process(environment.gateway, bearer("all-of-it")) as client:
        yield client


@pytest.fixture
async def stranger(environment: Environment) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key."""
    async with in_process(environment.gateway, {}) as client:
        yield client


@pytest.fixture
async def session_id(environment: Environment) -> str:
    return await environment.attach()
