"""The webhook executor against peers that break off, lie, flood, drip, or are not there: always one bounded answer."""

import asyncio
import gzip
import socket
import ssl
import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.executors.port import Answer, Answered, NeverSent, NotProcessed, Uncertain
from gateway.testing.conformance.executor import check_answer, make_request
from tests.executors.peers import Seen, hang, http, http_json, listen, send, serve, serve_bytes
from tests.executors.test_webhook import make_executor
from tests.pace import PATIENCE
from tests.ports import free_port

CANARY = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LWNhbmFyeQ=="
SUCCESS = b'{"outcome":"success","result":1}'
LIMIT = 1024**2


async def ask(url: str, *, within: timedelta = timedelta(seconds=4), **options: Any) -> Answer:
    """Make one attempt with a canary for a secret, and hold the answer and the logs to what always holds."""
    headers = {"X-Token": "header-canary"}
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(PATIENCE), make_executor(url, secret=CANARY, headers=headers, **options) as executor:
            answer = await executor.execute(make_request(timeout=within))
    check_answer(answer, kind="tool.requested", limit=2 * LIMIT)
    if not isinstance(answer, Answered) or answer.outcome.outcome != "success":
        # The response is recorded, without our secrets.
        assert "canary" not in repr(answer if isinstance(answer, NeverSent) else replace(answer, response=None))
        assert CANARY not in repr(answer)
        assert "header-canary" not in repr(answer)
    assert "canary" not in repr(logs)
    return answer


async def ask_peer(answer: bytes, **options: Any) -> Answer:
    async with serve_bytes(answer) as peer:
        return await ask(peer.url, **options)


def failed(answer: Answer) -> str:
    assert isinstance(answer, Answered)
    assert answer.outcome.outcome == "failure"
    return answer.outcome.error or ""


def unreadable(answer: Answer) -> str:
    assert isinstance(answer, Uncertain)
    assert answer.refused
    return answer.reason


async def test_an_unused_port_is_never_sent() -> None:
    assert await ask(f"http://127.0.0.1:{free_port()}/") == NeverSent("no connection: Connection refused")


@pytest.mark.parametrize("host", ["no-such-host.invalid"])
async def test_a_name_that_does_not_resolve_is_never_sent(host: str) -> None:
    assert await ask(f"http://{host}/") == NeverSent("host name cannot be resolved")


async def test_a_connection_that_is_not_taken_in_time_is_never_sent() -> None:
    with socket.socket() as deaf, socket.socket() as filler:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # One connection fills the backlog of zero; the kernel then leaves the next one hanging.
        filler.connect(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        answer = await ask(url, within=timedelta(milliseconds=300))
    assert answer == NeverSent("no connection within 0.3 s")


async def test_a_certificate_nobody_vouches_for_is_never_sent() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(__file__).parent / "localhost.pem")
    async with serve(hang, tls=tls) as peer:
        answer = await ask(peer.url)
    assert isinstance(answer, NeverSent)
    assert "certificate" in answer.reason
    assert "self" in answer.reason
    assert peer.seen == []


async def test_plain_http_where_tls_was_expected_is_never_sent() -> None:
    async def refuse_tls(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(400), close=True)

    async with listen(refuse_tls) as peer:
        answer = await ask(peer.url.replace("http:", "https:"))
    assert answer == NeverSent("TLS handshake failed")


async def test_a_peer_that_closes_at_once_leaves_the_outcome_uncertain() -> None:
    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listen(close) as peer:
        answer = await ask(peer.url)
    assert answer == Uncertain("the connection was lost before a response arrived")


async def test_a_peer_that_resets_at_once_leaves_the_outcome_uncertain() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with listen(reset) as peer:
        answer = await ask(peer.url)
    assert answer == Uncertain("the connection was lost before a response arrived")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
        b"garbage canary\r\n\r\n",
        b"\x00" * 1000,
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_what_is_not_a_whole_http_answer_is_uncertain(answer: bytes) -> None:
    assert isinstance(await ask_peer(answer), Uncertain)


