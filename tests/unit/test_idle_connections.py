"""The clients of runtimes and of the gateway's API reuse an idle connection for a second at most."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import pytest

from dragoman.client import Client
from gateway.links.masking import Mask
from gateway.links.rest import RestClient
from tests.executors.peers import Peer, Seen, http_json, send, serve

_LONG = timedelta(seconds=10)
_WHOLE_SECOND = 1.1
Ask = Callable[[], Awaitable[object]]


def answer(**headers: str) -> Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]:
    async def script(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http_json(200, {"data": [], "next": None}, **headers))

    return script


@asynccontextmanager
async def of_a_runtime(peer: Peer) -> AsyncGenerator[Ask]:
    async with RestClient(peer.url, headers={}, mask=Mask(())) as client:
        yield lambda: client.post("/messages", {"text": "x" * 100_000}, within=_LONG)


@asynccontextmanager
async def of_the_api(peer: Peer) -> AsyncGenerator[Ask]:
    async with Client(peer.url, "key") as client:
        yield lambda: client.request("GET", "/v1/sessions")


@pytest.mark.parametrize("client", [of_a_runtime, of_the_api])
async def test_a_connection_that_was_idle_for_a_second_is_not_used_again(
    client: Callable[[Peer], AbstractAsyncContextManager[Ask]],
) -> None:
    async with serve(answer()) as peer, client(peer) as ask:
        await ask()
        before = peer.connections
        # The pause is what is tested.
        await asyncio.sleep(_WHOLE_SECOND)
        await ask()
        assert peer.connections == before + 1


@pytest.mark.parametrize(
    ("hint", "reuses"),
    [
        ("timeout=60", True),
        ("timeout=2", True),
        ("what", True),
        ("Timeout=1", False),
        ("timeout=0", False),
        ("timeout=60, max=1", False),
    ],
)
async def test_a_runtime_that_keeps_connections_for_a_second_gets_a_new_one_each_time(
    hint: str, *, reuses: bool
) -> None:
    async with serve(answer(keep_alive=hint)) as peer, of_a_runtime(peer) as ask:
        for _ in range(5):
            await ask()
        assert (peer.connections < 5) is reuses
