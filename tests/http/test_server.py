"""The server under rude clients, and its limits."""

import asyncio
from datetime import timedelta

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.http.errors import Refused
from gateway.http.middleware import BodyLimits
from gateway.http.server import most_connections
from gateway.runtime.tuning import Tuning
from gateway.settings.model import Limits
from gateway.store.rows import EngineHealth
from tests.http.conftest import in_process, serving
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def exchange(port: int, raw: bytes) -> bytes:
    """Send bytes and read until the server closes; nothing where it slams the door on unread bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(raw)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def is_refused(response: bytes) -> bool:
    """Whether bytes that are no request got a 400, and the connection ended with it."""
    head, _, body = response.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 400") and b"connection: close" in head and b"HTTP/1.1" not in body


_POST = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"\x00" * 100,
        b"NOPE / HTTP/1.1\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-A: a\x00b\r\n\r\n",
        _POST + b"Content-Length: -1\r\n\r\n",
        _POST + b"Content-Length: x\r\n\r\n",
        _POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        _POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    ],
)
async def test_what_is_not_http_gets_a_400_and_the_server_lives(url: str, wire: httpx.AsyncClient, raw: bytes) -> None:
    assert is_refused(await exchange(port_of(url), raw))
    assert (await wire.get("/healthz")).status_code == 200


async def test_many_requests_on_one_connection_are_answered(url: str) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Padding: " + b"x" * 20_000 + b"\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await exchange(port_of(url), request * 8 + last)
    assert answer.count(b"HTTP/1.1 200") == 9


async def test_a_client_that_leaves_in_the_middle_of_its_body_changes_nothing(
    url: str, wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    head = f"POST /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
    writer.write(f'{head}Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{{"kind":'.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await wire.get(f"/v1/sessions/{session_id}/events")).status_code == 200
    assert len(await environment.journal(session_id)) == 2


def test_followers_leave_connections_to_requests() -> None:
    allowed = [most_connections(Limits(followers=followers)) for followers in (1, 5_000, 5_001, 10_000)]
    assert allowed == [8_192, 8_192, 8_193, 13_192]


async def test_more_connections_than_allowed_are_refused(environment: Environment) -> None:
    async with serving(environment.gateway) as (server, url):
        server.config.limit_concurrency = 2
        first = await asyncio.open_connection("127.0.0.1", port_of(url))
        closing = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await exchange(port_of(url), closing)).startswith(b"HTTP/1.1 503")
        first[1].close()
        await first[1].wait_closed()
        async with asyncio.timeout(PATIENCE):
            while not (await exchange(port_of(url), closing)).startswith(b"HTTP/1.1 200"):
                continue


async def test_paths_with_odd_bytes_are_unknown_paths(url: str) -> None:
    for path in (b"/%ff%fe", b"/%ED%A0%80", b"/..%2f..%2fetc", b"//v1//sessions", b"/%0d%0aX-A:%201"):
        answer = await exchange(port_of(url), b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404"), path
        assert b"x-a" not in answer.lower().split(b"\r\n\r\n")[0]


async def test_bodies_that_take_more_memory_together_than_allowed_are_refused_until_one_is_done(
    url: str, wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.reload({"api": {"body_memory": 100_000}})
    path = f"/v1/sessions/{session_id}/events"
    event = {"kind": "message.posted", "content": "x" * 60_000}
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 90000\r\n\r\n".encode() + b" " * 80_000)
    await writer.drain()
    async with asyncio.timeout(PATIENCE):
        while (answer := await wire.post(path, json=event)).status_code != 503:
            continue
    assert answer.json()["type"].endswith("/overloaded")
    writer.close()
    async with asyncio.timeout(PATIENCE):
        while (await wire.post(path, json=event)).status_code != 202:
            continue


async def test_a_body_that_does_not_come_in_time_is_refused_and_one_that_came_has_no_deadline(
    environment: Environment,
) -> None:
    never = asyncio.Event()
    pieces: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        if not pieces:
            await never.wait()
        return pieces.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def read(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    async def read_and_watch(scope: Scope, receive: Receive, send: Send) -> None:
        await read(scope, receive, send)
        watching = asyncio.ensure_future(receive())
        # Longer than the deadline of the body.
        await asyncio.sleep(0.1)
        assert not watching.done()
        watching.cancel()

    scope: Scope = {"type": "http", "headers": [], "state": {}}
    deadline = timedelta(seconds=0.05)
    with pytest.raises(Refused) as caught:
        await BodyLimits(read, gateway=environment.gateway, deadline=deadline)(scope, receive, send)
    assert caught.value.problem == "request-timeout"
    pieces.append({"type": "http.request", "body": b"{}", "more_body": False})
    await BodyLimits(read_and_watch, gateway=environment.gateway, deadline=deadline)(scope, receive, send)


async def test_a_request_that_gets_no_answer_is_told_so_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with environment_of(tuning=Tuning(answer=0.05)) as made:

        async def never() -> EngineHealth:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(made.engine, "health", never)
        async with in_process(made.gateway, {}) as stranger:
            answer = await stranger.get("/readyz")
    assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (503, "overloaded")


async def test_what_takes_too_long_inside_is_a_mistake_and_no_late_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with environment_of() as made:

        async def late() -> EngineHealth:
            raise TimeoutError("its own socket took too long")

        monkeypatch.setattr(made.engine, "health", late)
        async with in_process(made.gateway, {}) as stranger:
            answer = await stranger.get("/readyz")
        assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (500, "internal")
        assert made.gateway.ambient.faults.total["http"] == 1
