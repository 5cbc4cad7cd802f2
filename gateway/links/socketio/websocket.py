"""Stands between Engine.IO and aiohttp: keeps event packets for the link, and leaves the rest to Engine.IO."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import WSMsgType

from gateway.links import json
from gateway.links.begun import begun
from gateway.links.corked import CorkedTransport
from gateway.links.frame_memory import FRAMES, SMALL
from gateway.links.socketio.packet import read_event, refuse_binary

if TYPE_CHECKING:
    from gateway.links.socketio.client import SocketLink

# By names of their own: to look one up in its class takes longer than all that is done with it.
_TEXT, _BINARY, _ERROR = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.ERROR
_PING, _PONG = WSMsgType.PING, WSMsgType.PONG
_CONTROL = frozenset({b"0", b"1", b"3", b"4"})
"""Socket.IO packets that are none of events: CONNECT, DISCONNECT, ACK, CONNECT_ERROR."""
_GOODBYE = ("41", "1")
"""Ends the Socket.IO session, and then that of Engine.IO."""


class Door:
    """What Engine.IO takes for its HTTP session: it lets us hold the websocket and see why one was refused."""

    def __init__(self, session: aiohttp.ClientSession, link: "SocketLink") -> None:
        self._session: Any = session
        self._link = link
        self.closed = False
        self.socket: WebSocket | None = None
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

    async def ws_connect(self, url: str, **options: Any) -> "WebSocket":
        try:
            # Pings are answered here, so that the answers to ours are seen.
            inner = await self._session.ws_connect(url, **options, autoping=False)
        except aiohttp.WSServerHandshakeError as exc:
            self.status = exc.status
            self.trouble = f"GET {self._link.address}: HTTP {exc.status} to the websocket handshake"
            raise
        except aiohttp.ClientConnectionError as exc:
            self._link.refuse_for_good(exc)
            self.trouble = f"{type(exc).__name__}: {exc}"
            raise
        self.socket = WebSocket(inner, self._link)
        return self.socket

    async def drop(self) -> None:
        """Close the websocket without waiting for the peer longer than `CLOSING`."""
        self.closed = True
        if self.socket is not None:
            await self.socket.close()


class WebSocket:
    """A websocket that keeps event packets for the link and leaves the rest to Engine.IO."""

    __slots__ = ("_inner", "_link", "_write_frame", "transport")

    def __init__(self, inner: Any, link: "SocketLink") -> None:
        self._inner = inner
        self._write_frame: Callable[[bytes, WSMsgType], Coroutine[Any, Any, None]] = inner.write_frame
        self.transport: CorkedTransport = inner.transport
        self._link = link

    async def receive(self) -> Any:
        while True:
            message = await self._inner.receive()
            kind = message.type
            if kind is _TEXT:
                content: bytes = message.data
                if content.startswith(b"4") and content[1:2] not in _CONTROL:
                    if len(content) > SMALL:
                        # Nothing more is read from this peer meanwhile, and TCP holds it back.
                        await FRAMES.wait_room(len(content))
                    arrival = read_event(content)
                    self._link.take(arrival)
                    if arrival.ack is not None:
                        # By hand, so that nothing overtakes a packet that wants an acknowledgement.
                        await self._inner.send_str(f"43{arrival.ack}[]")
                    continue
                packet = content.decode("utf-8", "replace")
                if packet.startswith("2"):
                    await self._inner.send_str(f"3{packet[1:]}")
                    # To the library it is a packet that means nothing.
                    return message._replace(data="6")
                self._watch(packet)
                return message._replace(data=packet)
            if kind is _PONG:
                self._link.pings.take(bytes(message.data))
                continue
            if kind is _PING:
                await self._inner.pong(message.data)
                continue
            if kind is _BINARY:
                self._link.take(refuse_binary(message.data))
                continue
            if kind is _ERROR:
                self._link.end(f"the connection broke: {type(message.data).__name__}")
            else:
                self._link.hang_up(f"the server closed the connection ({self._inner.close_code})")
            return message

    async def say_goodbye(self) -> None:
        self.transport.forget()
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

    def send_packet(self, packet: bytes) -> Awaitable[None] | None:
        """Send a packet of ours; what is answered waits for room, and raises where the connection is over."""
        return begun(self._write_frame(packet, _TEXT))

    def ping(self, said: bytes) -> None:
        """Ask for an answer; it leaves behind everything else, and nobody waits for room.

        Raises:
            aiohttp.ClientError, OSError: the connection is over.
        """
        sending = self._write_frame(said, _PING)
        try:
            sending.send(None)
        except StopIteration:
            return
        sending.close()

    async def send_str(self, text: str) -> None:
        await self._inner.send_str(text)

    async def send_bytes(self, content: bytes) -> None:
        await self._inner.send_bytes(content)

    async def close(self) -> None:
        self.transport.forget()
        await self._inner.close()
