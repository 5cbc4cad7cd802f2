"""The conformance suite for links: inherit `LinkSuite`, supply a peer that speaks the protocol, and run pytest.

The peer is a real server on loopback, written without the adapter's own codec. The suite reads the adapter's
capabilities and tests each of them: history and cursors (`resumes`), echoes (`echoes`), refusals (`delivery`), busy
runtimes (`one_message_per_turn`). It needs pytest with pytest-asyncio in auto mode.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol
from urllib.parse import quote

import pytest

from gateway.adapter.port import Adapter, Connector, Frame, Link, Receipt
from gateway.errors import LinkLost, LinkRefused, MalformedFrame
from gateway.events import Author, Draft, FaultReported, MessagePosted, Text, text_of
from gateway.testing.conformance.collector import BOUND, Collector, enter, within


class Peer(Protocol):
    """The runtime's side of one link: a server that the suite drives."""

    async def say(self, frame: Frame) -> None:
        """Send one frame to the client; do nothing if no client is connected."""
        ...

    async def hear(self) -> Frame:
        """Wait for the client's next frame that is not rejected."""
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
        """Refuse the connection of the next client, as for a wrong key."""
        ...

    async def stop(self) -> None:
        """Stop the server, so that no client can connect."""
        ...

    def add_to_history(self, frame: Frame) -> None:
        """Store one frame without sending it. The suite calls it for protocols that resume."""
        ...

    async def echo(self, frame: Frame) -> None:
        """Store a client's frame, and send it in the form of the runtime's echo. For protocols with echoes."""
        ...

    def reject_next_send(self, *, busy: bool = False) -> None:
        """Reject the next frame of the client in the protocol's own way: an error status, no acknowledgement, an error
        event. `busy`: because a turn is running; only for protocols with one message per turn.
        """
        ...

    def fail_next_send(self, how: "Failure") -> None:
        """Fail the client's next frame: read it and close the connection without an answer (`break`), read and answer
        nothing any more (`hang`), or answer 401 (`unauthorized`).

        With delivery='silence' only `hang`, and `unauthorized` only with delivery='response'.
        """
        ...


Failure = Literal["break", "unauthorized", "hang"]


