"""One Socket.IO connection: handshake, frames in wire order, pings, acknowledgements and close.

aiohttp runs the websocket. The packet classes of python-engineio and python-socketio read and write every packet but
events (`packet.py`). One task reads and passes each frame on before the next, so TCP slows a fast peer down.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, Literal

import aiohttp
from aiohttp import WSCloseCode, WSMsgType

from gateway.adapter.port import LARGEST_FRAME, Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.guard import Tasks, guard, is_fault
from gateway.links.frame_memory import FRAMES, SMALL
from gateway.links.http_session import describe, refusal_of
from gateway.links.masking import mask_of
from gateway.links.silence import describe_silence
from gateway.links.socketio.packet import (
    RESERVED,
    Arrival,
    read_event,
    refuse_binary,
    refuse_oversized,
    write_event,
)
from gateway.links.socketio.target import Target

# The libraries have no type hints.
_engineio: Any = import_module("engineio.packet")
_socketio: Any = import_module("socketio.packet")

CLOSING = timedelta(seconds=2)
"""How long each part of closing may take before the connection is dropped."""
REFUSAL_CHANNELS = frozenset({"error", "event"})
_LONGEST_SILENCE = 86_400_000
"""Milliseconds; a server that announces less frequent pings must still send one in this time."""
_PARSE_FAULTS = (ValueError, RecursionError)
"""Errors of the packet classes for text that is not a packet."""
_CONTROL = frozenset({b"0", b"1", b"3", b"4"})
"""Socket.IO types CONNECT, DISCONNECT, ACK and CONNECT_ERROR; all others are read as events."""
_TRANSIENT = frozenset({408, 425, 429})
_REFUSING = frozenset({400, 401, 403})
"""Statuses of servers that accept no websocket; uvicorn answers 403 where its application refuses one."""
_SENT = Receipt("sent")

_Answer = asyncio.Future[str | None]
"""A pending answer of the peer: None once it has arrived, otherwise the reason for the end of the link."""


def open_link(target: Target, receiver: Receiver, *, session: aiohttp.ClientSession) -> "SocketLink":
    """Make a link; entering it connects, leaving it closes the connection.

    Raises:
        LinkRefused: on entering; the server rejected us.
        LinkLost: on entering; the server cannot be reached or does not answer.
    """
    return SocketLink(target, receiver, session)


class SocketLink:
    """A live connection; implements `gateway.adapter.port.Link`."""

    def __init__(self, target: Target, receiver: Receiver, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._receiver = receiver
        self._session = session
        self._mask = mask_of(target.secrets)
        self._tasks = Tasks()
        self._socket: aiohttp.ClientWebSocketResponse[Literal[False]] | None = None
        self._writing = asyncio.Lock()
        self._behind = 0
        """The sends that wait for the peer, an acknowledgement or an earlier send."""
        self._patience: float | None = None
        """Seconds without a message of the server that end the link; None before its opening packet."""
        self._max_payload: int | None = None
        """Largest message that the server accepts, if its opening packet says so."""
        loop = asyncio.get_running_loop()
        self._admitted: _Answer = loop.create_future()
        """Done when the server has accepted or refused the namespace, or the connection has ended."""
        self._first_frame: _Answer = loop.create_future()
        """Done when a frame has arrived, or the connection has ended."""
        self._closed: asyncio.Future[str] = loop.create_future()
        """Done with the reason when the connection has ended."""
        self._entered = False
        self._disconnected = False
        self._refusal: LinkRefused | None = None
        self._last: Frame | None = None
        self._acks: dict[int, _Answer] = {}
        self._last_ack = 0
        self._pings: dict[int, _Answer] = {}
        self._last_ping = 0

    # Connecting ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "SocketLink":
        try:
            failure = await self._connect()
            # Raised outside the handlers of `_connect`: a chained exception would quote the URL with its key.
            if failure is not None:
                raise failure
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _connect(self) -> LinkLost | LinkRefused | None:
        """Connect and wait for an early refusal; return the failure instead of raising it."""
        failure: LinkLost | LinkRefused | None = None
        limit = asyncio.timeout(self._target.connect_timeout.total_seconds())
        try:
            async with limit:
                # Without `autoping` aiohttp passes on the pongs that `prove` waits for.
                self._socket = await self._session.ws_connect(
                    self._target.handshake_url(),
                    autoping=False,
                    decode_text=False,
                    max_msg_size=LARGEST_FRAME,
                )
                guard("link", self._read, self._tasks, again=False)
                await self._admitted
            await self._wait_refusal()
        except TimeoutError:
            failure = self._describe_silence()
            if stall := describe_silence(limit, ""):
                failure = LinkLost(stall)
        except aiohttp.WSServerHandshakeError as exc:
            failure = await self._explain_status(exc.status)
        except (aiohttp.ClientError, OSError) as exc:
            failure = refusal_of(exc) or LinkLost(self._mask(describe(exc))[:300])
        self._entered = True
        if failure is None and self._closed.done():
            reason = self._closed.result()
            failure = LinkRefused("DISCONNECTED", reason) if self._disconnected else LinkLost(reason)
        return self._refusal or failure

    async def _wait_refusal(self) -> None:
        """Wait for the first frame or the end, because some servers accept every client and refuse it afterwards."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._target.refusal_grace.total_seconds()):
                await self._first_frame

    def _describe_silence(self) -> LinkLost | LinkRefused:
        seconds = self._target.connect_timeout.total_seconds()
        if self._patience is not None and self._target.silence is not None:
            return LinkRefused("NO_ANSWER", f"no answer within {seconds:g} s: {self._target.silence}")
        return LinkLost(f"no connection within {seconds:g} s")

    async def _explain_status(self, status: int) -> LinkLost | LinkRefused:
        """Read the HTTP status that answered the handshake instead of 101."""
        where = f"GET {self._target.address}: HTTP {status}"
        if status in _REFUSING and await self._offers_polling():
            reason = "the server offers HTTP polling only; allow the transport `websocket`, also in a proxy in front"
            return LinkRefused("NO_WEBSOCKET", f"{where}: {reason}")
        if status in {401, 403}:
            return LinkRefused("UNAUTHORIZED", where, terminal=True)
        where += " to the websocket handshake"
        return LinkLost(where) if status >= 500 or status in _TRANSIENT else LinkRefused(f"HTTP_{status}", where)

    async def _offers_polling(self) -> bool:
        """Ask for a polling session, which a server that refuses a key refuses too."""
        try:
            async with (
                asyncio.timeout(self._target.connect_timeout.total_seconds()),
                self._session.get(self._target.handshake_url("polling")) as response,
            ):
                return _read_engine(await response.content.read(SMALL)).packet_type == _engineio.OPEN
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    # Receiving -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read until the connection has ended."""
        assert self._socket is not None
        try:
            while not self._closed.done():
                # Not assigned: a large message must not stay here until the next one arrives.
                await self._handle(await self._socket.receive(self._patience))
        except LinkLost:
            pass  # A response could not be written, which has ended the link.
        except TimeoutError:
            self.end(f"no message from the server for {self._patience or 0:g} s")
        except (aiohttp.ClientError, OSError) as exc:
            self.end(describe(exc))
        except BaseException as exc:
            if is_fault(exc):
                self.end(f"the link failed inside the gateway ({type(exc).__name__})")
            raise

    async def _handle(self, message: Any) -> None:
        """Handle one message of aiohttp's websocket."""
        match message.type:
            case WSMsgType.TEXT:
                await self._handle_text(message.data)
            case WSMsgType.PING:
                await self._write(message.data, WSMsgType.PONG)
            case WSMsgType.PONG:
                self._handle_pong(message.data)
            case WSMsgType.BINARY:
                self._deliver(refuse_binary(message.data))
            case WSMsgType.ERROR:
                if getattr(message.data, "code", None) == WSCloseCode.MESSAGE_TOO_BIG:
                    self._deliver(refuse_oversized(LARGEST_FRAME))
                self.end(f"the connection broke: {type(message.data).__name__}")
            case _:
                code = self._socket.close_code if self._socket is not None else None
                self._note_disconnect(f"the server closed the connection ({code})")

    async def _handle_text(self, content: bytes) -> None:
        """Handle one Engine.IO packet."""
        if self._patience is None:
            self._read_opening(content)
            await self._write(_message(_socketio.CONNECT, data={}))
        elif not content.startswith(b"4"):
            await self._handle_engine(content)
        elif content[1:2] in _CONTROL:
            self._handle_control(content[1:])
        else:
            if len(content) > SMALL:
                # Meanwhile nothing more is read from this peer, so TCP slows it down.
                await FRAMES.get().wait_capacity(len(content))
            arrival = read_event(content)
            self._deliver(arrival)
            if arrival.ack is not None:
                await self._write(_message(_socketio.ACK, data=[], id=int(arrival.ack)))

    def _read_opening(self, content: bytes) -> None:
        """Read the opening packet.

        Raises:
            LinkLost: it is another packet, or does not say how often the server pings.
        """
        opening = _read_engine(content)
        match opening.packet_type, opening.data:
            case _engineio.OPEN, {
                "pingInterval": int() | float() as interval,
                "pingTimeout": int() | float() as timeout,
            } if interval + timeout > 0:
                self._patience = min(interval + timeout, _LONGEST_SILENCE) / 1000
            case _:
                self.end("the server's first message is not an Engine.IO opening")
                raise LinkLost(self._closed.result())
        match opening.data:
            case {"maxPayload": int(most)} if most > 0:
                self._max_payload = most
            case _:
                pass

    async def _handle_engine(self, content: bytes) -> None:
        packet = _read_engine(content)
        if packet.packet_type == _engineio.PING:
            await self._write(_engine(_engineio.PONG, packet.data))
        elif packet.packet_type == _engineio.CLOSE:
            self._note_disconnect("the server ended the session")

    def _handle_control(self, content: bytes) -> None:
        """Handle a Socket.IO packet that is not an event; ignore other namespaces."""
        packet = _read_control(content)
        if packet.namespace not in {None, "/"}:
            return
        if packet.packet_type == _socketio.CONNECT:
            _resolve(self._admitted, None)
        elif packet.packet_type == _socketio.DISCONNECT:
            self._note_disconnect("the server ended the session")
        elif packet.packet_type == _socketio.ACK:
            _resolve(self._acks.get(packet.id), None)
        elif not self._entered:
            self._handle_connect_error(packet.data)

    def _handle_connect_error(self, data: object) -> None:
        known = self._target.read_refusal(data) if self._target.read_refusal is not None else None
        if known is not None:
            self._refuse(known[0], known[1], terminal=known[2])
        elif (code := find_code(data, self._target.terminal_codes)) is not None:
            self._refuse(code, _message_of(data), terminal=True)
        else:
            self._refuse("REFUSED", _message_of(data))
        _resolve(self._admitted, None)

    def _refuse(self, code: str, detail: str, *, terminal: bool = False) -> None:
        """Record a refusal; the first one is kept."""
        if self._refusal is None:
            detail = "" if detail == code else self._mask(detail)[:300]
            self._refusal = LinkRefused(code, detail, terminal=terminal)

    def _deliver(self, arrival: Arrival) -> None:
        """Pass the frames of one packet to the receiver."""
        for frame in arrival.frames:
            if not self._entered:
                code = find_code(frame.payload, self._target.terminal_codes)
                if frame.channel in REFUSAL_CHANNELS and code is not None:
                    self._refuse(code, _message_of(frame.payload), terminal=True)
                _resolve(self._first_frame, None)
            last, self._last = self._last, frame
            if last is not None and last.channel != frame.channel and self._mirrors(last, frame):
                self._last = None
            else:
                self._receiver.frame(frame)

    def _mirrors(self, last: Frame, frame: Frame) -> bool:
        return last.payload == frame.payload and {last.channel, frame.channel} <= self._target.mirrored

    # Sending ---------------------------------------------------------------------------------------------

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        """Send the frames in their order, and wait for the acknowledgement of each if the target requests them.

        Without acknowledgements the frames are written before this returns, unless the peer does not read.
        """
        packets: list[bytes] = []
        for frame in frames:
            if frame.channel in RESERVED:
                return Receipt("refused", f"Socket.IO reserves the event name {frame.channel!r}")
            packet = write_event(frame)
            if self._max_payload is not None and len(packet) > self._max_payload:
                size = f"the frame has {len(packet)} bytes; the server accepts {self._max_payload}"
                return Receipt("refused", size)
            packets.append(packet)
        if self._behind or self._target.ack_timeout is not None:
            self._behind += 1
            return self._send_after(packets)
        self._check_open(unsent=True)
        for place, packet in enumerate(packets, 1):
            if (rest := self._begin(packet)) is not None:
                # A task of the link, which no cancellation of a send reaches: all writes of aiohttp share one future.
                first = guard("link", partial(self._finish, rest), self._tasks, again=False)
                self._behind += 1
                return self._send_after(packets[place:], first)
        self._check_open()
        return _SENT

    def _check_open(self, *, unsent: bool = False) -> None:
        if self._closed.done():
            raise LinkLost(self._closed.result(), unsent=unsent)

    async def _send_after(self, packets: Sequence[bytes], first: "asyncio.Task[None] | None" = None) -> Receipt:
        """Send after earlier sends; `first` finishes an own write that waits for the peer."""
        acks: list[int] = []
        try:
            async with self._writing:
                if first is not None:
                    await asyncio.wait({first})
                self._check_open(unsent=first is None)
                for packet in packets:
                    if self._target.ack_timeout is None:
                        await self._write(packet)
                        continue
                    self._last_ack += 1
                    acks.append(self._last_ack)
                    self._acks[self._last_ack] = asyncio.get_running_loop().create_future()
                    await self._write(b"42%d%b" % (self._last_ack, packet[2:]))
            return await self._wait_acks(acks) if acks else _SENT
        finally:
            self._behind -= 1
            for ack in acks:
                del self._acks[ack]

    async def _wait_acks(self, acks: Sequence[int]) -> Receipt:
        assert self._target.ack_timeout is not None
        seconds = self._target.ack_timeout.total_seconds()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                ends = [await self._acks[ack] for ack in acks]
        except TimeoutError:
            silence = describe_silence(limit, f"no acknowledgement within {seconds:g} s")
            return Receipt("sent", f"{silence}; {self._target.unacknowledged}")
        reason = next((end for end in ends if end is not None), None)
        if reason is not None:
            raise LinkLost(f"the link ended before the acknowledgement: {reason}")
        return Receipt("delivered")

    async def prove(self) -> None:
        """Wait for the pong of a websocket ping, which the peer reads after everything sent before."""
        self._check_open()
        self._last_ping += 1
        number = self._last_ping
        answer = self._pings[number] = asyncio.get_running_loop().create_future()
        seconds = self._target.send_timeout.total_seconds()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._write(b"%d" % number, WSMsgType.PING)
                reason = await answer
        except TimeoutError:
            reason = describe_silence(limit, f"no response of the peer within {seconds:g} s")
            self.end(reason)
        finally:
            del self._pings[number]
        if reason is not None:
            raise LinkLost(reason)

    def _handle_pong(self, content: bytes) -> None:
        """Accept the pong of a ping and of all earlier ones; ignore a foreign pong."""
        number = int(content) if content.isdigit() and len(content) < 20 else 0
        if number <= self._last_ping:
            for ping, answer in self._pings.items():
                if ping <= number:
                    _resolve(answer, None)

    async def _write(self, content: bytes, kind: WSMsgType = WSMsgType.TEXT) -> None:
        """Write one message of the websocket, and wait while too much of earlier ones is unread.

        Raises:
            LinkLost: the peer does not read, or the connection is broken; the link has ended.
        """
        assert self._socket is not None
        if self._behind:
            # The task of a write that waits must have begun.
            await asyncio.sleep(0)
        problem = await self._finish(self._socket.send_frame(content, kind))
        if problem is not None:
            raise LinkLost(problem)

    async def _finish(self, write: Awaitable[None]) -> str | None:
        """Wait until a write has ended; if it fails, end the link and return the reason."""
        try:
            async with asyncio.timeout(self._target.send_timeout.total_seconds()):
                await write
                return None
        except TimeoutError:
            problem = "the peer does not read"
        except (aiohttp.ClientError, OSError) as exc:
            problem = self._mask(describe(exc))
        self.end(problem)
        return problem

    def _begin(self, packet: bytes) -> "_Rest | None":
        """Take the first step of a write, usually its only one; return the rest if it waits for the peer."""
        assert self._socket is not None
        write = self._socket.send_frame(packet, WSMsgType.TEXT)
        try:
            return _Rest(write, write.send(None))
        except StopIteration:
            pass
        except (aiohttp.ClientError, OSError) as exc:
            self.end(self._mask(describe(exc)))
        return None

    # The end ---------------------------------------------------------------------------------------------

    @property
    def ended(self) -> str | None:
        """The reason for the end of the connection; None while it is up."""
        return self._closed.result() if self._closed.done() else None

    async def wait_closed(self) -> str:
        """Wait until the connection has ended; return the reason."""
        return await asyncio.shield(self._closed)

    def end(self, reason: str) -> None:
        """Mark the connection as ended; the first reason is kept."""
        if self._closed.done():
            return
        reason = self._mask(reason)[:300]
        self._closed.set_result(reason)
        for answer in (self._admitted, self._first_frame, *self._acks.values(), *self._pings.values()):
            _resolve(answer, reason)

    def _note_disconnect(self, reason: str) -> None:
        """Mark the connection as ended by the server; right after the admission this is a refusal."""
        self._disconnected = self._admitted.done() and not self._closed.done()
        self.end(reason)

    async def _close(self) -> None:
        """End the session within a time limit, and close the connection."""
        was_up = self._admitted.done() and not self._closed.done()
        self.end("closed by us")
        try:
            if was_up:
                with suppress(LinkLost, TimeoutError):
                    async with asyncio.timeout(CLOSING.total_seconds()):
                        await self._write(_message(_socketio.DISCONNECT))
                        await self._write(_engine(_engineio.CLOSE))
        finally:
            if self._socket is not None:
                with suppress(TimeoutError, aiohttp.ClientError, OSError):
                    async with asyncio.timeout(CLOSING.total_seconds()):
                        await self._socket.close()
            await self._tasks.close(within=CLOSING.total_seconds())


