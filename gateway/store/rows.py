"""The values that engines return, and the filters and policies that they accept. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any

from gateway.events import Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.step import InteractionState, Lane, SendState


@frozen
class SessionRow:
    """A session as stored."""

    session_id: SessionId
    runtime: str
    protocol: str
    native_id: str
    state: str
    labels: Mapping[str, str]
    last_sequence: int
    first_sequence: int
    """The oldest remaining event; last_sequence + 1 if there is none."""
    opened_at: datetime
    updated_at: datetime
    fence: int = 0
    """Increases by one with each change of owner; `Step.fence` expects it."""
    owner: str | None = None
    """The instance that owns it, or owned it last; None if it was released."""
    previous_owner: str | None = field(default=None, compare=False)
    """The owner with an expired lease that `take` or `take_over` replaced; only a shared store knows it."""
    cursor: str | None = None
    snapshot: bytes | None = None


@frozen
class Regained:
    """The fields of an open session that its owner needs to resume it."""

    session_id: SessionId
    fence: int
    last_sequence: int


@frozen
class Instance:
    """A process that runs sessions, as the others see it."""

    instance_id: str
    url: str
    """The address of its API for other instances."""
    alive: bool
    """Whether its lease is valid, by the clock of the store."""
    sessions: int
    """The number of open sessions that it owns."""


@frozen
class Send:
    """The delivery of an event to one target, and its state."""

    session_id: SessionId
    sequence: int
    target: str
    lane: Lane
    state: SendState
    attempt: int
    """Tries so far. For an event that a runtime must not get twice: 1 if its send may have started, otherwise 0."""
    due_at: datetime | None
    reason: str | None
    envelope: Envelope
    created_at: datetime


@frozen
class InteractionRow:
    """A question to a person, and its state."""

    interaction_id: InteractionId
    session_id: SessionId
    kind: str
    state: InteractionState
    request_sequence: int
    expires_at: datetime | None
    answered_by: str | None


Position = tuple[int, int, int]
"""A place in the order of all events of a store; only the store interprets it."""
FROM_THE_START: Position = (0, 0, 0)


@frozen
class EventFilter:
    """A filter for events of all sessions; empty members match everything."""

    session_id: SessionId | None = None
    runtime: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    kinds: frozenset[str] = frozenset()

    def matches(self, session: "SessionName", kind: str) -> bool:
        """Return whether an event of a session matches."""
        return (
            (not self.kinds or kind in self.kinds)
            and (self.session_id is None or session.session_id == self.session_id)
            and (self.runtime is None or session.runtime == self.runtime)
            and all(session.labels.get(name) == value for name, value in self.labels.items())
        )


ANY_EVENT = EventFilter()


@frozen
class SessionName:
    """What a stream over sessions tells of an event's session."""

    session_id: SessionId
    runtime: str
    native_id: str
    labels: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON of streams and copies."""
        return {
            "session_id": self.session_id,
            "runtime": self.runtime,
            "native_id": self.native_id,
            "labels": dict(self.labels),
        }


@frozen
class Placed:
    """An event in the order of all events of a store."""

    position: Position
    session: SessionName
    envelope: Envelope


@frozen
class PlacedPage:
    """Matching events behind a position, in order."""

    events: Sequence[Placed]
    position: Position
    """The place behind which the next page starts."""
    more: bool
    """Whether further events can be read now, which may not match."""
    is_gap: bool
    """Whether retention removed events among those that were searched."""
    held_back: bool
    """Whether committed events cannot be read until an earlier transaction ends."""


@frozen
class Page:
    """A page of a list: at most `limit` rows after `after`, an opaque cursor."""

    limit: int = 50
    after: str | None = None


@frozen
class SessionFilter:
    """A filter for sessions; empty members match everything."""

    runtime: str | None = None
    native_id: str | None = None
    open_only: bool = False
    states: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only sessions with all these labels."""
    since: datetime | None = None
    """Only sessions opened at this time or later."""
    until: datetime | None = None
    """Only sessions opened before this time."""


ANY_SESSION = SessionFilter()


@frozen
class CallFilter:
    """A filter for calls; empty members match everything."""

    session_id: SessionId | None = None
    runtime: str | None = None
    tool: str | None = None
    states: frozenset[str] = frozenset()
    unknown: bool | None = None
    dead: bool | None = None
    executor: str | None = None
    since: datetime | None = None
    """Only calls created at this time or later."""
    until: datetime | None = None
    """Only calls created before this time."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only calls of sessions with all these labels."""
    trace_id: str | None = None


@frozen
class DeadFilter:
    """A filter for dead sends; empty members match everything."""

    runtime: str | None = None
    target: str | None = None
    since: datetime | None = None
    """Only sends recorded at this time or later."""


ANY_DEAD = DeadFilter()


@frozen
class RetentionPolicy:
    """The limits of a sweep: it removes events older than `closed_age` (closed sessions) or `open_age`, or beyond
    `max_bytes`."""

    closed_age: timedelta = timedelta(days=7)
    open_age: timedelta = timedelta(days=30)
    open_events: int = 50_000
    call_age: timedelta = timedelta(days=7)
    copy_age: timedelta = timedelta(days=7)
    """The time that an undelivered copy keeps its event; afterwards both are removed."""
    max_bytes: int = 2 * 1024**3


@frozen
class Swept:
    """The rows that one turn of a sweep removed; `more` asks for another turn."""

    events: int = 0
    calls: int = 0
    more: bool = False
    copies: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of undelivered copies that were removed with their events, by target."""


@frozen
class StoredAnswer:
    """The remembered response to an API write with an Idempotency-Key."""

    request_sha: str
    response: bytes
    expires_at: datetime


@frozen
class EngineHealth:
    """The health of a store for an operator."""

    writable: bool
    detail: str = ""
    bytes_used: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
