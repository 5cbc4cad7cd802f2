"""Programs without a valid key cost little memory, CPU and log lines; half-open connections get their responses."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest

from gateway.http.app import build_app
from gateway.http.plain_http import HEAD_DEADLINE, MAX_HEAD
from gateway.log_limit import LIMIT, LogLimit
from tests.http.environment import Environment, environment_of
from tests.http.test_calls_from_outside import SEVENS, TOOLS
from tests.http.test_server import exchange, is_refused, port_of
from tests.pace import PATIENCE

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CLOSING = GET + b"Connection: close\r\n\r\n"
SIGN_IN = b"POST /ui/sign-in HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS) as made:
        yield made


@pytest.fixture
def one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test windows of its own, which outlast it."""
    monkeypatch.setattr("gateway.http.plain_http.limited", LogLimit())


async def refused_in_pieces(url: str, *pieces: bytes) -> bytes:
    """Send pieces until the server closes, and return its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    reading = asyncio.ensure_future(reader.read())
    try:
        async with asyncio.timeout(PATIENCE):
            for piece in pieces:
                if reading.done():
                    break
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            return await reading
    except ConnectionError:
        return b""
    finally:
        reading.cancel()
        writer.close()


@pytest.mark.parametrize(
    "endless",
    [
        [GET + b"X-A: ", *[b"x" * 4_096] * 1_000],
        [GET, *[b"X-A: y\r\n" * 512] * 1_000],
        [b"GET /", *[b"x" * 4_096] * 1_000],
        [GET + b"Transfer-Encoding: chunked\r\n\r\n1;", *[b"x" * 4_096] * 1_000],
        [SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", *[b"X-A: y\r\n" * 512] * 1_000],
        [GET + b"X-A: " + b"x" * MAX_HEAD + b"\r\n\r\n"],
        [GET + b"X-A: y\r\n" * (MAX_HEAD // 4) + b"\r\n"],
    ],
    ids=["value", "headers", "path", "extension", "trailers", "whole value", "whole headers"],
)
async def test_a_head_over_64_kib_ends_its_connection(url: str, wire: httpx.AsyncClient, endless: list[bytes]) -> None:
    answer = await refused_in_pieces(url, *endless)
    assert answer == b"" or is_refused(answer)
    assert (await wire.get("/healthz")).status_code == 200


@pytest.mark.slow
async def test_a_connection_without_a_complete_head_ends_after_30_s_and_a_slow_response_does_not_count(
    url: str, session_id: str
) -> None:
    body = json.dumps(SEVENS).encode()
    path = f"POST /v1/sessions/{session_id}/calls?wait=40 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
    slow = path.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    served = GET + b"\r\n"
    # The last one sends the next head before it has the response.
    sent = [b"", b"GET /he", GET, served + GET, served + b"\r\n", slow + GET]
    opened = [await asyncio.open_connection("127.0.0.1", port_of(url)) for _ in sent]
    try:
        for (_, writer), raw in zip(opened, sent, strict=True):
            writer.write(raw)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(HEAD_DEADLINE + PATIENCE):
            *ended, answered = await asyncio.gather(*(reader.read() for reader, _ in opened))
        assert asyncio.get_running_loop().time() - began >= HEAD_DEADLINE - 1
        assert [raw.count(b"HTTP/1.1 200") for raw in ended] == [0, 0, 0, 1, 1]
        assert answered.startswith(b"HTTP/1.1 202")
    finally:
        for _, writer in opened:
            writer.close()


async def test_a_head_of_60_kib_in_pieces_is_served(url: str) -> None:
    pieces = [GET + b"Connection: close\r\nX-A: ", *[b"x" * 1_000] * 60, b"\r\n\r\n"]
    assert (await refused_in_pieces(url, *pieces)).startswith(b"HTTP/1.1 200")


async def test_empty_lines_and_chunk_extensions_between_messages_do_not_count_towards_a_head(
    url: str, session_id: str
) -> None:
    post = f"POST /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n".encode()
    head = post + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"kind":"message.posted","content":"' + b"x" * 200 + b'"}'
    chunks = [b"1;" + b"e" * 1_000 + b"\r\n%c\r\n" % byte for byte in body]
    pieces = [*[b"\r\n" * 512] * 200, head, *chunks, b"0\r\n\r\n", *[b"\r\n" * 512] * 200, CLOSING]
    answer = await refused_in_pieces(url, *pieces)
    assert (answer.count(b"HTTP/1.1 202"), answer.count(b"HTTP/1.1 200")) == (1, 1)


async def half_closed(url: str, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(raw)
            writer.write_eof()
            return await reader.read()
    finally:
        writer.close()


async def test_a_client_that_closes_its_sending_side_gets_its_responses(url: str) -> None:
    ready = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await half_closed(url, ready)).startswith(b"HTTP/1.1 200")
    assert (await half_closed(url, ready * 3)).count(b"HTTP/1.1 200") == 3


async def test_a_slow_response_reaches_a_client_that_has_closed_its_sending_side(url: str, session_id: str) -> None:
    body = json.dumps(SEVENS).encode()
    path = f"POST /v1/sessions/{session_id}/calls?wait=0.5 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
    head = path.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (await half_closed(url, head + body)).startswith(b"HTTP/1.1 202")


@pytest.mark.parametrize("raw", [b"", GET, SIGN_IN + b"Content-Length: 9\r\n\r\nkey="])
async def test_an_incomplete_request_ends_with_the_sending_side_of_its_client(url: str, raw: bytes) -> None:
    assert await half_closed(url, raw) == b""


async def test_a_stream_ends_with_the_sending_side_of_its_client(url: str, environment: Environment) -> None:
    head = b"GET /v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    async with asyncio.timeout(PATIENCE):
        writer.write(head)
        await reader.readuntil(b"\n\n")
        writer.write_eof()
        await reader.read()
    writer.close()


async def test_a_body_without_a_valid_key_is_limited_to_16_kib(url: str) -> None:
    for body in (b"Content-Length: 20000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5000\r\n" + b"x" * 0x5000):
        answer = await exchange(port_of(url), SIGN_IN + b"Connection: close\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 413")


async def test_bodies_without_a_key_leave_the_memory_of_others_alone(
    url: str, wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.reload({"api": {"body_memory": 4_000_000}})
    strangers = [await asyncio.open_connection("127.0.0.1", port_of(url)) for _ in range(70)]
    try:
        for _, writer in strangers:
            writer.write(SIGN_IN + b"Content-Length: 16384\r\n\r\nkey=" + b"x" * 16_000)
            await writer.drain()
        async with asyncio.timeout(PATIENCE):
            # Their own memory is full.
            while b"HTTP/1.1 503" not in await exchange(
                port_of(url), SIGN_IN + b"Connection: close\r\nContent-Length: 16000\r\n\r\n" + b"x" * 16_000
            ):
                continue
        event = {"kind": "message.posted", "content": "x" * 60_000}
        assert (await wire.post(f"/v1/sessions/{session_id}/events", json=event)).status_code == 202
    finally:
        for _, writer in strangers:
            writer.close()


@pytest.mark.parametrize("path", ["/mcp/{session}", "/mcp/r/finn", "/v1/calls/x/outcome?token=guess", "/v1/sessions"])
async def test_a_request_without_a_valid_key_is_refused_before_its_body_is_read(
    url: str, session_id: str, path: str
) -> None:
    head = f"POST {path.format(session=session_id)} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer dtt_guess\r\n"
    # The body never comes.
    announced = b"Content-Type: application/json\r\nContent-Length: 3000000\r\nConnection: close\r\n\r\n"
    assert (await exchange(port_of(url), head.encode() + announced)).startswith(b"HTTP/1.1 401")


async def test_the_addresses_of_strangers_take_no_room_in_the_log_of_others(
    environment: Environment, lines: list[MutableMapping[str, Any]]
) -> None:
    app = build_app(environment.gateway)
    environment.gateway.ambient.bind()
    before = LIMIT.get().keys
    for number in range(100):
        transport = httpx.ASGITransport(app, client=(f"2001:db8::{number:x}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as stranger:
            assert (await stranger.get("/v1/calls")).status_code == 401
    assert len([one for one in lines if one["event"] == "request refused"]) == 100
    assert LIMIT.get().keys == before


@pytest.mark.usefixtures("one_line")
@pytest.mark.parametrize(
    "raw",
    [
        b"GET /v1/calls HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/calls HTTP/1.1\r\nHost: x\r\nX-API-Key: guess\r\nConnection: close\r\n\r\n",
        SIGN_IN + b"Connection: close\r\nContent-Length: 9\r\n\r\nkey=guess",
    ],
    ids=["no key", "no path", "wrong key", "sign-in"],
)
async def test_requests_without_a_valid_key_are_logged_once_a_minute(
    url: str, raw: bytes, lines: list[MutableMapping[str, Any]]
) -> None:
    for _ in range(20):
        assert (await exchange(port_of(url), raw)).startswith(b"HTTP/1.1 4")
    assert len([one for one in lines if one["event"] == "request refused"]) == 1


@pytest.mark.usefixtures("one_line")
async def test_bytes_that_are_not_http_are_logged_once_a_minute(
    url: str, lines: list[MutableMapping[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(20):
        assert is_refused(await exchange(port_of(url), b"SSH-2.0-x\r\n\r\n"))
    assert len([one for one in lines if "Invalid HTTP" in one["event"]]) == 1
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]


@pytest.mark.usefixtures("one_line")
async def test_refused_requests_with_a_key_are_all_logged(
    wire: httpx.AsyncClient, lines: list[MutableMapping[str, Any]]
) -> None:
    for _ in range(3):
        assert (await wire.get("/v1/calls/none")).status_code == 404
    assert len([one for one in lines if one["event"] == "request refused"]) == 3