class _Rest:
    """The rest of a coroutine that has taken a step outside of a task, and waits for a future."""

    def __init__(self, work: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield self._waits_for
        except BaseException:
            self._work.close()
            raise
        yield from self._work.__await__()


def _engine(kind: int, data: object = None) -> bytes:
    """Write an Engine.IO packet."""
    return _engineio.Packet(kind, data).encode().encode("utf-8", "replace")


def _message(kind: int, **fields: object) -> bytes:
    """Write a Socket.IO packet of the root namespace, in its Engine.IO packet."""
    return _engine(_engineio.MESSAGE, _socketio.Packet(kind, **fields).encode())


def _read_engine(content: bytes) -> Any:
    """Parse an Engine.IO packet other than MESSAGE; NOOP if it is invalid."""
    try:
        return _engineio.Packet(encoded_packet=content[:SMALL].decode("utf-8", "replace"))
    except _PARSE_FAULTS:
        return _engineio.Packet()


def _read_control(content: bytes) -> Any:
    """Read a CONNECT, DISCONNECT, ACK or CONNECT_ERROR packet; unreadable data is omitted."""
    # The data of an acknowledgement is not used, so it is not parsed.
    head = content.partition(b"[")[0] if content.startswith(b"3") else content
    try:
        return _socketio.Packet(encoded_packet=head[:SMALL].decode("utf-8", "replace"))
    except _PARSE_FAULTS:
        return _socketio.Packet(int(content[:1]), namespace=None if content[1:2] != b"/" else "?")


def _resolve(answer: _Answer | None, reason: str | None) -> None:
    if answer is not None and not answer.done():
        answer.set_result(reason)


def find_code(data: object, codes: frozenset[str]) -> str | None:
    """Find one of the codes in a refusal: as text, as `code` or `message`, or inside `data`."""
    match data:
        case str():
            words = data.replace(":", " ").split()
            return next((code for code in sorted(codes) if code in words), None)
        case {"type": str(kind)} if kind not in {"error", "connect_error"}:
            return None
        case {"code": str(code)}:
            return code if code in codes else None
        case {"data": {"code": str(code)} | str(code)} if code in codes:
            return code
        case {"message": str(text)} | {"error": str(text)}:
            return find_code(text, codes)
        case _:
            return None


def _message_of(data: object) -> str:
    match data:
        case str(text) | {"message": str(text)}:
            # A lone surrogate can neither be logged nor stored.
            return text.encode("utf-8", "replace").decode()
        case _:
            return ""
