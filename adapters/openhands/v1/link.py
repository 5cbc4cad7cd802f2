"""One live connection to one conversation: its socket, its stored events, and its posts."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from adapters.openhands.v1 import wire
from adapters.openhands.v1.history import CursorLost, StoredEvents
from adapters.openhands.v1.posting import Posting
from adapters.openhands.v1.server import Conversation
from adapters.openhands.v1.state import ConversationState
from gateway.adapter.port import LARGEST_FRAME, Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.events.frozen import frozen
from gateway.guard import Tasks, guard_call, spawn
from gateway.links import json
from gateway.links.end import LinkEnd
from gateway.links.frame_memory import FRAMES, SMALL
from gateway.links.http_session import describe, refusal_of
from gateway.strict_json import Malformed

_CLOSING = 2.0
"""Seconds for the closing handshake of the socket."""
_NORMAL, _VIOLATION = 1000, 1008
_RESUME_SECRET = b"acp_session_id"
_TRANSIENT = frozenset({408, 425, 429})
_UNRUN = "/run"
"""Ends a cursor after which a stored message of ours must still be run."""
_MOST_UNSEEN = 100


@frozen
class Place:
    """A place in the store: the index and the id of the last event; its text is the cursor."""

    sequence: int | None = None
    event_id: str | None = None

    @classmethod
    def read(cls, cursor: str | None) -> "Place":
        """Read a cursor, of a session socket (`7:id`) or of an events socket (`id`)."""
        if cursor is None:
            return cls()
        number, colon, event_id = cursor.partition(":")
        return cls(int(number), event_id) if colon and number.isdecimal() else cls(None, cursor)

    def __str__(self) -> str:
        return f"{self.event_id}" if self.sequence is None else f"{self.sequence}:{self.event_id}"


@frozen
class _End:
    """The end of one socket; `by_pages` if the stored events must be read before the next one."""

    reason: str
    by_pages: bool = False


@asynccontextmanager
async def open_link(
    conversation: Conversation, session: aiohttp.ClientSession, receiver: Receiver, cursor: str | None
) -> AsyncGenerator["AgentServerLink"]:
    """Connect, pass on the stored events after the cursor, then the live ones.

    Raises:
        LinkLost, LinkRefused: on entering.
    """
    link = AgentServerLink(conversation, session, receiver, cursor)
    async with Tasks() as tasks:
        try:
            await link.catch_up()
            if link.is_unrun:
                spawn("openhands v1 run", link.run_stored(), tasks)
            reading = spawn("openhands v1 link", link.follow(), tasks)
            reading.add_done_callback(guard_call("openhands v1 link", link.note_read))
            yield link
        finally:
            link.ended.come("closed by us")
            await tasks.close()
            link.keep_unseen()
            await link.close()


class AgentServerLink:
    """Implements `gateway.adapter.port.Link`."""

    def __init__(
        self, conversation: Conversation, session: aiohttp.ClientSession, receiver: Receiver, cursor: str | None
    ) -> None:
        self._server = conversation.server
        self._native_id = conversation.native_id
        self._within = conversation.within.total_seconds()
        self._tuning = conversation.tuning
        self._session = session
        self._receiver = receiver
        self._channel = wire.SESSION if self._server.version >= wire.SEQUENCED else wire.EVENTS
        is_unrun = cursor is not None and cursor.endswith(_UNRUN)
        place = Place.read(cursor and cursor.removesuffix(_UNRUN))
        if self._channel == wire.EVENTS:
            place = Place(None, place.event_id)
        elif place.sequence is None:
            # A place of an older server has no index; the gateway knows the ids of what is read again.
            place = Place()
        self._place = place
        self._history = StoredEvents(conversation)
        self._unseen = conversation.unseen
        self._state = ConversationState(is_unrun=is_unrun, unseen=self._unseen.take(self._native_id) or ())
        self._posting = Posting(conversation, self._history, self._state, lambda: self._place.event_id)
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self._opened_after = -1
        """The index after which the present socket replays."""
        self._is_heard = False
        """Whether the present socket has sent anything; a running tool keeps it silent (OV13)."""
        self._through: int | None = None
        """The index of the last stored event when the socket began."""
        self._is_caught_up = False
        self._paged_at: Place | None = None
        """The place up to which the last repair has read."""
        self._ids: set[str] = set()
        self._ids_in_order: deque[str] = deque()
        self.ended = LinkEnd("openhands v1 link")

    # The socket ------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Connect and pass on the stored events.

        Raises:
            LinkLost, LinkRefused: the server cannot be reached, or refuses.
        """
        if not await self._history.check(self._place.event_id):
            self._start_again()
        await self._read(until_caught_up=True)

    async def follow(self) -> None:
        """Pass on live events until the connection ends."""
        await self._read(until_caught_up=False)

    async def _read(self, *, until_caught_up: bool) -> None:
        while True:
            socket = self._socket or await self._open()
            end = await self._read_socket(socket, until_caught_up=until_caught_up)
            if end is None:
                return
            await self.close()
            if not end.by_pages:
                raise LinkLost(end.reason)
            await self._fill()
            if self._paged_at == self._place:
                # The next socket would end the same way.
                raise LinkLost(end.reason)
            self._paged_at = self._place

    async def _open(self) -> "aiohttp.ClientWebSocketResponse[bool]":
        """Open the socket and authenticate in its first frame, so that no log shows the key (OV5)."""
        self._opened_after = self._sequence
        query = {"after_seq": str(self._sequence)} if self._channel == wire.SESSION else {}
        path = wire.socket_path(self._channel, self._native_id)
        failure: LinkLost | LinkRefused
        try:
            async with asyncio.timeout(self._within):
                socket = await self._session.ws_connect(
                    f"{self._server.url}{path}",
                    params=query,
                    decode_text=False,
                    heartbeat=self._tuning.ping,
                    max_msg_size=LARGEST_FRAME,
                )
                self._socket, self._is_heard, self._through = socket, False, None
                await socket.send_str(json.dumps(wire.auth(self._server.key)))
                return socket
        except TimeoutError:
            failure = LinkLost(f"no connection within {self._within:g} s")
        except aiohttp.WSServerHandshakeError as exc:
            failure = self._refusal_of(exc.status, f"GET {self._server.url}{path}: HTTP {exc.status}")
        except (aiohttp.ClientError, OSError) as exc:
            failure = refusal_of(exc) or LinkLost(self._server.rest.mask(describe(exc))[:300])
        # Raised outside the handlers, so that no chained exception contains the request.
        raise failure

    def _refusal_of(self, status: int, where: str) -> LinkLost | LinkRefused:
        """Convert the status of a refused handshake; the key comes later and is not its cause (OV6)."""
        where = self._server.rest.mask(f"{where} to the WebSocket handshake")
        if status >= 500 or status in _TRANSIENT:
            return LinkLost(where)
        if status == 401:
            return LinkRefused("UNAUTHORIZED", where, terminal=True)
        return LinkRefused("NO_WEBSOCKET", f"{where}; a proxy in front of the server may not pass it on", terminal=True)

    async def _read_socket(
        self, socket: "aiohttp.ClientWebSocketResponse[bool]", *, until_caught_up: bool
    ) -> _End | None:
        """Read the socket to its end; return None once the link has caught up, if that is awaited."""
        while not (until_caught_up and self._is_caught_up):
            is_waiting = not self._is_heard or not self._is_caught_up
            try:
                # Not assigned: a large message must not stay here until the next one arrives.
                end = await self._handle(
                    await socket.receive(self._tuning.first_frame if is_waiting else self._tuning.quiet)
                )
            except TimeoutError:
                await self._note_silence()
                continue
            except (aiohttp.ClientError, OSError) as exc:
                return _End(self._server.rest.mask(describe(exc)))
            if end is not None:
                return end
        return None

    async def _note_silence(self) -> None:
        """Read pages while a tool keeps the socket silent; ask whether a quiet conversation still exists."""
        if self._is_heard and self._is_caught_up:
            # The pings tell whether the server lives.
            with suppress(LinkLost):
                await self._history.exists()
            return
        await self._fill()
        self._note_caught_up()

    async def _handle(self, message: Any) -> _End | None:
        match message.type:
            case WSMsgType.TEXT:
                return await self._handle_text(message.data)
            case WSMsgType.BINARY:
                self._receiver.frame(Frame(self._channel, Malformed("a binary message, which the protocol lacks")))
                return None
            case WSMsgType.CLOSE:
                return self._read_close(message.data, message.extra)
            case WSMsgType.ERROR:
                # A frame over the limit of the gateway ends the connection.
                is_large = getattr(message.data, "code", None) == wire.CLOSE_TOO_LARGE
                return _End(f"the connection broke: {type(message.data).__name__}", by_pages=is_large)
            case _:
                return _End("the connection broke")

    def _read_close(self, code: object, reason: object) -> _End:
        """Decide about the end by its code (OV7).

        Raises:
            LinkRefused: another connection would be refused, too.
        """
        words = self._server.rest.mask(f"the server closed the connection ({code} {reason or ''}".rstrip() + ")")[:300]
        match code:
            case wire.CLOSE_UNAUTHORIZED:
                raise LinkRefused("UNAUTHORIZED", words, terminal=True)
            case wire.CLOSE_UNKNOWN | 1008:
                raise LinkRefused("NO_CONVERSATION", words, terminal=True)
            case wire.CLOSE_LATER if reason == wire.FRAME_TOO_LARGE:
                # The socket would end again at the same event (OV20).
                return _End(words, by_pages=True)
            case 1000:
                # A proxy may hide the code of the server behind this one (OV65).
                return _End(words, by_pages=True)
            case _:
                return _End(words)

    # Receiving -------------------------------------------------------------------------------------------

    async def _handle_text(self, content: bytes) -> _End | None:
        if len(content) > SMALL:
            # Meanwhile nothing more is read from this server, so TCP slows it down.
            await FRAMES.get().wait_capacity(len(content))
        payload, written = json.read_frame(content)
        is_first, self._is_heard = not self._is_heard, True
        frame = Frame(self._channel, payload, len(content), written)
        if (reason := FRAMES.get().why_rejected(len(content))) is not None:
            frame = Frame(self._channel, Malformed(f"the frame {reason}", json.excerpt(content)))
        if isinstance(frame.payload, Malformed) and _RESUME_SECRET in content:
            # Without the excerpt (OV54).
            frame = Frame(self._channel, Malformed(frame.payload.reason))
        if self._channel == wire.SESSION:
            return self._handle_session(payload, frame)
        if is_first:
            # The server has subscribed us; what happened before is in the store.
            await self._fill()
        self._handle_event(payload, frame)
        if is_first:
            self._note_caught_up()
        return None

    def _handle_session(self, payload: Any, frame: Frame) -> _End | None:
        """Handle one frame of the session socket."""
        if (through := wire.through_of(payload)) is not None:
            return self._handle_sync(through)
        event, sequence = wire.event_in(wire.SESSION, payload), wire.sequence_of(payload)
        if sequence is None:
            self._state.observe(event)
            self._pass_live(frame)
            return None
        known, event_id = self._sequence, wire.event_id_of(event)
        if event_id is not None and event_id in self._ids:
            # Pages do not tell the index of an event that follows an unreadable one.
            self._place = Place(sequence, event_id)
        elif sequence > known + 1:
            return _End(f"the server left out events between {known} and {sequence}", by_pages=True)
        elif sequence > known:
            self._pass_stored(event, event_id, frame)
        if self._through is not None and sequence >= self._through:
            self._note_caught_up()
        return None

    def _handle_sync(self, through: int) -> _End | None:
        if through < self._opened_after:
            # The conversation was deleted and made again.
            self._start_again()
            return _End("the conversation begins again", by_pages=True)
        self._through = through
        if through <= self._sequence:
            self._note_caught_up()
        return None

    def _start_again(self) -> None:
        self._place, self._state.is_unrun = Place(), False

    @property
    def _sequence(self) -> int:
        """The index of the last event that was passed on; -1 without any."""
        return -1 if self._place.sequence is None else self._place.sequence

    def _handle_event(self, event: Any, frame: Frame) -> None:
        """Handle one event of the events socket."""
        event_id = wire.event_id_of(event)
        if event_id is None or not is_stored(event):
            self._state.observe(event)
            self._pass_live(frame)
        elif event_id not in self._ids:
            self._pass_stored(event, event_id, frame)

    def _pass_live(self, frame: Frame) -> None:
        is_live = not isinstance(frame.payload, Malformed)
        self._receiver.frame(Frame(frame.channel, frame.payload, frame.size, frame.written, live=is_live))

    def _pass_stored(self, event: Any, event_id: str | None, frame: Frame) -> None:
        """Pass on a stored event with its place, which covers every earlier one."""
        sequence, cursor = self._sequence + 1 if self._channel == wire.SESSION else None, None
        self._place = Place(sequence, event_id or self._place.event_id)
        self._state.observe(event)
        if event_id is not None:
            self._remember(event_id)
            cursor = f"{self._place}{_UNRUN if self._state.is_unrun else ''}"
        self._receiver.frame(frame, cursor)

    def _remember(self, event_id: str) -> None:
        self._ids.add(event_id)
        self._ids_in_order.append(event_id)
        if len(self._ids) > self._tuning.ids:
            self._ids.discard(self._ids_in_order.popleft())

    async def _fill(self) -> None:
        """Pass on the stored events after the place, page by page.

        Raises:
            LinkLost, LinkRefused: the pages cannot be read; those before have been passed on.
        """
        try:
            await self._list()
        except CursorLost:
            self._start_again()
            await self._list()

    async def _list(self) -> None:
        async with aclosing(self._history.after(self._place.event_id)) as events:
            async for event in events:
                event_id = wire.event_id_of(event)
                if event_id is not None and event_id in self._ids:
                    continue
                payload = event
                if self._channel == wire.SESSION and not isinstance(event, Malformed):
                    payload = {"type": wire.DURABLE, "seq": self._sequence + 1, "event": event}
                self._pass_stored(event, event_id, Frame(self._channel, payload))

    def _note_caught_up(self) -> None:
        if not self._is_caught_up:
            self._is_caught_up = True
            self._state.forget_unseen()
            self._receiver.caught_up()

    # Sending ---------------------------------------------------------------------------------------------

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        """Post the frames of one event."""
        self.ended.check_open()
        try:
            return await self._posting.send_all(frames)
        except LinkLost as exc:
            # The next link reads what the server has stored before anything is sent again.
            self.ended.come(str(exc))
            raise

    @property
    def is_unrun(self) -> bool:
        """Whether a message that an earlier link has stored must still be run."""
        return self._state.is_unrun

    async def run_stored(self) -> None:
        """Let the agent work on that message once its snapshot has shown that it is at rest (OV34)."""
        await self._state.wait_until(lambda: self._state.is_settled, None)
        try:
            await self._posting.run_stored()
        except LinkLost as exc:
            self.ended.come(str(exc))

    def keep_unseen(self) -> None:
        """Leave the messages without an echo to the next link."""
        if unseen := self._state.unseen[-_MOST_UNSEEN:]:
            self._unseen.put(self._native_id, unseen)

    async def prove(self) -> None:
        """Return at once while the link is up: each post has had its response."""
        self.ended.check_open()

    # The end ---------------------------------------------------------------------------------------------

    def note_read(self, reading: "asyncio.Future[None]") -> None:
        """Mark the connection as ended when reading has ended."""
        self.ended.note_reading(reading, otherwise="closed by us")

    async def wait_closed(self) -> str:
        """Wait until the connection has ended and return the reason."""
        return await self.ended.wait()

    async def close(self) -> None:
        """Close the socket, if one is open."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await socket.close()


def is_stored(event: Any) -> bool:
    """Whether an event of the events socket is in the store (OV22)."""
    match event:
        case {"kind": wire.STREAMING_DELTA | wire.SERVER_ERROR}:
            return False
        case _:
            return not wire.is_full_state(event)
