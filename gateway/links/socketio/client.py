"""One Socket.IO link: python-socketio shakes hands, frames go in and out in the order of the wire.

The library runs every packet as a task of its own and keeps an unbounded queue of outgoing ones. Both are
bypassed by standing between Engine.IO and aiohttp: event packets are handed to the receiver as they are read
from the websocket, and sent straight to it, so that its own back-pressure holds. Once it has let us in, it is let go
of with its tasks and queues, and one task of ours reads on.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

import aiohttp

from gateway.adapter.port import Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.guard import Tasks, guard, is_fault
from gateway.links import json
from gateway.links.addresses import REDIRECTS, AddressRefused, guarded_socket, refused_address, refused_redirect
from gateway.links.begun import begun
from gateway.links.masking import mask_of, masked_logger
from gateway.links.once import Once
from gateway.links.socketio.acks import Acks
from gateway.links.socketio.packet import ARRIVED, RESERVED, Arrival, SafePacket, read_event, write_event
from gateway.links.socketio.refusal import find_code, message_of

# The library has no type hints; everything of it stays in this file.
_socketio: Any = import_module("socketio")
_connected_clients: list[Any] = import_module("engineio.base_client").connected_clients
_engineio_error: type[Exception] = import_module("engineio.exceptions").EngineIOError

MAX_MESSAGE = 32 * 1024 * 1024
"""Largest message taken from a runtime; aiohttp's own default of 4 MiB would close the link.

A server that takes 4 MiB may send it back twice in one event, with six bytes for a letter of two.
"""
CLOSING = timedelta(seconds=2)
"""How long a goodbye may take before the connection is simply dropped."""
REFUSAL_CHANNELS = frozenset({"error", "event"})
_SENT = Receipt("sent")
_CONTROL = frozenset({"0", "1", "3", "4"})
"""Socket.IO packets that are none of events: CONNECT, DISCONNECT, ACK, CONNECT_ERROR."""
_GOODBYE = ("41", "1")
"""Ends the Socket.IO session, and then that of Engine.IO."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect."""

    url: str
    query: Mapping[str, str] = field(repr=False)
    path: str = "/socket.io/"
    transports: tuple[str, ...] = ("websocket",)
    """What is tried in turn; it must end on a websocket, since long polling loses bursts of over 16 packets."""
    connect_timeout: timedelta = timedelta(seconds=10)
    send_timeout: timedelta = timedelta(seconds=20)
    """How long a peer may leave a message unread before the link counts as lost."""
    refusal_grace: timedelta = timedelta(milliseconds=100)
    """How long after connecting an error or a hang-up still counts as a refusal."""
    terminal_codes: frozenset[str] = frozenset()
    """Refusal codes that trying again cannot mend."""
    mirrored: frozenset[str] = frozenset()
    """Channels on which a server may say one thing twice in a row; the second is left out."""
    ack_timeout: timedelta | None = None
    """How long to wait for the acknowledgement of each frame; None asks for none."""
    read_refusal: Callable[[object], tuple[str, str, bool] | None] | None = None
    """Says a CONNECT_ERROR of the protocol as code, text and whether it is final; None where it is not known."""
    silence: str | None = None
    """What it means that the server takes the connection and never answers; None where it means nothing."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What must never show in a log line or an error."""


def shared_session() -> aiohttp.ClientSession:
    """Make the one HTTP session that all links of a connector share; it keeps no cookies and follows no redirect.

    Each link holds a connection for as long as it lives, so their number must not be limited here:
    aiohttp's own limit would let the 101st wait for ever.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=guarded_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        middlewares=(_stay,),
    )


class RedirectRefused(aiohttp.ClientConnectionError):
    """A server answered with a redirect.

    A connection error because Engine.IO, while it asks for a websocket, understands nothing else.
    """


async def _stay(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop every redirect before aiohttp follows it, also of requests that a library makes."""
    response = await handler(request)
    if response.status in REDIRECTS:
        response.close()
        raise RedirectRefused("the server answered with a redirect")
    return response


