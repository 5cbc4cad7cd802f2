"""The events of a simulated OpenHands conversation: kept, sent live, shown again, and paged through."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from gateway.testing.change import Change
from gateway.testing.runtimes.openhands.events import live_of, replay_of
from gateway.testing.runtimes.openhands.rules import Frame

KEPT_EVENTS = 20_000
_ANOTHER_THREAD = 0.02
"""Seconds by which a state may come late, where nothing else is sent meanwhile."""


class Wire(Protocol):
    """How a conversation reaches the sockets that have joined it."""

    async def broadcast(self, conversation_id: str, payload: Any) -> None: ...
    async def broadcast_text(self, conversation_id: str, packet: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    def cut(self, conversation_id: str) -> int: ...


class Store:
    """All events of one conversation, with the source they were stored with, null ones too."""

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
        """Give an event its id and time, without sending it."""
        number = self._next_id
        self._next_id += 1
        # On the wire times are naive and local, and a `timeout` is there or not.
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
        """Keep an event and send it."""
        stored = self.keep(event)
        await self.send(stored)
        return stored

    async def send(self, event: Frame) -> None:
        """Send an event as it goes out live, where it does at all."""
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
        """Send any payload as it is, without keeping it."""
        await self._wire.broadcast(self._conversation_id, payload)

    def has(self, name: str) -> bool:
        """Say whether an action of this name ever happened."""
        return any(event.get("action") == name for event in self.events)

    def history(self, latest: int) -> list[Frame]:
        """Return what a joining socket is shown."""
        return replay_of(self.events, latest)

    def page(self, start: int, end: int | None, limit: int, *, backwards: bool) -> Frame:
        """Return what `GET …/events` shows: everything, as it was stored."""
        found = [event for event in self.events if start <= event["id"] and (end is None or event["id"] <= end)]
        if backwards:
            found.reverse()
        return {"events": found[:limit], "has_more": len(found) > limit}

    async def wait(self, predicate: Callable[[Frame], bool], within: float, *, after: int) -> Frame:
        """Wait for an event that fits, among those with an id above `after`."""
        return await self._change.until(
            lambda: next((event for event in self.events if event["id"] > after and predicate(event)), None),
            within,
            what=lambda: f"a fitting event; the last ones were {str(self.events[-3:])[:2000]}",
        )
