"""The socket for storage: a Step goes in whole or not at all; narrow questions come out. Pure.

`commit` is the only way anything is written about a session. Engines give the same answers
whatever they are made of; `gateway.testing.conformance.engine` is the contract as tests.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Protocol

from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.call import Call
from gateway.store.rows import (
    ANY_DEAD,
    ANY_SESSION,
    CallFilter,
    DeadFilter,
    EngineHealth,
    Instance,
    InteractionRow,
    Page,
    Regained,
    RetentionPolicy,
    Send,
    SessionFilter,
    SessionRow,
    StoredAnswer,
    Swept,
)
from gateway.store.step import Committed, InteractionState, Step


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

    async def read(self, session_id: SessionId, *, after: int = 0, limit: int = 500) -> Sequence[Envelope]:
        """Read events behind a sequence, in order.

        Raises:
            Truncated: events right behind `after` were removed by retention.
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
    async def sessions(
        self, page: Page, which: SessionFilter = ANY_SESSION, *, newest_first: bool = False
    ) -> tuple[Sequence[SessionRow], str | None]:
        """List sessions in the order in which they were first opened, and the cursor of the next page."""
        ...

    async def erase(self, session_id: SessionId) -> None:
        """Remove the bodies of a closed session's events (their kinds and sequences stay) and its snapshot.

        An erased event reads back as `opaque` with channel `erased`; what was to be sent to the runtime is moot.
        """
        ...


class Ledger(Protocol):
    """Answers questions about calls, deliveries and interactions."""

    async def call(self, call_id: CallId) -> Call | None: ...
    async def latest_call(self, session_id: SessionId, native_call_id: str) -> Call | None:
        """Find the call with the highest n of a native id; redrives do not count."""
        ...

    async def ended_for(self, call_id: CallId) -> timedelta | None:
        """Say how long ago a call ended, by the store's own clock; None while it is open, and where it is unknown."""
        ...

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[Call], str | None]:
        """List calls, newest first. A page may be short, or empty, though more follow: the cursor says so."""
        ...

    async def open_calls(self, session_id: SessionId) -> Sequence[Call]: ...
    async def count_open_calls(self) -> Mapping[str, int]:
        """Count the open calls of each runtime that has any; takes as long as there are open ones."""
        ...

    async def pending_sends(
        self,
        *,
        session_id: SessionId | None = None,
        target: str,
        due_before: datetime | None = None,
        limit: int = 500,
    ) -> Sequence[Send]:
        """List pending rows of a target, session by session in order of sequence; only due ones if a time is given.

        A row that is not due holds back the later ones of its session, so that none overtakes it.
        """
        ...

    async def next_send_due(self, target: str) -> datetime | None:
        """Say when the next pending row of a target can be had, if any is pending."""
        ...

    async def sends_of(self, session_id: SessionId, sequence: int) -> Sequence[Send]: ...
    async def revive(self, session_id: SessionId, sequence: int, target: str, *, due_at: datetime) -> bool:
        """Make a refused, unknown or dead row pending again; False where it is none: of many at once one succeeds."""
        ...

    async def dismiss(self, session_id: SessionId, sequence: int, target: str, *, reason: str) -> bool:
        """Make a row that `dead_sends` lists moot; False where it is none: of many at once one succeeds."""
        ...

    async def dead_sends(self, page: Page, which: DeadFilter = ANY_DEAD) -> tuple[Sequence[Send], str | None]:
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

    async def take_over(self, instance: str, *, runtimes: Collection[str], limit: int) -> Sequence[SessionRow]:
        """Own open sessions of these runtimes that no living instance owns, each under its next fence.

        At most `limit`, and never beyond a fair share: all open sessions over all living instances, rounded up.
        Nothing where one's own lease has run out. Two instances never take over the same session.
        """
        ...

    async def regain(self, instance: str, *, former: Collection[str]) -> Sequence[Regained]:
        """Own, in one statement, the open sessions that one's own former instances still own, under their next fences.

        The leases of the former instances end with it. Returns all open sessions that are one's own then, so that it
        may be repeated where the answer was lost; nothing where one's own lease has run out.
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


class Notifier(Protocol):
    """Wakes other instances; it never carries truth, so that losing all of it only costs latency.

    Topics that begin with `live:` carry what nobody can look for; a notifier without room leaves them out first.
    """

    def notify(self, topic: str) -> None:
        """Tell the others that there is news; returns at once, never fails, and is sent after the commits before it."""
        ...

    def listen(self, heard: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `heard` with each topic of another instance, with None where some may have been missed.

        It is called on the event loop and must not block. Returns what ends the listening.
        """
        ...


class Engine(Journal, Registry, Ledger, Memory, Leases, Notifier, Protocol):
    """All of them; an async context manager: entering opens, migrates and locks, leaving flushes and closes."""

    async def sweep(self, policy: RetentionPolicy, *, budget: int = 2_000) -> Swept:
        """Remove at most `budget` rows that the policy lets go; never of an open call, never a pending send's event."""
        ...

    async def health(self) -> EngineHealth:
        """Say whether the store takes writes, by trying one."""
        ...

    async def __aenter__(self) -> "Engine": ...
    async def __aexit__(self, *exc: object) -> None: ...
