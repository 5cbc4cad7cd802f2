"""What every link must do, as tests: inherit `LinkSuite`, give it a peer that speaks the protocol raw, run pytest.

The peer is a real server on loopback, written without the adapter's own codec. Needs pytest with pytest-asyncio
in auto mode.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest

from gateway.adapter.port import Adapter, Connector, Frame
from gateway.errors import LinkLost, LinkRefused

BOUND = 5.0
"""Seconds within which everything in the suite must have happened."""


class Peer(Protocol):
    """The runtime's side of one link."""

    async def say(self, frame: Frame) -> None:
        """Send one frame to the client."""
        ...

    async def hear(self) -> Frame:
        """Wait for the next frame of the client."""
        ...

    async def connected(self) -> None:
        """Wait until a client is connected."""
        ...

    async def disconnected(self) -> None:
        """Wait until no client is connected."""
        ...

    async def drop(self) -> None:
        """End the connection from this side."""
        ...

    def refuse_next(self) -> None:
        """Turn the next client away, as for a wrong key."""
        ...

    async def stop(self) -> None:
        """Stop serving; nobody can connect any more."""
        ...


class Collector:
    """A receiver that keeps what arrives and lets tests wait for it."""

    def __init__(self) -> None:
        self.times_caught_up = 0
        self.frames: list[Frame] = []
        self.cursors: list[str | None] = []
        self.is_caught_up = False
        self.is_starting: bool | None = None
        self._changed = asyncio.Event()

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        self.frames.append(frame)
        self.cursors.append(cursor)
        self._changed.set()

    def caught_up(self, *, starting: bool | None = None) -> None:
        self.is_caught_up, self.is_starting = True, starting
        self.times_caught_up += 1
        self._changed.set()

    async def wait_for(self, count: int) -> list[Frame]:
        """Wait until so many frames have come."""
        async with asyncio.timeout(BOUND):
            while len(self.frames) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.frames

    async def wait_until_caught_up(self) -> None:
        """Wait until the link has said so."""
        async with asyncio.timeout(BOUND):
            while not self.is_caught_up:
                self._changed.clear()
                await self._changed.wait()


class LinkSuite:
    """Inherit this as `class TestMyLink(LinkSuite)`, name the adapter and override what raises here."""

    adapter: Adapter
    native_id = "native-1"
    takes_large_messages = True
    sends = 500
    """How many frames are sent at once; fewer where each is a request of its own."""

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        """Start a raw peer."""
        raise NotImplementedError

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        """Make the connector under test, aimed at the peer."""
        raise NotImplementedError

    def inbound(self, number: int, padding: str = "") -> Frame:
        """Make a frame that the runtime would say."""
        raise NotImplementedError

    def outbound(self, number: int, padding: str = "") -> Frame:
        """Make a frame that the client would say."""
        raise NotImplementedError

    async def test_frames_arrive_as_they_were_said_and_in_their_order(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector):
                await within(peer.connected())
                said = [self.inbound(number) for number in range(500)]
                for frame in said:
                    await peer.say(frame)
                assert await collector.wait_for(500) == said

    async def test_frames_leave_as_they_were_given_and_in_their_order(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            given = [self.outbound(number) for number in range(self.sends)]
            # All at once, as several sessions' work may come.
            receipts = await within(asyncio.gather(*(link.send(frame) for frame in given)))
            assert {receipt.state for receipt in receipts} <= {"sent", "delivered"}
            assert [await within(peer.hear()) for _ in given] == given

    async def test_a_message_of_two_megabytes_passes_both_ways(self) -> None:
        if not self.takes_large_messages:
            pytest.skip("the protocol bounds its messages")
        padding = "é" * 100_000 + "x" * 1_800_000
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector) as link:
                await within(peer.connected())
                await peer.say(self.inbound(1, padding))
                assert await collector.wait_for(1) == [self.inbound(1, padding)]
                await within(link.send(self.outbound(1, padding)))
                assert await within(peer.hear()) == self.outbound(1, padding)

    async def test_a_dropped_connection_ends_the_link_with_a_reason(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            await peer.drop()
            assert await within(link.wait_closed())

    async def test_sending_after_the_loss_raises_link_lost(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            await peer.drop()
            await within(link.wait_closed())
            with pytest.raises(LinkLost):
                await within(link.send(self.outbound(1)))

    async def test_a_peer_that_is_there_proves_it_and_one_that_is_gone_does_not(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            await within(link.send(self.outbound(1)))
            for _ in range(3):
                await within(link.prove())
            await peer.drop()
            await within(link.wait_closed())
            with pytest.raises(LinkLost):
                await within(link.prove())

    async def test_leaving_closes_the_connection(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            async with connector.connect(self.native_id, Collector()) as link:
                await within(peer.connected())
            assert await within(link.wait_closed())
            await within(peer.disconnected())

    async def test_a_link_can_be_opened_again_after_a_loss(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            async with connector.connect(self.native_id, Collector()) as link:
                await within(peer.connected())
                await peer.drop()
                await within(link.wait_closed())
            collector = Collector()
            async with connector.connect(self.native_id, collector):
                await within(peer.connected())
                await peer.say(self.inbound(7))
                assert await collector.wait_for(1) == [self.inbound(7)]

    async def test_a_link_that_resumes_says_once_each_time_that_it_has_caught_up(self) -> None:
        if not self.adapter.capabilities.resumes:
            return
        async with self.serve() as peer, self.connector(peer) as connector:
            for number in (1, 2):
                collector = Collector()
                async with connector.connect(self.native_id, collector):
                    await within(peer.connected())
                    # Until then nothing that it hears is acted on.
                    await collector.wait_until_caught_up()
                    heard = len(collector.frames)
                    await peer.say(self.inbound(number))
                    await collector.wait_for(heard + 1)
                    assert collector.times_caught_up == 1
                    await peer.drop()
                await within(peer.disconnected())

    async def test_a_refusal_for_good_is_told_as_one(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            peer.refuse_next()
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(self.native_id, Collector()))
            assert refusal.value.terminal

    async def test_nobody_there_is_a_lost_link_and_no_refusal(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            await peer.stop()
            with pytest.raises(LinkLost):
                await enter(connector.connect(self.native_id, Collector()))

    async def test_leaving_the_connector_is_possible_after_a_cancel_in_the_middle(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:

            async def follow() -> None:
                async with connector.connect(self.native_id, Collector()) as link:
                    await link.wait_closed()

            following = asyncio.ensure_future(follow())
            await within(peer.connected())
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within(following)
            await within(peer.disconnected())


async def within(awaitable: Any) -> Any:
    """Wait, but not for ever."""
    async with asyncio.timeout(BOUND):
        return await awaitable


async def enter(link: AbstractAsyncContextManager[Any]) -> None:
    """Open a link and leave at once."""
    async with asyncio.timeout(BOUND), link:
        pass
