"""How long the server keeps idle connections: `http.keep_alive`, also after a reload."""

import asyncio
import time
from datetime import timedelta

import pytest
from pydantic import ValidationError

from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.settings.model import HttpSpec, Limits, Settings
from tests.http.conftest import serving
from tests.http.environment import Environment
from tests.http.test_server import port_of
from tests.pace import PATIENCE

_PING = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def idle_seconds(url: str) -> float:
    """Measure how long the server keeps a connection open after its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(_PING)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
            began = time.monotonic()
            assert await reader.read() == b""
        return time.monotonic() - began
    finally:
        writer.close()


async def test_an_idle_connection_is_closed_after_keep_alive(environment: Environment) -> None:
    async with serving(environment.gateway) as (server, url):
        for seconds in (1, 2):
            server.fit(Settings(http=HttpSpec(keep_alive=timedelta(seconds=seconds))))
            assert await idle_seconds(url) >= seconds - 0.1


def test_the_default_outlives_what_load_balancers_keep(environment: Environment) -> None:
    config = make_server(build_app(environment.gateway), Limits()).config
    assert config.timeout_keep_alive == 75
    config = make_server(build_app(environment.gateway), Limits(), HttpSpec(keep_alive=timedelta(minutes=11))).config
    assert config.timeout_keep_alive == 660


@pytest.mark.parametrize("wrong", ["0s", "500ms", "2h", "-1s", "for ever", None])
def test_keep_alive_is_from_a_second_to_an_hour(wrong: object) -> None:
    with pytest.raises(ValidationError):
        HttpSpec.model_validate({"keep_alive": wrong})