def refusal_of(exc: BaseException) -> LinkRefused | None:
    """Say a failed request as a refusal where no further try can mend it."""
    match exc:
        case RedirectRefused():
            return refused_redirect()
        case aiohttp.ClientConnectorError(os_error=AddressRefused()):
            return refused_address()
        case _:
            return None


@asynccontextmanager
async def open_link(
    target: Target, receiver: Receiver, *, session: aiohttp.ClientSession
) -> AsyncGenerator["SocketLink"]:
    """Connect, yield the link, and close it in the end.

    Raises:
        LinkRefused: the peer turned us away.
        LinkLost: the peer cannot be reached or does not answer.
    """
    async with Tasks() as tasks:
        link = SocketLink(target, receiver, session)
        try:
            failure = await link.connect()
            # Raised here and not where it was seen: an exception chained to it would quote the URL with its key.
            if failure is not None:
                raise failure
            guard("link", link.read, tasks, again=False)
            yield link
        finally:
            await link.close()
            await tasks.close(within=CLOSING.total_seconds())


class SocketLink:
    """A live connection; implements `gateway.adapter.port.Link`."""

    def __init__(self, target: Target, receiver: Receiver, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._receiver = receiver
        self._mask = mask_of(target.secrets)
        self._door = _Door(session, self)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reason = ""
        self._hung_up = False
        self._heard = Once()
        self._entered = False
        self._patience = 0.0
        """Seconds without a word from the server, which pings us, after which the connection is over."""
        self._last: Frame | None = None
        self._refusal: LinkRefused | None = None
        self._acks = Acks(target.ack_timeout) if target.ack_timeout is not None else None
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
            websocket_extra_options={"max_msg_size": MAX_MESSAGE},
        )
        # Registered before connecting: some servers speak before they say that we are connected.
        self._client.on(ARRIVED, self.take)
        self._client.on("disconnect", self.end)
        self._client.on("connect_error", self._note_connect_error)

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
        if self._over.done():
            return LinkRefused("DISCONNECTED", self._reason) if self._hung_up else LinkLost(self._reason)
        await self._let_go_of_library()
        return None

    async def _let_go_of_library(self) -> None:
        """Nothing of what it keeps is needed any more once it has let us in."""
        eio, self._client = self._client.eio, None
        self._patience = eio.ping_interval + eio.ping_timeout
        # It must not take the end of its tasks for the end of the connection.
        eio.state = "disconnected"
        await _ended(eio)

    async def read(self) -> None:
        """Read until the connection is over."""
        socket, patience = self._door.socket, self._patience
        try:
            while socket is not None and not self._over.done():
                async with asyncio.timeout(patience):
                    await socket.receive()
        except TimeoutError:
            self.end(f"nothing came from the server for {patience:g} s")
        except (aiohttp.ClientError, OSError) as exc:
            self.end(f"{type(exc).__name__}: {exc}")
        except BaseException as exc:
            if is_fault(exc):
                self.end(f"the link failed inside the gateway ({type(exc).__name__})")
            raise

    async def _listen_for_refusal(self) -> None:
        """Wait for the first frame or the hang-up, as some servers let everybody in and then say no."""
        try:
            async with asyncio.timeout(self._target.refusal_grace.total_seconds()):
                await self._heard.wait()
        except TimeoutError:
            return

    def send(self, frame: Frame) -> Awaitable[Receipt]:
        """Send one frame: at once, unless the peer leaves too much unread, or is to acknowledge it."""
        if self._over.done():
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
        room = begun(self._door.socket.write(packet))
        return _SENT if room is None and ack is None else self._receipt(room, ack)

    async def _receipt(self, room: Awaitable[None] | None, ack: str | None) -> Receipt:
        """Wait until the peer has read enough of what it was sent, and has acknowledged a frame."""
        if room is not None:
            await self._reached(room, "the peer does not read")
        return _SENT if ack is None or self._acks is None else await self._acks.wait(ack)

    async def prove(self) -> None:
        """Let the peer answer a ping of the websocket, which it reads behind everything sent before."""
        if self._over.done() or self._door.socket is None:
            raise LinkLost(f"the link is closed: {self._reason}")
        silence = f"no sign of the peer within {self._target.send_timeout.total_seconds():g} s"
        await self._reached(self._door.socket.prove(), silence)

    async def _reached(self, peer: Awaitable[None], silence: str) -> None:
        """Wait for a peer within the time-out, which costs the link."""
        try:
            async with asyncio.timeout(self._target.send_timeout.total_seconds()):
                await peer
                return
        except TimeoutError:
            problem = silence
        except (aiohttp.ClientError, OSError) as exc:
            problem = self._mask(f"{type(exc).__name__}: {exc}")
        self.end(problem)
        await self._door.drop()
        raise LinkLost(problem)

    def acknowledge(self, packet: str) -> None:
        """Take the peer's acknowledgement of one of our frames."""
        if self._acks is not None:
            self._acks.take(packet)

    @property
    def ended(self) -> str | None:
        """Why the connection is over; None while it lives."""
        return self._reason if self._over.done() else None

    def wait_closed(self) -> Awaitable[str]:
        """Wait until the connection has ended and say why."""
        return asyncio.shield(self._over)

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
        if not self._over.done():
            self._reason = self._mask(reason)[:300]
            self._over.set_result(self._reason)
            if self._door.socket is not None:
                self._door.socket.end()
            if self._acks is not None:
                self._acks.end(self._reason)
        self._heard.set()

    def hang_up(self, reason: str) -> None:
        """Note that the server ended the connection on purpose."""
        self._hung_up = self._hung_up or not self._over.done()
        self.end(reason)

    def _note_connect_error(self, *said: object) -> None:
        answer = said[0] if said else None
        status = self._door.status
        self._note_refusal(answer, surely="/" in self._client.failed_namespaces)
        if status in {401, 403}:
            self.refuse("UNAUTHORIZED", f"HTTP {status}", terminal=True)
        elif status is not None and status < 500 and status not in {408, 425, 429}:
            self.refuse(f"HTTP_{status}", "the websocket handshake was answered with an error")

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
        stood = not self._over.done()
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
                await _ended(self._client.eio)


