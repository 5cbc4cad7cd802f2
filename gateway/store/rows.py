"""The values that engines return, and the filters and policies that they accept. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.step import InteractionState, Lane, SendState

T = TypeVar("T")

PAGE_BYTES = 1024 * 1024
"""The size at which a page of rows ends; only its first row may be larger."""


class Rows(list[T]):
    """A page of rows in order; it ends at its limit or at about `PAGE_BYTES`."""

    def __init__(self, rows: Iterable[T] = (), *, more: bool = False) -> None:
        super().__init__(rows)
        self.more = more
        """Whether further rows may follow the last one."""


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
    shared_sequence: int = 0
    """The generation before the last restore has the same events up to this one."""
    cursor: str | None = None


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
    call_id: CallId | None = None
    """The held call that it is about; None for a question of the runtime."""
    asked_before: int = 0
    """How many equal calls were canceled while they were held, within ten minutes before this one. Not a column."""
    unheard_since: datetime | None = None
    """As of its call. Not a column."""


Position = tuple[int, int, int]
"""A place in the order of all events of a store; only the store interprets it."""
FROM_THE_START: Position = (0, 0, 0)


@frozen
class Generation:
    """The history of a store; a position of another one names other events."""

    name: str
    """Random, and new after each restore."""
    previous: str | None
    """The generation that the last restore replaced."""
    shared: int
    """The previous generation has the same events up to this major number of positions."""
    backup_at: datetime | None = None
    """The time of the newest event in the backup that was restored; None if the store is no restored one."""

    def is_own(self, name: str | None) -> bool:
        """Return whether a position belongs to this history; one without a generation counts as its own."""
        return name is None or name == self.name

    def place_in_all(self, name: str, position: Position) -> Position:
        """Return the position up to which the events before a foreign position are the same here."""
        return min(position, (self.shared, 0, 0)) if name == self.previous else FROM_THE_START

    def place_in(self, row: SessionRow, name: str | None, sequence: int) -> int:
        """Return the sequence up to which the events before a foreign position are the same here."""
        return min(sequence, row.shared_sequence) if name == self.previous else 0


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
class Holder:
    """The transaction that events of later transactions wait for."""

    pid: int | None
    """None for a prepared transaction."""
    database: str
    application: str | None
    role: str | None
    state: str | None
    seconds: int | None

    def __str__(self) -> str:
        return (
            f"process {self.pid} of database {self.database!r} (application {self.application!r}, role {self.role!r},"
            f" {self.state}), which has written for {self.seconds} s and not committed"
        )


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
    text: str | None = None
    """Only sessions whose id begins with this text, or whose name or labels contain it."""
    session_ids: frozenset[str] = frozenset()


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
    text: str | None = None
    """Only calls with an id that begins with this text, or whose error or arguments contain it."""
    cause: str | None = None
    """Only calls whose error has this cause."""


@frozen
class DeadFilter:
    """A filter for dead sends; empty members match everything."""

    runtime: str | None = None
    target: str | None = None
    since: datetime | None = None
    """Only sends recorded at this time or later."""
    cause: str | None = None
    """Only sends whose reason has this cause."""


CAUSE_ENDS = (": ", "; ", " (")
"""The ends of the cause in an error or a reason; details follow."""
_UNSURE = "outcome unknown: "
_CAUSE_END = re.compile("|".join(map(re.escape, CAUSE_ENDS)))


def cause_of(text: str) -> str:
    """Return the cause in an error or a reason, which is the part before the details."""
    end = _CAUSE_END.search(text, len(_UNSURE) if text.startswith(_UNSURE) else 0)
    return text if end is None else text[: end.start()]


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
