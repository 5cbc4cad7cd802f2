"""One Socket.IO link: python-socketio shakes hands, frames go in and out in the order of the wire.

The library runs every packet as a task of its own and keeps an unbounded queue of outgoing ones. Both are
bypassed by standing between Engine.IO and aiohttp: event packets are handed to the receiver as they are read
from the websocket, and sent straight to it, so that its own back-pressure holds. Once it has let us in, it is let go
of with its tasks and queues, and one task of ours reads on.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

import aiohttp

from gateway.adapter.port import LARGEST_FRAME, Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.guard import Tasks, guard, is_fault
from gateway.links import json
from gateway.links.http_session import refusal_of
from gateway.links.masking import mask_of, masked_logger
from gateway.links.once import Once
from gateway.links.socketio.acks import Acks
from gateway.links.socketio.packet import ARRIVED, RESERVED, Arrival, SafePacket, write_event
from gateway.links.socketio.pings import Pings
from gateway.links.socketio.refusal import find_code, message_of
from gateway.links.socketio.silence import silence_here
from gateway.links.socketio.target import Target
from gateway.links.socketio.websocket import Door

# The library has no type hints; everything of it stays in this file.
_socketio: Any = import_module("socketio")
_connected_clients: list[Any] = import_module("engineio.base_client").connected_clients
_engineio_error: type[Exception] = import_module("engineio.exceptions").EngineIOError

CLOSING = timedelta(seconds=2)
"""How long a goodbye may take before the connection is simply dropped."""
REFUSAL_CHANNELS = frozenset({"error", "event"})
_SENT = Receipt("sent")


def open_link(target: Target, receiver: Receiver, *, session: aiohttp.ClientSession) -> "SocketLink":
    """Make a link; entering it connects, leaving it says goodbye and closes.

    Raises:
        LinkRefused: the peer turned us away.
        LinkLost: the peer cannot be reached or does not answer.
    """
    return SocketLink(target, receiver, session)


class SocketLink:
    """A live connection; implements `gateway.adapter.port.Link`."""

    def __init__(self, target: Target, receiver: Receiver, session: aiohttp.ClientSession) -> None:
        self._tasks = Tasks()
        self._target = target
        self._receiver = receiver
        self._mask = mask_of(target.secrets)
        self._door = Door(session, self)
        self._over = False
        self._waiting: list[asyncio.Future[str]] = []
        """Who waits for the end; without `asyncio.shield`, which takes 0.7 KiB for each idle link."""
        self._reason = ""
        self._hung_up = False
        self._heard = Once()
        self._entered = False
        self._patience = 0.0
        """Seconds without a word from the server, which pings us, after which the connection is over."""
        self._last: Frame | None = None
        self._refusal: LinkRefused | None = None
        self._acks = Acks(target.ack_timeout, target.unacknowledged) if target.ack_timeout is not None else None
        self.pings = Pings(target.send_timeout, self.end)
        self.max_payload: int | None = None
        """Largest message the server says it takes, where it says so."""
        logger = masked_logger("dragoman.socketio", self._mask)
        self._client: Any = _socketio.AsyncClient(
            reconnection=False,
            logger=logger,
            engineio_logger=logger,
            serializer=SafePacket,
            handle_sigint=False,
            http_session=self._door,
            request_timeout=CLOSING.total_seconds(),
            # Text stays as its bytes, which are parsed as they are.
            websocket_extra_options={"max_msg_size": LARGEST_FRAME, "decode_text": False},
        )
        # Registered before connecting: some servers speak before they say that we are connected.
        self._client.on(ARRIVED, self.take)
        self._client.on("disconnect", self.end)
        self._client.on("connect_error", self._note_connect_error)

    async def __aenter__(self) -> "SocketLink":
        try:
            failure = await self.connect()
            # Raised here and not where it was seen: an exception chained to it would quote the URL with its key.
            if failure is not None:
                raise failure
        except BaseException:
            await self._leave()
            raise
        guard("link", self.read, self._tasks, again=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self.close()
        finally:
            await self._tasks.close(within=CLOSING.total_seconds())

    async def connect(self) -> LinkLost | LinkRefused | None:
        """Connect and listen for a refusal; says what went wrong instead of raising it."""
        seconds = self._target.connect_timeout.total_seconds()
        lost: str | None = None
        silent = False
        try:
            async with asyncio.timeout(seconds):
                await self._client.connect(
                    f"{self._target.url}?{urlencode(self._target.query)}",
                    transports=list(self._target.transports),
                    socketio_path=self._target.path,
                    # Ours ends first, so that silence is told from other failures.
                    wait_timeout=seconds + 1,
                )
            if self._client.transport() != "websocket":
                lost = "the server did not agree to a websocket"
            await self._listen_for_refusal()
        except TimeoutError:
            lost = f"no connection within {seconds:g} s"
            silent = self.max_payload is not None
        except (
            _socketio.exceptions.SocketIOError,
            _engineio_error,
            aiohttp.ClientError,
            OSError,
            # What the library stumbles over when the first packet is not what it should be.
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
        ) as exc:
            lost = f"{type(exc).__name__}: {exc}"
        self._entered = True
        if self._refusal is not None:
            return self._refusal
        if silent and self._target.silence is not None:
            return LinkRefused("NO_ANSWER", f"no answer within {seconds:g} s: {self._target.silence}")
        if lost is not None:
            return LinkLost(self._mask(self._door.trouble or lost)[:300])
        if self._over:
            return LinkRefused("DISCONNECTED", self._reason) if self._hung_up else LinkLost(self._reason)
        await self._let_go_of_library()
        return None

    async def _let_go_of_library(self) -> None:
        """Nothing of what it keeps is needed any more once it has let us in."""
        client, self._client = self._client, None
        self._patience = client.eio.ping_interval + client.eio.ping_timeout
        # It must not take the end of its tasks for the end of the connection.
        client.eio.state = "disconnected"
        await _end(client)

    async def read(self) -> None:
        """Read until the connection is over."""
        socket, silence, fall_silent = self._door.socket, silence_here(), self.fall_silent
        try:
            while socket is not None and not self._over:
                silence.hear(fall_silent, self._patience)
                await socket.receive()
        except (aiohttp.ClientError, OSError) as exc:
            self.end(f"{type(exc).__name__}: {exc}")
        except BaseException as exc:
            if is_fault(exc):
                self.end(f"the link failed inside the gateway ({type(exc).__name__})")
            raise
        finally:
            silence.forget(fall_silent)

    def fall_silent(self) -> None:
        """Note that the server has said nothing for too long."""
        self.end(f"nothing came from the server for {self._patience:g} s")

    async def _listen_for_refusal(self) -> None:
        """Wait for the first frame or the hang-up, as some servers let everybody in and then say no."""
        try:
            async with asyncio.timeout(self._target.refusal_grace.total_seconds()):
                await self._heard.wait()
        except TimeoutError:
            # Nobody waits for it any more, and what they would wait for is let go of.
            self._heard.set()

    def send(self, frame: Frame) -> Awaitable[Receipt]:
        """Send one frame: at once, unless the peer leaves too much unread, or is to acknowledge it."""
        if self._over:
            raise LinkLost(f"the link is closed: {self._reason}", unsent=True)
        if frame.channel in RESERVED:
            return Receipt("refused", f"Socket.IO keeps the event name {frame.channel!r} for itself")
        packet = write_event(frame)
        if self.max_payload is not None and len(packet) > self.max_payload:
            return Receipt("refused", f"{len(packet)} bytes are over the server's maximum of {self.max_payload}")
        if self._door.socket is None:
            raise LinkLost("not connected", unsent=True)
        ack = None
        if self._acks is not None:
            ack = self._acks.expect()
            packet = b"42%b%b" % (ack.encode(), packet[2:])
        room = self._door.socket.send_packet(packet)
        return _SENT if room is None and ack is None else self._receipt(room, ack)

    def cork(self) -> None:
        """Keep what is sent, until `uncork`."""
        if self._door.socket is not None:
            self._door.socket.transport.cork()

    def uncork(self) -> None:
        """Let leave in one write what was sent since `cork`."""
        if self._door.socket is not None:
            self._door.socket.transport.uncork()

    async def _receipt(self, room: Awaitable[None] | None, ack: str | None) -> Receipt:
        """Wait until the peer has read enough of what it was sent, and has acknowledged a frame."""
        if room is not None:
            await self._has_read(room)
        return _SENT if ack is None or self._acks is None else await self._acks.wait(ack)

    def prove(self) -> Awaitable[None]:
        """Let the peer answer a ping of the websocket, which it reads behind everything sent before."""
        said, answer = self.pings.expect()
        if self._over or self._door.socket is None:
            self.pings.end(f"the link is closed: {self._reason}")
            return answer
        try:
            self._door.socket.ping(said)
        except (aiohttp.ClientError, OSError) as exc:
            self.end(f"{type(exc).__name__}: {exc}")
        return answer

    async def _has_read(self, room: Awaitable[None]) -> None:
        """Wait until the peer has read enough, within the time-out, which costs the link."""
        try:
            async with asyncio.timeout(self._target.send_timeout.total_seconds()):
                await room
                return
        except TimeoutError:
            problem = "the peer does not read"
        except (aiohttp.ClientError, OSError) as exc:
            problem = self._mask(f"{type(exc).__name__}: {exc}")
        self.end(problem)
        await self._door.drop()
        raise LinkLost(problem)

    @property
    def address(self) -> str:
        """URL of the handshake, without its query."""
        return self._target.address

    def acknowledge(self, packet: str) -> None:
        """Take the peer's acknowledgement of one of our frames."""
        if self._acks is not None:
            self._acks.take(packet)

    @property
    def ended(self) -> str | None:
        """Why the connection is over; None while it lives."""
        return self._reason if self._over else None

    def wait_closed(self) -> Awaitable[str]:
        """Wait until the connection has ended and say why."""
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._over:
            waiter.set_result(self._reason)
        else:
            self._waiting.append(waiter)
        return waiter

    def take(self, arrival: Arrival) -> None:
        """Hand the frames of one packet on; called in the order of the wire."""
        for frame in arrival.frames:
            if not self._entered:
                if frame.channel in REFUSAL_CHANNELS:
                    self._note_refusal(frame.payload)
                self._heard.set()
            last, self._last = self._last, frame
            if last is not None and last.channel != frame.channel and self._mirrors(last, frame):
                self._last = None
            else:
                self._receiver.frame(frame)

    def _mirrors(self, last: Frame, frame: Frame) -> bool:
        return last.payload == frame.payload and {last.channel, frame.channel} <= self._target.mirrored

    def end(self, reason: object = "closed", *_rest: object) -> None:
        """Note that the connection is over; the first reason stands."""
        if not self._over:
            self._reason = self._mask(reason)[:300]
            self._over = True
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(self._reason)
            self.pings.end(self._reason)
            if self._acks is not None:
                self._acks.end(self._reason)
        self._heard.set()

    def hang_up(self, reason: str) -> None:
        """Note that the server ended the connection on purpose."""
        self._hung_up = self._hung_up or not self._over
        self.end(reason)

    def _note_connect_error(self, *said: object) -> None:
        answer = said[0] if said else None
        status = self._door.status
        self._note_refusal(answer, surely="/" in self._client.failed_namespaces)
        if status in {401, 403}:
            self.refuse("UNAUTHORIZED", f"GET {self._target.address}: HTTP {status}", terminal=True)
        elif status is not None and status < 500 and status not in {408, 425, 429}:
            self.refuse(f"HTTP_{status}", f"GET {self._target.address}: HTTP {status} to the websocket handshake")

    def _note_refusal(self, said: object, *, surely: bool = False) -> None:
        known = self._target.read_refusal(said) if self._target.read_refusal is not None and surely else None
        if known is not None:
            self.refuse(known[0], known[1], terminal=known[2])
            return
        code = find_code(said, self._target.terminal_codes)
        if code is not None:
            self.refuse(code, message_of(said), terminal=True)
        elif surely:
            self.refuse("REFUSED", message_of(said))

    def refuse(self, code: str, detail: str, *, terminal: bool = False) -> None:
        """Note a refusal; the first one stands."""
        if self._refusal is None:
            detail = "" if detail == code else self._mask(detail)[:300]
            self._refusal = LinkRefused(code, detail, terminal=terminal)

    def refuse_for_good(self, exc: BaseException) -> None:
        """Note a failed request, where it means that the address itself is at fault."""
        self._refusal = self._refusal or refusal_of(exc)

    def connect_refused(self, packet: str) -> None:
        """Take a CONNECT_ERROR packet, from which the library keeps only the namespace."""
        self._note_refusal(json.loads(packet[2:]) if packet[2:].startswith(("{", '"')) else packet[2:], surely=True)

    async def close(self) -> None:
        """Say goodbye, within bounds, and let go of everything."""
        stood = not self._over
        self.end("closed by us")
        try:
            # TypeError: the library awaits a read loop that it has not started yet.
            with suppress(TimeoutError, aiohttp.ClientError, OSError, TypeError):
                async with asyncio.timeout(CLOSING.total_seconds()):
                    if self._client is not None and self._client.eio.state == "connected":
                        await self._client.disconnect()
                    elif self._client is None and self._door.socket is not None and stood:
                        await self._door.socket.say_goodbye()
        finally:
            await self._door.drop()
            if self._client is not None:
                client, self._client = self._client, None
                await _end(client)


async def _end(client: Any) -> None:
    """End what runs for a client of the library, which keeps a list of them all, and forgets to clear it at times."""
    eio = client.eio
    running = [task for task in (eio.read_loop_task, eio.write_loop_task) if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CLOSING.total_seconds())
    if eio in _connected_clients:
        _connected_clients.remove(eio)
    # Its parts hold each other, and would be there until the collector comes, which it seldom does.
    eio.__dict__.clear()
    client.__dict__.clear()
    # What it looks at when it goes.
    eio.http = None