async def _ended(eio: Any) -> None:
    """End what runs for a client of the library, which keeps a list of them all, and forgets to clear it at times."""
    running = [task for task in (eio.read_loop_task, eio.write_loop_task) if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CLOSING.total_seconds())
    if eio in _connected_clients:
        _connected_clients.remove(eio)


class _Door:
    """What Engine.IO takes for its HTTP session: it lets us hold the websocket and see why one was refused."""

    def __init__(self, session: aiohttp.ClientSession, link: SocketLink) -> None:
        self._session: Any = session
        self._link = link
        self.closed = False
        self.socket: _Socket | None = None
        self.status: int | None = None
        """HTTP status that answered the handshake, where it was not the right one."""
        self.trouble: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def get(self, url: str, **options: Any) -> Any:
        """GET for long polling."""
        return await self._ask("GET", url, options)

    async def post(self, url: str, **options: Any) -> Any:
        """POST for long polling."""
        return await self._ask("POST", url, options)

    async def _ask(self, method: str, url: str, options: dict[str, Any]) -> Any:
        try:
            return await self._session.request(method, url, **options)
        except aiohttp.ClientConnectionError as exc:
            self._link.refuse_for_good(exc)
            raise

    async def ws_connect(self, url: str, **options: Any) -> "_Socket":
        try:
            # Pings are answered here, so that the answers to ours are seen.
            inner = await self._session.ws_connect(url, **options, autoping=False)
        except aiohttp.WSServerHandshakeError as exc:
            self.status = exc.status
            self.trouble = f"the server answered the websocket handshake with HTTP {exc.status}"
            raise
        except aiohttp.ClientConnectionError as exc:
            self._link.refuse_for_good(exc)
            self.trouble = f"{type(exc).__name__}: {exc}"
            raise
        self.socket = _Socket(inner, self._link)
        return self.socket

    async def drop(self) -> None:
        """Close the websocket without waiting for the peer longer than `CLOSING`."""
        self.closed = True
        if self.socket is not None:
            await self.socket.close()


