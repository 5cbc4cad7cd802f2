"""The codec of MCP clients, which refuses all frames: outcomes are responses to their requests. Pure."""

from typing import NoReturn

from gateway.adapter.port import Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope


class McpCodec:
    """A codec without frames in either direction."""

    def decode(self, frame: Frame) -> NoReturn:
        """Refuse a frame; none arrives without a link."""
        raise MalformedFrame(f"MCP clients send no frames, but one arrived on {frame.channel!r}")

    def encode(self, item: Draft | Envelope) -> NoReturn:
        """Refuse an event."""
        raise CannotExpress(f"an MCP client receives only outcomes of its own calls, no {item.event.kind}")
