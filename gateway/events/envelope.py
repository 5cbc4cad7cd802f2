"""Drafts from codecs, and recorded envelopes. Pure."""

from dataclasses import field
from datetime import datetime
from typing import Any

import orjson

from dragoman.models.content import Loss
from dragoman.models.events import Event, dump_event
from dragoman.models.states import Direction
from dragoman.models.stream import Live
from gateway.events.frozen import frozen
from gateway.events.ids import CallId, EventId, SessionId


@frozen
class Origin:
    """The native source of an event; only events from a runtime or a caller have one."""

    adapter: str
    protocol: str
    native_id: str | None = None
    native_sequence: int | None = None
    native_time: str | None = None
    correlation: str | None = None
    """A second native key that connects messages."""


@frozen
class Draft:
    """One decoded event before the store gives it an id and a sequence; only codecs create drafts."""

    event: Event
    native_id: str | None = None
    """The protocol's id of the message, if any; duplicates are dropped by it.

    If a link replays history, a call in it is executed only if its message has one.
    """
    native_sequence: int | None = None
    native_time: str | None = None
    correlation: str | None = None
    """A second native key that connects messages (OpenHands `tool_call_id`)."""
    losses: tuple[Loss, ...] = ()
    live: bool = False
    """Shown to followers only: never numbered, stored or routed."""
    echo: bool = False
    """Whether the frame may be our own message."""
    abandons_actions: bool = False
    """Whether the runtime reports no end of an action that is open at this state; it ends as unknown."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The arguments or the result as compact JSON, if parsed strictly."""
    native: bytes | None = field(default=None, compare=False, repr=False)
    """The native frame as JSON to keep, if the runtime's options ask for it; the core sets it."""


@frozen
class Envelope:
    """A recorded event with id, sequence, origin and losses."""

    event_id: EventId
    session_id: SessionId
    sequence: int
    """1, 2, 3 … per session, without gaps; 0 until the store assigns it."""
    recorded_at: datetime
    direction: Direction
    event: Event
    origin: Origin | None = None
    caused_by: int | None = None
    """Sequence of the event that caused this one."""
    losses: tuple[Loss, ...] = ()
    dedupe_key: str | None = None
    """A step with a known (session, direction, key) is not written but raises `Repeated`. Private to the store."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """See `Draft.written`."""
    linked_to: CallId | None = None
    """On a runtime's action: the equal caller's call, so that it is shown and counted once."""
    synthetic: bool = False
    """Made by the gateway, not received from a runtime, caller, client or backend."""
    native: bytes | None = field(default=None, compare=False, repr=False)
    """See `Draft.native`."""
    stored_kind: str | None = None
    """The stored kind if this release cannot read it: `event` is then opaque and never sent."""


OWN_KINDS = frozenset({"session.opened", "session.closed", "link.changed", "call.linked", "delivery.settled"})
"""Kinds that the gateway never receives. Events received from a runtime have an origin."""


def is_own(kind: str, direction: Direction, origin: Origin | None) -> bool:
    """Whether only the gateway can have made an event."""
    return origin is None and (direction == "from_runtime" or kind in OWN_KINDS)


def to_json(envelope: Envelope) -> dict[str, Any]:
    """Convert an envelope to the JSON of the API and of event copies."""
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


def write_position(sequence: int, generation: str) -> str:
    """Write the position of an event in its session, which names the event in this history of the store only."""
    return f"{sequence}.{generation}"


def to_copy(envelope: Envelope, generation: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the JSON of an event copy from a store of this generation.

    An event that this release cannot read has its stored kind and content.
    """
    data = {**to_json(envelope), "position": write_position(envelope.sequence, generation)}
    if envelope.stored_kind is None:
        return envelope.event.kind, data
    return envelope.stored_kind, {**data, "event": getattr(envelope.event, "payload", None)}


def to_live_json(live: Live) -> dict[str, Any]:
    """Convert a live event to the JSON of streams and copies."""
    return {"live": True, "after_sequence": live.after_sequence, "event": dump_event(live.event)}


def write_around(event: Event, written: bytes | None) -> bytes | None:
    """Serialize an event around the given JSON of its arguments or result, without None members.

    Returns None without that JSON, or if other members require pydantic.
    """
    if written is None:
        return None
    # Match the kind: a failed isinstance check takes several times as long.
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
