"""The proxy itself: each fault it makes is seen by both ends as a network would show it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from tests.faults.environment import until
from tests.faults.proxy import Proxy

WAIT = 5.0


@asynccontextmanager
async def echo() -> AsyncGenerator[Proxy]:
    """Put a proxy before a server that says everything back."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1000):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with server, Proxy(("127.0.0.1", server.sockets[0].getsockname()[1])) as wire:
        yield wire


@asynccontextmanager
async def connected(wire: Proxy) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(WAIT):
        return await reader.readexactly(len(text))


async def test_bytes_pass_both_ways_and_an_end_is_passed_on() -> None:
    async with echo() as wire, connected(wire) as (reader, writer):
        assert await say(reader, writer, b"hello") == b"hello"
        writer.write_eof()
        async with asyncio.timeout(WAIT):
            assert await reader.read() == b""


async def test_a_cut_is_a_reset_and_new_connections_work() -> None:
    async with echo() as wire:
        async with connected(wire) as (reader, writer):
            await say(reader, writer, b"hello")
            assert wire.cut() == 1
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(1), WAIT)
        async with connected(wire) as (reader, writer):
            assert await say(reader, writer, b"again") == b"again"


async def test_a_half_open_connection_says_nothing_and_breaks_when_it_heals() -> None:
    async with echo() as wire, connected(wire) as (reader, writer):
        await say(reader, writer, b"hello")
        wire.half_open()
        writer.write(b"into the dark")
        with pytest.raises(TimeoutError):
            # Nothing arrives, however long it waits.
            await asyncio.wait_for(reader.read(1), 0.2)
        wire.heal()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), WAIT)


async def test_what_was_held_goes_on_where_the_connections_are_kept() -> None:
    async with echo() as wire, connected(wire) as (reader, writer):
        wire.half_open()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            # Nothing arrives, however long it waits.
            await asyncio.wait_for(reader.read(1), 0.2)
        wire.heal(keep=True)
        async with asyncio.timeout(WAIT):
            assert await reader.readexactly(4) == b"late"


async def test_a_delay_holds_each_piece() -> None:
    async with echo() as wire, connected(wire) as (reader, writer):
        wire.delay(0.1)
        started = monotonic()
        assert await say(reader, writer, b"slow") == b"slow"
        assert monotonic() - started > 0.15


async def test_refused_connections_are_reset() -> None:
    async with echo() as wire:
        wire.refuse()
        async with connected(wire) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(1), WAIT)
        wire.heal()
        async with connected(wire) as (reader, writer):
            assert await say(reader, writer, b"again") == b"again"


@pytest.mark.parametrize(("pass_on", "heard"), [(True, b"COMMIT"), (False, b"")])
async def test_a_connection_breaks_at_the_bytes_that_are_named(*, pass_on: bool, heard: bytes) -> None:
    got: list[bytes] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                got.append(await reader.readexactly(1))
        except ConnectionResetError:
            over.set()
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with server, Proxy(("127.0.0.1", server.sockets[0].getsockname()[1])) as wire:
        cut = wire.break_after(b"COMMIT", pass_on=pass_on)
        async with connected(wire) as (reader, writer):
            writer.write(b"begin;COM")
            await writer.drain()

            async def first_part_is_there() -> bool:
                return len(got) == 9

            await until(first_part_is_there, within=WAIT)
            writer.write(b"MIT;")
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(1), WAIT)
        async with asyncio.timeout(WAIT):
            await cut.done.wait()
            await over.wait()
    assert b"".join(got) == (b"begin;COMMIT;" if heard else b"begin;COM")
