"""The port of a store: commit a Step completely or not at all, and answer narrow queries. Pure.

Every page of rows ends at its limit or at about 1 MiB, whichever comes first; it has at least one row if there is one.
Only `commit` and `submit` write session data. All engines return the same results; `gateway.testing.conformance.engine`
is the contract as tests.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Protocol

from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.call import Call
from gateway.store.outage import StoreOutage
from gateway.store.rows import (
    ANY_DEAD,
    ANY_SESSION,
    CallFilter,
    DeadFilter,
    EngineHealth,
    EventFilter,
    Generation,
    Holder,
    Instance,
    InteractionRow,
    Page,
    PlacedPage,
    Position,
    Regained,
    RetentionPolicy,
    Rows,
    Send,
    SessionFilter,
    SessionRow,
    StoredAnswer,
    Swept,
)
from gateway.store.step import Committed, InteractionState, Step

Settled = Callable[[Sequence[tuple[Step, Committed | Exception]]], None]
"""Takes submitted steps with their commits or errors."""

Report = Callable[[str, float], None]
"""Takes the current step of a start and its completed share, from any thread."""


def report_nothing(step: str, share: float) -> None:
    """Take a report that nobody reads."""
    del step, share


class Journal(Protocol):
    """Writes steps and reads events."""

    async def commit(self, step: Step) -> Committed:
        """Write a step; returns only after the disk has it. A Stale or poisoned step fails alone.

        Raises:
            Stale: an expectation did not hold (Fenced: it was the fence), or an opened call exists.
            Repeated: events of the step are on record already.
            NotFound: no such session.
            EngineUnavailable: nothing was written (disk full, closed).
        """
        ...

    def submit(self, steps: Sequence[Step], settled: Settled) -> int:
        """Accept the first of these steps, as many as there is capacity for; return their number without waiting.

        The steps of a session are written in order. `settled` gets each accepted step exactly once, with its commit or
        the exception that `commit` raises, also if the store is closed or stops. It is called by the event loop, once
        for all steps of a transaction, and never before `submit` returns.
        """
        ...

    async def read(
        self, session_id: SessionId, *, after: int = 0, limit: int = 500, excerpts: bool = False
    ) -> Rows[Envelope]:
        """Read events behind a sequence, in order; the next page starts behind the last one.

        With `excerpts`, an event above 8 KiB is opaque: its payload has the first members and texts.

        Raises:
            Truncated: events right behind `after` were removed by retention.
            NotFound: no such session.
        """
        ...

    async def read_kinds(
        self,
        session_id: SessionId,
        kinds: Collection[str],
        *,
        after: int = 0,
        limit: int = 500,
        excerpts: bool = False,
    ) -> tuple[Sequence[Envelope], int | None]:
        """Read events of some kinds behind a sequence, in order, and the sequence behind which the next page starts.

        Searches a bounded number of events, so a page may be short, or empty, though more follow.

        Raises:
            Truncated, NotFound: as `read` does.
        """
        ...

    async def latest_event(self, session_id: SessionId, kind: str) -> tuple[Envelope | None, int]:
        """Find the last event of a kind, and the oldest sequence that was searched: a bounded number of events.

        Raises:
            NotFound: no such session.
        """
        ...


@frozen
class NewSession:
    """A session to open, with the first event of its journal."""

    session_id: SessionId
    runtime: str
    protocol: str
    native_id: str
    labels: Mapping[str, str]
    first: Envelope
    state: str = "starting"
    """The state that lists show until a step changes it."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Notes to write in the same transaction, also if the session exists."""


