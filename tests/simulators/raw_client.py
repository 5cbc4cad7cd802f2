"""A HUMA client out of nothing but python-socketio, to hold the simulated servers to account."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

# python-socketio ships no type stubs; what is used of it is written down in the protocol below.
import socketio  # pyright: ignore[reportMissingTypeStubs]

BOUND = 60.0


class _SocketClient(Protocol):
    def on(self, event: str, handler: object) -> None: ...
    async def connect(self, url: str, *, transports: list[str]) -> None: ...
    async def emit(self, event: str, data: object) -> None: ...
    async def disconnect(self) -> None: ...


class RawClient:
    """Keeps everything that arrives in one queue of (channel, payload)."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._socket = cast("_SocketClient", socketio.AsyncClient(reconnection=False))
        for channel in ("event", "error", "connect_error", "disconnect"):
            self._socket.on(channel, self._keep(channel))

    def _keep(self, channel: str) -> object:
        def keep(*payload: Any) -> None:
            self.arrived.put_nowait((channel, payload[0] if payload else None))

        return keep

    async def connect(self, url: str, *, transport: str = "websocket") -> None:
        await self._socket.connect(url, transports=[transport])

    async def send(self, payload: object, *, channel: str = "message") -> None:
        await self._socket.emit(channel, payload)

    def answer_calls_with(self, ending: dict[str, Any]) -> None:
        """From now on answer each tool call with this ending, and confirm each message."""

        async def answer(frame: dict[str, Any]) -> None:
            match frame:
                case {"type": "tool-call", "toolCallId": call_id, "toolName": tool}:
                    echo = {"toolCallId": call_id, "toolName": tool}
                    await self.send({"type": "tool-result", "triggering": True, **echo, **ending})
                case {"event": "message_sent", "toolCallId": call_id, "messageIndex": index}:
                    confirmation = {"messageIndex": index, "success": True}
                    await self.send({"type": "addon-tool-event", "toolCallId": call_id, "data": confirmation})
                case _:
                    pass

        self._socket.on("event", answer)

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(BOUND):
            return await self.arrived.get()

    async def close(self) -> None:
        await self._socket.disconnect()


@asynccontextmanager
async def connected(url: str, agent_id: str, api_key: str) -> AsyncGenerator[RawClient]:
    """Connect as HUMA's documents show: agent and key in the query."""
    client = RawClient()
    await client.connect(f"{url}/?agentId={agent_id}&apiKey={api_key}")
    try:
        yield client
    finally:
        await client.close()
