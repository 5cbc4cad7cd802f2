"""Where a simulated OpenHands agent stands, and how its server behaves where it may choose."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from gateway.testing.runtimes.openhands.rules import Frame

Decision = Literal["user_confirmed", "user_rejected", "stopped"]


@dataclass(frozen=True, slots=True)
class Manners:
    """How the simulated server behaves where a real one does now this, now that."""

    reorders: bool = False
    """Whether live events of one moment swap places, as those of two threads do: states come behind the next event."""
    loading: timedelta | None = timedelta(milliseconds=50)
    """How long a beginning agent loop takes until it listens; None where only `end_loading` ends it."""
    stale_state: timedelta | None = timedelta(milliseconds=100)
    """How long after a join the conversation's first state is sent once more; None where it is not."""
    heartbeat: timedelta = timedelta(seconds=25)
    """How often the server pings; a connection that has not answered within nearly as long again is dropped."""
    mcp_patience: timedelta = timedelta(seconds=30)
    """How long its MCP client waits for an answer, at most."""
    tells_broken_calls: bool = False
    """Whether an agent is told that its call at an MCP server broke and goes on, as with `RUNTIME=cli`; else it ends
    in error."""
    tells_status: bool = True
    """Whether REST says how a conversation stands; a server that should have Docker, and has not, fails instead."""
    listens: frozenset[str] = frozenset({"oh_action", "oh_user_action"})
    """Names of the Socket.IO events that carry client actions; any other event is ignored and never acknowledged."""
    rest_status: int | None = None
    """HTTP status of every REST answer of a server that speaks Socket.IO only, such as 404; None: REST works."""
    stores_settings: bool = True
    """Whether settings can be written by REST; a server that cannot store them answers 500."""
    recalls: bool = True
    """Whether a message makes the agent recall something first."""


@dataclass(slots=True)
class Progress:
    """Where the agent stands."""

    state: str = "loading"
    started: bool = False
    """Whether the agent loop runs; it ends with the server's process."""
    has_runtime: bool = False
    """Whether its runtime is there; its agent may still be loading."""
    poisoned: bool = False
    """A client's `write` is in the history, which no agent can read any more."""
    steps: int = 0
    waiting: bool = False
    """An action waits for the user's decision."""
    decision: Decision | None = None
    open: dict[int, Frame] = field(default_factory=dict[int, Frame])
    """Actions that are being carried out, by id."""
