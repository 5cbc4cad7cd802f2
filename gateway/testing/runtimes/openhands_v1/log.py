"""The events of a simulated conversation: stores, numbers, pages and publishes them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol
from uuid import uuid4

from gateway.testing.change import Change
from gateway.testing.runtimes.openhands_v1.events import Frame

KEPT_EVENTS = 20_000


class Listener(Protocol):
    """A socket that follows a conversation."""

    def hear(self, event: Frame, seq: int | None) -> None:
        """Send a stored event, or one that is never stored."""
        ...

    def hear_frame(self, frame: Frame) -> None:
        """Send a frame of a streamed text, which only the session socket has."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the socket."""
        ...


def now() -> str:
    """Return the time as events have it: local, without a zone."""
    return datetime.now().astimezone().replace(tzinfo=None).isoformat(timespec="microseconds")


class EventLog:
    """The stored events of one conversation, and the sockets that hear new ones."""

    def __init__(self, change: Change) -> None:
        self.events: list[Frame] = []
        """In store order: the place of an event is its sequence number."""
        self.listeners: list[Listener] = []
        self.leaf: str | None = None
        """The newest event of the branch, without state updates; None at the root."""
        self._by_id: dict[str, int] = {}
        self._change = change

    def store(self, event: Frame, *, event_id: str | None = None, at: str | None = None) -> Frame:
        """Store an event and publish it; `at` is the time of its creation, if that was earlier."""
        if len(self.events) >= KEPT_EVENTS:
            raise RuntimeError(f"a simulated conversation keeps at most {KEPT_EVENTS} events")
        stored = stamped(event, event_id=event_id, at=at, parent=self.leaf)
        seq = len(self.events)
        self.events.append(stored)
        self._by_id[stored["id"]] = seq
        if stored["kind"] != "ConversationStateUpdateEvent":
            self.leaf = stored["id"]
        for listener in self.listeners:
            listener.hear(stored, seq)
        self._change.tell()
        return stored

    def publish(self, event: Frame) -> None:
        """Publish an event without storing it."""
        shown = stamped(event)
        for listener in self.listeners:
            listener.hear(shown, None)

    def publish_frame(self, frame: Frame) -> None:
        """Publish a frame of a streamed text."""
        for listener in self.listeners:
            listener.hear_frame(frame)

    def find(self, event_id: str) -> Frame | None:
        """Return a stored event."""
        place = self._by_id.get(event_id)
        return None if place is None else self.events[place]

    def branch(self) -> list[Frame]:
        """List the events from the root to the leaf, without state updates."""
        found: list[Frame] = []
        event_id = self.leaf
        while event_id is not None and (event := self.find(event_id)) is not None:
            found.append(event)
            event_id = event.get("parent_id")
        return found[::-1]

    def page(self, query: Mapping[str, str], limit: int) -> Frame:
        """Return a page of `GET …/events/search`; an unknown `page_id` is the first page."""
        found = [event for event in self.events if _fits(event, query)]
        if query.get("sort_order", "TIMESTAMP") == "TIMESTAMP_DESC":
            found.reverse()
        start = next((n for n, event in enumerate(found) if event["id"] == query.get("page_id")), 0)
        after = found[start + limit : start + limit + 1]
        return {"items": found[start : start + limit], "next_page_id": after[0]["id"] if after else None}

    async def wait(self, fits: Callable[[Frame], bool], within: float, *, after: int = -1) -> Frame:
        """Wait for a stored event with a sequence number above `after`."""
        return await self._change.until(
            lambda: next((event for event in self.events[after + 1 :] if fits(event)), None),
            within,
            what=lambda: f"a fitting event; the last ones were {str(self.events[-3:])[:2000]}",
        )


def stamped(event: Frame, *, event_id: str | None = None, at: str | None = None, parent: str | None = None) -> Frame:
    """Add the id, the time and the parent of an event."""
    head = {"id": event_id or str(uuid4()), "timestamp": at or now(), "source": event["source"]}
    return head | ({} if parent is None else {"parent_id": parent}) | event


def _fits(event: Frame, query: Mapping[str, str]) -> bool:
    kind, source, body = query.get("kind"), query.get("source"), query.get("body")
    from_, until = query.get("timestamp__gte"), query.get("timestamp__lt")
    return (
        (kind is None or kind.rpartition(".")[2] == event["kind"])
        and (source is None or source == event["source"])
        and (body is None or body in _texts(event))
        # As texts, in the local zone.
        and (from_ is None or event["timestamp"] >= local(from_))
        and (until is None or event["timestamp"] < local(until))
    )


def local(given: str) -> str:
    """Convert a time of a query to the form of an event's.

    Raises:
        ValueError: it is not a time.
    """
    read = datetime.fromisoformat(given)
    naive = read if read.tzinfo is None else read.astimezone().replace(tzinfo=None)
    return naive.isoformat()


def _texts(event: Frame) -> str:
    blocks: Any = event.get("llm_message", event.get("observation", {})).get("content", [])
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")
