"""A websocket of aiohttp that lets several messages leave in one write, where each would be a write of its own."""

from typing import TYPE_CHECKING, Any, Literal

import aiohttp

if TYPE_CHECKING:
    _WebSocket = aiohttp.ClientWebSocketResponse[Literal[True]]
else:
    # Generic only in newer releases.
    _WebSocket = aiohttp.ClientWebSocketResponse

_MUCH = 64 * 1024
"""Bytes beyond which no more are kept; aiohttp looks then whether the peer reads."""


class CorkedTransport:
    """What a writer of messages takes for its transport."""

    __slots__ = ("_kept", "_size", "_transport", "is_closing")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing
        self._kept: list[bytes] | None = None
        """What is to leave together; None while each leaves at once."""
        self._size = 0

    def cork(self) -> None:
        """Keep what is written, until `uncork` or until it is much."""
        if self._kept is None:
            self._kept = []

    def uncork(self) -> None:
        """Let leave in one write what was kept."""
        kept, self._kept, self._size = self._kept, None, 0
        if kept and not self.is_closing():
            self._transport.write(b"".join(kept))

    def forget(self) -> None:
        """Keep nothing any more; what was kept does not leave."""
        self._kept, self._size = None, 0

    def write(self, data: bytes) -> None:
        """Take a message as it leaves."""
        if self._kept is None:
            self._transport.write(data)
            return
        self._kept.append(data)
        self._size += len(data)
        if self._size > _MUCH:
            self.uncork()
            self.cork()


class CorkedWebSocket(_WebSocket):
    """For `aiohttp.ClientSession(ws_response_class=...)`."""

    __slots__ = ("transport", "write_frame")

    def __init__(self, reader: Any, writer: Any, *others: Any, **options: Any) -> None:
        super().__init__(reader, writer, *others, **options)
        self.transport = writer.transport = CorkedTransport(writer.transport)
        self.write_frame = writer.send_frame
        """Sends a frame as it is given; what is to be waited for is room."""
