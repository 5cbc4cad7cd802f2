"""An OpenHands client out of nothing but python-socketio, to hold the simulated server to account."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

# python-socketio ships no type stubs; what is used of it is written down in the protocol below.
import socketio  # pyright: ignore[reportMissingTypeStubs]

BOUND = 60.0


class _SocketClient(Protocol):
    def on(self, event: str, handler: object) -> None: ...
    async def connect(self, url: str, *, transports: list[str], wait_timeout: float) -> None: ...
    # The library's own name for it.
    async def call(self, event: str, data: object, *, timeout: float) -> Any: ...  # noqa: ASYNC109
    async def emit(self, event: str, data: object) -> None: ...
    async def disconnect(self) -> None: ...


class RawOpenHands:
    """Keeps all that arrives, in order; the connection itself is a line of its own."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []
        self._more = asyncio.Event()
        self._socket = cast("_SocketClient", socketio.AsyncClient(reconnection=False))
        for channel in ("oh_event", "connect", "connect_error", "disconnect"):
            self._socket.on(channel, self._keep(channel))

    def _keep(self, channel: str) -> object:
        def keep(*payload: Any) -> None:
            self.lines.append((channel, payload[0] if payload else None))
            self._more.set()

        return keep

    @property
    def events(self) -> list[dict[str, Any]]:
        return [payload for channel, payload in self.lines if channel == "oh_event"]

    @property
    def numbers(self) -> list[int]:
        """The ids of all events that have a number, in the order of arrival."""
        return [event["id"] for event in self.events if isinstance(event.get("id"), int)]

    async def connect(self, url: str, query: str, *, within: float = BOUND) -> None:
        await self._socket.connect(f"{url}/?{query}", transports=["websocket"], wait_timeout=within)

    async def order(self, action: str, args: Any, *, channel: str = "oh_user_action") -> None:
        """Send an action; returns when it was acknowledged."""
        await self.send({"action": action, "args": args}, channel=channel)

    async def send(self, payload: object, *, channel: str = "oh_user_action", within: float = BOUND) -> None:
        assert await self._socket.call(channel, payload, timeout=within) is None

    async def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for an event that fits."""
        async with asyncio.timeout(BOUND):
            while not (found := [event for event in self.events if fits(event)]):
                self._more.clear()
                await self._more.wait()
        return found[0]

    async def until_left(self) -> None:
        """Wait until the connection is gone."""
        async with asyncio.timeout(BOUND):
            while not any(channel == "disconnect" for channel, _ in self.lines):
                self._more.clear()
                await self._more.wait()

    async def close(self) -> None:
        await self._socket.disconnect()


@asynccontextmanager
async def joined(url: str, conversation_id: str, latest: object = -1, more: str = "") -> AsyncGenerator[RawOpenHands]:
    """Join a conversation as the public page shows."""
    client = RawOpenHands()
    await client.connect(url, f"conversation_id={conversation_id}&latest_event_id={latest}{more}")
    try:
        yield client
    finally:
        await client.close()


def is_state(state: str) -> Callable[[dict[str, Any]], bool]:
    """Fit a change to a state."""
    return lambda event: event.get("extras", {}).get("agent_state") == state


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Say shortly what events are."""
    return [
        event.get("action")
        or (event["observation"] if "agent_state" not in event.get("extras", {}) else event["extras"]["agent_state"])
        for event in events
        if "source" in event
    ]
