"""The progress of a simulated OpenHands agent, and the behavior of its server in open points."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from gateway.testing.runtimes.openhands.rules import Frame

Decision = Literal["user_confirmed", "user_rejected", "stopped"]


@dataclass(frozen=True, slots=True)
class Manners:
    """The server's behavior in points in which real servers differ."""

    reorders: bool = False
    """Whether concurrent live events swap places, as with two threads: a state is sent after the next event."""
    loading: timedelta | None = timedelta(milliseconds=50)
    """The loading time of an agent loop; None: until `end_loading`."""
    stale_state: timedelta | None = timedelta(milliseconds=100)
    """The time after a join at which the conversation's first state is sent again; None: never."""
    heartbeat: timedelta = timedelta(seconds=25)
    """The interval of the server's pings; a connection without a pong within nearly the same time is dropped."""
    mcp_patience: timedelta = timedelta(seconds=30)
    """The time limit of its MCP client for a response."""
    tells_broken_calls: bool = False
    """Whether an agent receives an error for a broken MCP call and continues, as with `RUNTIME=cli`; otherwise it ends
    with an error."""
    tells_status: bool = True
    """Whether REST returns the status of a conversation; a server without its Docker fails instead."""
    listens: frozenset[str] = frozenset({"oh_action", "oh_user_action"})
    """The Socket.IO events for client actions; any other event is ignored and not acknowledged."""
    rest_status: int | None = None
    """The HTTP status of all REST responses of a server without REST, such as 404; None: REST works."""
    stores_settings: bool = True
    """Whether REST can write the settings; a server that cannot store them responds with 500."""
    recalls: bool = True
    """Whether a message makes the agent recall knowledge first."""


@dataclass(slots=True)
class Progress:
    """The progress of the agent."""

    state: str = "loading"
    started: bool = False
    """Whether the agent loop is running; it ends with the server's process."""
    has_runtime: bool = False
    """Whether its runtime is ready; its agent may still be loading."""
    poisoned: bool = False
    """Whether the history contains a client's `write`, which makes it unreadable for every agent."""
    steps: int = 0
    waiting: bool = False
    """Whether an action is waiting for the user's decision."""
    decision: Decision | None = None
    open: dict[int, Frame] = field(default_factory=dict[int, Frame])
    """The running actions, by id."""
