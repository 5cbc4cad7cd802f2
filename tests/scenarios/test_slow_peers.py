"""Followers that do not read and destinations that do not answer: they cost a session neither time nor memory."""

import asyncio
import resource
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from statistics import median

import pytest

from tests.pace import PATIENCE, within
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended
from tests.scenarios.fleet import condition
from tests.scenarios.hooks import SECRET, Asked, Gate, success

CALLS = 60
_SLOWER = 3.0
"""How much longer calls may take beside slow peers; the machine is shared, and what it would cost to wait is more."""
_SPARE_SECONDS = 0.1


async def _typical(scene: Scene) -> float:
    """Let the agent call one tool after the other; returns the median of the times until the result."""
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert (await ended(await scene.agent.call("ask", GOOD))).outcome == "success"
        times.append(time.perf_counter() - began)
    return median(times)


async def _post(gateway: Running, count: int, size: int) -> None:
    path = f"/v1/sessions/{await gateway.session()}/events"
    for number in range(count):
        event = {"kind": "context.updated", "name": "news", "context": {"number": number, "text": "x" * size}}
        await gateway.post(path, event, status=202)


@asynccontextmanager
async def _deaf(gateway: Running, count: int) -> AsyncGenerator[list[socket.socket]]:
    """Open streams whose clients never read."""
    path = f"/v1/sessions/{await gateway.session()}/events/stream?after=0"
    port = int(gateway.url.rsplit(":", 1)[1])
    opened: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            client = socket.socket()
            # Little room in the kernel, so that little is hidden from the gateway.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n\r\n"
            await loop.sock_sendall(client, head.encode())
            opened.append(client)
        yield opened
    finally:
        for client in opened:
            client.close()


@pytest.mark.slow
@pytest.mark.timing
async def test_followers_that_never_read_slow_no_call_down_and_take_little_memory(newer: Scene) -> None:
    async with newer.running() as gateway:
        alone = await _typical(newer)
        async with _deaf(gateway, 20):
            # 30 MB for each of them, which is far more than all buffers on the way.
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await _post(gateway, 600, 50_000)
            beside = await _typical(newer)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert beside <= within(alone * _SLOWER + _SPARE_SECONDS), (alone, beside)
            # In KiB, of the whole process; without a limit it is 30 MB for each.
            assert grown < 200_000, grown
        # One that begins to read after a while gets all of it, in order.
        async with _deaf(gateway, 1) as (late,):
            await _typical(newer)
            ids = await asyncio.to_thread(_read_ids, late, 100)
            assert ids == list(range(1, 101))


def _read_ids(client: socket.socket, count: int) -> list[int]:
    client.setblocking(True)
    client.settimeout(10)
    ids: list[int] = []
    rest = b""
    while len(ids) < count:
        *lines, rest = (rest + client.recv(65_536)).split(b"\n")
        ids += [int(line.removeprefix(b"id: ").partition(b".")[0]) for line in lines if line.startswith(b"id: ")]
    return ids[:count]


async def test_more_streams_than_allowed_are_refused_and_a_closed_one_makes_room(newer: Scene) -> None:
    newer.configure({"limits": {"session_followers": 2}})
    async with newer.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events/stream"
        async with gateway.http.stream("GET", path) as first, gateway.http.stream("GET", path):
            assert first.status_code == 200
            refused = await gateway.http.get(path)
            assert (refused.status_code, refused.json()["type"].rsplit("/", 1)[1]) == (503, "overloaded")
            assert refused.headers["retry-after"]
        async with asyncio.timeout(PATIENCE):
            while True:
                async with gateway.http.stream("GET", path) as again:
                    if again.status_code == 200:
                        return


@pytest.mark.timing
async def test_a_destination_that_never_answers_slows_no_call_and_no_other_destination_down(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["/copies/hung"] = gate.answering(success())
    copies = [{"match": {"event": "tool.*"}, "copy_to": ["hung", "well"]}]
    newer.configure(
        {
            "destinations": {
                name: {"url": f"{newer.hooks.url}/copies/{name}", "secret": SECRET, "timeout": "60s"}
                for name in ("hung", "well")
            },
        }
    )
    async with newer.running():
        alone = await _typical(newer)
    newer.configure({"routes": [*copies, {"match": {"tool": "*"}, "to": "cards"}]})
    async with newer.running():
        beside = await _typical(newer)
        assert beside <= within(alone * _SLOWER + _SPARE_SECONDS), (alone, beside)
        wanted = 2 * CALLS + 1

        def copies_made() -> list[Asked]:
            return [one for one in newer.hooks.asked if one.data.get("event")]

        await condition(lambda: len(copies_made()) >= wanted)
        # One session, so one copy at a time is on its way to the one that hangs; the rest waits in the ledger.
        assert len(copies_made()) == wanted
        gate.open()