class LinkSuite:
    """Inherit this as `class TestMyLink(LinkSuite)`, set `adapter` and override the methods that raise."""

    adapter: Adapter
    native_id = "native-1"
    takes_large_messages = True
    sends = 500
    """The number of frames sent at once; use fewer if each is a separate request."""
    send_within = BOUND
    """Seconds after which a send without an answer must have failed; configure a shorter limit in `connector`."""
    key = ""
    """The key of the connector's options, which no error may quote."""
    overlap = 0
    """The number of messages before its cursor that a resumed link may repeat; each of them needs a `native_id`."""

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        """Start a peer."""
        raise NotImplementedError

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        """Make the connector under test for this peer."""
        raise NotImplementedError

    def inbound(self, number: int, padding: str = "") -> Frame:
        """Make a frame of the runtime."""
        raise NotImplementedError

    def outbound(self, number: int, padding: str = "") -> Frame:
        """Make a frame of the client."""
        raise NotImplementedError

    async def test_frames_arrive_unchanged_and_in_order(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector):
                await within(peer.connected())
                sent = [self.inbound(number) for number in range(500)]
                for frame in sent:
                    await peer.say(frame)
                assert await collector.wait_for(500) == sent

    async def test_frames_are_sent_unchanged_and_in_order(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            given = [self.outbound(number) for number in range(self.sends)]
            # All at once, as by concurrent senders.
            receipts = await within(asyncio.gather(*(link.send_all([frame]) for frame in given)))
            assert {receipt.state for receipt in receipts} == {self.accepted}, (
                f"delivery={self.adapter.capabilities.delivery!r}: a frame that the runtime accepts gets the receipt"
                f" {self.accepted!r}; return `delivered` after a response of the runtime, and `sent` only if"
                " delivery='silence'"
            )
            assert [await within(peer.hear()) for _ in given] == given

    async def test_a_message_of_two_megabytes_passes_both_ways(self) -> None:
        if not self.takes_large_messages:
            pytest.skip("the protocol bounds its messages")
        # Two megabytes as UTF-8, and less than four if the peer escapes non-ASCII characters.
        padding = "é" * 300_000 + "x" * 1_400_000
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector) as link:
                await within(peer.connected())
                await peer.say(self.inbound(1, padding))
                assert await collector.wait_for(1) == [self.inbound(1, padding)]
                await within(link.send_all([self.outbound(1, padding)]))
                assert await within(peer.hear()) == self.outbound(1, padding)

    async def test_a_dropped_connection_ends_the_link_with_a_reason(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            await peer.drop()
            self.check_error(await within(link.wait_closed()))

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
                await within(link.send_all([self.outbound(1)]))

    async def test_prove_succeeds_until_the_connection_is_lost(self) -> None:
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            await within(link.send_all([self.outbound(1)]))
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

    async def test_a_link_that_resumes_calls_caught_up_once_per_connection(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            for number in (1, 2):
                collector = Collector()
                async with connector.connect(self.native_id, collector):
                    await within(peer.connected())
                    # The gateway acts on frames only after this.
                    await collector.wait_until_caught_up()
                    before = len(collector.frames)
                    await peer.say(self.inbound(number))
                    await collector.wait_for(before + 1)
                    assert collector.times_caught_up == 1
                    await peer.drop()
                await within(peer.disconnected())

    async def test_a_terminal_refusal_raises_link_refused(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            peer.refuse_next()
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(self.native_id, Collector()))
            assert refusal.value.terminal
            self.check_error(refusal.value)

    async def test_an_unreachable_peer_raises_link_lost(self) -> None:
        async with self.serve() as peer, self.connector(peer) as connector:
            await peer.stop()
            with pytest.raises(LinkLost) as lost:
                await enter(connector.connect(self.native_id, Collector()))
            self.check_error(lost.value)

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

    # History, repeats and cursors: for protocols that resume -----------------------------------------------------

    async def test_history_is_passed_on_before_the_link_has_caught_up(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            stored = self.store(peer, 1, 2, 3)
            collector = await self.follow(peer, connector)
            assert collector.before_caught_up == stored, (
                f"the runtime has {len(stored)} stored messages, the link passed {len(collector.before_caught_up)} on"
                " before `caught_up`: read the history in `connect`, pass it to `receiver.frame` in its order, then"
                " call `receiver.caught_up()`; otherwise messages from before the connection are lost"
            )

    async def test_a_message_that_comes_twice_is_passed_on_once(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            (first, repeated) = self.store(peer, 1, 2)
            collector = Collector()
            async with connector.connect(self.native_id, collector):
                await within(peer.connected())
                await collector.wait_until_caught_up()
                await peer.say(repeated)
                (live, last) = self.store(peer, 3, 4)
                for frame in (live, live, last):
                    await peer.say(frame)
                # Frames arrive in order, so each repeat would arrive before the last frame.
                await collector.wait_for_frame(last)
            assert collector.frames == [first, repeated, live, last], (
                f"the link passed {len(collector.frames)} frames on for 4 messages: history and live events overlap,"
                " so remember the ids of this connection's messages, and drop a message with a known id"
            )

    async def test_messages_during_the_connection_are_neither_lost_nor_doubled(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            collector, sent = Collector(), self.store(peer, 1)
            follows, ends = asyncio.Event(), asyncio.Event()

            async def follow() -> None:
                async with connector.connect(self.native_id, collector):
                    follows.set()
                    await ends.wait()

            following = asyncio.ensure_future(follow())
            try:
                while not (follows.is_set() and collector.is_caught_up):
                    assert not following.done(), following
                    assert len(sent) < 5_000, "the link never caught up: call `receiver.caught_up()` once"
                    (frame,) = self.store(peer, len(sent) + 1)
                    sent.append(frame)
                    await peer.say(frame)
                    await asyncio.sleep(0.001)
                await within(peer.connected())
                (last,) = self.store(peer, len(sent) + 1)
                sent.append(last)
                await peer.say(last)
                lost = (
                    "a message between the history and the first live event was lost: start to listen before you read"
                    " the history, and pass on the live events of the meantime after it"
                )
                for frame in sent:
                    await collector.wait_for_frame(frame, otherwise=lost)
            finally:
                ends.set()
                await within(following)
            assert len(collector.frames) == len(sent), "a message was passed on both from history and live: drop one"

    async def test_a_cursor_resumes_after_its_message(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            self.store(peer, *range(1, 4))
            collector = Collector()
            async with connector.connect(self.native_id, collector):
                await within(peer.connected())
                await collector.wait_until_caught_up()
                (live,) = self.store(peer, 4)
                await peer.say(live)
                await collector.wait_for_frame(live)
            await within(peer.disconnected())
            frames, cursors = collector.frames, collector.cursors
            assert cursors[-1] is not None, (
                "the newest message was passed on without a cursor, so each reconnect starts from the beginning: pass"
                " a cursor with each stored message, `receiver.frame(frame, cursor)`"
            )
            (missed,) = self.store(peer, 5)
            for known, cursor in enumerate(cursors, start=1):
                if cursor is None:
                    continue
                resumed = await self.follow(peer, connector, resume_after=cursor)
                lost = [frame for frame in (*frames[known:], missed) if frame not in resumed.before_caught_up]
                assert not lost, (
                    f"the link resumed after cursor {cursor!r} of message {known} and did not pass on {len(lost)} later"
                    " messages before `caught_up`: a cursor may only advance past messages that were passed on"
                )

    async def test_a_resumed_link_starts_at_its_cursor(self) -> None:
        self.skip_unless(self.adapter.capabilities.resumes, "resumes=False: the runtime has no history")
        async with self.serve() as peer, self.connector(peer) as connector:
            stored = self.store(peer, *range(1, self.overlap + 21))
            cursor = (await self.follow(peer, connector)).cursors[-1]
            resumed = await self.follow(peer, connector, resume_after=cursor)
            repeated = [frame for frame in resumed.frames if frame in stored]
            assert len(repeated) <= self.overlap, (
                f"the link resumed after cursor {cursor!r} and passed {len(repeated)} known messages on again"
                f" (`overlap` allows {self.overlap}): give each stored message its cursor and use `resume_after` in"
                " `connect`"
            )
            for frame in repeated:
                assert all(draft.native_id or draft.live for draft in self.read(frame)), (
                    f"{frame} is passed on again after a reconnect, and its draft has no `native_id`, so it would be"
                    " recorded twice: set `Draft.native_id` in the codec"
                )

    # Echoes, refusals and busy runtimes --------------------------------------------------------------------------

    async def test_an_echo_of_our_message_is_marked(self) -> None:
        able = self.adapter.capabilities
        self.skip_unless(able.echoes, "echoes=False: the runtime does not repeat the messages of clients")
        self.skip_unless("message.posted" in able.accepts, "the runtime takes no messages")
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector) as link:
                await within(peer.connected())
                if able.resumes:
                    await collector.wait_until_caught_up()
                before = len(collector.frames)
                await self.send_message(link, "Play.")
                await peer.echo(await within(peer.hear()))
                await collector.wait_for(before + 1, otherwise="the link did not pass on the echo of a message")
            drafts = [draft for frame in collector.frames[before:] for draft in self.read(frame)]
            echoes = [draft for draft in drafts if draft.echo]
            assert echoes, (
                "the runtime echoed our own message, and no draft of it has `echo=True`: it would be recorded as a"
                " second message; mark messages of clients in `Codec.decode`"
            )
            for echo in echoes:
                assert isinstance(echo.event, MessagePosted), "the echo of a message is read as `message.posted`"
                assert text_of(echo.event.content) == "Play.", "an echo must have the text of the sent message"
                assert echo.native_id, "the echo of a message needs the runtime's id: set `native_id`"

    async def test_a_rejected_frame_is_not_delivered(self) -> None:
        able = self.adapter.capabilities
        rejects = able.delivery != "silence" or bool(able.rejects_with)
        self.skip_unless(rejects, "rejects_with is empty, and delivery='silence': the runtime rejects no frame")
        async with self.serve() as peer, self.connector(peer) as connector:
            collector = Collector()
            async with connector.connect(self.native_id, collector) as link:
                await within(peer.connected())
                peer.reject_next_send()
                try:
                    receipt = await within(link.send_all([self.outbound(1)]))
                except LinkLost:
                    return
                assert isinstance(receipt, Receipt)
                if able.delivery == "silence":
                    swallowed = (
                        "the runtime rejected a frame with an error, and the gateway would count it as delivered: pass"
                        " the error on as a frame, and decode it as `fault.reported` with a code of `rejects_with`"
                    )
                    await collector.wait_for(1, otherwise=swallowed)
                    drafts = [draft for frame in collector.frames for draft in self.read(frame)]
                    codes = {draft.event.code for draft in drafts if isinstance(draft.event, FaultReported)}
                    assert codes & able.rejects_with, swallowed
                    return
                self.check_rejection(receipt)
                accepted = await within(link.send_all([self.outbound(2)]))
                assert accepted.state == self.accepted, (
                    "a rejected frame must not block the next one: keep using the same link, or raise LinkLost"
                )
                assert await within(peer.hear()) == self.outbound(2)

    async def test_a_send_whose_connection_breaks_may_have_arrived(self) -> None:
        self.skip_unless(
            self.adapter.capabilities.delivery != "silence",
            "delivery='silence': no frame has an answer that a break prevents; see test_prove_succeeds_until_…",
        )
        await self.check_unanswered("break")

    async def test_a_send_without_a_response_may_have_arrived(self) -> None:
        await self.check_unanswered("hang")

    async def test_a_send_that_is_answered_401_is_not_rejected_for_good(self) -> None:
        self.skip_unless(
            self.adapter.capabilities.delivery == "response",
            "the runtime checks the key once, when the client connects; see test_a_terminal_refusal_…",
        )
        outcome = await self.fail_send("unauthorized")
        assert isinstance(outcome, LinkLost | LinkRefused), (
            f"the response was 401, and the result is {outcome!r}: the key was refused, not the frame; raise LinkLost"
            " with `unsent`, so that the frame is sent again when the key is right"
        )

    async def test_a_busy_runtime_gets_the_message_again_after_its_turn(self) -> None:
        able = self.adapter.capabilities
        self.skip_unless(able.one_message_per_turn, "one_message_per_turn=False: the runtime is never busy")
        self.skip_unless("message.posted" in able.accepts, "the runtime takes no messages")
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            peer.reject_next_send(busy=True)
            receipt = await self.send_message(link, "Play.")
            assert receipt.state == "busy", (
                f"the runtime rejected a message because a turn is running, and the receipt is {receipt.state!r}:"
                " return Receipt('busy', reason), so that the message is sent again when the turn ends"
            )

    # Helpers -----------------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> str:
        """The receipt of a frame that the runtime accepts."""
        return "sent" if self.adapter.capabilities.delivery == "silence" else "delivered"

    def skip_unless(self, applies: bool, reason: str) -> None:
        """Skip a test that the protocol has no equivalent for."""
        if not applies:
            pytest.skip(reason)

    async def fail_send(self, how: Failure) -> LinkLost | LinkRefused | Receipt:
        """Send a frame that the peer fails to answer, and prove the link if silence means delivery."""
        able = self.adapter.capabilities
        async with (
            self.serve() as peer,
            self.connector(peer) as connector,
            connector.connect(self.native_id, Collector()) as link,
        ):
            await within(peer.connected())
            peer.fail_next_send(how)
            try:
                async with asyncio.timeout(self.send_within):
                    receipt = await link.send_all([self.outbound(1)])
                    if able.delivery == "silence":
                        await link.prove()
                    return receipt
            except (LinkLost, LinkRefused) as exc:
                self.check_error(exc)
                return exc
            except TimeoutError:
                pytest.fail(
                    f"a send without a response has not failed within {self.send_within:g} s: give each send a time"
                    " limit, and raise LinkLost; otherwise the frame blocks all later ones"
                )

    async def check_unanswered(self, how: Failure) -> None:
        """Check that a frame whose response is missing counts as possibly arrived."""
        outcome = await self.fail_send(how)
        is_open = isinstance(outcome, LinkLost) and not outcome.unsent
        if self.adapter.capabilities.delivery == "ack":
            is_open = is_open or (isinstance(outcome, Receipt) and outcome.state == "sent")
        assert is_open, (
            f"the runtime did not answer the frame, and the result is {outcome!r}: the frame may have arrived; raise"
            " LinkLost without `unsent` (from `prove`, if silence means delivery), since the gateway would send it a"
            " second time, or count it as delivered"
        )

    def check_error(self, error: object) -> None:
        """Check that an error names a reason, and does not quote the key."""
        text = str(error)
        assert text, "an error needs a reason that an operator can act on"
        for key in {self.key, quote(self.key, safe="")} - {""}:
            assert key not in text, "an error quotes the key of the options: mask it, since errors are logged and shown"

    def check_rejection(self, receipt: Receipt) -> None:
        """Check the receipt of a frame that the runtime has rejected, unless delivery is 'silence'."""
        assert receipt.state != "delivered", (
            "the runtime rejected a frame, and the receipt is `delivered`: read the response, and return"
            " Receipt('refused', reason), or raise LinkLost if the frame may be sent again"
        )
        if self.adapter.capabilities.delivery == "response":
            assert receipt.state != "sent", "the response rejected the frame, and `sent` would leave its fate unknown"
        assert receipt.reason, "a receipt other than `delivered` needs a reason that an operator can act on"
        self.check_error(receipt.reason)

    def store(self, peer: Peer, *numbers: int) -> list[Frame]:
        """Add messages with these numbers to the peer's history, without sending them."""
        frames = [self.inbound(number) for number in numbers]
        for frame in frames:
            peer.add_to_history(frame)
        return frames

    async def follow(self, peer: Peer, connector: Connector, *, resume_after: str | None = None) -> Collector:
        """Connect, wait until the link has caught up, and disconnect."""
        collector = Collector()
        async with connector.connect(self.native_id, collector, resume_after=resume_after):
            await within(peer.connected())
            await collector.wait_until_caught_up()
        await within(peer.disconnected())
        return collector

    async def send_message(self, link: Link, text: str) -> Receipt:
        """Encode and send a message of a user; return the receipt."""
        message = MessagePosted(author=Author(role="user"), content=(Text(text=text),))
        frames = self.adapter.codec().encode(Draft(message)).frames
        assert len(frames) == 1, "a message is one frame"
        receipt = await within(link.send_all(frames))
        assert isinstance(receipt, Receipt)
        return receipt

    def read(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame with the adapter's codec; return no drafts for a malformed one."""
        try:
            return self.adapter.codec().decode(frame)
        except MalformedFrame:
            return ()
