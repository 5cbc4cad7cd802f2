"""Requests that offer to upgrade the connection are served as plain HTTP/1.1, body included (RFC 9110, 7.8)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, product
from logging import DEBUG
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.http.conftest import serving
from tests.http.environment import Environment
from tests.http.test_server import exchange, is_refused, port_of
from tests.pace import PATIENCE

OFFERS = {
    "none": b"",
    "JDK": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
    "several": b"Upgrade: h2c, IRC/6.9, RTA/x11\r\nConnection: keep-alive, upgrade\r\n",
    "repeated": b"Upgrade: websocket\r\nUPGRADE: h2c\r\nConnection: keep-alive\r\nconnection: UPGRADE\r\n",
    "unknown": b"Upgrade: \x80\xff\r\nConnection:upgrade\r\n",
}
_CLOSING = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CLOSING_OFFERS = {
    "in one header": b"Upgrade: h2c\r\nConnection: close, upgrade\r\n",
    "in two headers": b"Upgrade: h2c\r\nConnection: upgrade\r\nConnection: close\r\n",
}


@pytest.fixture(params=["JDK", "websocket"])
def offer(request: pytest.FixtureRequest) -> bytes:
    return OFFERS[request.param]


def body_of(text: str) -> bytes:
    return json.dumps({"kind": "turn.steered", "text": text}).encode()


def head_of(session_id: str, headers: bytes, version: bytes = b"1.1") -> bytes:
    path = f"/v1/sessions/{session_id}/events".encode()
    return (
        b"POST " + path + b" HTTP/" + version + b"\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
        b"Content-Type: application/json\r\n" + headers + b"\r\n"
    )


def whole(session_id: str, offer: bytes, text: str) -> bytes:
    body = body_of(text)
    return head_of(session_id, offer + b"Content-Length: %d\r\n" % len(body)) + body


def chunked(session_id: str, offer: bytes, text: str, *, trailer: bytes = b"") -> bytes:
    body = body_of(text)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]))
    return head_of(session_id, offer + b"Transfer-Encoding: chunked\r\n") + chunks + b"0\r\n" + trailer + b"\r\n"


every_framing = pytest.mark.parametrize("frame", [whole, chunked])


class Connection:
    """One connection to the server, and the responses that arrive on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *segments: bytes) -> None:
        """Send each segment in a TCP segment of its own: the server has read one before the next leaves."""
        for segment in segments:
            self._writer.write(segment)
            await self._writer.drain()
            # The server runs on this loop: it has read all that arrived when another connection was served.
            await exchange(self._writer.get_extra_info("peername")[1], _CLOSING)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split(" ")[1]), headers, body

    async def head(self) -> bytes:
        """Read one head as it came."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def until(self, text: bytes) -> None:
        """Read on until a text has arrived."""
        async with asyncio.timeout(PATIENCE):
            await self._reader.readuntil(text)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def texts(environment: Environment, session_id: str) -> list[str]:
    return [
        str(getattr(one.event, "text", None))
        for one in await environment.journal(session_id)
        if one.event.kind == "turn.steered"
    ]


async def served_alone(connection: Connection) -> None:
    """Assert that the connection carries another request and had no response left over."""
    await connection.send(_CLOSING)
    assert (await connection.response())[0] == 200
    assert await connection.rest() == b""


@every_framing
async def test_the_body_of_a_request_with_an_offer_is_read(
    url: str, environment: Environment, session_id: str, frame: Any
) -> None:
    for name, offer in OFFERS.items():
        async with connected(url) as connection:
            await connection.send(frame(session_id, offer, name))
            status, headers, _ = await connection.response()
            assert (status, "upgrade" in headers) == (202, False), name
            await served_alone(connection)
    assert await texts(environment, session_id) == list(OFFERS)


@every_framing
async def test_the_body_may_follow_in_later_segments(
    url: str, environment: Environment, session_id: str, frame: Any
) -> None:
    for name, offer in OFFERS.items():
        request = frame(session_id, offer, f"segments of {name}")
        end = request.index(b"\r\n\r\n") + 4
        async with connected(url) as connection:
            await connection.send(request[:end], request[end : end + 10], request[end + 10 :])
            assert (await connection.response())[0] == 202, name
            await served_alone(connection)
    assert await texts(environment, session_id) == [f"segments of {name}" for name in OFFERS]


def cuts(request: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Cut a request in two, at some thirty places that include both ends of its head."""
    end = request.index(b"\r\n\r\n")
    places = chain(range(1, len(request), max(1, len(request) // 25)), range(end - 1, end + 6))
    return ((request[:place], request[place:]) for place in sorted(set(places)))


@every_framing
async def test_a_request_with_an_offer_may_be_cut_anywhere(
    url: str, environment: Environment, session_id: str, frame: Any
) -> None:
    sent: list[str] = []
    async with connected(url) as connection:
        for first, second in cuts(frame(session_id, OFFERS["JDK"], "cut")):
            await connection.send(first, second)
            assert (await connection.response())[0] == 202
            sent.append("cut")
        await served_alone(connection)
    assert await texts(environment, session_id) == sent


async def test_pipelined_requests_with_offers_are_answered_in_order(
    url: str, environment: Environment, session_id: str
) -> None:
    requests = [
        (frame, offer, f"{name} {frame.__name__}") for name, offer in OFFERS.items() for frame in (whole, chunked)
    ]
    async with connected(url) as connection:
        await connection.send(b"".join(frame(session_id, offer, text) for frame, offer, text in requests))
        for _ in requests:
            assert (await connection.response())[0] == 202
        await served_alone(connection)
    assert await texts(environment, session_id) == [text for _, _, text in requests]


async def test_a_thousand_pipelined_offers_in_one_segment_are_answered(url: str) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + OFFERS["JDK"] + b"\r\n"
    async with connected(url) as connection:
        await connection.send(request * 1_000)
        for _ in range(1_000):
            assert (await connection.response())[0] == 200
        await served_alone(connection)


@every_framing
async def test_a_body_is_asked_for_where_the_client_waits_for_100_continue(
    url: str, environment: Environment, session_id: str, offer: bytes, frame: Any
) -> None:
    request = frame(session_id, offer + b"Expect: 100-continue\r\n", "expected")
    end = request.index(b"\r\n\r\n") + 4
    async with connected(url) as connection:
        await connection.send(request[:end])
        assert await connection.response() == (100, {}, b"")
        await connection.send(request[end:])
        assert (await connection.response())[0] == 202
        await served_alone(connection)
    assert await texts(environment, session_id) == ["expected"]


async def test_a_body_that_looks_like_a_request_gets_no_response_of_its_own(
    url: str, environment: Environment, session_id: str, offer: bytes
) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    head = head_of(session_id, offer + b"Content-Length: %d\r\n" % len(smuggled))
    async with connected(url) as connection:
        await connection.send(head, smuggled)
        status, _, body = await connection.response()
        assert (status, json.loads(body)["type"]) == (400, "/problems/invalid-json")
        await served_alone(connection)


async def test_trailers_of_a_chunked_body_are_no_headers(
    url: str, environment: Environment, session_id: str, offer: bytes
) -> None:
    async with connected(url) as connection:
        await connection.send(chunked(session_id, offer, "trailed", trailer=b"Idempotency-Key: x\r\nUpgrade: h2c\r\n"))
        assert (await connection.response())[0] == 202
        await served_alone(connection)
    assert await texts(environment, session_id) == ["trailed"]


@every_framing
async def test_an_offer_beside_close_closes_after_the_response(
    url: str, environment: Environment, session_id: str, frame: Any
) -> None:
    for name, offer in CLOSING_OFFERS.items():
        async with connected(url) as connection:
            await connection.send(frame(session_id, offer, name))
            status, headers, _ = await connection.response()
            assert (status, headers["connection"]) == (202, "close"), name
            assert await connection.rest() == b"", name
    assert await texts(environment, session_id) == list(CLOSING_OFFERS)


async def test_an_offer_of_http_1_0_is_ignored(url: str, environment: Environment, session_id: str) -> None:
    body = body_of("old")
    headers = OFFERS["several"] + b"Content-Length: %d\r\n" % len(body)
    async with connected(url) as connection:
        await connection.send(head_of(session_id, headers, b"1.0") + body)
        assert (await connection.response())[0] == 202
        assert await connection.rest() == b""
    assert await texts(environment, session_id) == ["old"]


async def test_a_request_without_a_body_may_offer_as_well(url: str) -> None:
    for (name, offer), method in product(OFFERS.items(), (b"GET", b"HEAD")):
        async with connected(url) as connection:
            await connection.send(method + b" /healthz HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
            assert (await connection.head()).startswith(b"HTTP/1.1 200"), (name, method)


async def test_a_callback_with_an_offer_settles_its_call(
    url: str, environment: Environment, session_id: str, offer: bytes
) -> None:
    call_id = await environment.ask()
    body = b'{"outcome": "success", "result": 7}'
    head = f"POST /v1/calls/{call_id}/outcome?token={environment.token(call_id)} HTTP/1.1\r\nHost: x\r\n".encode()
    async with connected(url) as connection:
        await connection.send(
            head + offer + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body), body
        )
        assert (await connection.response())[0] == 200
        await served_alone(connection)
    assert (await environment.call("c-1")).state == "succeeded"


async def test_framing_that_is_refused_without_an_offer_is_refused_with_one(url: str, session_id: str) -> None:
    framings = (
        b"Content-Length: x\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n",
    )
    for (name, offer), framing in product(OFFERS.items(), framings):
        assert is_refused(await exchange(port_of(url), head_of(session_id, offer + framing) + b"{}")), (name, framing)


async def test_unusual_headers_beside_an_offer_change_nothing(
    url: str, environment: Environment, session_id: str, offer: bytes
) -> None:
    headers = (b"X-Tab: a\tb\r\n", b"X-Empty:\r\n", b"X-Latin: \xe9\r\n")
    async with connected(url) as connection:
        for header in headers:
            await connection.send(whole(session_id, header + offer, "unusual"))
            assert (await connection.response())[0] == 202
        await served_alone(connection)
    assert await texts(environment, session_id) == ["unusual"] * len(headers)


async def test_a_stream_is_followed_with_an_offer(
    url: str, environment: Environment, session_id: str, offer: bytes
) -> None:
    head = f"GET /v1/sessions/{session_id}/events/stream?after=0 HTTP/1.1\r\nHost: x\r\n".encode()
    async with connected(url) as connection:
        await connection.send(head + b"Authorization: Bearer all-of-it\r\n" + offer + b"\r\n")
        assert (await connection.head()).startswith(b"HTTP/1.1 200")
        await environment.post(session_id, text="followed")
        await connection.until(b"followed")


async def test_what_a_request_offers_reaches_no_route(environment: Environment, offer: bytes) -> None:
    seen: list[set[bytes]] = []

    def noting(app: ASGIApp) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append({name for name, _ in scope["headers"]})
            await app(scope, receive, send)

        return noted

    async with serving(environment.gateway, within=noting) as (_, url), connected(url) as connection:
        await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Kept: 1\r\n" + offer + b"\r\n")
        assert (await connection.response())[0] == 200
    assert b"x-kept" in seen[0]
    assert not seen[0] & {b"upgrade"}


async def test_offers_write_no_log_lines(
    url: str, environment: Environment, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        async with connected(url) as connection:
            await connection.send(whole(session_id, OFFERS["JDK"], "quiet"))
            assert (await connection.response())[0] == 202
    assert not [record for record in caplog.records if record.name == "uvicorn.error" and record.levelno > DEBUG]


async def test_connect_is_refused_and_nothing_behind_it_is_read(url: str) -> None:
    behind = (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    for target, rest in product((b"example.com:443", b"/healthz"), behind):
        head = b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        assert is_refused(await exchange(port_of(url), head + rest)), (target, rest)
