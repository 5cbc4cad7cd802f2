"""An event with its identity: what a codec makes, what an engine makes, what followers get. Pure."""

from dataclasses import field
from datetime import datetime
from typing import Any, Literal

import orjson

from gateway.events.content import Loss
from gateway.events.frozen import frozen
from gateway.events.ids import CallId, EventId, SessionId
from gateway.events.kinds import EVENT, Event

Direction = Literal["from_runtime", "to_runtime"]


@frozen
class Origin:
    """Where an event comes from, in the words of its protocol; only what a runtime or a caller has said has one."""

    adapter: str
    protocol: str
    native_id: str | None = None
    native_sequence: int | None = None
    native_time: str | None = None
    correlation: str | None = None
    """A second native key that ties messages together."""


@frozen
class Draft:
    """What one frame says, before it has an identity; only a codec makes it."""

    event: Event
    native_id: str | None = None
    """The protocol's own id of the message, where it has one; also the key for dropping repeats.

    Where a link replays history, calls in it are carried out only if their messages have one.
    """
    native_sequence: int | None = None
    native_time: str | None = None
    correlation: str | None = None
    """A second native key that ties messages together (OpenHands `tool_call_id`)."""
    losses: tuple[Loss, ...] = ()
    live: bool = False
    """True for what is only news: never numbered, stored or routed."""
    echo: bool = False
    """True where the frame may be our own message coming back."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The arguments or the result in it as compact JSON if they were read strictly."""


@frozen
class Envelope:
    """An event with its identity: as it is recorded, kept and shown."""

    event_id: EventId
    session_id: SessionId
    sequence: int
    """1, 2, 3 … per session, without gaps; 0 where whoever records it leaves it to the store."""
    recorded_at: datetime
    direction: Direction
    event: Event
    origin: Origin | None = None
    caused_by: int | None = None
    """Sequence of the event that led to this one."""
    losses: tuple[Loss, ...] = ()
    dedupe_key: str | None = None
    """With a repeat of (session, direction, key) nothing of a step is written: it is Repeated. Shown to nobody."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """As for a draft."""
    linked_to: CallId | None = None
    """Of an action of the runtime's own: the caller's call that it is, so that it is shown and counted once."""
    synthetic: bool = False
    """Made by the gateway itself: no runtime, caller, client or backend has said it."""
    stored_kind: str | None = None
    """The kind it was stored under, where this release cannot read it: `event` is then opaque, and never said."""


@frozen
class Live:
    """Something that followers see and nobody keeps."""

    event: Event
    after_sequence: int


@frozen
class Gap:
    """History between the reader's place and `first_sequence` is gone."""

    first_sequence: int


@frozen
class Missed:
    """The reader was not told of every change to what waits for people; what follows begins with all that wait."""


OWN_KINDS = frozenset({"session.opened", "session.closed", "link.changed", "call.linked", "delivery.settled"})
"""Kinds that nobody says to the gateway; what it hears of a runtime has an origin."""


def is_own(kind: str, direction: Direction, origin: Origin | None) -> bool:
    """Whether an event can have no other maker than the gateway."""
    return origin is None and (direction == "from_runtime" or kind in OWN_KINDS)


def to_json(envelope: Envelope) -> dict[str, Any]:
    """Shape an envelope as the API and the event copies show it."""
    origin, event = envelope.origin, envelope.event
    written = write_around(event, envelope.written)
    return {
        "event_id": envelope.event_id,
        "session_id": envelope.session_id,
        "sequence": envelope.sequence,
        "recorded_at": envelope.recorded_at.isoformat(),
        "direction": envelope.direction,
        "origin": None
        if origin is None
        else {
            "adapter": origin.adapter,
            "protocol": origin.protocol,
            "native_id": origin.native_id,
            "native_sequence": origin.native_sequence,
            "native_time": origin.native_time,
        },
        "caused_by": envelope.caused_by,
        "linked_to": envelope.linked_to,
        "synthetic": envelope.synthetic,
        "losses": [loss.model_dump() for loss in envelope.losses],
        "event": dump_event(event) if written is None else orjson.Fragment(written),
    }


def to_copy(envelope: Envelope) -> tuple[str, dict[str, Any]]:
    """Shape an envelope for those who get copies: its kind, and its JSON.

    An event that this release cannot read keeps its own kind and content.
    """
    if envelope.stored_kind is None:
        return envelope.event.kind, to_json(envelope)
    return envelope.stored_kind, {**to_json(envelope), "event": getattr(envelope.event, "payload", None)}


def write_around(event: Event, written: bytes | None) -> bytes | None:
    """Write an event around the JSON of its arguments or result, without members that hold nothing.

    None where that is not at hand, or the event holds more that is for pydantic to write.
    """
    if written is None:
        return None
    # By its kind, since asking whether it is of a class that it is not of takes several times as long.
    match event.kind:
        case "tool.requested":
            name = "arguments"
        case "tool.finished" if event.context is None and not event.updates:
            name = "result"
        case _:
            return None
    members = {key: value for key, value in event.__dict__.items() if value is not None}
    if name in members:
        members[name] = orjson.Fragment(written)
    return orjson.dumps(members)


def dump_event(event: Event) -> dict[str, Any]:
    """Turn an event into plain JSON values, leaving fields out that hold nothing."""
    return EVENT.dump_python(event, mode="json", exclude_none=True)