async def test_endless_interim_answers_end_with_the_time() -> None:
    async def stall(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            await send(writer, b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0)

    async with serve(stall) as peer:
        assert isinstance(await ask(peer.url, within=timedelta(seconds=1)), Uncertain)


@pytest.mark.parametrize(
    "answer",
    [
        http(200, SUCCESS).replace(b"content-length: 32", b"content-length: 64"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{" + b'"out',
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\ncanary",
    ],
)
async def test_a_200_that_breaks_off_is_uncertain(answer: bytes) -> None:
    assert isinstance(await ask_peer(answer), Uncertain)


async def test_a_body_longer_than_it_says_is_cut_where_it_says() -> None:
    answer = await ask_peer(http(200, SUCCESS) + b"HTTP/1.1 200 OK\r\n\r\ncanary")
    assert isinstance(answer, Answered)
    assert answer.outcome.result == 1


async def test_trailing_garbage_does_not_reach_the_next_call() -> None:
    async def smuggle(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(200, SUCCESS) + http_json(200, {"outcome": "success", "result": "smuggled"}))

    async with serve(smuggle) as peer, make_executor(peer.url) as executor:
        for _ in range(3):
            answer = await executor.execute(make_request())
            assert isinstance(answer, Uncertain) or (isinstance(answer, Answered) and answer.outcome.result == 1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(200, b"<html>canary</html>", content_type="text/html"), "an HTML page that is not JSON"),
        (http(200, b'{"outcome": "success", "result": NaN}'), "not JSON"),
        (http(200, b"[" * 2_000 + b"]" * 2_000), "not JSON"),
        (http(200, b'{"outcome": "success", "result": ' + b"[" * 500 + b"]" * 500 + b"}"), "deeper than 64"),
        (http(200, b'{"outcome": "success", "result": 123456789012345678901234567890}'), "beyond 64 bits"),
        (http(200, b'{"canary": 1}', content_type="application/json"), "not an outcome"),
        (http(200, SUCCESS, content_encoding="br"), "encoding that cannot be read"),
        (http(200, SUCCESS, content_encoding="gzip"), "encoding that cannot be read"),
        (http(200, gzip.compress(SUCCESS)[:-4], content_encoding="gzip"), "encoding that cannot be read"),
        (http(200, gzip.compress(SUCCESS) + b"more", content_encoding="gzip"), "encoding that cannot be read"),
        (http(200, gzip.compress(SUCCESS), content_encoding="gzip, gzip"), "encoding that cannot be read"),
        (http(302, b"canary", location="http://169.254.169.254/latest"), "302 Found; redirects are not followed"),
        (http(307, location="http://127.0.0.1:1/"), "307 Temporary Redirect"),
        (http(200, b"x" * (LIMIT + 1)), "over the size limit"),
        (http(401, b'{"detail":"bad header-canary"}', content_type="application/json"), "401 Unauthorized: bad ***"),
    ],
)
async def test_an_unusable_answer_is_a_failure_and_after_a_2xx_an_uncertain_one(answer: bytes, said: str) -> None:
    told = unreadable if answer.startswith(b"HTTP/1.1 2") else failed
    assert said in told(await ask_peer(answer))


async def test_a_peer_that_sends_our_headers_back_is_not_quoted() -> None:
    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http_json(400, {"detail": "cannot read " + seen.head.decode()}))

    async with serve(echo) as peer:
        assert "executor answered 400" in failed(await ask(peer.url))


async def test_gzip_is_read() -> None:
    answer = await ask_peer(http(200, gzip.compress(SUCCESS), content_encoding="gzip"))
    assert isinstance(answer, Answered)
    assert answer.outcome.result == 1


