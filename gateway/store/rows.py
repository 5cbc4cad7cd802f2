"""What an engine answers: rows of its lists, the filters they are asked with, what upkeep has done. Pure."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from gateway.events import Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.step import InteractionState, Lane, SendState


@frozen
class SessionRow:
    """A session as the store knows it."""

    session_id: SessionId
    runtime: str
    protocol: str
    native_id: str
    state: str
    labels: Mapping[str, str]
    last_sequence: int
    first_sequence: int
    """The oldest event left; last_sequence + 1 where none is."""
    opened_at: datetime
    updated_at: datetime
    fence: int = 0
    """Grows by one each time the session changes hands; `Step.fence` expects it."""
    owner: str | None = None
    """The instance that carries it, or carried it last; nobody where None."""
    previous_owner: str | None = field(default=None, compare=False)
    """The instance whose expired lease `take` or `take_over` ended; only a shared store knows it."""
    cursor: str | None = None
    snapshot: bytes | None = None


@frozen
class Regained:
    """An open session that an instance owns, as far as one must know that goes on with it."""

    session_id: SessionId
    fence: int
    last_sequence: int


@frozen
class Instance:
    """A process that carries sessions, as the others see it."""

    instance_id: str
    url: str
    """Where the other instances reach its API."""
    alive: bool
    """Whether its lease still runs, by the store's own clock."""
    sessions: int
    """How many open sessions it owns."""


@frozen
class Send:
    """An event on its way: where to, and what became of it."""

    session_id: SessionId
    sequence: int
    target: str
    lane: Lane
    state: SendState
    attempt: int
    """Tries so far. Of an event that a runtime must not get twice: 1 once its send may have begun, 0 before."""
    due_at: datetime | None
    reason: str | None
    envelope: Envelope
    created_at: datetime


@frozen
class InteractionRow:
    """A question to a person, and what became of it."""

    interaction_id: InteractionId
    session_id: SessionId
    kind: str
    state: InteractionState
    request_sequence: int
    expires_at: datetime | None
    answered_by: str | None


@frozen
class Page:
    """How much of a list to answer: at most `limit` rows behind `after` (an opaque cursor)."""

    limit: int = 50
    after: str | None = None


@frozen
class SessionFilter:
    """Which sessions to list; empty members match everything."""

    runtime: str | None = None
    native_id: str | None = None
    open_only: bool = False


ANY_SESSION = SessionFilter()


@frozen
class CallFilter:
    """Which calls to list; empty members match everything."""

    session_id: SessionId | None = None
    runtime: str | None = None
    tool: str | None = None
    states: frozenset[str] = frozenset()
    unknown: bool | None = None
    dead: bool | None = None
    executor: str | None = None
    since: datetime | None = None
    """Only calls made at this time or later."""


@frozen
class DeadFilter:
    """Which dead sends to list; empty members match everything."""

    runtime: str | None = None
    target: str | None = None
    since: datetime | None = None
    """Only sends recorded at this time or later."""


ANY_DEAD = DeadFilter()


@frozen
class RetentionPolicy:
    """What a sweep may remove: events older than `closed_age` (closed sessions) or `open_age`, or over `max_bytes`."""

    closed_age: timedelta = timedelta(days=7)
    open_age: timedelta = timedelta(days=30)
    open_events: int = 50_000
    call_age: timedelta = timedelta(days=7)
    copy_age: timedelta = timedelta(days=7)
    """How long a copy that cannot be delivered holds its event back; then it goes with it."""
    max_bytes: int = 2 * 1024**3


@frozen
class Swept:
    """What one turn of a sweep removed; `more` asks for another turn."""

    events: int = 0
    calls: int = 0
    more: bool = False
    copies: Mapping[str, int] = field(default_factory=dict[str, int])
    """By target, how many copies went undelivered with their events."""


@frozen
class StoredAnswer:
    """The remembered response to an API write with an Idempotency-Key."""

    request_sha: str
    response: bytes
    expires_at: datetime


@frozen
class EngineHealth:
    """What an operator should know of a store."""

    writable: bool
    detail: str = ""
    bytes_used: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
