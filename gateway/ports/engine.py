"""The socket for storage: a Step goes in whole or not at all; narrow questions come out. Pure.

`commit` is the only way anything is written about a session. Engines give the same answers
whatever they are made of; `gateway.conformance.engine` is the contract as tests.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from gateway.envelope import (
    CallId,
    Direction,
    Envelope,
    Event,
    EventId,
    InteractionId,
    Loss,
    Origin,
    SessionId,
)
from gateway.envelope.values import dataclass

CallState = Literal["queued", "dispatched", "accepted", "succeeded", "failed", "canceled", "expired"]
OPEN_STATES: frozenset[str] = frozenset({"queued", "dispatched", "accepted"})
SendState = Literal["pending", "delivered", "refused", "moot", "unknown", "dead"]
Lane = Literal["urgent", "turn", "new_work"]
InteractionState = Literal["waiting", "answered", "expired", "moot"]

RUNTIME = "runtime"
"""The outbound target that is the session's own runtime; the others are `destination:NAME`."""


# What a step writes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is to be numbered and kept."""

    event_id: EventId
    event: Event
    direction: Direction
    recorded_at: datetime
    origin: Origin | None = None
    caused_by: int | None = None
    losses: tuple[Loss, ...] = ()
    dedupe_key: str | None = None
    """A repeat of (session, direction, key) is left out of the commit."""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Open:
    """A new call; `state` is `dispatched` with attempt 1 where it may leave at once, `queued` otherwise."""

    call_id: CallId
    native_call_id: str
    n: int
    tool: str
    args_sha: str
    state: CallState
    attempt: int
    deadline_at: datetime
    request_index: int | None
    """Index of its tool.requested in the same step; None with `request_sequence` for a redrive."""
    executor: str | None = None
    due_at: datetime | None = None
    key: str | None = None
    """Idempotency key where it is not the call_id (a redrive of another call)."""
    redrive_of: CallId | None = None
    request_sequence: int | None = None
    deliver: bool = True
    """Whether the outcome goes to the runtime."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A queued call leaves now, as attempt `attempt`."""

    call_id: CallId
    attempt: int


@dataclass(frozen=True, slots=True)
class Accept:
    """The executor promised an outcome (202); the call waits until `deadline_at`."""

    call_id: CallId
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Requeue:
    """Try again at `due_at`."""

    call_id: CallId
    due_at: datetime
    reason: str
    unsure: bool = False
    """Whether the executor may have done the work already; once so, it stays so until the call ends."""


@dataclass(frozen=True, slots=True)
class MarkCanceling:
    """An operator canceled: first answer wins until `until`."""

    call_id: CallId
    until: datetime


@dataclass(frozen=True, slots=True)
class Settle:
    """The call has its one outcome; `outcome_index` is its tool.finished in the same step."""

    call_id: CallId
    state: CallState
    outcome_sha: str
    outcome_index: int | None
    unknown: bool = False
    error: str | None = None
    dead: bool = False
    """Whether it ended without an answer of its executor, so that it waits for an operator."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """A dead call was tried again as another one, so it waits for an operator no more; it may have ended long ago.

    Of many at once one succeeds, the others are Stale.
    """

    call_id: CallId


@dataclass(frozen=True, slots=True)
class Dismissed:
    """An operator has left a dead call as it is, so it waits for one no more; it may have ended long ago.

    Of many at once, those that redrive it included, one succeeds, the others are Stale.
    """

    call_id: CallId


CallChange = Open | Claim | Accept | Requeue | MarkCanceling | Settle | Redriven | Dismissed


@dataclass(frozen=True, slots=True)
class Send:
    """An outbound row for an event of the same step, born `pending`."""

    event_index: int
    target: str
    lane: Lane = "turn"


@dataclass(frozen=True, slots=True)
class SendChange:
    """What became of an outbound row; a `pending` one with `due_at` is tried again then."""

    sequence: int
    target: str
    state: SendState
    attempt: int = 0
    due_at: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class InteractionChange:
    """A person was asked, or has answered, or no longer needs to."""

    interaction_id: InteractionId
    state: InteractionState
    kind: str = ""
    """Given, with the place of the question, where it is asked; other changes leave both out."""
    request_index: int | None = None
    expires_at: datetime | None = None
    answered_by: str | None = None
    request_sequence: int | None = None
    """Instead of an index, for a question that an earlier step recorded."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The answer to an API write with an Idempotency-Key, kept in the very step that carries it out.

    What is kept as the response is `{"session_id", "sequences"}` in JSON, since sequences are only known now; the
    answer is formed again from the events. An answer that is kept already and has not expired stays.
    """

    key: str
    scope: str
    request_sha: str
    expires_at: datetime
    events: tuple[int, ...]
    """Indexes of the events of this step that the answer shows."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The session must still be owned under this fence."""

    fence: int


@dataclass(frozen=True, slots=True)
class CallOpen:
    """The call must be open, and at this attempt where one is given."""

    call_id: CallId
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class LastSequence:
    """Nobody may have written to the session since this sequence."""

    sequence: int


