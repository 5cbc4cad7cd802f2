"""One live connection to one Herm session: stream, history and posts, without gaps or duplicates."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager

from adapters.herm import wire
from adapters.herm.history import Event, History, read_history
from adapters.herm.options import HermOptions
from adapters.herm.posting import body_of, receipt_for
from adapters.herm.tuning import HermTuning
from gateway.adapter.port import Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.guard import Tasks, guard_call, spawn
from gateway.links import json
from gateway.links.end import LinkEnd
from gateway.links.frame_memory import FRAMES
from gateway.links.rest import RestClient
from gateway.links.sse import SseStream, open_events
from gateway.strict_json import Malformed

MOST_JUMP = 1_000_000
"""Largest step of the cursor: one absurd sequence must not hide the following events."""
_IGNORED = frozenset({"[DONE]"})


@asynccontextmanager
async def open_link(
    client: RestClient,
    receiver: Receiver,
    *,
    paths: tuple[str, str],
    options: HermOptions,
    tuning: HermTuning,
    after: int | None,
) -> AsyncGenerator["HermLink"]:
    """Open the stream, read the history, then pass on live events; `paths` are those of the events and the stream.

    Raises:
        LinkLost, LinkRefused: on entering; no frame was passed on unless the whole history was read.
    """
    events_path, stream_path = paths
    headers = {options.resume_header: str(after)} if options.resume_header and after is not None else {}
    async with open_events(
        client,
        stream_path,
        headers=headers,
        within=options.connect_timeout,
        idle=options.idle_timeout,
        largest=min(tuning.event_bytes, FRAMES.get().largest),
    ) as stream:
        link = HermLink(client, receiver, events_path=events_path, options=options, tuning=tuning, after=after)
        async with Tasks() as tasks:
            reading = spawn("herm link", link.read(stream), tasks)
            reading.add_done_callback(guard_call("herm link", link.note_read))
            try:
                await link.catch_up()
                yield link
            finally:
                link.ended.come("closed by us")
                await tasks.close()
                link.release_early()


class HermLink:
    """Implements `gateway.adapter.port.Link`."""

    def __init__(
        self,
        client: RestClient,
        receiver: Receiver,
        *,
        events_path: str,
        options: HermOptions,
        tuning: HermTuning,
        after: int | None,
    ) -> None:
        self._client = client
        self._receiver = receiver
        self._path = events_path
        self._options = options
        self._tuning = tuning
        self._resumed_after = after
        self._durable = -1 if after is None else after
        """The highest sequence of a durable event: the cursor."""
        self._highest = self._durable
        """The highest sequence of all events, to detect a gap."""
        self._ids: set[str] = set()
        self._ids_in_order: deque[str] = deque()
        self._early: deque[Event] = deque()
        self._early_bytes = 0
        self._memory = FRAMES.get()
        self._is_live = asyncio.Event()
        self._has_checked = False
        self._sending = asyncio.Lock()
        self.ended = LinkEnd("herm link")

    # Receiving -------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Pass on the stored history, call `caught_up`, then pass on the buffered events.

        Raises:
            LinkLost, LinkRefused: the history cannot be read.
        """
        after = self._resumed_after
        history = await self._read_history(after)
        if after is not None and history.highest < after and self._options.after_parameter is None:
            # The cursor no longer exists: the sequences started again, or it never belonged to this session.
            self._resumed_after, self._durable, self._highest = None, -1, -1
            history = await self._read_history(None)
        for event in history.events:
            self._pass_on(event)
        # Remember them after the events, which must count as new.
        for event_id in history.ids:
            self._remember(event_id)
        self._receiver.caught_up()
        while self._early:
            await self._handle_event(self._early.popleft())
        self.release_early()
        self._is_live.set()

    def release_early(self) -> None:
        """Release the memory of the events that arrived before the history was read."""
        held, self._early_bytes = self._early_bytes, 0
        self._memory.release(held)

    async def _read_history(self, after: int | None) -> History:
        largest = self._tuning.history_bytes
        return await read_history(self._client, self._path, options=self._options, after=after, largest=largest)

    async def read(self, stream: SseStream) -> None:
        """Read the stream to its end."""
        tuning = self._tuning
        async with aclosing(stream.texts()) as texts:
            async for text in texts:
                event = _read_event(text, is_cut=stream.is_cut)
                if event is None:
                    continue
                wire.check_protocol(event.payload)
                if self._is_live.is_set():
                    await self._handle_event(event)
                    continue
                self._early.append(event)
                self._early_bytes += len(text)
                self._memory.hold(len(text))
                full = len(self._early) >= tuning.buffered or self._early_bytes >= tuning.buffered_bytes
                if full or not self._memory.has_capacity(self._memory.largest):
                    await self._is_live.wait()

    async def _handle_event(self, event: Event) -> None:
        """Pass on one event of the stream, except duplicates and outdated deltas."""
        place = event.place
        if self._is_known(place):
            return
        if place.is_live:
            # A chunk of a message that is already complete.
            if place.is_delta and place.sequence is not None and place.sequence <= self._durable:
                return
        elif place.sequence is not None and self._has_gap(place.sequence):
            await self._fill_gap(place.sequence)
        self._pass_on(event)

    def _is_known(self, place: wire.Place) -> bool:
        if place.event_id is not None and place.event_id in self._ids:
            return True
        # If the list started after this event, its id is unknown but the event is recorded.
        after = self._resumed_after
        return not place.is_live and after is not None and place.sequence is not None and place.sequence <= after

    def _has_gap(self, sequence: int) -> bool:
        """Whether the first durable live event leaves a gap: the stream may have started after the list ended."""
        if self._has_checked:
            return False
        self._has_checked = True
        return sequence > self._highest + 1

    async def _fill_gap(self, before: int) -> None:
        """Pass on the listed events before a live one; the stream delivers those after it."""
        after = self._durable if self._durable >= 0 else None
        history = await self._read_history(after)
        for event in history.events:
            place = event.place
            if place.sequence is not None and place.sequence < before and place.event_id not in self._ids:
                self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        place = event.place
        cursor: str | None = None
        if place.event_id is not None:
            self._remember(place.event_id)
        if place.sequence is not None and (self._highest < 0 or place.sequence <= self._highest + MOST_JUMP):
            self._highest = max(self._highest, place.sequence)
            if not place.is_live:
                self._durable = max(self._durable, place.sequence)
                cursor = str(self._durable)
        payload = wire.without_secrets(event.payload)
        # The JSON differs from the payload if a secret was removed.
        written = event.written if payload is event.payload else None
        self._receiver.frame(Frame(wire.STREAM, payload, event.size, written, place.is_live), cursor)

    def _remember(self, event_id: str) -> None:
        if event_id in self._ids:
            return
        self._ids.add(event_id)
        # A deque besides the set: finding the oldest key of a dict scans the slots of removed ones.
        self._ids_in_order.append(event_id)
        if len(self._ids) > self._tuning.ids:
            self._ids.discard(self._ids_in_order.popleft())

    # Sending ---------------------------------------------------------------------------------------------

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        """Post the frames one after the other; stop at the first that the server does not accept."""
        receipt = Receipt("delivered")
        async with self._sending:
            for frame in frames:
                receipt = await self._post(frame)
                if receipt.state != "delivered":
                    break
        return receipt

    async def _post(self, frame: Frame) -> Receipt:
        kind = wire.event_type_of(frame.payload)
        if frame.channel != wire.EVENTS or kind is None:
            return Receipt("refused", "only user.* events can be posted")
        self.ended.check_open()
        options = self._options
        try:
            answer = await self._client.post(
                self._path, body_of(frame.payload, options.body), within=options.send_timeout
            )
            return receipt_for(
                kind,
                answer,
                busy_statuses=options.busy_statuses,
                busy_codes=options.busy_codes,
                mask=self._client.mask,
            )
        except LinkLost as exc:
            # The next link lists the events of the server before it posts again.
            self.ended.come(str(exc))
            raise
        except LinkRefused as exc:
            self.ended.come(str(exc))
            raise LinkLost(str(exc), unsent=True) from exc

    async def prove(self) -> None:
        """Return at once while the link is up: each post has had its response."""
        self.ended.check_open()

    async def wait_closed(self) -> str:
        """Wait until the connection has ended and return the reason."""
        return await self.ended.wait()

    def note_read(self, reading: "asyncio.Future[None]") -> None:
        """Mark the connection as ended when the stream has ended."""
        self.ended.note_reading(reading, otherwise="the server ended the stream")


def _read_event(text: str, *, is_cut: bool) -> Event | None:
    """Parse the data of one event; None for a keepalive."""
    if text.strip() in _IGNORED:
        return None
    if is_cut:
        reason = f"the frame has more than {FRAMES.get().largest:,} bytes (limits.frame)"
        payload, written = Malformed(reason, json.excerpt(text)), None
    else:
        payload, written = json.read_frame(text)
    if isinstance(payload, Malformed) and any(word in text for word in wire.SECRET_WORDS):
        payload = Malformed(payload.reason)
    return Event(payload, wire.place_of(payload), len(text), written) if payload != {} else None
