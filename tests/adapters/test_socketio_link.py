"""The Socket.IO link against scripted servers that break the rules a real library keeps."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from gateway.adapter.port import LARGEST_FRAME, Frame, Receipt
from gateway.errors import CannotExpress, LinkLost, LinkRefused
from gateway.guard import FAULTS
from gateway.links.http_session import shared_session
from gateway.links.socketio.client import find_code, open_link
from gateway.links.socketio.target import Target
from gateway.strict_json import Malformed
from gateway.testing.conformance.link import Collector, enter, within
from gateway.testing.serving import Served
from tests.pace import PATIENCE
from tests.ports import free_port

socketio: Any = import_module("socketio")

OPEN = '0{"sid":"s","upgrades":[],"pingInterval":25000,"pingTimeout":20000}'
CODES = frozenset({"UNAUTHORIZED", "AGENT_EXPIRED"})
TRANSPORT = web.ResponseKey("transport", asyncio.Transport)

Script = Callable[[web.WebSocketResponse], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script | int, *, autoping: bool = True, **more: Any) -> AsyncGenerator[tuple[Target, Any]]:
    """Serve one script per websocket, or one HTTP status for all; yield where it is and a session."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if isinstance(script, int):
            return web.Response(status=script)
        socket = web.WebSocketResponse(max_msg_size=0, autoping=autoping)
        await socket.prepare(request)
        assert request.transport is not None
        socket[TRANSPORT] = request.transport
        await script(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/socket.io/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    settings: dict[str, Any] = {"connect_timeout": timedelta(seconds=2), "terminal_codes": CODES, **more}
    try:
        async with shared_session() as session:
            yield Target(f"http://127.0.0.1:{port}", {"key": "s3cret"}, secrets=("s3cret",), **settings), session
    finally:
        await runner.cleanup()


async def let_in(socket: web.WebSocketResponse) -> None:
    await socket.send_str(OPEN)
    await socket.receive()
    await socket.send_str('40{"sid":"x"}')


async def listen(socket: web.WebSocketResponse) -> None:
    async for _message in socket:
        pass


@pytest.mark.requirement("A39")
@pytest.mark.parametrize(
    ("packet", "code", "terminal"),
    [
        ('44{"message":"UNAUTHORIZED"}', "UNAUTHORIZED", True),
        ('44"AGENT_EXPIRED"', "AGENT_EXPIRED", True),
        ('44{"message":"x","data":"AGENT_EXPIRED"}', "AGENT_EXPIRED", True),
        ('44{"error":"UNAUTHORIZED: no"}', "UNAUTHORIZED", True),
        ('44{"code":"BUSY","message":"later, s3cret"}', "REFUSED", False),
        ("44", "REFUSED", False),
        ("44[1]", "REFUSED", False),
        ("44{broken", "REFUSED", False),
    ],
)
async def test_a_refusal_is_understood_in_every_shape(packet: str, code: str, terminal: bool) -> None:
    async def refuse(socket: web.WebSocketResponse) -> None:
        await socket.send_str(OPEN)
        await socket.receive()
        await socket.send_str(packet)
        await listen(socket)

    async with scripted(refuse) as (target, session):
        with pytest.raises(LinkRefused) as refusal:
            await enter(open_link(target, Collector(), session=session))
    assert (refusal.value.code, refusal.value.terminal) == (code, terminal)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.requirement("A39")
@pytest.mark.parametrize(
    ("status", "kind", "terminal"),
    [
        (401, LinkRefused, True),
        (403, LinkRefused, True),
        (410, LinkRefused, False),
        (429, None, None),
        (503, None, None),
    ],
)
async def test_the_status_of_a_refused_handshake_decides(status: int, kind: Any, terminal: bool | None) -> None:
    async with scripted(status) as (target, session):
        with pytest.raises(kind or LinkLost) as failure:
            await enter(open_link(target, Collector(), session=session))
    assert getattr(failure.value, "terminal", None) == terminal
    assert failure.value.__context__ is None


async def test_a_server_that_offers_polling_only_is_not_taken_for_a_wrong_key() -> None:
    server: Any = socketio.AsyncServer(async_mode="asgi", transports=["polling"])
    async with Served(socketio.ASGIApp(server)) as served, shared_session() as session:
        target = Target(served.url, {"key": "s3cret"}, secrets=("s3cret",))
        with pytest.raises(LinkRefused) as failure:
            await enter(open_link(target, Collector(), session=session))
    assert failure.value.code == "NO_WEBSOCKET"
    assert "polling only" in str(failure.value)
    assert "s3cret" not in str(failure.value)


async def test_a_proxy_that_refuses_upgrades_is_not_taken_for_a_wrong_key() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            # The handshake gets 403.
            await receive()
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        # The server behind the proxy offers both transports.
        await send({"type": "http.response.body", "body": OPEN.replace("[]", '["websocket"]').encode()})

    async with Served(answer) as served, shared_session() as session:
        with pytest.raises(LinkRefused) as failure:
            await enter(open_link(Target(served.url, {}), Collector(), session=session))
    assert (failure.value.code, failure.value.terminal) == ("NO_WEBSOCKET", False)
    assert "also in a proxy in front" in str(failure.value)


async def test_a_server_that_refuses_every_transport_has_another_key() -> None:
    server: Any = socketio.AsyncServer(async_mode="asgi", transports=["polling"])

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await socketio.ASGIApp(server)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": OPEN.replace("0{", "1{").encode()})

    async with Served(refuse) as served, shared_session() as session:
        with pytest.raises(LinkRefused) as failure:
            await enter(open_link(Target(served.url, {}), Collector(), session=session))
    assert (failure.value.code, failure.value.terminal) == ("UNAUTHORIZED", True)


@pytest.mark.parametrize("packet", ["", "x", "4", "0", "0{}", "0[]", "0null", '0{"sid":1,"upgrades":0}', "2", b"0"])
async def test_an_opening_that_is_none_is_a_lost_link(packet: str | bytes) -> None:
    async def babble(socket: web.WebSocketResponse) -> None:
        await (socket.send_bytes(packet) if isinstance(packet, bytes) else socket.send_str(packet))
        await listen(socket)

    async with scripted(babble, connect_timeout=timedelta(milliseconds=300)) as (target, session):
        with pytest.raises(LinkLost):
            await enter(open_link(target, Collector(), session=session))


async def test_a_server_that_lets_nobody_in_and_says_nothing_is_lost_in_time() -> None:
    async def keep_silent(socket: web.WebSocketResponse) -> None:
        await socket.send_str(OPEN)
        await listen(socket)

    async with scripted(keep_silent, connect_timeout=timedelta(milliseconds=200)) as (target, session):
        with pytest.raises(LinkLost):
            await enter(open_link(target, Collector(), session=session))


async def test_what_is_said_before_we_are_let_in_is_heard() -> None:
    async def replay_first(socket: web.WebSocketResponse) -> None:
        await socket.send_str(OPEN)
        await socket.receive()
        for number in range(3):
            await socket.send_str(f'42["event",{number}]')
        await socket.send_str('40{"sid":"x"}')
        await listen(socket)

    collector = Collector()
    async with scripted(replay_first) as (target, session), open_link(target, collector, session=session):
        assert await collector.wait_for(3) == [Frame("event", number) for number in range(3)]


async def test_a_peer_that_does_not_read_costs_the_link_and_not_the_gateway() -> None:
    async def never_read(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await released.wait()

    released = asyncio.Event()
    async with scripted(never_read, send_timeout=timedelta(milliseconds=300)) as (target, session):
        async with open_link(target, Collector(), session=session) as link:

            async def send_without_end() -> None:
                while True:
                    await link.send_all([Frame("message", "x" * 1_000_000)])

            with pytest.raises(LinkLost, match=r"^the peer does not read"):
                await within(send_without_end())
            assert await within(link.wait_closed()) == "the peer does not read"
        released.set()


@asynccontextmanager
async def late_reader() -> AsyncGenerator[tuple[Any, asyncio.Event, list[int]]]:
    """Yield a link whose peer reads only once the event is set, and the numbers that it has read then."""
    reads, heard = asyncio.Event(), list[int]()

    async def read_late(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await socket.send_str("2")
        await reads.wait()
        async for message in socket:
            heard.append(-1 if message.data == "3" else int(message.data[len('42["message",[') :].partition(",")[0]))

    async with scripted(read_late) as (target, session), open_link(target, Collector(), session=session) as link:
        yield link, reads, heard


def numbered(number: int) -> list[Frame]:
    return [Frame("message", [2 * number + more, "x" * 300_000]) for more in (0, 1)]


def congest(link: Any) -> tuple[int, Awaitable[Receipt]]:
    """Send until the link must wait; return the number of the last event, and its result."""
    for number in range(1_000):
        sent = link.send_all(numbered(number))
        if not isinstance(sent, Receipt):
            return number, sent
    raise AssertionError("the link never waits")


async def test_a_send_is_over_when_it_returns_unless_the_peer_does_not_read() -> None:
    async with late_reader() as (link, reads, heard):
        number, waiting = congest(link)
        assert number > 0
        others = [link.send_all(numbered(number + more)) for more in (1, 2)]
        assert not any(isinstance(one, Receipt) for one in others)
        reads.set()
        assert await within(asyncio.gather(waiting, *others)) == [Receipt("sent")] * 3
        assert isinstance(link.send_all(numbered(number + 3)), Receipt)
        await within(link.prove())
        assert [one for one in heard if one >= 0] == [*range(2 * number + 8)]
        # The answer to the ping of the peer waits for no send.
        assert -1 in heard


async def test_a_send_that_is_canceled_while_the_peer_does_not_read_ends_no_other() -> None:
    async with late_reader() as (link, reads, heard):
        number, waiting = congest(link)
        first = asyncio.ensure_future(waiting)
        while not first.done():
            # It waits for the peer from its first step on.
            await asyncio.sleep(0)
            first.cancel()
        second = asyncio.ensure_future(link.send_all(numbered(number + 1)))
        await asyncio.sleep(0)
        reads.set()
        assert await within(second) == Receipt("sent")
        await within(link.prove())
        told = [one for one in heard if one >= 0]
        assert told == [one for one in range(2 * number + 4) if one in told]
        assert set(told) >= {2 * number, 2 * number + 2, 2 * number + 3}


async def test_a_connection_that_ends_while_a_send_waits_loses_the_link() -> None:
    async def leave(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await leaves.wait()
        socket[TRANSPORT].abort()

    leaves = asyncio.Event()
    async with scripted(leave) as (target, session), open_link(target, Collector(), session=session) as link:
        _, waiting = congest(link)
        leaves.set()
        with pytest.raises(LinkLost) as lost:
            await within(waiting)
        assert not lost.value.unsent
        with pytest.raises(LinkLost) as lost:
            link.send_all(numbered(0))
        assert lost.value.unsent


async def test_a_message_beyond_all_bounds_costs_the_link() -> None:
    async def flood(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await entered.wait()
        with suppress(ConnectionError):
            await socket.send_str('42["event","' + "x" * LARGEST_FRAME + '"]')

    entered = asyncio.Event()
    collector = Collector()
    async with scripted(flood) as (target, session), open_link(target, collector, session=session) as link:
        entered.set()
        assert await within(link.wait_closed())
        (frame,) = collector.frames
        assert isinstance(frame.payload, Malformed)
        assert f"{LARGEST_FRAME:,} bytes" in frame.payload.reason


@pytest.mark.slow
async def test_control_frames_and_empty_fragments_do_not_count_towards_the_size_of_a_message() -> None:
    between = b"\x00\x00" + b"\x8a\x7d" + b"x" * 125

    async def send_fragments(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await entered.wait()
        transport = socket[TRANSPORT]
        parts = (b'42["event",', b'"whole"', b"]")
        for at, part in enumerate(parts):
            # Fragments, the first of a text; then empty fragments and pongs of the same message.
            transport.write(bytes([0x01 if at == 0 else 0x80 if at == 2 else 0x00, len(part)]) + part)
            if at == 0:
                transport.write(between * (LARGEST_FRAME // len(between) + 1))
        await listen(socket)

    entered = asyncio.Event()
    collector = Collector()
    async with scripted(send_fragments) as (target, session), open_link(target, collector, session=session):
        entered.set()
        # The library reads a quarter of a million control frames meanwhile.
        async with asyncio.timeout(PATIENCE):
            while not collector.frames:  # noqa: ASYNC110 - a collector has no event for this patience
                await asyncio.sleep(0.05)
        (frame,) = collector.frames
        assert (frame.channel, frame.payload) == ("event", "whole")


async def test_a_connection_that_breaks_while_we_come_in_is_lost_and_no_refusal() -> None:
    async def break_off(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await socket.send_str('42["event","' + "x" * LARGEST_FRAME + '"]')

    async def break_off_quietly(socket: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            await break_off(socket)

    async with scripted(break_off_quietly) as (target, session):
        with pytest.raises(LinkLost):
            await enter(open_link(target, Collector(), session=session))


@pytest.mark.parametrize("goodbye", ["41", "1"])
async def test_a_goodbye_in_words_ends_the_link(goodbye: str) -> None:
    async def say_goodbye(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await leaving.wait()
        await socket.send_str(goodbye)
        await listen(socket)

    leaving = asyncio.Event()
    async with (
        scripted(say_goodbye) as (target, session),
        open_link(target, Collector(), session=session) as link,
    ):
        leaving.set()
        assert await within(link.wait_closed()) == "the server ended the session"


async def test_odd_control_packets_break_nothing() -> None:
    async def be_odd(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        for packet in ("43[1]", "439[]", "40/other,[]", "41/other", "44/other,{}", "2probe", "6", "7", '40{"sid":1}'):
            await socket.send_str(packet)
        await socket.send_str('42["event","after all"]')
        await listen(socket)

    collector = Collector()
    async with scripted(be_odd) as (target, session), open_link(target, collector, session=session) as link:
        assert await collector.wait_for(1) == [Frame("event", "after all")]
        assert (await link.send_all([Frame("message", {})])).state == "sent"


async def test_a_ping_is_answered_while_events_flow() -> None:
    answered = asyncio.Event()

    async def ping(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await socket.send_str("2")
        await socket.send_str('42["event",1]')
        async for message in socket:
            if message.type is WSMsgType.TEXT and message.data == "3":
                answered.set()

    collector = Collector()
    async with scripted(ping) as (target, session), open_link(target, collector, session=session):
        await collector.wait_for(1)
        await within(answered.wait())


async def test_a_server_that_falls_silent_without_a_word_is_lost() -> None:
    async def fall_silent(socket: web.WebSocketResponse) -> None:
        await socket.send_str('0{"sid":"s","upgrades":[],"pingInterval":200,"pingTimeout":100}')
        await socket.receive()
        await socket.send_str('40{"sid":"x"}')
        for _ in range(3):
            await asyncio.sleep(0.2)
            await socket.send_str("2")
        pinged.set()
        await listen(socket)

    pinged = asyncio.Event()
    async with (
        scripted(fall_silent) as (target, session),
        open_link(target, Collector(), session=session) as link,
    ):
        assert await within(link.wait_closed()) == "no message from the server for 0.3 s"
        assert pinged.is_set()


async def test_who_leaves_says_goodbye_and_leaves_nothing_running() -> None:
    said: list[str] = []

    async def hear(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        said.extend([message.data async for message in socket])
        left.set()

    left = asyncio.Event()
    async with scripted(hear) as (target, session):
        before = asyncio.all_tasks()
        async with open_link(target, Collector(), session=session):
            # The server's task, and the one that reads.
            ours = [task for task in asyncio.all_tasks() - before if task.get_name().startswith("dragoman-")]
            assert len(ours) == 1
            assert not any("engineio" in repr(task) for task in asyncio.all_tasks())
        assert ours[0].done()
        await within(left.wait())
    assert said == ["41", "1"]


async def test_a_receiver_that_raises_costs_the_link_and_is_counted() -> None:
    class Failing(Collector):
        def frame(self, frame: Frame, cursor: str | None = None) -> None:
            raise ZeroDivisionError(frame, cursor)

    async def speak(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await entered.wait()
        await socket.send_str('42["event",1]')
        await listen(socket)

    entered = asyncio.Event()
    faults = FAULTS.get().total["link"]
    async with scripted(speak) as (target, session), open_link(target, Failing(), session=session) as link:
        entered.set()
        assert await within(link.wait_closed()) == "the link failed inside the gateway (ZeroDivisionError)"
    assert FAULTS.get().total["link"] == faults + 1


@pytest.mark.requirement("A40")
def test_a_target_can_be_shown_without_its_secrets() -> None:
    target = Target("https://huma.example.com", {"apiKey": "s3cret"}, secrets=("s3cret",))
    assert "s3cret" not in repr(target)


def test_a_code_is_found_only_where_a_refusal_puts_it() -> None:
    assert find_code("Error: UNAUTHORIZED", CODES) == "UNAUTHORIZED"
    assert find_code({"type": "error", "code": "AGENT_EXPIRED"}, CODES) == "AGENT_EXPIRED"
    assert find_code({"data": {"code": "AGENT_EXPIRED"}, "message": "x"}, CODES) == "AGENT_EXPIRED"
    for other in (
        {"type": "messaging", "message": "UNAUTHORIZED"},
        {"type": "error", "code": "INVALID_EVENT", "message": "UNAUTHORIZED"},
        "UNAUTHORIZEDLY",
        None,
        7,
        ["UNAUTHORIZED"],
    ):
        assert find_code(other, CODES) is None


async def test_a_peer_that_answers_no_ping_has_not_read_what_was_sent_and_loses_the_link() -> None:
    async def deaf(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        # What nobody asked for proves nothing.
        for said in (b"", b"7", b"1" * 100):
            await socket.pong(said)
        await listen(socket)

    async with (
        scripted(deaf, autoping=False, send_timeout=timedelta(milliseconds=300)) as (target, session),
        open_link(target, Collector(), session=session) as link,
    ):
        await within(link.send_all([Frame("message", {"a": 1})]))
        with pytest.raises(LinkLost, match=r"no response of the peer within 0\.3 s"):
            await within(link.prove())
        assert "no response" in await within(link.wait_closed())


async def test_pings_of_the_peer_are_answered_and_its_late_pongs_count() -> None:
    answers: list[bytes] = []

    async def slow(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await socket.ping(b"hello")
        asked: list[bytes] = []
        async for message in socket:
            if message.type is WSMsgType.PONG:
                answers.append(message.data)
            elif message.type is WSMsgType.PING:
                asked.append(message.data)
                if len(asked) == 3:
                    # The answer to the last one is enough for all.
                    await socket.pong(asked[-1])

    async with (
        scripted(slow, autoping=False) as (target, session),
        open_link(target, Collector(), session=session) as link,
    ):
        await within(asyncio.gather(*(link.prove() for _ in range(3))))
        assert link.ended is None
    assert answers == [b"hello"]


async def test_frames_of_one_call_leave_in_their_order_and_a_ping_behind_them() -> None:
    heard: list[str] = []

    async def hear(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        async for message in socket:
            heard.append(message.data)  # noqa: PERF401 - each as it comes

    async with scripted(hear) as (target, session), open_link(target, Collector(), session=session) as link:
        receipt = await within(link.send_all([Frame("message", number) for number in range(3)]))
        assert receipt.state == "sent"
        await within(link.prove())
        assert heard == [f'42["message",{number}]' for number in range(3)]


async def test_a_frame_that_is_refused_keeps_its_whole_call_from_leaving() -> None:
    heard: list[str] = []

    async def hear(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        async for message in socket:
            heard.append(message.data)  # noqa: PERF401 - each as it comes

    async with scripted(hear) as (target, session), open_link(target, Collector(), session=session) as link:
        assert (await link.send_all([Frame("message", 1), Frame("disconnect", 2)])).state == "refused"
        with pytest.raises(CannotExpress):
            await link.send_all([Frame("message", 1), Frame("message", b"bytes")])
        await within(link.prove())
        assert heard == []


async def test_a_link_that_has_ended_still_closes_its_websocket() -> None:
    code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def hear(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await listen(socket)
        code.set_result(socket.close_code)

    async with scripted(hear) as (target, session):
        async with open_link(target, Collector(), session=session) as link:
            link.end("somebody has had enough")
        assert await within(code) == 1000


async def test_a_ping_has_its_whole_time_after_others_were_answered() -> None:
    async def answer_once(socket: web.WebSocketResponse) -> None:
        await let_in(socket)
        await socket.pong((await socket.receive()).data)
        await listen(socket)

    loop = asyncio.get_running_loop()
    async with (
        scripted(answer_once, autoping=False, send_timeout=timedelta(milliseconds=60)) as (target, session),
        open_link(target, Collector(), session=session) as link,
    ):
        await within(link.prove())
        asked_at = loop.time()
        with pytest.raises(LinkLost):
            await within(link.prove())
        assert loop.time() - asked_at >= 0.06


async def test_an_address_without_a_server_is_named_with_the_cause_alone() -> None:
    port = free_port()
    async with shared_session() as session:
        target = Target(f"http://127.0.0.1:{port}", {"key": "s3cret"}, secrets=("s3cret",))
        with pytest.raises(LinkLost) as caught:
            await enter(open_link(target, Collector(), session=session))
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"