class _Socket:
    """A websocket that keeps event packets for the link and leaves the rest to Engine.IO."""

    def __init__(self, inner: Any, link: SocketLink) -> None:
        self._inner = inner
        self._link = link
        self._pings = 0
        self._answered = 0
        self._pong: asyncio.Event | None = None
        """Where somebody waits for an answer to a ping."""

    async def prove(self) -> None:
        """Send a ping and wait for its answer."""
        self._pings += 1
        mine = self._pings
        await self._inner.ping(str(mine).encode())
        while self._answered < mine:
            self._pong = self._pong or asyncio.Event()
            await self._pong.wait()
            if self._link.ended is not None:
                raise ConnectionResetError(self._link.ended)

    async def receive(self) -> Any:
        while True:
            message = await self._inner.receive()
            match message.type:
                case aiohttp.WSMsgType.TEXT:
                    packet: str = message.data
                    if packet.startswith("4") and packet[1:2] not in _CONTROL:
                        arrival = read_event(packet[1:])
                        self._link.take(arrival)
                        if arrival.ack is not None:
                            # By hand, so that nothing overtakes a packet that wants an acknowledgement.
                            await self._inner.send_str(f"43{arrival.ack}[]")
                        continue
                    if packet.startswith("2"):
                        await self._inner.send_str(f"3{packet[1:]}")
                        # To the library it is a packet that means nothing.
                        return message._replace(data="6")
                    self._watch(packet)
                case aiohttp.WSMsgType.BINARY:
                    self._link.take(read_event(message.data))
                    continue
                case aiohttp.WSMsgType.PING:
                    await self._inner.pong(message.data)
                    continue
                case aiohttp.WSMsgType.PONG:
                    self._note_pong(bytes(message.data))
                    continue
                case aiohttp.WSMsgType.ERROR:
                    self._link.end(f"the connection broke: {type(message.data).__name__}")
                case _:
                    self._link.hang_up(f"the server closed the connection ({self._inner.close_code})")
            return message

    def _note_pong(self, said: bytes) -> None:
        # A peer may also send one unasked, with whatever it likes in it.
        if said.isdigit() and len(said) < 20 and self._answered < int(said) <= self._pings:
            self._answered = int(said)
            self.end()

    def end(self) -> None:
        """Let whoever waits for an answer look: one has come, or nothing comes any more."""
        if self._pong is not None:
            self._pong.set()
            self._pong = None

    async def say_goodbye(self) -> None:
        for packet in _GOODBYE:
            await self._inner.send_str(packet)

    def _watch(self, packet: str) -> None:
        if packet.startswith("0"):
            match json.loads(packet[1:]):
                case {"maxPayload": int(most)} if most > 0:
                    self._link.max_payload = most
                case _:
                    pass
        elif packet.startswith("43"):
            self._link.acknowledge(packet)
        elif packet in {"41", "1"}:
            self._link.hang_up("the server ended the session")
        elif packet.startswith("44") and not packet.startswith("44/"):
            self._link.connect_refused(packet)

    def write(self, packet: bytes) -> Coroutine[Any, Any, None]:
        """Send a packet of ours; what is to be waited for is room."""
        return self._inner.send_frame(packet, aiohttp.WSMsgType.TEXT)

    async def send_str(self, text: str) -> None:
        await self._inner.send_str(text)

    async def send_bytes(self, content: bytes) -> None:
        await self._inner.send_bytes(content)

    async def close(self) -> None:
        await self._inner.close()
