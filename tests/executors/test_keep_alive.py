"""No call crosses the close of an idle connection, however the server announces it and however far away it is."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from gateway.executors.port import Answered, Copied, NeverSent, Uncertain
from gateway.executors.webhook.client import HttpClient
from gateway.executors.webhook.destination import WebhookDestination
from gateway.executors.webhook.reader import Exchange, HttpAnswer, NotSent
from gateway.links.keep_alive import reuse_seconds
from gateway.settings.model import DestinationSpec, WebhookSpec
from gateway.testing.conformance.executor import make_request
from tests.executors.gunicorn_backend import gunicorn
from tests.executors.peers import Seen, SystemClock, http, http_json, listen, send, serve
from tests.executors.slow_network import delayed
from tests.executors.test_connections import client_of
from tests.executors.test_webhook import make_executor
from tests.pace import PATIENCE

LONG = timedelta(seconds=30)
Result = TypeVar("Result")
_AWAY = 0.04
"""Seconds that each direction of a distant network takes."""
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


async def post(client: HttpClient) -> Exchange:
    return await client.post(REQUEST, within=LONG, read=lambda exchange: exchange)


async def until_sent(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Ask again while nothing was sent: on a busy machine, a connection may take longer than three seconds."""
    async with asyncio.timeout(PATIENCE):
        while isinstance(answer := await ask(), NeverSent | NotSent):
            pass
        return answer


async def test_no_call_is_lost_to_a_gunicorn_that_closes_idle_connections_after_two_seconds() -> None:
    async def ask_twice(url: str, pause: float) -> object:
        async with make_executor(url) as executor:
            assert isinstance(await until_sent(lambda: executor.execute(make_request())), Answered)
            # The pause is what is tested: around the moment in which gunicorn closes.
            # The time between two calls is the point: the server closes the connection meanwhile.
            await asyncio.sleep(pause)
            return await until_sent(lambda: executor.execute(make_request()))

    options = ("--worker-class", "gthread", "--threads", "8", "--worker-connections", "200")
    async with gunicorn(*options) as port, delayed(port, _AWAY) as away:
        url = f"http://127.0.0.1:{away}"
        answers = await asyncio.gather(*(ask_twice(url, 1.8 + 0.02 * place) for place in range(65)))
    assert [answer for answer in answers if not isinstance(answer, Answered)] == []


