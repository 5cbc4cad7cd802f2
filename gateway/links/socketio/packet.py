"""Reads and writes Socket.IO packets without ever raising on what a peer sent, and without searching for binary.

`SafePacket` is what python-socketio calls a serializer. Anything that claims to be an event arrives under
the one name `ARRIVED`, so that a peer can neither break the library's dispatch nor call its reserved handlers.
"""

import re
from functools import lru_cache
from typing import Any, ClassVar, cast

from gateway.adapter.port import Frame
from gateway.events.frozen import frozen
from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.strict_json import Malformed

CONNECT, DISCONNECT, EVENT, ACK, CONNECT_ERROR, BINARY_EVENT, BINARY_ACK = range(7)
ARRIVED = "dragoman.arrived"
RESERVED = frozenset({"connect", "connect_error", "disconnect", "disconnecting", "newListener", "removeListener"})
"""Event names that Socket.IO keeps for itself."""

_HEAD = re.compile(
    rb"(?P<type>[0-6])(?:(?P<attachments>\d{1,10})-)?(?:(?P<namespace>/[^,]*)(?:,|$))?(?P<id>\d{1,100})?"
)
_CHANNEL = re.compile(rb'\["((?:[^"\\]){0,64})"')


@frozen
class Arrival:
    """What one packet brought: its frames, and the id of the acknowledgement that the peer asks for."""

    frames: tuple[Frame, ...]
    ack: str | None = None


def read_event(packet: bytes) -> Arrival:
    """Read an event packet, with the Engine.IO digit; one that cannot be read becomes a malformed frame."""
    head = None
    start = 2
    # Nearly every packet is an event of the root namespace that asks for no acknowledgement.
    if not packet.startswith(b'42["'):
        head = _HEAD.match(packet, 1)
        if head is None or int(head["type"]) not in {EVENT, BINARY_EVENT, BINARY_ACK}:
            return _malformed("", "not a Socket.IO event", packet[1:])
        start = head.end()
    channel = _channel(packet, start)
    ack = head["id"].decode() if head is not None and head["id"] else None
    if head is not None and int(head["type"]) != EVENT:
        return _malformed(channel, "a binary packet; binary is not spoken here", packet[1:], ack=ack)
    if (reason := FRAMES.why_rejected(len(packet))) is not None:
        payload = Malformed(f"the frame {reason}", json.excerpt(packet[start : start + json.EXCERPT]))
        return Arrival((Frame(channel, payload),), ack)
    namespace = head["namespace"].decode("utf-8", "replace") if head is not None and head["namespace"] else None
    return _read_body(packet[start:], channel, namespace=namespace, ack=ack)


def refuse_binary(content: bytes) -> Arrival:
    """Make a malformed frame of a binary message."""
    return _malformed("", f"a binary attachment of {len(content)} bytes; binary is not spoken here", content[:64])


def _read_body(body: bytes, event: str, *, namespace: str | None = None, ack: str | None = None) -> Arrival:
    said, written = json.read_frame(body)
    # A letter that is written as an escape takes thrice the room here: whoever asks measures the value. Looking for one
    # letter takes a fraction of looking for two.
    size = 0 if b"\\" in body and b"\\u" in body else len(body)
    if isinstance(said, Malformed):
        return Arrival((Frame(event, said),), ack)
    # Without a pattern, which takes ten times as long.
    parts = cast("list[Any]", said) if isinstance(said, list) else []
    if not parts or not isinstance(channel := parts[0], str):
        return _malformed("", "a Socket.IO event that does not begin with its name", body, ack=ack)
    if namespace is None and len(parts) == 2:
        # What stands before the payload is as long whatever comes then.
        inside = None if written is None else written[len(_head_of(channel)) : -1]
        return Arrival((Frame(channel, parts[1], size, inside),), ack)
    name, arguments = f"{namespace}#{channel}" if namespace not in {None, "/"} else channel, parts[1:]
    frames = [Frame(name, arguments[0] if arguments else None, size)]
    # A listener in JavaScript sees the first argument only; the others are kept apart, not thrown away.
    frames.extend(Frame(f"{name}#{place}", extra, size) for place, extra in enumerate(arguments[1:], start=2))
    return Arrival(tuple(frames), ack)


def write_event(frame: Frame) -> bytes:
    """Write an event packet for the root namespace, with the Engine.IO digit in front.

    Raises:
        CannotExpress: the payload is not JSON.
    """
    if frame.written is None:
        return b"42" + json.encode([frame.channel, frame.payload])
    return b"".join((b"42", _head_of(frame.channel)[:-1], b",", frame.written, b"]"))


@lru_cache(64)
def _head_of(channel: str) -> bytes:
    return json.encode([channel])


def _channel(packet: bytes, start: int) -> str:
    found = _CHANNEL.match(packet, start)
    return found[1].decode("utf-8", "replace") if found else ""


def _malformed(channel: str, reason: str, packet: str | bytes, *, ack: str | None = None) -> Arrival:
    return Arrival((Frame(channel, Malformed(reason, json.excerpt(packet))),), ack)


class SafePacket:
    """One Socket.IO packet, in the form that python-socketio asks of a serializer class."""

    # python-socketio sets and reads this on the class.
    json: ClassVar[Any] = json

    def __init__(
        self,
        packet_type: int = EVENT,
        data: Any = None,
        namespace: str | None = None,
        # The library passes it by this name.
        id: int | None = None,  # noqa: A002
        binary: bool | None = None,
        encoded_packet: str | bytes | None = None,
    ) -> None:
        del binary  # asked for by nobody: what is not JSON is refused when it is written
        self.packet_type = packet_type
        self.data: Any = data
        self.namespace = namespace
        self.id = id
        self.attachment_count = 0
        if encoded_packet:
            self._decode(encoded_packet)

    def encode(self) -> str:
        """Write the packet."""
        text = str(self.packet_type)
        if self.namespace not in {None, "/"}:
            text += f"{self.namespace},"
        if self.id is not None:
            text += str(self.id)
        return text if self.data is None else text + json.dumps(self.data)

    def add_attachment(self, attachment: bytes) -> bool:
        """Refuse attachments; none is ever announced, because binary packets do not get this far."""
        raise ValueError(f"an attachment of {len(attachment)} bytes that nobody announced")

    def _decode(self, packet: str | bytes) -> None:
        content = packet if isinstance(packet, bytes) else packet.encode("utf-8", "replace")
        head = None if isinstance(packet, bytes) else _HEAD.match(content)
        if head is None or int(head["type"]) in {EVENT, BINARY_EVENT, BINARY_ACK}:
            arrival = refuse_binary(packet) if isinstance(packet, bytes) else read_event(b"4" + content)
            self.data = [ARRIVED, arrival]
            self.id = int(arrival.ack) if arrival.ack else None
            return
        self.packet_type = int(head["type"])
        self.namespace = head["namespace"].decode("utf-8", "replace") if head["namespace"] else None
        self.id = int(head["id"]) if head["id"] else None
        data: object = json.loads(content[head.end() :]) if len(content) > head.end() else None
        # The library reads CONNECT data as a mapping and ACK data as a list, and trusts both.
        fits = {CONNECT: isinstance(data, dict), ACK: isinstance(data, list)}
        if fits.get(self.packet_type, not isinstance(data, Malformed)):
            self.data = data
        else:
            self.data = [] if self.packet_type == ACK else None
