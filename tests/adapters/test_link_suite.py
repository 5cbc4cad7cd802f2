"""The suites fail on broken links and on codecs that do not mark echoes; the message names the fault and the fix."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from adapters.huma import HUMA_0_2
from gateway.adapter.port import Adapter, Codec, Connector, Encoded, Frame, Link, Receipt, Receiver
from gateway.errors import LinkLost
from gateway.events import Draft, Envelope
from gateway.testing.conformance.codec import CodecSuite
from gateway.testing.conformance.link import LinkSuite, Peer
from tests.adapters import skeleton
from tests.adapters.openhands.test_openhands_links import TestOpenHandsLink as OpenHandsLinks
from tests.adapters.test_huma_links import TestHuma02Link as HumaLinks

GOOD: Any = skeleton.package.ADAPTER


class SkeletonLinks(LinkSuite):
    """The suite as the skeleton uses it."""

    native_id = skeleton.peer.SESSION
    sends = 20
    send_within = 5.0
    key = skeleton.peer.KEY

    def __init__(self, adapter: Adapter = GOOD) -> None:
        self.adapter = adapter

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        return skeleton.peer.PigeonPeer().serve()

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        options = {
            "adapter": "pigeon",
            "url": cast("Any", peer).url,
            "api_key": skeleton.peer.KEY,
            "session_id": self.native_id,
            "send_timeout": "1s",
        }
        return self.adapter.connector(self.adapter.options.model_validate(options))

    def inbound(self, number: int, padding: str = "") -> Frame:
        payload = {"number": number + 1, "type": "message", "from": "agent", "text": f"{number}{padding}"}
        return Frame("events", payload)

    def outbound(self, number: int, padding: str = "") -> Frame:
        return Frame("messages", {"type": "message", "text": f"{number}{padding}"})


# Broken links --------------------------------------------------------------------------------------------------


class Passing:
    """A receiver that passes everything on; the broken ones below forget something."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        self.receiver.frame(frame, cursor)

    def caught_up(self, *, starting: bool | None = False) -> None:
        self.receiver.caught_up(starting=starting)


class WithoutHistory(Passing):
    """Passes on live events only."""

    is_live = False

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        if self.is_live:
            super().frame(frame, cursor)

    def caught_up(self, *, starting: bool | None = False) -> None:
        self.is_live = True
        super().caught_up(starting=starting)


class HistoryAfterwards(Passing):
    """Says that it has caught up before it passes the history on."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
        receiver.caught_up()

    def caught_up(self, *, starting: bool | None = False) -> None:
        pass


class WithoutCursor(Passing):
    """Passes no place to resume at."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        del cursor
        super().frame(frame)


class CursorAhead(Passing):
    """Passes the cursor of the next message, which may never come."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        super().frame(frame, None if cursor is None else str(int(cursor) + 1))


class Repeating(skeleton.link.PigeonLink):
    """Knows no repeats."""

    @property
    def _newest(self) -> int:
        return 0

    @_newest.setter
    def _newest(self, number: int) -> None:
        pass


class SkipsEarly(Passing):
    """Loses live events that came while it read the history: here, each second one."""

    count = 0

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        self.count += 1
        if self.count % 2:
            super().frame(frame, cursor)


class ChangedLink:
    """A link whose receipts differ."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        return self.change(await self.link.send_all(frames))

    def change(self, receipt: Receipt) -> Receipt:
        return receipt

    async def prove(self) -> None:
        await self.link.prove()

    async def wait_closed(self) -> str:
        return await self.link.wait_closed()


class AlwaysDelivered(ChangedLink):
    """Reads no answer."""

    def change(self, receipt: Receipt) -> Receipt:
        return replace(receipt, state="delivered")


class OnlySent(ChangedLink):
    """Leaves delivery to a rule that its protocol does not have."""

    def change(self, receipt: Receipt) -> Receipt:
        return Receipt("sent") if receipt.state == "delivered" else receipt


class BusyIsRefused(ChangedLink):
    """Gives a message up that only has to wait for the end of the turn."""

    def change(self, receipt: Receipt) -> Receipt:
        return Receipt("refused", receipt.reason) if receipt.state == "busy" else receipt


class WithoutReason(ChangedLink):
    """Says no, and not why."""

    def change(self, receipt: Receipt) -> Receipt:
        return Receipt(receipt.state)


class ClosedByRefusal(ChangedLink):
    """Fails after the first rejected frame."""

    is_broken = False

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        if self.is_broken:
            return Receipt("refused", "an earlier frame was rejected")
        receipt = await super().send_all(frames)
        self.is_broken = receipt.state != "delivered"
        return receipt


class CountedAsUnsent(ChangedLink):
    """Counts a message whose response is missing as never sent."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        try:
            return await super().send_all(frames)
        except LinkLost as exc:
            raise LinkLost(str(exc), unsent=True) from exc


class CountedAsDelivered(ChangedLink):
    """Counts a message whose response is missing as delivered."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        try:
            return await super().send_all(frames)
        except LinkLost:
            return Receipt("delivered")


