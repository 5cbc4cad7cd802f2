"""What a session remembers, and how each recorded event changes it. Pure.

`fold` is the only way the remembered part changes, and it sees only what the journal keeps: reading
a journal again gives the same memory. Open calls are the exception: they are rows of the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import TypeAdapter

from gateway.envelope import (
    CallId,
    ContextUpdated,
    Direction,
    Event,
    LinkChanged,
    Loss,
    MessageConfirmed,
    MessagePosted,
    SessionClosed,
    SessionId,
    SessionMoved,
    SessionOpened,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    text_of,
)
from gateway.ports.engine import CallRow, CallState

HISTORY_LINES = 200
HISTORY_BYTES = 32 * 1024
HISTORY_KEY = "conversationHistory"
_MOST_CONFIRMATIONS = 1_000


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A host call that waits for its outcome."""

    call_id: CallId
    native_call_id: str
    n: int
    tool: str
    arguments: Mapping[str, Any]
    args_sha: str
    state: CallState
    attempt: int
    created_at: datetime
    deadline_at: datetime
    request_sequence: int
    executor: str | None = None
    due_at: datetime | None = None
    canceling_until: datetime | None = None
    key: str | None = None
    redrive_of: CallId | None = None
    deliver: bool = True

    @property
    def idempotency_key(self) -> str:
        """The key every attempt carries."""
        return self.key or self.call_id

    @classmethod
    def from_row(cls, row: CallRow, request: ToolRequested) -> "OpenCall":
        """Take a call up again from the ledger and the event that asked for it."""
        return cls(
            call_id=row.call_id,
            native_call_id=row.native_call_id,
            n=row.n,
            tool=row.tool,
            arguments=request.arguments,
            args_sha=row.args_sha,
            state=row.state,
            attempt=row.attempt,
            created_at=row.created_at,
            deadline_at=row.deadline_at,
            request_sequence=row.request_sequence,
            executor=row.executor,
            due_at=row.due_at,
            canceling_until=row.canceling_until,
            key=row.key,
            redrive_of=row.redrive_of,
            deliver=row.deliver,
        )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """An agent message of a burst that the runtime waits to see confirmed."""

    call: str
    index: int
    count: int | None
    sequence: int
    posted_at: datetime
    author: str
    text: str

    @property
    def last(self) -> bool:
        """Whether no further message of the burst is known to follow."""
        return self.count is None or self.index >= self.count - 1