class Registry(Protocol):
    """Knows the sessions."""

    async def open_session(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Create a session, or find the one of (runtime, native_id); returns whether it is new.

        A closed session is opened again: the first event is appended, labels and state are replaced.
        An open one is returned unchanged.
        """
        ...

    async def session(self, session_id: SessionId) -> SessionRow | None: ...
    async def snapshot(self, session_id: SessionId) -> bytes | None:
        """Return the encoded memory of a session that was committed last."""
        ...

    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        """List sessions in the order in which they were first opened, and the cursor of the next page."""
        ...

    async def count_open_sessions(self) -> int: ...
    async def erase(self, session_id: SessionId) -> None:
        """Remove the bodies of a closed session's events (their kinds and sequences stay) and its snapshot.

        An erased event reads as `opaque` with channel `erased`; its pending sends to the runtime become moot.
        """
        ...


class EventOrder(Protocol):
    """Reads the events of all sessions, in an order in which each event has a fixed position.

    The events of a session are in the order of their sequences. An event appears behind all events that were read
    before it, whatever transactions committed meanwhile.
    """

    @property
    def generation(self) -> Generation:
        """The name of this history; a position of another one means nothing here."""
        ...

    async def end(self) -> Position:
        """Return the position behind all events that can be read."""
        ...

    async def read_all(self, after: Position, which: EventFilter, *, limit: int, searched: int) -> PlacedPage:
        """Read the matching events behind a position, at most `limit`; searches about `searched` events."""
        ...

    async def held_back_by(self) -> Holder | None:
        """Find the transaction that pages which are `held_back` wait for; None if there is none by now."""
        ...


class Ledger(Protocol):
    """Answers questions about calls, deliveries and interactions."""

    async def call(self, call_id: CallId) -> Call | None: ...
    async def latest_reuse(self, session_id: SessionId, native_call_id: str) -> Call | None:
        """Find the call with the highest n above 0 of a native id; redrives do not count."""
        ...

    async def ended_for(self, call_id: CallId) -> timedelta | None:
        """Return the time since the end of a call, by the clock of the store; None if it is open or unknown."""
        ...

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        """List calls, newest first. A page may be short, or empty, though more follow: the cursor says so."""
        ...

    async def argument_excerpts(self, call_ids: Collection[CallId]) -> Mapping[CallId, str]:
        """Read the first 200 characters of the arguments of calls as JSON; of a request above 16 KiB only its size.

        A call whose request was erased or removed, or is unreadable, is left out.
        """
        ...

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]: ...
    async def unheard_calls(self, session_id: SessionId) -> Sequence[Call]:
        """List the ended calls with unreceived outcomes, newest first, at most `MOST_UNHEARD`."""
        ...

    async def count_open_calls(self) -> Mapping[str, int]:
        """Count the open calls by runtime, in time proportional to their number."""
        ...

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        after: int = 0,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Rows[Send]:
        """List pending rows of a target, session by session in order of sequence; only due ones if a time is given.

        A row that is not due holds back the later ones of its session, so that none overtakes it. Of one session, the
        rows behind the sequence `after` can be listed.
        """
        ...

    async def next_send_due(self, target: str) -> datetime | None:
        """Say when the next pending row of a target can be had, if any is pending."""
        ...

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]: ...
    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        """Make a refused, unknown or dead row pending again; False otherwise. Of concurrent requests one succeeds."""
        ...

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        """Make a row of `dead_sends` moot; False for other rows. One of many concurrent requests succeeds."""
        ...

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
        """List rows that are refused, unknown or dead, newest first."""
        ...

    async def count_dead(self, most: int) -> int:
        """Count the dead calls, at most `most`, and the rows that are refused, unknown or dead, at most `most`."""
        ...

    async def count_waiting(self, most: int) -> int:
        """Count the interactions that wait for a person, at most `most`."""
        ...

    async def interactions(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[InteractionRow], str | None]: ...
    async def interactions_with_events(
        self, page: Page, *, session_id: SessionId | None = None, state: InteractionState | None = None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope | None]], str | None]:
        """List interactions with their request events; None for an event that retention removed."""
        ...

    async def approvals(
        self, page: Page, *, session_id: SessionId | None = None, since: datetime | None = None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        """List the interactions about held calls whose request events are on record, since a time of these events."""
        ...

    async def interaction(self, interaction_id: InteractionId) -> InteractionRow | None: ...


class Memory(Protocol):
    """Remembers the answers to idempotent API writes, and small settings (which destination is off, autostarts)."""

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None: ...
    async def remember(self, *, key: str, scope: str, answer: StoredAnswer) -> bool:
        """Store a response; False if another one is stored for the key."""
        ...

    async def note(self, name: str) -> str | None: ...
    async def set_note(self, name: str, value: str | None) -> None: ...


class Leases(Protocol):
    """Decide which instance owns a session, with one lease per instance and one fence per session.

    Times come from the store, so the clocks of instances do not matter. An instance id has one lease; an instance that
    lost it starts again under a new id.
    """

    async def beat(self, instance: str, *, url: str, ttl: timedelta) -> bool:
        """Start or renew the lease of an instance; False if it has expired, which is final."""
        ...

    async def take(self, instance: str, session_id: SessionId) -> SessionRow | None:
        """Acquire one open session without a living owner, under its next fence; return an owned session unchanged.

        None if another instance owns it, if it is closed or unknown, or if the own lease has expired.
        """
        ...

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        """Acquire open sessions of these runtimes without a living owner, each under its next fence.

        At most `limit`, and at most a fair share: all open sessions divided by all living instances, rounded up. Empty
        if the own lease has expired. Two instances never acquire the same session.
        """
        ...

    async def regain(self, instance: str, *, former: Collection[str]) -> Sequence[Regained]:
        """Acquire, in one statement, the open sessions of the own former instances, under their next fences.

        This ends the leases of the former instances. Returns all open sessions that the instance then owns, so it can
        be repeated after a lost response; empty if the own lease has expired.
        """
        ...

    async def release(self, instance: str, session_ids: Collection[SessionId] | None = None) -> None:
        """Give sessions up; None gives up all of them, everything held, and the lease."""
        ...

    async def owner(self, session_id: SessionId) -> Instance | None:
        """Find the living instance that owns a session."""
        ...

    async def instances(self) -> Sequence[Instance]:
        """List the instances with a valid lease, and those with an expired lease that still own sessions."""
        ...

    async def hold(self, instance: str, name: str) -> bool:
        """Take or keep something that only one living instance may have (a destination, the sweep)."""
        ...

    async def release_name(self, instance: str, name: str) -> None:
        """Release a held resource for other instances at once; ignore resources of others."""
        ...


class Notifier(Protocol):
    """Wake other instances. Notifications carry no state, so losing them costs only latency.

    Topics that start with `live:` carry live events, which are not stored; a full notifier drops them first.
    """

    def notify(self, topic: str) -> None:
        """Tell the others that there is news; returns at once, never fails, and is sent after the commits before it."""
        ...

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `heard` with each topic of another instance, and with None if topics may have been missed.

        It runs on the event loop and must not block. Returns a function that stops listening.
        """
        ...


class Engine(Journal, Registry, EventOrder, Ledger, Memory, Leases, Notifier, Protocol):
    """All of them; an async context manager: entering opens, migrates and locks, leaving flushes and closes."""

    outage: StoreOutage
    """The log of failed attempts, which the callers report."""

    async def sweep(self, policy: RetentionPolicy, *, budget: int = 2_000) -> Swept:
        """Delete at most `budget` rows that the policy allows; never of an open call, never a pending send's event."""
        ...

    async def health(self) -> EngineHealth:
        """Check that the store accepts writes, with a test write."""
        ...

    async def __aenter__(self) -> "Engine": ...
    async def __aexit__(self, *exc: object) -> None: ...
