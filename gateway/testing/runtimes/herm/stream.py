"""The events of a simulated Herm session: stores, lists and streams them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from gateway.testing.change import Change
from gateway.testing.runtimes.herm.rules import DEFAULT_PAGE, PAGE_LIMIT, Frame, Objection

KEPT_EVENTS = 20_000
BEHIND_LIMIT = 10_000
"""The number of events that a listener may lag behind before it is disconnected."""

Line = tuple[Frame, bool] | None
"""An envelope and whether it is durable; None ends a stream."""


class Log:
    """All durable events of one session, and its live listeners."""

    def __init__(self, session_id: str, change: Change, *, keepalive: float) -> None:
        self.events: list[Frame] = []
        """The listed envelopes."""
        self.opened = 0
        """The number of streams that were ever opened."""
        self.listeners: set[asyncio.Queue[Line]] = set()
        self._session_id = session_id
        self._change = change
        self._keepalive = keepalive
        self._sequence = 0
        self._held: list[tuple[Frame, bool]] | None = None

    def add(self, payload: Frame, *, durable: bool = True) -> Frame:
        """Wrap a payload and send it to all listeners; store it if it is durable."""
        self._sequence += 1
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        envelope: Frame = {
            "id": f"evt_{self._session_id}_{self._sequence}",
            "type": payload["type"],
            "sessionId": self._session_id,
            "sequence": self._sequence,
            "status": "complete",
            "payload": payload,
            "processedAt": now,
            "createdAt": now,
        }
        if durable:
            self.events.append(envelope)
            if len(self.events) > KEPT_EVENTS:
                del self.events[: KEPT_EVENTS // 10]
        self.send(envelope, durable=durable)
        return envelope

    def send(self, envelope: Frame, *, durable: bool) -> None:
        """Send an envelope to all listeners without storing it, or hold it back after `hold`."""
        if self._held is not None:
            self._held.append((envelope, durable))
            self._change.tell()
            return
        for queue in list(self.listeners):
            if queue.qsize() >= BEHIND_LIMIT:
                self.listeners.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait((envelope, durable))
        self._change.tell()

    def hold(self) -> None:
        """Stream nothing until `release`; events are still listed."""
        if self._held is None:
            self._held = []

    def release(self) -> int:
        """Stream the held events in order; return their number."""
        held, self._held = self._held or [], None
        for envelope, durable in held:
            self.send(envelope, durable=durable)
        return len(held)

    @property
    def streamed(self) -> bool:
        """Whether all streams have every event."""
        return not self._held and all(queue.empty() for queue in self.listeners)

    def page(self, query: dict[str, str]) -> Frame:
        """Return one page of the list.

        Raises:
            Objection: 400, a parameter is invalid.
        """
        limit = _number(query, "limit", DEFAULT_PAGE)
        if not 1 <= limit <= PAGE_LIMIT:
            raise Objection(400, "validation_error", f"limit is 1 to {PAGE_LIMIT}")
        backwards = query.get("order", "asc") == "desc"
        after = _number(query, "after", _number(query, "after_sequence", 0))
        known = [event for event in self.events if event["sequence"] > after]
        if backwards:
            known.reverse()
        if cursor := query.get("cursor"):
            place = next((n for n, event in enumerate(known) if event["id"] == cursor), None)
            if place is None:
                raise Objection(400, "validation_error", "cursor is not one of ours")
            known = known[place + 1 :]
        more = len(known) > limit
        return {"data": known[:limit], "nextCursor": known[limit - 1]["id"] if more else None}

    async def listen(self, replay_after: str | None = None) -> AsyncGenerator[str]:
        """Stream the events from now on, after the replayed ones if `replay_after` is given."""
        queue: asyncio.Queue[Line] = asyncio.Queue(BEHIND_LIMIT + 1)
        self.listeners.add(queue)
        self.opened += 1
        self._change.tell()
        try:
            yield ": open\n\n"
            for event in self._since(replay_after):
                yield _write(event, durable=True)
            while True:
                try:
                    async with asyncio.timeout(self._keepalive):
                        line = await queue.get()
                except TimeoutError:
                    yield ": keepalive\n\n"
                    continue
                if line is None:
                    return
                yield _write(line[0], durable=line[1])
                self._change.tell()
        finally:
            self.listeners.discard(queue)
            self._change.tell()

    def close(self) -> int:
        """Close all streams gracefully; return their number."""
        count = len(self.listeners)
        for queue in list(self.listeners):
            self.listeners.discard(queue)
            queue.put_nowait(None)
        return count

    def _since(self, event_id: str | None) -> list[Frame]:
        if event_id is None:
            return []
        place = next((n for n, event in enumerate(self.events) if event["id"] == event_id), len(self.events))
        return self.events[place + 1 :]


def _write(envelope: Frame, *, durable: bool) -> str:
    # Live events have no id, because a stream cannot resume after them.
    number = f"id: {envelope['id']}\n" if durable else ""
    return f"event: {envelope['type']}\n{number}data: {json.dumps(envelope, ensure_ascii=False)}\n\n"


def _number(query: dict[str, str], key: str, default: int) -> int:
    given = query.get(key)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise Objection(400, "validation_error", f"{key} must be a number")
    return int(given)