async def test_a_gzip_bomb_is_not_unfolded_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b" " * 300 * LIMIT)
    assert len(bomb) < LIMIT
    unfolded: list[int] = []

    class Watched:
        def __init__(self, wbits: int) -> None:
            self._real = real(wbits=wbits)

        def decompress(self, body: bytes, limit: int) -> bytes:
            unfolded.append(len(plain := self._real.decompress(body, limit)))
            return plain

    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Watched)
    assert "over the size limit" in unreadable(await ask_peer(http(200, bomb, content_encoding="gzip")))
    assert unfolded == [LIMIT + 1]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_flood_is_cut_off_early(*, announced: bool) -> None:
    total = 50 * LIMIT
    sent = 0
    stopped = asyncio.Event()

    async def flood(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        length = f"content-length: {total}" if announced else "connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode())
        try:
            while sent < total:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        finally:
            stopped.set()

    async with serve(flood) as peer:
        assert "over the size limit" in unreadable(await ask(peer.url))
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
    assert sent < 20 * LIMIT


async def test_a_body_announced_as_too_large_is_not_waited_for() -> None:
    async def announce(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, f"HTTP/1.1 200 OK\r\ncontent-length: {LIMIT + 1}\r\n\r\n".encode())

    async with serve(announce) as peer:
        assert "over the size limit" in unreadable(await ask(peer.url))


async def test_a_slow_drip_ends_with_the_time() -> None:
    async def drip(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not writer.is_closing():
            await send(writer, b" ")
            await asyncio.sleep(0.01)

    async with serve(drip) as peer:
        answer = await ask(peer.url, within=timedelta(seconds=1))
    assert answer == Uncertain("the connection was lost or the time ran out in the middle of the response")


async def test_a_peer_that_never_answers_is_uncertain() -> None:
    async with serve(hang) as peer:
        assert await ask(peer.url, within=timedelta(seconds=1)) == Uncertain("no answer within 1 s")


async def test_a_refusal_counts_even_when_its_body_breaks_off() -> None:
    answer = await ask_peer(http(404, b"x").replace(b"content-length: 1", b"content-length: 99"))
    assert failed(answer) == "executor answered 404 Not Found"


async def test_an_answer_before_the_whole_request_was_read_counts() -> None:
    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await send(writer, http(413))
        await reader.read(-1)

    async with listen(refuse_early) as peer, make_executor(peer.url) as executor, asyncio.timeout(PATIENCE):
        answer = await executor.execute(make_request(text="x" * 4 * LIMIT))
    assert "413" in failed(answer)


@pytest.mark.parametrize("status", [425, 429, 503])
async def test_a_request_to_come_back_later_is_passed_on(status: int) -> None:
    answer = await ask_peer(http(status, retry_after="3"))
    assert isinstance(answer, NotProcessed)
    assert answer.retry_after == timedelta(seconds=3)


async def test_the_first_of_two_headers_counts() -> None:
    raw = b"HTTP/1.1 429 x\r\nretry-after: 3\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n"
    answer = await ask_peer(raw)
    assert isinstance(answer, NotProcessed)
    assert answer.retry_after == timedelta(seconds=3)


async def test_a_kept_alive_connection_that_the_peer_closed_is_replaced() -> None:
    async def answer_once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(200, SUCCESS), close=True)

    async with serve(answer_once) as peer, make_executor(peer.url) as executor:
        for _ in range(3):
            assert isinstance(await executor.execute(make_request()), Answered)
            await closing_noticed()
    assert peer.connections == 3


async def test_a_kept_alive_connection_that_closes_under_the_request_is_uncertain_and_not_tried_again() -> None:
    async def answer_the_first(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.headers["webhook-id"] == "call-1":
            await send(writer, http(200, SUCCESS))
        else:
            writer.close()

    async with serve(answer_the_first) as peer, make_executor(peer.url) as executor:
        assert isinstance(await executor.execute(make_request(key="call-1")), Answered)
        assert isinstance(await executor.execute(make_request(key="call-2")), Uncertain)
    assert [seen.headers["webhook-id"] for seen in peer.seen] == ["call-1", "call-2"]


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        (["169.254.169.254"], True),
        (["169.254.169.254", "fd00:ec2::254"], True),
        (["169.254.169.254", "127.0.0.1"], False),
        (["127.0.0.1"], False),
    ],
)
async def test_a_name_that_resolves_to_refused_addresses_is_a_final_failure(
    monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str], *, refused: bool
) -> None:
    async with serve_bytes(http(200, SUCCESS)) as peer:
        resolve_everything_to(addresses, monkeypatch)
        answer = await ask(f"http://metadata.example:{peer.port}/")
    if refused:
        assert "its address is forbidden" in failed(answer)
        assert peer.connections == 0
    else:
        assert isinstance(answer, Answered)
        assert answer.outcome.outcome == "success"


async def test_a_name_that_changes_to_a_refused_address_later_is_caught_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_bytes(http(200, SUCCESS)) as peer:
        async with make_executor(f"http://metadata.example:{peer.port}/") as executor:
            resolve_everything_to(["127.0.0.1"], monkeypatch)
            assert isinstance(await executor.execute(make_request()), Answered)
        async with make_executor(f"http://metadata.example:{peer.port}/") as executor:
            resolve_everything_to(["169.254.169.254"], monkeypatch)
            assert "its address is forbidden" in failed(await executor.execute(make_request()))


async def test_a_refused_address_is_logged_without_the_rest_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_everything_to(["169.254.169.254"], monkeypatch)
    with structlog.testing.capture_logs() as logs:
        async with make_executor("http://metadata.example/?token=canary") as executor:
            await executor.execute(make_request())
    [line] = logs
    assert (line["log_level"], line["event"], line["host"]) == ("error", "address refused", "metadata.example")
    assert "canary" not in repr(logs)


async def test_a_name_that_nobody_answers_for_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, found = threading.Event(), socket.getaddrinfo
    asked: list[str] = []

    def resolve(host: str, port: int, family: int = 0, kind: int = 0, protocol: int = 0, flags: int = 0) -> list[Any]:
        if host == "mute.example" and not flags & socket.AI_NUMERICHOST:
            asked.append(host)
            answered.wait(10)
        return found(host, port, family, kind, protocol, flags)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    moment = timedelta(milliseconds=200)
    try:
        async with serve_bytes(http(200, SUCCESS)) as peer, make_executor("http://mute.example/") as mute:
            # More of them than a loop has threads for names.
            muted = await asyncio.gather(*(mute.execute(make_request(timeout=moment)) for _ in range(40)))
            assert {*muted} == {NeverSent("no connection within 0.2 s")}
            assert isinstance(await ask(f"http://localhost:{peer.port}/"), Answered)
            assert asked == ["mute.example"]
    finally:
        answered.set()


def resolve_everything_to(addresses: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as a hostile DNS server would."""

    def resolve(_host: str, port: int, *_options: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


async def closing_noticed() -> None:
    """Let the client's event loop see what has already arrived."""
    for _ in range(20):
        await asyncio.sleep(0)