def closing_after(seconds: float, **headers: str) -> Callable[..., Awaitable[None]]:
    """Make a server that closes connections which were idle so long, and says what it likes."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await reader.readuntil(b"\r\n\r\n{}")
            except TimeoutError:
                return
            await send(writer, http(200, b"ok", **headers))

    return converse


async def test_no_call_is_lost_to_a_server_that_announces_a_second() -> None:
    async def ask_twice(client: HttpClient, pause: float) -> Exchange:
        async with client:
            assert isinstance(await until_sent(lambda: post(client)), HttpAnswer)
            # The time between two calls is the point: the server closes the connection meanwhile.
            await asyncio.sleep(pause)
            return await until_sent(lambda: post(client))

    async with listen(closing_after(1.0, keep_alive="timeout=1")) as peer, delayed(peer.port, _AWAY) as away:
        url = f"http://127.0.0.1:{away}"
        exchanges = await asyncio.gather(
            *(
                ask_twice(HttpClient(url, concurrency=1, max_response=100, idle=4.0), 0.8 + 0.01 * place)
                for place in range(30)
            )
        )
    assert [exchange for exchange in exchanges if not isinstance(exchange, HttpAnswer)] == []


@pytest.mark.parametrize(
    ("hints", "seconds"),
    [
        ([], float("inf")),
        (["timeout=5"], 4.0),
        (["timeout=2"], 1.0),
        (["timeout=1.5"], 0.5),
        (["timeout=1"], 0.0),
        (["timeout=0"], 0.0),
        (["timeout=99999999"], 99_999_998.0),
        (["timeout=" + "9" * 400], float("inf")),
        (["TimeOut = 5 , MAX=100"], 4.0),
        (['timeout="5"'], 4.0),
        (["max=1"], 0.0),
        (["max=0"], 0.0),
        (["timeout=5, max=1"], 0.0),
        (["max=1", "timeout=60"], 0.0),
        (["timeout=60", "timeout=3"], 2.0),
        (["timeout=60, timeout=3"], 2.0),
        (["max=1000"], float("inf")),
        (["timeout"], float("inf")),
        (["timeout="], float("inf")),
        (["timeout=-5"], float("inf")),
        (["timeout=nan, max=inf"], float("inf")),
        (["timeout=\u0663"], float("inf")),
        (["300", ",,=,;"], float("inf")),
        (["x-timeout=1"], float("inf")),
    ],
)
def test_hints_of_a_server_say_how_long_a_connection_may_be_reused(hints: list[str], seconds: float) -> None:
    assert reuse_seconds(hints) == seconds


@pytest.mark.parametrize(
    ("headers", "connections"),
    [
        ("", 1),
        ("Keep-Alive: timeout=5\r\n", 1),
        ("keep-alive: timeout=99999999\r\n", 1),
        ("Keep-Alive: \xff\r\n", 1),
        ("KEEP-ALIVE: Timeout=1\r\n", 2),
        ("Keep-Alive: timeout=0\r\n", 2),
        ("Keep-Alive: timeout=60, max=1\r\n", 2),
        ("Keep-Alive: timeout=60\r\nKeep-Alive: max=1\r\n", 2),
        ("Connection: close\r\n", 2),
    ],
)
async def test_the_header_of_an_answer_decides_whether_its_connection_is_used_again(
    headers: str, connections: int
) -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, f"HTTP/1.1 200 OK\r\n{headers}Content-Length: 2\r\n\r\nok".encode("latin-1"))

    async with serve(answer) as peer, client_of(peer) as client:
        for _ in range(2):
            assert isinstance(await post(client), HttpAnswer)
        assert peer.connections == connections


async def test_the_header_of_an_interim_answer_or_a_trailer_is_no_hint() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        chunks = b"2\r\nok\r\n0\r\nKeep-Alive: timeout=1\r\n\r\n"
        await send(
            writer,
            b"HTTP/1.1 103 Early Hints\r\nKeep-Alive: timeout=1\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
        )

    async with serve(answer) as peer, client_of(peer) as client:
        for _ in range(2):
            assert isinstance(await post(client), HttpAnswer)
        assert peer.connections == 1


async def test_each_answer_gives_its_own_hint() -> None:
    hints = iter(["timeout=60", "timeout=1", "timeout=60"])

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(200, b"ok", keep_alive=next(hints)))

    async with serve(answer) as peer, client_of(peer) as client:
        for connections in (1, 1, 2):
            assert isinstance(await post(client), HttpAnswer)
            assert peer.connections == connections


async def answer_ok(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, http_json(200, {"outcome": "success"}))


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 1.0),
        ({"idempotent": True}, 4.0),
        ({"idempotent": True, "idle": "2s"}, 2.0),
        ({"idle": "30s"}, 30.0),
        ({"idle": "0s"}, 0.0),
    ],
)
def test_an_executor_that_is_not_idempotent_reuses_connections_for_a_second(
    options: dict[str, object], seconds: float
) -> None:
    spec = WebhookSpec.model_validate({"type": "webhook", "url": "http://backend.invalid", **options})
    assert spec.idle_seconds == seconds


async def test_an_executor_closes_a_connection_after_its_idle_time() -> None:
    async with serve(answer_ok) as peer, make_executor(peer.url, idle="200ms") as executor:
        await executor.execute(make_request())
        async with asyncio.timeout(PATIENCE):
            await peer.left.wait()


async def test_an_executor_without_idle_time_uses_no_connection_twice() -> None:
    async with serve(answer_ok) as peer, make_executor(peer.url, idle="0s") as executor:
        for _ in range(2):
            assert isinstance(await executor.execute(make_request()), Answered)
        assert peer.connections == 2


async def test_a_close_that_the_loop_has_not_read_yet_is_seen_before_the_request_is_written() -> None:
    async with serve(answer_ok) as peer, client_of(peer) as client:
        assert isinstance(await post(client), HttpAnswer)
        writers = peer.writers
        # The end is in the kernel when `close` returns; nothing of it was read before the next request.
        writers[0].get_extra_info("socket").shutdown(2)
        assert isinstance(await post(client), HttpAnswer)
        assert peer.connections == 2


async def test_a_call_that_still_hits_the_close_is_unknown_and_is_not_sent_again() -> None:
    async def read_and_close(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(peer.seen) == 1:
            await send(writer, http_json(200, {"outcome": "success"}))
        else:
            writer.close()

    async with serve(read_and_close) as peer, make_executor(peer.url) as executor:
        assert isinstance(await executor.execute(make_request()), Answered)
        assert isinstance(await executor.execute(make_request()), Uncertain)
        assert len(peer.seen) == 2


async def test_a_destination_heeds_the_hint_as_well() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(204, keep_alive="timeout=1"))

    async with serve(answer) as peer:
        spec = DestinationSpec.model_validate({"url": peer.url})
        async with WebhookDestination(spec, clock=SystemClock()) as destination:
            for _ in range(2):
                copied = await destination.copy(
                    key="e-1", kind="message.posted", at=SystemClock().now(), data={}, attempt=1
                )
                assert copied == Copied("delivered")
        assert peer.connections == 2
