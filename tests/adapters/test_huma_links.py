"""Both HUMA connectors against a real Socket.IO server that speaks raw JSON."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from adapters.huma import HUMA_0_1, HUMA_0_2, connector
from gateway.adapter.port import Adapter, Connector, Frame
from gateway.errors import CannotExpress, LinkLost, LinkRefused
from gateway.links.socketio.target import Target
from gateway.strict_json import Malformed, find_fault
from gateway.testing.conformance.link import Collector, LinkSuite, Peer, enter, within
from tests.adapters.raw_huma import AGENT, KEY, RawHuma, socketio

ADAPTERS = (HUMA_0_1, HUMA_0_2)


def options_for(adapter: Adapter, server: RawHuma, **more: Any) -> Any:
    return adapter.options.model_validate(
        {"adapter": adapter.name, "url": server.url, "api_key": KEY, "agent_id": AGENT, **more}
    )


@asynccontextmanager
async def linked(server: RawHuma, collector: Collector, **more: Any) -> AsyncGenerator[Any]:
    options = options_for(HUMA_0_2, server, **more)
    async with HUMA_0_2.connector(options) as connector, connector.connect(AGENT, collector) as link:
        await within(server.connected())
        yield link


class TestHuma02Link(LinkSuite):
    adapter: Adapter = HUMA_0_2
    native_id = AGENT
    key = KEY

    @pytest.fixture(autouse=True)
    def short_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a send take two seconds; the adapter has no option for it."""
        monkeypatch.setattr(connector, "Target", partial(Target, send_timeout=timedelta(seconds=2)))

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        return RawHuma().serve()

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        return self.adapter.connector(options_for(self.adapter, cast("RawHuma", peer)))

    def inbound(self, number: int, padding: str = "") -> Frame:
        arguments = {"number": number, "padding": padding}
        return Frame(
            "event", {"type": "tool-call", "toolCallId": f"c{number}", "toolName": "t", "arguments": arguments}
        )

    def outbound(self, number: int, padding: str = "") -> Frame:
        return Frame("message", {"type": "tool-result", "toolCallId": f"c{number}", "result": padding})


class TestHuma01Link(TestHuma02Link):
    adapter: Adapter = HUMA_0_1


@pytest.mark.requirement("A40")
async def test_agent_and_key_travel_in_the_query_and_nowhere_else() -> None:
    async with RawHuma().serve() as server, linked(server, Collector()):
        assert server.queries[0]["agentId"] == [AGENT]
        assert server.queries[0]["apiKey"] == [KEY]


async def test_the_path_of_the_endpoint_is_an_option() -> None:
    async with RawHuma().serve(path="huma/io") as server, linked(server, Collector(), path="/huma/io/"):
        assert server.paths == ["/huma/io/"]


@pytest.mark.requirement("A31", "A1", "N3", "N4")
async def test_frames_of_every_channel_arrive_those_of_reserved_names_too() -> None:
    said = [
        Frame("event", {"type": "x"}),
        Frame("error", {"type": "error", "message": "m"}),
        Frame("notice", [1, None]),
        Frame("disconnect", "only a word"),
        Frame("connect_error", {"message": "UNAUTHORIZED"}),
        Frame("__disconnect_final", None),
    ]
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector) as link:
        for frame in said[:-1]:
            await server.say(frame)
        await server.say_raw('2["__disconnect_final"]')
        assert await collector.wait_for(len(said)) == said
        assert (await link.send_all([Frame("message", {})])).state == "sent"


async def test_what_cannot_be_read_becomes_a_malformed_frame_and_the_link_lives_on() -> None:
    deep = "2" + '["event",' + "[" * 2_000 + "]" * 2_000 + "]"
    packets: list[str | bytes] = [
        '2["event",{"broken":',
        "2not json",
        '2{"no":"list"}',
        "2[]",
        "2",
        '2[["no","name"]]',
        "9?",
        deep,
        '51-["event",{"_placeholder":true,"num":0}]',
        b"the attachment",
        '50-["event",{}]',
        "61-3[]",
        '2["event",{"last":1}]',
    ]
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector):
        await server.say_raw(*packets)
        frames = await collector.wait_for(len(packets))
        assert frames[-1] == Frame("event", {"last": 1})
        odd = {packet: frame for packet, frame in zip(packets, frames, strict=True) if frame is not frames[-1]}
        # What is nested beyond all depth is cut off, so that a call with such arguments can still be answered.
        assert find_fault(odd.pop(deep).payload) is not None
        assert all(isinstance(frame.payload, Malformed) for frame in odd.values())
        assert all(len(frame.payload.excerpt) <= 1_024 for frame in odd.values())
        assert [frame.channel for frame in (frames[0], frames[8])] == ["event", "event"]


