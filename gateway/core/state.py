"""What decisions about a session rest on: its memory, its open calls, and what is only live. Pure."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any

from gateway.adapter.port import Capabilities
from gateway.core.memory import Remembered
from gateway.core.starting import Start
from gateway.events import CallId, SessionId, ToolRequested
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.store.rows import CallRow
from gateway.store.step import CallState


@frozen
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
    size: int = 0
    """What its arguments take."""
    unsure: bool = False
    """Whether an earlier attempt may have done the work."""
    readable: bool = True
    """Whether its request can be read; nobody is asked to carry out another."""
    progressed: int = 0
    """What was recorded of its progress, in bytes."""

    @property
    def idempotency_key(self) -> str:
        """The key every attempt carries."""
        return self.key or self.call_id

    @classmethod
    def from_row(cls, row: CallRow, request: ToolRequested, *, readable: bool = True) -> "OpenCall":
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
            unsure=row.unknown,
            progressed=row.progressed,
            size=weight(request.arguments),
            readable=readable,
        )


@frozen
class Complete:
    """A snapshot from which a newer release folds anew; events behind it are kept for that."""

    sequence: int
    snapshot: bytes


@frozen
class SessionView:
    """All that decisions about a session rest on: its identity, its memory and its open calls."""

    session_id: SessionId
    runtime: str
    native_id: str
    memory: Remembered = field(default_factory=Remembered)
    calls: Mapping[CallId, OpenCall] = field(default_factory=dict[CallId, OpenCall])
    last_sequence: int = 0
    cursor: str | None = None
    """Where the link resumes, in the protocol's own terms."""
    first_state: str = "idle"
    """The state it is listed with before the runtime has said one."""
    listed: str = "idle"
    """The state that lists show, as the store has it."""
    touched_at: datetime | None = None
    """When something live (typing) last showed that the agent works; not on record."""
    partial: str = ""
    """What the agent has streamed of a message that is not complete yet; not on record."""
    live: bool = True
    """False while a link replays history: nothing of it is acted on."""
    start: Start = Start()
    """Whether the runtime has started, as this link has told; not on record."""
    complete: Complete | None = None
    """The newest memory that lacks nothing, where this one was folded without what only a newer release can read."""


def first_state(capabilities: Capabilities) -> str:
    """Name the state a session is listed with before its runtime has said one."""
    return "starting" if capabilities.turns == "signalled" else "idle"


def turn_end_due(view: SessionView, *, quiet: timedelta, timeout: timedelta) -> datetime | None:
    """Say when an inferred turn ends if nothing else happens; never while a call is open."""
    memory = view.memory
    if not memory.running or view.calls or memory.active_at is None:
        return None
    active_at = memory.active_at if view.touched_at is None else max(memory.active_at, view.touched_at)
    late = active_at + timeout
    return late if memory.quiet_at is None else min(late, memory.quiet_at + quiet)