class KeyRefusalIsRejection(ChangedLink):
    """Takes the refusal of its key for that of the message."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        try:
            return await super().send_all(frames)
        except LinkLost as exc:
            return Receipt("refused", str(exc))


class NeverGivesUp(ChangedLink):
    """Ignores the time limit of a send."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        try:
            return await super().send_all(frames)
        except LinkLost:
            await asyncio.Event().wait()
            raise


class QuotesKey(ChangedLink):
    """Shows the key in its errors."""

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        try:
            return await super().send_all(frames)
        except LinkLost as exc:
            raise LinkLost(f"{exc} (api_key={skeleton.peer.KEY})", unsent=exc.unsent) from exc

    async def wait_closed(self) -> str:
        return f"{await super().wait_closed()} (api_key={skeleton.peer.KEY})"


class NeverProves(ChangedLink):
    """Takes the writing of a frame for its proof."""

    async def prove(self) -> None:
        pass


class WithoutErrors(Passing):
    """Keeps errors of the runtime to itself."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        payload: Any = frame.payload
        if payload.get("type") != "error":
            super().frame(frame, cursor)


@dataclass(frozen=True)
class ChangedCodec:
    """A codec whose drafts differ."""

    codec: Codec
    changes: dict[str, Any]

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        return tuple(replace(draft, **self.changes) for draft in self.codec.decode(frame))

    def encode(self, item: Draft | Envelope) -> Encoded:
        return self.codec.encode(item)


class Broken:
    """An adapter with one fault."""

    def __init__(
        self,
        adapter: Any = GOOD,
        *,
        receiver: type[Passing] = Passing,
        link: type[ChangedLink] = ChangedLink,
        drafts: dict[str, Any] | None = None,
        forgets_cursor: bool = False,
    ) -> None:
        self._adapter = adapter
        self._receiver, self._link = receiver, link
        self._drafts, self._forgets_cursor = drafts or {}, forgets_cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def codec(self, options: Any = None) -> Codec:
        return ChangedCodec(self._adapter.codec(options), self._drafts)

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Any]:
        async with self._adapter.connector(options) as connector:
            self._connector = connector
            yield self

    @asynccontextmanager
    async def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AsyncGenerator[Any]:
        after = None if self._forgets_cursor else resume_after
        async with self._connector.connect(native_id, self._receiver(receiver), resume_after=after) as link:
            yield self._link(link)


HISTORY = "test_history_is_passed_on_before_the_link_has_caught_up"
TWICE = "test_a_message_that_comes_twice_is_passed_on_once"
MEANWHILE = "test_messages_during_the_connection_are_neither_lost_nor_doubled"
CURSOR = "test_a_cursor_resumes_after_its_message"
BEGINS = "test_a_resumed_link_starts_at_its_cursor"
ECHO = "test_an_echo_of_our_message_is_marked"
REJECTED = "test_a_rejected_frame_is_not_delivered"
BUSY = "test_a_busy_runtime_gets_the_message_again_after_its_turn"
LEAVE = "test_frames_are_sent_unchanged_and_in_order"

BREAKS = "test_a_send_whose_connection_breaks_may_have_arrived"
HANGS = "test_a_send_without_a_response_may_have_arrived"
UNAUTHORIZED = "test_a_send_that_is_answered_401_is_not_rejected_for_good"
DROPPED = "test_a_dropped_connection_ends_the_link_with_a_reason"

BROKEN: dict[str, tuple[Any, str, str]] = {
    "history never read": (Broken(receiver=WithoutHistory), HISTORY, "passed 0 on .* read the history in `connect`"),
    "history after caught_up": (Broken(receiver=HistoryAfterwards), HISTORY, "then call `receiver.caught_up"),
    "early events lost": (Broken(receiver=SkipsEarly), MEANWHILE, r"was lost: start to listen before you read"),
    "no cursor": (Broken(receiver=WithoutCursor), CURSOR, r"without a cursor.*`receiver.frame\(frame, cursor\)`"),
    "cursor ahead": (Broken(receiver=CursorAhead), CURSOR, "a cursor may only advance past messages that were passed"),
    "cursor not used": (Broken(forgets_cursor=True), BEGINS, "passed 20 known messages on again.* use `resume_after`"),
    "echo not marked": (Broken(drafts={"echo": False}), ECHO, "no draft of it has `echo=True`.*`Codec.decode`"),
    "echo without id": (Broken(drafts={"native_id": None}), ECHO, "set `native_id`"),
    "refusal delivered": (Broken(link=AlwaysDelivered), REJECTED, r"is `delivered`: read the response.*'refused'"),
    "refusal without reason": (Broken(link=WithoutReason), REJECTED, "needs a reason"),
    "refusal ends the link": (Broken(link=ClosedByRefusal), REJECTED, "must not block the next one"),
    "busy refused": (Broken(link=BusyIsRefused), BUSY, r"is 'refused': return Receipt\('busy', reason\)"),
    "broken send unsent": (Broken(link=CountedAsUnsent), BREAKS, "raise LinkLost without `unsent`"),
    "broken send delivered": (Broken(link=CountedAsDelivered), BREAKS, "raise LinkLost without `unsent`"),
    "hanging send unsent": (Broken(link=CountedAsUnsent), HANGS, "raise LinkLost without `unsent`"),
    "no limit of a send": (Broken(link=NeverGivesUp), HANGS, "give each send a time limit"),
    "401 is a rejection": (Broken(link=KeyRefusalIsRejection), UNAUTHORIZED, "the key was refused, not the frame"),
    "key in a lost send": (Broken(link=QuotesKey), BREAKS, "an error quotes the key"),
    "key in a refusal": (Broken(link=QuotesKey), UNAUTHORIZED, "an error quotes the key"),
    "key in a reason": (Broken(link=QuotesKey), DROPPED, "an error quotes the key"),
    "accepted and only sent": (Broken(link=OnlySent), LEAVE, "gets the receipt 'delivered'"),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_the_suite_fails_on_a_broken_link_and_names_fault_and_fix(fault: str) -> None:
    adapter, test, message = BROKEN[fault]
    with pytest.raises((AssertionError, pytest.fail.Exception)) as failure:
        await getattr(SkeletonLinks(adapter), test)()
    assert re.search(message, str(failure.value), re.DOTALL), str(failure.value)


async def test_the_suite_fails_on_a_link_that_passes_repeats_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton.link, "PigeonLink", Repeating)
    with pytest.raises(AssertionError, match=r"passed 6 frames on for 4 messages: .* drop a message with a known id"):
        await SkeletonLinks().test_a_message_that_comes_twice_is_passed_on_once()


async def test_a_repeat_behind_a_cursor_needs_an_id() -> None:
    class Overlapping(SkeletonLinks):
        overlap = 20

        def store(self, peer: Peer, *numbers: int) -> list[Frame]:
            return super().store(peer, *numbers[:20])

    suite = Overlapping(cast("Any", Broken(forgets_cursor=True, drafts={"native_id": None})))
    with pytest.raises(AssertionError, match=r"recorded twice: set `Draft\.native_id` in the codec"):
        await suite.test_a_resumed_link_starts_at_its_cursor()


@pytest.mark.parametrize("fault", ["swallowed", "delivered"])
async def test_where_silence_delivers_an_error_must_be_passed_on(fault: str) -> None:
    class Links(HumaLinks):
        sends = 20

    suite = Links()
    if fault == "swallowed":
        suite.adapter = cast("Any", Broken(HUMA_0_2, receiver=WithoutErrors))
        with pytest.raises(pytest.fail.Exception, match="pass the error on as a frame"):
            await suite.test_a_rejected_frame_is_not_delivered()
    else:
        suite.adapter = cast("Any", Broken(HUMA_0_2, link=AlwaysDelivered))
        with pytest.raises(AssertionError, match="gets the receipt 'sent'"):
            await suite.test_frames_are_sent_unchanged_and_in_order()


@pytest.mark.parametrize(
    ("suite", "link", "test"),
    [
        (HumaLinks, NeverProves, HANGS),
        (OpenHandsLinks, AlwaysDelivered, HANGS),
        (OpenHandsLinks, CountedAsDelivered, BREAKS),
        (OpenHandsLinks, CountedAsUnsent, BREAKS),
    ],
)
async def test_a_frame_without_an_answer_is_open_on_a_socket_too(
    suite: type[LinkSuite], link: type[ChangedLink], test: str
) -> None:
    broken = suite()
    broken.adapter = cast("Any", Broken(suite.adapter, link=link))
    with pytest.raises(AssertionError, match="the runtime did not answer the frame"):
        await getattr(broken, test)()


@pytest.mark.parametrize("test", sorted({test for _, test, _ in BROKEN.values()} | {TWICE}))
async def test_a_link_without_a_fault_passes(test: str) -> None:
    await getattr(SkeletonLinks(), test)()
    await getattr(SkeletonLinks(cast("Any", Broken())), test)()


async def test_a_rejection_may_also_end_the_link() -> None:
    class Lost(ChangedLink):
        def change(self, receipt: Receipt) -> Receipt:
            if receipt.state == "refused":
                raise LinkLost("rejected", unsent=True)
            return receipt

    await SkeletonLinks(cast("Any", Broken(link=Lost))).test_a_rejected_frame_is_not_delivered()


@pytest.mark.parametrize(
    ("echo", "echoes", "message"),
    [(False, True, "no vector is read with `echo=True`: mark"), (True, False, "lack `echoes`.*set both")],
)
def test_the_suite_for_codecs_fails_where_echoes_and_capabilities_differ(
    echo: bool, echoes: bool, message: str
) -> None:
    class Codecs(CodecSuite):
        vectors = skeleton.TEMPLATE / "tests/vectors"

    able = replace(GOOD.capabilities, echoes=echoes)
    suite = Codecs()
    suite.adapter = cast("Any", Broken(replace(GOOD, capabilities=able), drafts={"echo": echo}))
    with pytest.raises(AssertionError, match=message):
        suite.test_echoes_are_marked_where_the_runtime_sends_them()