async def test_a_call_with_one_unspeakable_argument_keeps_its_id() -> None:
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector):
        for argument in ('"\\ud83c"', "1" + "0" * 30, "NaN"):
            call = f'{{"type":"tool-call","toolCallId":"c","toolName":"t","arguments":{{"a":{argument}}}}}'
            await server.say_raw(f'2["event",{call}]')
        for frame in await collector.wait_for(3):
            (draft,) = HUMA_0_2.codec().decode(frame)
            assert draft.event.kind == "tool.requested"
            assert draft.event.problem


@pytest.mark.requirement("A1")
async def test_an_error_mirrored_on_both_channels_counts_once_and_a_repeated_one_twice() -> None:
    error = {"type": "error", "message": "m", "code": "INVALID_EVENT"}
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector):
        for channel in ("error", "event", "error", "error", "event"):
            await server.say(Frame(channel, error))
        await server.say(Frame("event", {"type": "last"}))
        frames = await within(collector.wait_for(4))
        assert [frame.channel for frame in frames] == ["error", "error", "error", "event"]
        assert frames[-1].payload == {"type": "last"}


async def test_more_than_one_argument_and_other_namespaces_lose_nothing() -> None:
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector):
        await server.say_raw('2["event",{"a":1},{"b":2}]', '2/other,["event",3]', '2["event"]')
        assert await collector.wait_for(4) == [
            Frame("event", {"a": 1}),
            Frame("event#2", {"b": 2}),
            Frame("/other#event", 3),
            Frame("event", None),
        ]


@pytest.mark.requirement("A32")
async def test_a_frame_that_wants_an_acknowledgement_gets_one_and_keeps_its_place() -> None:
    collector = Collector()
    async with RawHuma().serve() as server, linked(server, collector) as link:
        await server.ask(Frame("event", {"n": 1}))
        await server.say(Frame("event", {"n": 2}))
        assert await collector.wait_for(2) == [Frame("event", {"n": 1}), Frame("event", {"n": 2})]
        await within(server.acknowledged.wait())
        # Nothing we send asks for one: the server would otherwise hand its handler's answer back.
        await link.send_all([Frame("message", {"type": "x"})])
        assert await within(server.hear()) == Frame("message", {"type": "x"})


@pytest.mark.requirement("A9")
async def test_a_frame_over_the_servers_maximum_is_refused_here_and_the_link_lives_on() -> None:
    async with RawHuma(max_message=10_000).serve() as server, linked(server, Collector()) as link:
        refused = await link.send_all([Frame("message", "x" * 10_001)])
        assert refused.state == "refused"
        assert "10000" in refused.reason
        assert (await link.send_all([Frame("message", "x" * 9_000)])).state == "sent"
        assert await within(server.hear()) == Frame("message", "x" * 9_000)


async def test_a_frame_that_is_not_json_or_has_a_reserved_name_is_refused() -> None:
    async with RawHuma().serve() as server, linked(server, Collector()) as link:
        with pytest.raises(CannotExpress):
            await link.send_all([Frame("message", {"a": b"bytes"})])
        assert (await link.send_all([Frame("disconnect", {})])).state == "refused"


def refused(*arguments: Any) -> BaseException:
    return socketio.exceptions.ConnectionRefusedError(*arguments)


@pytest.mark.requirement("A39")
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("code", ["UNAUTHORIZED", "AGENT_NOT_FOUND", "AGENT_EXPIRED", "MISSING_AGENT_ID"])
async def test_a_refusal_code_in_a_connect_error_is_final(adapter: Adapter, code: str) -> None:
    async with RawHuma().serve() as server, adapter.connector(options_for(adapter, server)) as connector:
        for arguments in ((code,), (code, {"code": code}), ("No.", {"code": code}), (f"{code}: not today",)):
            server.refusal = refused(*arguments)
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(AGENT, Collector()))
            assert refusal.value.code == code
            assert refusal.value.terminal


