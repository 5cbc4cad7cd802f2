"""The waiting times and sizes of the PostgreSQL store that are not configurable; tests pass others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTuning:
    """Values in seconds unless stated otherwise; production uses the defaults."""

    pause_first: float = 0.05
    pause_longest: float = 1.0
    """The first and the longest pause between two tries."""
    start: float = 10.0
    """The wait for an unreachable server when the engine opens."""
    commit: float = 10.0
    """The wait of a step for its turn and for the server."""
    ask: float = 5.0
    """The wait of a query, and of a transaction other than a step."""
    beat: float = 1.5
    """The timeout of a heartbeat on one connection: a dead connection must not cost the lease."""
    probe: float = 5.0
    """The timeout of a test write, after which the server counts as not writable."""
    fresh: float = 1.0
    """The time since the last response in which a connection counts as alive. A statement that commits by itself is
    sent only then, because a lost connection leaves its fate unknown."""
    ping_every: float = 3.0
    ping: float = 5.0
    """The interval of the notifier's pings, and the wait for one to arrive."""
    old: float = 300.0
    """The age at which a foreign transaction that blocks vacuum is reported."""
    batch: int = 256
    """Most steps in one transaction."""
    waiting_bytes: int = 64 * 1024**2
    """Bytes of the events of waiting steps."""
    remembered: int = 4_096
    """Most sessions whose last written rows a lane remembers."""


PRODUCTION = PostgresTuning()
