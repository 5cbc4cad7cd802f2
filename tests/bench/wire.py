"""Websocket frames and Socket.IO packets by hand, as bytes; everything a fast peer needs of either protocol. Pure."""

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs, urlsplit

TEXT: Final = 1
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN = 0x80
_FIN_TEXT = bytes((_FIN | TEXT,))

OPEN = b'0{"sid":"bench","upgrades":[],"pingInterval":25000,"pingTimeout":60000,"maxPayload":16000000}'
CONNECTED = b'40{"sid":"bench"}'
ENGINE_PING = b"2"
ENGINE_PONG = b"3"


def server_frame(payload: bytes) -> bytes:
    """Write an unmasked text frame."""
    return _FIN_TEXT + _length(len(payload), masked=0) + payload


def pong_frame(payload: bytes) -> bytes:
    """Write the unmasked answer to a ping."""
    return bytes((_FIN | PONG,)) + _length(len(payload), masked=0) + payload


def client_frame(payload: bytes, *, mask: bytes) -> bytes:
    """Write a masked text frame."""
    return _FIN_TEXT + _length(len(payload), masked=0x80) + mask + apply_mask(payload, mask)


def _length(size: int, *, masked: int) -> bytes:
    if size < 126:
        return bytes((masked | size,))
    if size < 65_536:
        return bytes((masked | 126,)) + size.to_bytes(2, "big")
    return bytes((masked | 127,)) + size.to_bytes(8, "big")


def apply_mask(payload: bytes, mask: bytes) -> bytes:
    """Mask or unmask; one big integer is far quicker than a loop over bytes."""
    size = len(payload)
    spread = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(spread, "little")).to_bytes(size, "little")


class FrameReader:
    """Cuts a stream into frames; fragments and compression are not spoken here."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield opcode and payload of each frame that is complete by now."""
        data = self._rest + chunk if self._rest else chunk
        at, end = 0, len(data)
        while end - at >= 2:
            size = data[at + 1] & 0x7F
            masked = data[at + 1] & 0x80
            head = at + 2
            if size == 126:
                size, head = int.from_bytes(data[head : head + 2], "big"), head + 2
            elif size == 127:
                size, head = int.from_bytes(data[head : head + 8], "big"), head + 8
            body = head + 4 if masked else head
            if body > end or body + size > end:
                break
            payload = data[body : body + size]
            yield data[at] & 0x0F, apply_mask(payload, data[head:body]) if masked else payload
            at = body + size
        self._rest = data[at:]


def accept_upgrade(head: bytes) -> tuple[bytes, dict[str, str]]:
    """Answer a websocket handshake; returns the answer and the query of the request."""
    lines = head.split(b"\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    accept = base64.b64encode(hashlib.sha1(fields[b"sec-websocket-key"] + _GUID, usedforsecurity=False).digest())
    query = parse_qs(urlsplit(lines[0].split(b" ")[1].decode()).query)
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return answer + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n", {name: said[0] for name, said in query.items()}


def request_upgrade(path: str, host: str) -> bytes:
    """Write a websocket handshake."""
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
