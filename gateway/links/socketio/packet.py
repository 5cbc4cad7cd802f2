"""Socket.IO event packets as bytes. Reading never raises, for any input.

The packet classes of the libraries take text and parse it at once. An event stays the bytes that the websocket
received: `limits.frame` is checked before anything is decoded, and JSON that is already written is not written again.
"""

import re
from functools import lru_cache
from typing import Any, cast

from gateway.adapter.port import Frame
from gateway.events.frozen import frozen
from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.strict_json import Malformed

RESERVED = frozenset({"connect", "connect_error", "disconnect", "disconnecting", "newListener", "removeListener"})
"""Event names that Socket.IO reserves."""

_EVENT = b"2"
_HEAD = re.compile(
    rb"(?P<type>[256])(?:(?P<attachments>\d{1,10})-)?(?:(?P<namespace>/[^,]*)(?:,|$))?(?P<id>\d{1,100})?"
)
_CHANNEL = re.compile(rb'\["((?:[^"\\]){0,64})"')


@frozen
class Arrival:
    """The frames of one packet, and the id of the acknowledgement that the peer requests."""

    frames: tuple[Frame, ...]
    ack: str | None = None


def read_event(packet: bytes) -> Arrival:
    """Read an event packet with its Engine.IO digit; an unreadable one becomes a malformed frame."""
    head = None
    start = 2
    # Nearly every packet is an event of the root namespace that requests no acknowledgement.
    if not packet.startswith(b'42["'):
        head = _HEAD.match(packet, 1)
        if head is None:
            return _malformed("", "not a Socket.IO event", packet[1:])
        start = head.end()
    channel = _channel(packet, start)
    ack = head["id"].decode() if head is not None and head["id"] else None
    if head is not None and head["type"] != _EVENT:
        return _malformed(channel, "a binary packet, which is not supported", packet[1:], ack=ack)
    if (reason := FRAMES.get().why_rejected(len(packet))) is not None:
        payload = Malformed(f"the frame {reason}", json.excerpt(packet[start : start + json.EXCERPT]))
        return Arrival((Frame(channel, payload),), ack)
    namespace = head["namespace"].decode("utf-8", "replace") if head is not None and head["namespace"] else None
    return _read_body(packet[start:], channel, namespace=namespace, ack=ack)


def refuse_binary(content: bytes) -> Arrival:
    """Make a malformed frame of a binary message."""
    return _malformed("", f"a binary attachment of {len(content)} bytes, which is not supported", content[:64])


def refuse_oversized(most: int) -> Arrival:
    """Make a malformed frame of a message that was not read because it is over `most` bytes."""
    return _malformed("", f"a message of more than {most:,} bytes, which ends the link", b"")


def _read_body(body: bytes, event: str, *, namespace: str | None = None, ack: str | None = None) -> Arrival:
    value, written = json.read_frame(body)
    # An escaped letter is longer here than in the value, so the size is unknown. A search for one byte is much faster
    # than a search for two.
    size = 0 if b"\\" in body and b"\\u" in body else len(body)
    if isinstance(value, Malformed):
        return Arrival((Frame(event, value),), ack)
    # A `match` statement would take ten times as long.
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    if not parts or not isinstance(channel := parts[0], str):
        return _malformed("", "a Socket.IO event without a name", body, ack=ack)
    if namespace is None and len(parts) == 2:
        # The text before the payload has the same length as in a list of the channel alone.
        inside = None if written is None else written[len(_head_of(channel)) : -1]
        return Arrival((Frame(channel, parts[1], size, inside),), ack)
    name, arguments = f"{namespace}#{channel}" if namespace not in {None, "/"} else channel, parts[1:]
    frames = [Frame(name, arguments[0] if arguments else None, size)]
    # A runtime's event is its first argument; further ones become separate frames.
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


def _malformed(channel: str, reason: str, packet: bytes, *, ack: str | None = None) -> Arrival:
    return Arrival((Frame(channel, Malformed(reason, json.excerpt(packet))),), ack)