Expectation = Fence | CallOpen | LastSequence


@dataclass(frozen=True, slots=True)
class Step:
    """Everything one decision writes about one session: all of it or nothing.

    An `Open` of a call_id that exists is Stale as well: the caller looks the old call up and decides again.
    """

    session_id: SessionId
    events: tuple[NewEvent, ...] = ()
    calls: tuple[CallChange, ...] = ()
    sends: tuple[Send, ...] = ()
    send_changes: tuple[SendChange, ...] = ()
    interactions: tuple[InteractionChange, ...] = ()
    keeps: tuple[Keep, ...] = ()
    cursor: str | None = None
    snapshot: bytes | None = None
    state: str | None = None
    """The session's own state for lists (`running`, `idle`, `closed`, ...)."""
    expects: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """What is now durable: the envelopes in order, without those left out as repeats."""

    envelopes: tuple[Envelope, ...]
    last_sequence: int
    dropped: tuple[int, ...] = ()
    """Indexes of the step's events that were repeats of a dedupe_key. Sends of a dropped event are left out too."""


# What questions answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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
    """Grows by one each time the session changes hands; `Fence` expects it."""
    owner: str | None = None
    """The instance that carries it, or carried it last; nobody where None."""
    cursor: str | None = None
    snapshot: bytes | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """A process that carries sessions, as the others see it."""

    instance_id: str
    url: str
    """Where the other instances reach its API."""
    alive: bool
    """Whether its lease still runs, by the store's own clock."""
    sessions: int
    """How many open sessions it owns."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as the store knows it; bodies are in the events it points to."""

    call_id: CallId
    session_id: SessionId
    runtime: str
    native_call_id: str
    n: int
    tool: str
    args_sha: str
    state: CallState
    attempt: int
    created_at: datetime
    deadline_at: datetime
    request_sequence: int
    executor: str | None = None
    key: str | None = None
    due_at: datetime | None = None
    canceling_until: datetime | None = None
    outcome_sequence: int | None = None
    outcome_sha: str | None = None
    unknown: bool = False
    error: str | None = None
    redrive_of: CallId | None = None
    deliver: bool = True
    finished_at: datetime | None = None
    dead: bool = False
    """Whether it waits for an operator: it ended without an answer of its executor, and was not redriven."""


@dataclass(frozen=True, slots=True)
class SendRow:
    """An outbound row with the envelope it carries."""

    session_id: SessionId
    sequence: int
    target: str
    lane: Lane
    state: SendState
    attempt: int
    due_at: datetime | None
    reason: str | None
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class InteractionRow:
    """A question to a person, and what became of it."""

    interaction_id: InteractionId
    session_id: SessionId
    kind: str
    state: InteractionState
    request_sequence: int
    expires_at: datetime | None
    answered_by: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """How much of a list to answer: at most `limit` rows behind `after` (an opaque cursor)."""

    limit: int = 50
    after: str | None = None


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead sends to list; empty members match everything."""

    runtime: str | None = None
    target: str | None = None
    since: datetime | None = None
    """Only sends recorded at this time or later."""


ANY_DEAD = DeadFilter()


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a sweep may remove: events older than `closed_age` (closed sessions) or `open_age`, or over `max_bytes`."""

    closed_age: timedelta = timedelta(days=7)
    open_age: timedelta = timedelta(days=30)
    open_events: int = 50_000
    call_age: timedelta = timedelta(days=7)
    copy_age: timedelta = timedelta(days=7)
    """How long a copy that cannot be delivered holds its event back; then it goes with it."""
    max_bytes: int = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Swept:
    """What one turn of a sweep removed; `more` asks for another turn."""

    events: int = 0
    calls: int = 0
    more: bool = False
    copies: Mapping[str, int] = field(default_factory=dict[str, int])
    """By target, how many copies went undelivered with their events."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The remembered response to an API write with an Idempotency-Key."""

    request_sha: str
    response: bytes
    expires_at: datetime


# The ports -----------------------------------------------------------------------------------------------


class Journal(Protocol):
    """Writes steps and reads events."""

    async def commit(self, step: Step) -> Committed:
        """Write a step; returns only after the disk has it. A Stale or poisoned step fails alone.

        Raises:
            Stale: an expectation did not hold (Fenced: it was the fence), or an opened call exists.
            NotFound: no such session.
            EngineUnavailable: nothing was written (disk full, closed).
        """
        ...

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        """Read events behind a sequence, in order.

        Raises:
            Truncated: events right behind `after` were removed by retention.
            NotFound: no such session.
        """
        ...


