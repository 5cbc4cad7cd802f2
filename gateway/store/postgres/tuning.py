"""How long the PostgreSQL store waits and how much it holds, where no configuration says so; tests give others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTuning:
    """Seconds, unless said otherwise; production takes them as they stand here."""

    pause_first: float = 0.05
    pause_longest: float = 1.0
    """Between two tries at least at first, and at most."""
    start: float = 10.0
    """How long a server is waited for that is away when the engine is opened."""
    commit: float = 10.0
    """How long a step waits for its turn and for the server."""
    ask: float = 5.0
    """The same of a question, and of a transaction beside the steps."""
    beat: float = 1.5
    """What a connection may take for a heartbeat: one that went dead must not cost the lease."""
    probe: float = 5.0
    """How long the server may take until it counts as one that takes no writes."""
    fresh: float = 1.0
    """Since a server's last answer in which it is believed to be there: a statement that is a commit of its own is only
    sent to such a one, since nobody could say what became of it."""
    ping_every: float = 3.0
    ping: float = 5.0
    """Between two pings of the notifier, and how long it waits for one to be heard."""
    old: float = 300.0
    """How long a transaction of somebody else may hold back what vacuum removes before a person is told."""
    batch: int = 256
    """Steps that share a transaction at most."""
    waiting_bytes: int = 64 * 1024**2
    """What the events of waiting steps may weigh together."""
    remembered: int = 4_096
    """Sessions of which a connection remembers at most what it wrote last."""


PRODUCTION = PostgresTuning()
