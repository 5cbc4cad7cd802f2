"""The events of a simulated OpenHands conversation: stores, sends, replays and lists them."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from gateway.testing.change import Change
from gateway.testing.runtimes.openhands.events import live_of, replay_of
from gateway.testing.runtimes.openhands.rules import Frame

KEPT_EVENTS = 20_000
_ANOTHER_THREAD = 0.02
"""The delay in seconds of a reordered state, unless another event is sent earlier."""


class Wire(Protocol):
    """Sends to the sockets that have joined a conversation."""

    async def broadcast(self, conversation_id: str, payload: Any) -> None: ...
    async def broadcast_text(self, conversation_id: str, packet: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    def cut(self, conversation_id: str) -> int: ...


class Store:
    """All stored events of one conversation, including null events, with their stored source."""

    def __init__(self, conversation_id: str, wire: Wire, change: Change, *, reorders: bool = False) -> None:
        self.events: list[Frame] = []
        self._conversation_id = conversation_id
        self._wire = wire
        self._change = change
        self._next_id = 0
        self._reorders = reorders
        self._late: list[Frame] = []
        self._late_sender: asyncio.Task[None] | None = None

    def keep(self, event: Frame) -> Frame:
        """Store an event with an id and a time, without sending it."""
        number = self._next_id
        self._next_id += 1
        # On the wire, times have no zone and are local, and `timeout` is optional.
        now = datetime.now().astimezone().replace(tzinfo=None)
        stored = {"id": number, "timestamp": now.isoformat(timespec="microseconds"), **event}
        if "action" in stored and number % 2:
            stored["timeout"] = 120.0
        self.events.append(stored)
        if len(self.events) > KEPT_EVENTS:
            del self.events[: KEPT_EVENTS // 10]
        self._change.tell()
        return stored

    async def say(self, event: Frame) -> Frame:
        """Store an event and send it."""
        stored = self.keep(event)
        await self.send(stored)
        return stored

    async def send(self, event: Frame) -> None:
        """Send the live form of an event, if it has one."""
        live = live_of(event)
        if live is None:
            return
        if self._reorders and live.get("observation") == "agent_state_changed":
            await self._send_late()
            self._late.append(live)
            self._late_sender = asyncio.create_task(self._send_later())
            return
        await self.emit(live)
        await self._send_late()

    async def _send_late(self) -> None:
        while self._late:
            await self.emit(self._late.pop(0))

    async def _send_later(self) -> None:
        await asyncio.sleep(_ANOTHER_THREAD)
        await self._send_late()

    async def emit(self, payload: Any) -> None:
        """Send a payload unchanged, without storing it."""
        await self._wire.broadcast(self._conversation_id, payload)

    def has(self, name: str) -> bool:
        """Return whether the store has an action of this name."""
        return any(event.get("action") == name for event in self.events)

    def history(self, latest: int) -> list[Frame]:
        """Return the replay for a joining socket."""
        return replay_of(self.events, latest)

    def page(self, start: int, end: int | None, limit: int, *, backwards: bool) -> Frame:
        """Return a page of `GET …/events`: all stored events, unchanged."""
        found = [event for event in self.events if start <= event["id"] and (end is None or event["id"] <= end)]
        if backwards:
            found.reverse()
        return {"events": found[:limit], "has_more": len(found) > limit}

    async def wait(self, predicate: Callable[[Frame], bool], within: float, *, after: int) -> Frame:
        """Wait for a matching event with an id above `after`."""
        return await self._change.until(
            lambda: next((event for event in self.events if event["id"] > after and predicate(event)), None),
            within,
            what=lambda: f"a fitting event; the last ones were {str(self.events[-3:])[:2000]}",
        )
