"""There are no frames: clients call, and are told outcomes by the answers to their requests. Pure."""

from typing import NoReturn

from gateway.adapter.port import Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope


class McpCodec:
    """Knows no frame in either direction."""

    def decode(self, frame: Frame) -> NoReturn:
        """Refuse a frame; none arrives without a link."""
        raise MalformedFrame(f"MCP clients send no frames, and this one came on {frame.channel!r}")

    def encode(self, item: Draft | Envelope) -> NoReturn:
        """Refuse an event."""
        raise CannotExpress(f"an MCP client is told outcomes of its own calls only, and no {item.event.kind}")
