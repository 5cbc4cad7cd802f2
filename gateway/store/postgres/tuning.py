"""The timeouts and sizes of the PostgreSQL store that are not configurable; tests pass others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTuning:
    """Values in seconds unless stated otherwise; production uses the defaults."""

    pause_first: float = 0.05
    pause_longest: float = 1.0
    """The first and the longest pause between two attempts."""
    start: float = 10.0
    """The time limit for reaching the server when the engine opens."""
    commit: float = 10.0
    """The time limit of a step, including its time in the queue."""
    ask: float = 5.0
    """The time limit of a query, and of a transaction other than a step."""
    beat: float = 1.5
    """The time limit of a heartbeat on one connection, so that a dead connection does not cost the lease."""
    probe: float = 5.0
    """The time limit of a test write; after it the server counts as not writable."""
    fresh: float = 1.0
    """The time for which a connection counts as alive after a response. An autocommit statement is sent only within
    this time, because its fate is unknown if the connection is lost."""
    ping_every: float = 3.0
    ping: float = 5.0
    """The interval of the notifier's pings, and the time limit for their arrival."""
    old: float = 300.0
    """The age at which a foreign transaction that blocks vacuum is reported."""
    batch: int = 256
    """The limit of a transaction in steps."""
    waiting_bytes: int = 64 * 1024**2
    """The limit of the queue in bytes of events."""
    remembered: int = 4_096
    """The number of sessions that a lane remembers."""


PRODUCTION = PostgresTuning()
