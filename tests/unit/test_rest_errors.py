"""What a failed request to a runtime's REST interface is told as: the cause alone, and never the wrong side."""

import asyncio
import time
from datetime import timedelta

import pytest

from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestClient
from tests.ports import free_port


async def lost(url: str, within: float = 10.0) -> str:
    async with RestClient(url, headers={}, mask=Mask(())) as client:
        with pytest.raises(LinkLost) as caught:
            await client.get("/state", {}, within=timedelta(seconds=within))
    return str(caught.value)


async def test_the_cause_is_named_without_the_names_of_a_library() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    port = free_port()
    assert (await lost(f"http://127.0.0.1:{port}")).endswith(
        f": cannot connect to 127.0.0.1:{port}: Connection refused"
    )
    async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await lost(url)).endswith("/state: the server closed the connection before its response")


async def test_a_limit_that_expires_while_the_process_stands_still_does_not_blame_the_server() -> None:
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asking = asyncio.ensure_future(lost(url, 0.3))
        # The request leaves; then nothing of this process runs, as after SIGSTOP.
        await asyncio.sleep(0.1)
        # The halt is the fault.
        time.sleep(1.5)  # noqa: ASYNC251
        assert "this process did not run for 1 s" in await asking
        await ended.wait()


async def test_a_request_after_the_end_of_its_link_is_lost_unsent() -> None:
    async with RestClient("http://127.0.0.1:9", headers={}, mask=Mask(())) as client:
        pass
    with pytest.raises(LinkLost, match="/state: the link has ended") as caught:
        await client.get("/state", {}, within=timedelta(seconds=10))
    assert caught.value.unsent
    with pytest.raises(LinkLost, match="the link has ended"):
        async with client.stream("/state", headers={}, within=timedelta(seconds=10), idle=timedelta(seconds=10)):
            pass
