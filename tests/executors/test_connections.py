"""The connections behind the webhook executor: when one is used again, when it is let go, and what never reaches it."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.executors.webhook import client as webhook_client
from gateway.executors.webhook.client import HttpClient
from gateway.executors.webhook.reader import ConnectionBroken, Exchange, HttpAnswer, NotSent, Unread
from tests.executors.peers import Peer, Seen, http, listen, send, serve
from tests.pace import PATIENCE

LONG = timedelta(seconds=10)
SOON = 10.0
"""Seconds: sooner than a connection is closed because it has idled."""
CERTIFICATE = Path(__file__).parent / "localhost.pem"


def client_of(peer: Peer, *, concurrency: int = 1, idle: float = 60.0) -> HttpClient:
    return HttpClient(peer.url, concurrency=concurrency, max_response=100, idle=idle)


async def answer_ok(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, http(200, b"ok"))


async def answer_or_hang(seen: Seen, writer: asyncio.StreamWriter) -> None:
    if seen.body == b"{}":
        await send(writer, http(200, b"ok"))


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


REQUEST, HANG = request(b"{}"), request(b"[]")


def ask(client: HttpClient, sent: bytes, *, within: timedelta = LONG) -> Awaitable[Exchange]:
    return client.post(sent, within=within, read=lambda exchange: exchange)


async def post(client: HttpClient) -> bytes:
    async with asyncio.timeout(PATIENCE):
        exchange = await ask(client, REQUEST)
    assert isinstance(exchange, HttpAnswer)
    assert isinstance(exchange.body, bytes)
    return exchange.body


async def test_of_several_idle_connections_only_those_needed_are_kept() -> None:
    async with serve(answer_ok) as peer, client_of(peer, concurrency=4, idle=1.5) as client:
        await asyncio.gather(*[post(client) for _ in range(4)])
        assert peer.connections == 4
        async with asyncio.timeout(PATIENCE):
            # One goes on being used while the other three grow old.
            while peer.gone < 3:
                await post(client)
                await asyncio.sleep(0.02)
        peer.left.clear()
        async with asyncio.timeout(SOON):
            await peer.left.wait()
        assert peer.connections == 4


async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    async def talk_too_much(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(200, b"ok"))
        await taken.wait()
        await send(writer, http(200, b"evil"))

    taken = asyncio.Event()
    async with serve(talk_too_much) as peer, client_of(peer) as client:
        assert await post(client) == b"ok"
        taken.set()
        async with asyncio.timeout(SOON):
            await peer.left.wait()
        assert await post(client) == b"ok"
        assert peer.connections == 2


async def test_a_connection_that_was_reset_while_idle_is_not_used() -> None:
    async def answer_and_reset(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(200, b"ok"))
        await taken.wait()
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    taken = asyncio.Event()
    async with serve(answer_and_reset) as peer, client_of(peer) as client:
        for _ in range(2):
            peer.left.clear()
            assert await post(client) == b"ok"
            taken.set()
            async with asyncio.timeout(SOON):
                await peer.left.wait()
            # Nobody tells when the reset has come.
            await asyncio.sleep(0.05)
            taken.clear()
        assert peer.connections == 2


async def test_a_connection_with_an_exchange_that_is_not_whole_is_closed_at_once() -> None:
    async def break_off(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")

    async with serve(break_off) as peer, client_of(peer) as client:
        exchange = await ask(client, REQUEST, within=timedelta(seconds=1))
        assert isinstance(exchange, HttpAnswer)
        assert exchange.body is Unread.LOST
        async with asyncio.timeout(SOON):
            await peer.left.wait()


async def test_a_connection_whose_request_was_not_read_to_its_end_is_not_used_again() -> None:
    async def answer_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await send(writer, http(200, b"ok"))
        await asyncio.Event().wait()

    async with listen(answer_the_head) as peer, client_of(peer) as client:
        for _ in range(2):
            exchange = await ask(client, request(b" " * 32 * 1024 * 1024))
            assert isinstance(exchange, HttpAnswer)
            assert exchange.body == b"ok"
        assert peer.connections == 2


async def test_an_answer_that_ends_with_the_connection_is_whole() -> None:
    async def until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        await send(writer, b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)

    async with listen(until_the_end) as peer, client_of(peer) as client:
        assert await post(client) == b"all of it"


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the system trust the certificate of the tests."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    webhook_client.system_trust.cache_clear()
    yield
    webhook_client.system_trust.cache_clear()


@pytest.mark.usefixtures("trusted")
async def test_over_tls_a_connection_is_used_again_and_closed_in_the_end() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    async with serve(answer_ok, tls=tls) as peer:
        url = peer.url.replace("127.0.0.1", "localhost")
        async with HttpClient(url, concurrency=2, max_response=100) as client:
            assert [await post(client) for _ in range(3)] == [b"ok"] * 3
        async with asyncio.timeout(PATIENCE):
            await peer.left.wait()
    assert peer.connections == 1


async def test_a_request_leaves_at_once_over_a_free_connection_and_canceled_closes_it() -> None:
    async with serve(answer_or_hang) as peer, client_of(peer) as client:
        assert await post(client) == b"ok"
        asked = ask(client, HANG)
        assert isinstance(asked, asyncio.Future)
        async with asyncio.timeout(SOON):
            while len(peer.seen) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert asked.cancel()
        async with asyncio.timeout(SOON):
            await peer.left.wait()
        # The room is free again, and another connection is made.
        assert await post(client) == b"ok"
        assert peer.connections == 2


async def test_each_exchange_ends_in_its_own_time_whichever_began_first() -> None:
    async with serve(answer_or_hang) as peer, client_of(peer, concurrency=3) as client:
        await asyncio.gather(*[post(client) for _ in range(3)])
        ended: list[str] = []
        times = {"last": 0.9, "first": 0.2, "middle": 0.5}
        asked = {name: ask(client, HANG, within=timedelta(seconds=seconds)) for name, seconds in times.items()}
        for name, one in asked.items():
            assert isinstance(one, asyncio.Future)
            one.add_done_callback(lambda _, name=name: ended.append(name))
        async with asyncio.timeout(SOON):
            answers = {name: await one for name, one in asked.items()}
        assert ended == ["first", "middle", "last"]
        assert answers["first"] == ConnectionBroken("no answer within 0.2 s")
        assert answers["last"] == ConnectionBroken("no answer within 0.9 s")


async def test_what_reading_an_answer_raises_is_its_askers_alone() -> None:
    def fail(_exchange: Exchange) -> None:
        raise ZeroDivisionError

    async with serve(answer_ok) as peer, client_of(peer) as client:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await client.post(REQUEST, within=LONG, read=fail)
        assert await post(client) == b"ok"
        assert peer.connections == 1


async def test_a_slot_given_to_a_canceled_request_goes_to_the_next() -> None:
    async with serve(answer_ok) as peer, client_of(peer) as client:
        assert await post(client) == b"ok"

        def cancel_the_next(_exchange: Exchange) -> None:
            waiting.cancel()

        first = client.post(REQUEST, within=LONG, read=cancel_the_next)
        waiting = asyncio.ensure_future(ask(client, REQUEST))
        third = asyncio.ensure_future(post(client))
        # Both get in line.
        await asyncio.sleep(0)
        async with asyncio.timeout(SOON):
            await first
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            assert await third == b"ok"
        assert await post(client) == b"ok"


@pytest.mark.parametrize("behind", ["another exchange", "the connect"])
async def test_after_its_wait_a_request_that_may_not_start_any_more_is_not_sent(behind: str) -> None:
    async def tell_and_answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer_or_hang(seen, writer)

    may, asked = True, asyncio.Event()
    async with serve(tell_and_answer) as peer, client_of(peer) as client:
        first = None
        if behind == "another exchange":
            first = asyncio.ensure_future(ask(client, HANG))
            async with asyncio.timeout(PATIENCE):
                await asked.wait()
        waiting = asyncio.ensure_future(
            client.post(REQUEST, within=LONG, read=lambda exchange: exchange, may_start=lambda: may)
        )
        await asyncio.sleep(0)
        may = False
        if first is not None:
            first.cancel()
        async with asyncio.timeout(PATIENCE):
            assert await waiting == NotSent("the request may not start any more", withheld=True)
        # The client goes on, and the peer has seen no other request.
        before = len(peer.seen)
        assert await post(client) == b"ok"
        assert (before, len(peer.seen)) == ((1, 2) if first is not None else (0, 1))


@pytest.mark.parametrize("behind", ["another exchange", "the handshake"])
async def test_a_request_that_may_not_start_any_more_waits_for_no_connection(behind: str) -> None:
    may = True

    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            reached.set()

    reached = asyncio.Event()
    async with listen(swallow) as peer:
        # The peer does not speak TLS, so a handshake stays open.
        url = peer.url if behind == "another exchange" else peer.url.replace("http:", "https:")
        async with HttpClient(url, concurrency=1, max_response=100) as client:
            first = asyncio.ensure_future(ask(client, HANG)) if behind == "another exchange" else None
            waiting = asyncio.ensure_future(
                client.post(REQUEST, within=LONG, read=lambda exchange: exchange, may_start=lambda: may)
            )
            async with asyncio.timeout(PATIENCE):
                await reached.wait()
            may = False
            async with asyncio.timeout(LONG.total_seconds() / 2):
                assert await waiting == NotSent("the request may not start any more", withheld=True)
            if first is not None:
                assert not first.done()
                first.cancel()
