"""The servers of the world, by bytes: a Socket.IO server and an HTTP server for POSTs."""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httptools

from tests.simulation.network import Conn

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


class HttpConn(Conn):
    """Reads requests with a body; `answer` gets each one and responds whenever it likes."""

    def __init__(self, answer: Callable[["HttpConn", str, dict[str, str], bytes], None]) -> None:
        self._answer = answer
        self.over = False
        self.method = ""
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._headers, self._body = b"", dict[str, str](), b""

    # Called by the parser

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, b""

    def on_url(self, url: bytes) -> None:
        # A URL that the network has split arrives in pieces.
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.method = self._parser.get_method().decode()
        self._answer(self, self._url.decode(), self._headers, self._body)

    # Called by the network

    def received(self, data: bytes) -> None:
        if not self.over:
            self._parser.feed_data(data)

    def ended(self) -> None:
        self.over = True

    def respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Write a response."""
        if self.over:
            return
        named = {"content-type": "application/json", "content-length": str(len(body))}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.send(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)


class SocketIOConn(Conn):
    """One Socket.IO client over a websocket: admission, pings, events in both directions."""

    def __init__(self, server: "SocketServer") -> None:
        self._server = server
        self._buffer = b""
        self._upgraded = False
        self.query: dict[str, str] = {}
        self.admitted = False
        self.answered = True
        """Whether the last ping has its pong."""
        self.over = False

    def received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            if b"\r\n\r\n" not in self._buffer:
                return
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            self._upgrade(head)
        while not self.over and (frame := self._take_frame()) is not None:
            self._handle(*frame)

    def ended(self) -> None:
        if not self.over:
            self.over = True
            self._server.left(self)

    # The websocket

    def _upgrade(self, head: bytes) -> None:
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.query = {name: given[-1] for name, given in parse_qs(urlsplit(first.split()[1]).query).items()}
        accept = base64.b64encode(
            hashlib.sha1(headers["sec-websocket-key"].encode() + _GUID, usedforsecurity=False).digest()
        ).decode()
        self._upgraded = True
        upgrade = f"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}"
        self.send(f"HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n\r\n".encode())
        opening: dict[str, Any] = {
            "sid": "e",
            "upgrades": [],
            "pingInterval": 25_000,
            "pingTimeout": 20_000,
            "maxPayload": 1_000_000,
        }
        self.write_text("0" + json.dumps(opening))

    def _take_frame(self) -> tuple[int, bytes] | None:
        data = self._buffer
        if len(data) < 2:
            return None
        kind, size, at = data[0] & 15, data[1] & 127, 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
        if len(data) < at + 4 + size:
            return None
        mask, content = data[at : at + 4], data[at + 4 : at + 4 + size]
        self._buffer = data[at + 4 + size :]
        repeated = (mask * (size // 4 + 1))[:size]
        return kind, (int.from_bytes(content, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")

    def _handle(self, kind: int, content: bytes) -> None:
        if kind == _PING:
            if self._server.pongs:
                self._write(_PONG, content)
        elif kind == _CLOSE:
            self._write(_CLOSE, content)
            self.close()
            self.ended()
        elif kind == _TEXT:
            self._packet(content.decode())

    def _write(self, kind: int, content: bytes) -> None:
        size = len(content)
        if size < 126:
            head = bytes((128 | kind, size))
        elif size < 65_536:
            head = bytes((128 | kind, 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((128 | kind, 127)) + size.to_bytes(8, "big")
        self.send(head + content)

    # Engine.IO and Socket.IO

    def write_text(self, packet: str) -> None:
        if not self.over:
            self._write(_TEXT, packet.encode())

    def emit(self, channel: str, payload: Any) -> None:
        self.write_text("42" + json.dumps([channel, payload]))

    def ping(self) -> None:
        self.answered = False
        self.write_text("2")

    def _packet(self, packet: str) -> None:
        if packet == "3":
            self.answered = True
        elif packet.startswith("40"):
            self._server.joining(self)
        elif packet.startswith("41"):
            self.close()
            self.ended()
        elif packet.startswith("42"):
            digits = len(packet) - len(packet[2:].lstrip("0123456789")) - 2
            channel, payload = json.loads(packet[2 + digits :])
            if digits:
                self.write_text(f"43{packet[2 : 2 + digits]}[]")
            self._server.message(self, channel, payload)

    def admit(self) -> None:
        self.admitted = True
        self.write_text('40{"sid":"s"}')

    def refuse(self, data: Any) -> None:
        self.write_text("44" + json.dumps(data))


class SocketServer:
    """What a Socket.IO server of the world implements."""

    pongs = True

    def joining(self, conn: SocketIOConn) -> None: ...
    def left(self, conn: SocketIOConn) -> None: ...
    def message(self, conn: SocketIOConn, channel: str, payload: Any) -> None: ...