@dataclass(frozen=True, slots=True)
class Remembered:
    """The part of a session's memory that is folded from its journal."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    closed: bool = False
    context: Mapping[str, Any] | None = None
    """The last complete context as the backend gave it, where the protocol replaces contexts."""
    history: tuple[str, ...] = ()
    """Conversation lines, `[HH:MM] Name: text`, bounded."""
    confirmations: tuple[Confirmation, ...] = ()
    running: bool = False
    native_state: str | None = None
    active_at: datetime | None = None
    """When anything last showed that the agent works, or was made to."""
    quiet_at: datetime | None = None
    """When the last message of a burst was confirmed, with nothing after it."""
    linked: bool = False

    def confirmation(self, call: str, index: int) -> Confirmation | None:
        """Find an unconfirmed message of a burst."""
        return next((c for c in self.confirmations if c.call == call and c.index == index), None)


class Recorded(Protocol):
    """What fold needs of an event: true of a NewEvent before the commit and of an Envelope after it."""

    @property
    def event(self) -> Event: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def recorded_at(self) -> datetime: ...
    @property
    def losses(self) -> tuple[Loss, ...]: ...


def fold(memory: Remembered, recorded: Recorded, sequence: int) -> Remembered:
    """Remember what one recorded event means for the session."""
    now, event = recorded.recorded_at, recorded.event
    match event:
        case SessionOpened(labels=labels):
            return replace(memory, labels=labels, closed=False)
        case SessionClosed():
            return replace(memory, closed=True, running=False, confirmations=(), linked=False)
        case LinkChanged(state=state):
            return replace(memory, linked=state == "up")
        case SessionMoved(state=state):
            running = state in {"running", "awaiting_outcome", "awaiting_approval"}
            native = event.native_state if event.native_state is not None else memory.native_state
            return replace(memory, running=running, native_state=native, active_at=now, quiet_at=None)
        case MessagePosted() if recorded.direction == "from_runtime":
            return _agent_spoke(memory, event, now, sequence)
        case MessagePosted():
            spoken = _with_line(memory.history, now, event.author.name or event.author.role, text_of(event.content))
            return replace(_awake(memory, now, wakes=event.wakes_agent), history=spoken)
        case ContextUpdated() if recorded.direction == "to_runtime":
            invented = {loss.path.removeprefix("/context/") for loss in recorded.losses if loss.how == "invented"}
            given = {key: value for key, value in event.context.items() if key not in invented}
            return replace(_awake(memory, now, wakes=event.wakes_agent), context=given)
        case MessageConfirmed():
            return _confirmed(memory, event, now)
        case ToolRequested() | ToolFinished() | ToolCanceled():
            return replace(memory, active_at=now, quiet_at=None)
        case _:
            return memory


def fold_all(memory: Remembered, recorded: Sequence[tuple[Recorded, int]]) -> Remembered:
    """Fold many events in order."""
    for entry, sequence in recorded:
        memory = fold(memory, entry, sequence)
    return memory


def _awake(memory: Remembered, now: datetime, *, wakes: bool) -> Remembered:
    return replace(memory, active_at=now, quiet_at=None) if wakes else memory


def _agent_spoke(memory: Remembered, event: MessagePosted, now: datetime, sequence: int) -> Remembered:
    author, text = event.author.name or "Agent", text_of(event.content)
    if event.burst is None:
        return replace(memory, active_at=now, quiet_at=None, history=_with_line(memory.history, now, author, text))
    waiting = Confirmation(
        call=event.burst.call,
        index=event.burst.index,
        count=event.burst.count,
        sequence=sequence,
        posted_at=now,
        author=author,
        text=text,
    )
    others = tuple(c for c in memory.confirmations if (c.call, c.index) != (waiting.call, waiting.index))
    return replace(memory, active_at=now, quiet_at=None, confirmations=(*others, waiting)[-_MOST_CONFIRMATIONS:])


def _confirmed(memory: Remembered, event: MessageConfirmed, now: datetime) -> Remembered:
    found = memory.confirmation(event.native_call_id, event.index)
    if found is None:
        return memory
    rest = tuple(c for c in memory.confirmations if c is not found)
    history = memory.history
    if event.delivered:
        history = _with_line(history, found.posted_at, found.author, found.text)
    quiet = now if found.last and not rest else None
    return replace(memory, confirmations=rest, history=history, active_at=now, quiet_at=quiet)


def _with_line(history: tuple[str, ...], at: datetime, name: str, text: str) -> tuple[str, ...]:
    flat = " ".join(text.split())
    if not flat:
        return history
    lines = (*history, f"[{at:%H:%M}] {name}: {flat}"[: HISTORY_BYTES // 4])[-HISTORY_LINES:]
    sizes = [len(line.encode()) + 1 for line in lines]
    size, first = sum(sizes), 0
    while size > HISTORY_BYTES:
        size -= sizes[first]
        first += 1
    return lines[first:]


@dataclass(frozen=True, slots=True)
class SessionView:
    """All that decisions about a session rest on: its identity, its memory and its open calls."""

    session_id: SessionId
    runtime: str
    native_id: str
    memory: Remembered = Remembered()
    calls: Mapping[CallId, OpenCall] = field(default_factory=dict[CallId, OpenCall])
    last_sequence: int = 0
    touched_at: datetime | None = None
    """When something live (typing) last showed that the agent works; not on record."""


_SNAPSHOT = TypeAdapter(tuple[int, Remembered])


def to_snapshot(view: SessionView) -> bytes:
    """Write a session's memory down, so that it need not be folded from the first event again."""
    return _SNAPSHOT.dump_json((view.last_sequence, view.memory))


def from_snapshot(snapshot: bytes | None) -> tuple[int, Remembered]:
    """Read a memory and the sequence it stands at; an empty one at 0 where there is none."""
    return (0, Remembered()) if snapshot is None else _SNAPSHOT.validate_json(snapshot)


def turn_end_due(view: SessionView, *, quiet: timedelta, timeout: timedelta) -> datetime | None:
    """Say when an inferred turn ends if nothing else happens; never while a call is open."""
    memory = view.memory
    if not memory.running or view.calls or memory.active_at is None:
        return None
    active_at = memory.active_at if view.touched_at is None else max(memory.active_at, view.touched_at)
    late = active_at + timeout
    return late if memory.quiet_at is None else min(late, memory.quiet_at + quiet)