class Registry(Protocol):
    """Knows the sessions."""

    async def open_session(
        self,
        *,
        session_id: SessionId,
        runtime: str,
        protocol: str,
        native_id: str,
        labels: Mapping[str, str],
        first: NewEvent,
    ) -> tuple[SessionRow, bool]:
        """Make a session with its first event, or find the one of (runtime, native_id); says whether it is new.

        A closed session is opened again: the event is appended, the labels replaced, the state is `starting`.
        An open one is returned as it is.
        """
        ...

    async def session(self, session_id: SessionId) -> SessionRow | None: ...
    async def sessions(
        self, page: Page, *, runtime: str | None = None, open_only: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        """List sessions, oldest first, and the cursor of the next page."""
        ...

    async def erase(self, session_id: SessionId) -> None:
        """Remove the bodies of a closed session's events (their kinds and sequences stay) and its snapshot.

        An erased event reads back as `opaque` with channel `erased`.
        """
        ...


class Ledger(Protocol):
    """Answers questions about calls, deliveries and interactions."""

    async def call(self, call_id: CallId) -> CallRow | None: ...
    async def latest_call(self, session_id: SessionId, native_call_id: str) -> CallRow | None:
        """Find the call with the highest n of a native id; redrives do not count."""
        ...

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[CallRow], str | None]:
        """List calls, newest first."""
        ...

    async def open_calls(self, session_id: SessionId) -> Sequence[CallRow]: ...
    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Sequence[SendRow]:
        """List pending rows of a target in order of session and sequence; those due, where a time is given.

        A row that is not due holds back the later ones of its session, so that none overtakes it.
        """
        ...

    async def next_send_due(self, target: str) -> datetime | None:
        """Say when the next pending row of a target can be had, if any is pending."""
        ...

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[SendRow]: ...
    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        """Make a refused, unknown or dead row pending again; False where it is none: of many at once one succeeds."""
        ...

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        """Make a refused, unknown or dead row moot; False where it is none: of many at once one succeeds."""
        ...

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[SendRow], str | None]:
        """List rows that are refused, unknown or dead, newest first."""
        ...

    async def interactions(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[InteractionRow], str | None]: ...
    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None: ...


class Memory(Protocol):
    """Remembers the answers to idempotent API writes, and small settings (which destination is off, autostarts)."""

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None: ...
    async def remember(self, *, key: str, scope: str, answer: StoredAnswer) -> bool:
        """Keep an answer; False where another one is already kept for the key."""
        ...

    async def note(self, name: str) -> str | None: ...
    async def set_note(self, name: str, value: str | None) -> None: ...


class Leases(Protocol):
    """Says which instance may speak for a session, by one lease per instance and one fence per session.

    Times are the store's own: the clocks of instances do not matter. An instance id belongs to one lease for
    ever; who lost it begins again under a new one.
    """

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        """Begin or renew an instance's lease; False where it had run out, which is never revived."""
        ...

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        """Own one open session that no living instance owns, under its next fence; one's own is returned as it is.

        None where another one owns it, where it is closed or unknown, or where one's own lease has run out.
        """
        ...

    async def adopt(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        """Own open sessions of these runtimes that no living instance owns, each under its next fence.

        At most `limit`, and never beyond a fair share: all open sessions over all living instances, rounded up.
        Nothing where one's own lease has run out. Two instances never adopt the same session.
        """
        ...

    async def release(self, instance: str, session_ids: Collection[SessionId] | None = None) -> None:
        """Give sessions up; None gives up all of them, everything held, and the lease."""
        ...

    async def owner(self, session_id: SessionId) -> Instance | None:
        """Find the living instance that owns a session."""
        ...

    async def instances(self) -> Sequence[Instance]:
        """List the instances whose lease runs, and those that still own sessions though theirs has run out."""
        ...

    async def hold(self, instance: str, name: str) -> bool:
        """Take or keep something that only one living instance may have (a destination, the sweep)."""
        ...

    async def let_go(self, instance: str, name: str) -> None:
        """Give up something held, so that another instance may have it at once; nothing where it is not one's own."""
        ...


class Bell(Protocol):
    """Wakes other instances; it never carries truth, so that losing every ring only costs latency.

    Topics that begin with `live:` carry what nobody can look for; a bell without room leaves them out first.
    """

    def ring(self, topic: str) -> None:
        """Tell the others that there is news; returns at once, never fails, and is sent after the commits before it."""
        ...

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `heard` with the topic of each ring of another instance, with None where some may have been missed.

        It is called on the event loop and must not block. Returns what ends the listening.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What an operator should know of a store."""

    writable: bool
    detail: str = ""
    bytes_used: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


class Engine(Journal, Registry, Ledger, Memory, Leases, Bell, Protocol):
    """All of them; an async context manager: entering opens, migrates and locks, leaving flushes and closes."""

    async def sweep(self, policy: RetentionPolicy, *, budget: int = 2_000) -> Swept:
        """Remove at most `budget` rows that the policy lets go; never of an open call, never a pending send's event."""
        ...

    async def health(self) -> EngineHealth:
        """Say whether the store takes writes, by trying one."""
        ...

    async def __aenter__(self) -> "Engine": ...
    async def __aexit__(self, *exc: object) -> None: ...