@pytest.mark.requirement("A39")
async def test_a_refusal_without_a_known_code_is_not_final() -> None:
    async with (
        RawHuma().serve() as server,
        HUMA_0_2.connector(options_for(HUMA_0_2, server)) as connector,
    ):
        server.refusal = refused("come back later")
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(AGENT, Collector()))
        assert not refusal.value.terminal
        assert "come back later" in str(refusal.value)


@pytest.mark.requirement("A39")
@pytest.mark.parametrize("channel", ["error", "event"])
async def test_a_refusal_told_after_letting_us_in_is_final(channel: str) -> None:
    server = RawHuma(always_connect=True)

    async def turn_away(sid: str) -> None:
        await server.io.emit(channel, {"type": "error", "message": "No such agent", "code": "AGENT_NOT_FOUND"}, to=sid)
        await server.io.disconnect(sid)

    server.greeting = turn_away
    async with server.serve(), HUMA_0_2.connector(options_for(HUMA_0_2, server)) as connector:
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(AGENT, Collector()))
        assert (refusal.value.code, refusal.value.terminal) == ("AGENT_NOT_FOUND", True)


@pytest.mark.requirement("A39")
async def test_a_hang_up_right_after_connecting_is_a_refusal_that_may_pass() -> None:
    server = RawHuma(always_connect=True)
    server.greeting = server.io.disconnect
    async with server.serve(), HUMA_0_2.connector(options_for(HUMA_0_2, server)) as connector:
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(AGENT, Collector()))
        assert not refusal.value.terminal


@pytest.mark.requirement("A39")
async def test_an_ordinary_error_after_connecting_is_a_frame_and_no_refusal() -> None:
    server = RawHuma(always_connect=True)
    collector = Collector()
    error = {"type": "error", "message": "UNAUTHORIZED tools are listed", "code": "INVALID_EVENT"}

    async def complain(sid: str) -> None:
        await server.io.emit("error", error, to=sid)

    server.greeting = complain
    async with server.serve(), linked(server, collector) as link:
        assert await collector.wait_for(1) == [Frame("error", error)]
        assert (await link.send_all([Frame("message", {})])).state == "sent"


async def test_a_server_that_never_answers_is_lost_within_the_connect_timeout() -> None:
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        options = options_for(HUMA_0_2, RawHuma(), url=url, connect_timeout="200ms")
        async with HUMA_0_2.connector(options) as connector:
            with pytest.raises(LinkLost):
                await enter(connector.connect(AGENT, Collector()))
        await within(gone.wait())


async def test_a_server_that_is_no_socket_io_server_is_no_crash() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with other:
        url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        async with HUMA_0_2.connector(options_for(HUMA_0_2, RawHuma(), url=url)) as connector:
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(AGENT, Collector()))
            assert refusal.value.code == "HTTP_404"
            assert not refusal.value.terminal


@pytest.mark.requirement("A40")
async def test_the_key_shows_in_no_log_line_and_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("engineio.client").setLevel(logging.DEBUG)
    logging.getLogger("socketio.client").setLevel(logging.DEBUG)
    told: list[BaseException] = []
    server = RawHuma()
    async with server.serve(), HUMA_0_2.connector(options_for(HUMA_0_2, server)) as connector:
        async with connector.connect(AGENT, Collector()) as link:
            await link.send_all([Frame("message", {"type": "x"})])
        server.refusal = refused(f"UNAUTHORIZED: {KEY} is unknown")
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(AGENT, Collector()))
        told.append(refusal.value)
        await server.stop()
        with pytest.raises(LinkLost) as loss:
            await enter(connector.connect(AGENT, Collector()))
        told.append(loss.value)
    for exc in told:
        chain: BaseException | None = exc
        while chain is not None:
            assert "secret" not in repr(chain)
            chain = chain.__cause__ or chain.__context__
    assert "secret" not in caplog.text
    assert "secret" not in repr(options_for(HUMA_0_2, server))
