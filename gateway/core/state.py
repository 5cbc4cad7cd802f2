"""What decisions about a session rest on: its memory, its open calls, and what is only live. Pure."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from gateway.adapter.port import Capabilities
from gateway.core.memory import Remembered
from gateway.core.starting import Start
from gateway.events import CallId, SessionId
from gateway.events.frozen import frozen
from gateway.store.call import Call


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
    calls: Mapping[CallId, Call] = field(default_factory=dict[CallId, Call])
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
