"""The server's own walls: the size of request heads, and rude clients."""

import asyncio
import gc
import json
from weakref import ReferenceType, ref

import httpx
import pytest
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.guard import FAULTS
from gateway.http.server import BoundedHttp, most_connections
from gateway.http.sse import WIRE, Wire
from gateway.runtime.tuning import Tuning
from gateway.settings.model import Limits
from gateway.store.rows import EngineHealth
from tests.http.conftest import in_process, serving
from tests.http.environment import Environment, environment_of


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def exchange(port: int, raw: bytes) -> bytes:
    """Send bytes and read until the server closes; nothing where it slams the door on unread bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(5):
            writer.write(raw)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def refusal(answer: bytes) -> dict[str, object]:
    """Read the problem in the answer to what is no request, which is as long as its head says, and the last one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["content-type"] == "application/problem+json"
    assert headers["content-length"] == str(len(body))
    assert (headers["connection"], headers["cache-control"]) == ("close", "no-store")
    problem: dict[str, object] = json.loads(body)
    assert status.startswith(f"HTTP/1.1 {problem['status']} ")
    assert {"type", "title", "status", "detail"} <= set(problem)
    return problem


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 2_000_000,
        b"GET /" + b"x" * 2_000_000,
        b"GET /healthz HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 200_000,
    ],
)
async def test_an_endless_request_head_is_cut_off(url: str, wire: httpx.AsyncClient, raw: bytes) -> None:
    assert (await exchange(port_of(url), raw))[:12] in {b"HTTP/1.1 431", b""}
    assert (await wire.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("size", "status"), [(60_000, b"HTTP/1.1 200"), (100_000, b"HTTP/1.1 431")], ids=["60 KB", "100 KB"]
)
async def test_a_whole_request_head_in_one_read_is_bounded_as_well(url: str, size: int, status: bytes) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Long: " + b"x" * size + b"\r\n\r\n"
    answer = await exchange(port_of(url), head)
    assert answer.startswith(status)
    if size == 100_000:
        assert refusal(answer)["type"] == "/problems/head-too-large"


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
    problem = refusal(await exchange(port_of(url), raw))
    assert (problem["status"], problem["type"]) == (400, "/problems/invalid-request")
    assert (await wire.get("/healthz")).status_code == 200


_PING = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        _PING,
        _PING * 200,
        _PING + b"GET /healthz HTTP/1.1\r\nHo",
        _POST + b"Expect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"GET\r\n\r\n",
    ],
    ids=["a request", "pipelined", "half a head", "half a body", "no HTTP"],
)
@pytest.mark.parametrize("rudely", [False, True])
async def test_nothing_of_a_connection_waits_for_the_collector(
    monkeypatch: pytest.MonkeyPatch, url: str, raw: bytes, *, rudely: bool
) -> None:
    made: list[ReferenceType[BoundedHttp]] = []
    make = BoundedHttp.connection_made

    def note(connection: BoundedHttp, transport: asyncio.Transport) -> None:
        made.append(ref(connection))
        make(connection, transport)

    monkeypatch.setattr(BoundedHttp, "connection_made", note)
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(raw)
        async with asyncio.timeout(5):
            assert await reader.readline()
            if rudely:
                writer.transport.abort()
            else:
                writer.close()
            # Nobody tells when the server has let go.
            while made[0]() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_what_is_not_http_behind_a_stream_is_not_written_into_it(url: str, session_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    path = f"/v1/sessions/{session_id}/events/stream"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n\r\n".encode())
    async with asyncio.timeout(5):
        await reader.readuntil(b": heartbeat\n\r\n")
        writer.write(b"\x00\x00\r\n\r\n")
        assert b"HTTP/1.1" not in await reader.read()
    writer.close()


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


async def test_who_comes_when_too_many_are_there_is_told_so_as_by_every_refusal(environment: Environment) -> None:
    async with serving(environment.gateway) as (server, url):
        server.config.limit_concurrency = 2
        first = await asyncio.open_connection("127.0.0.1", port_of(url))
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        problem = refusal(await exchange(port_of(url), request))
        assert (problem["status"], str(problem["type"]).rsplit("/", 1)[1]) == (503, "overloaded")
        first[1].close()
        await first[1].wait_closed()
        closing = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(5):
            while not (await exchange(port_of(url), closing)).startswith(b"HTTP/1.1 200"):
                continue


async def test_no_line_of_the_server_itself_shows_a_query(
    wire: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        await wire.get("/healthz?token=sesame")
    assert not [
        record for record in caplog.records if record.name.startswith("uvicorn") and "sesame" in record.getMessage()
    ]
    assert "uvicorn.access" not in {record.name for record in caplog.records}


async def test_paths_with_odd_bytes_are_unknown_paths(url: str) -> None:
    for path in (b"/%ff%fe", b"/%ED%A0%80", b"/..%2f..%2fetc", b"//v1/sessions", b"/%0d%0aX-A:%201"):
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
    async with asyncio.timeout(5):
        while (answer := await wire.post(path, json=event)).status_code != 503:
            continue
    assert answer.json()["type"].endswith("/overloaded")
    writer.close()
    async with asyncio.timeout(5):
        while (await wire.post(path, json=event)).status_code != 202:
            continue


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
        before = FAULTS.total["http"]
        async with in_process(made.gateway, {}) as stranger:
            answer = await stranger.get("/readyz")
        assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (500, "internal")
        assert FAULTS.total["http"] == before + 1


def test_a_connection_that_is_gone_is_written_nothing() -> None:
    wires: list[Wire] = []

    def noting(app: ASGIApp) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            wires.append(scope["extensions"][WIRE])
            await app(scope, receive, send)

        return noted

    async def write_late() -> None:
        async with environment_of() as environment, serving(environment.gateway, within=noting) as (_, url):
            await exchange(port_of(url), b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            wires[0].write(b"too late")

    # Its connections mind what is written when they are closed; asyncio's own do not.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_late())
