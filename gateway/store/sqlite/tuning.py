"""How long the SQLite store waits and how much it puts off, where no configuration says so; tests give others."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTuning:
    """Seconds, unless said otherwise; production takes them as they stand here."""

    synchronous: Literal["FULL", "OFF"] = "FULL"
    """Whether a commit waits until it is on disk."""
    lock: float = 5.0
    """How long a statement waits for another connection."""
    probe: float = 5.0
    """How long the disk may take until it counts as one that takes no writes."""
    log_tries: int = 100
    """How often an erasure tries to empty the log before it gives up."""
    spread_after: float = 2.0
    """After how long what was appended is spread."""
    spread_bytes: int = 2 * 1024**2
    """How much is spread at once, so that no commit waits long behind it."""
    behind: float = 10.0
    behind_bytes: int = 64 * 1024**2
    """How far the tables may fall behind where they cannot be written; then nothing is appended any more."""
    wal_bytes: int = 36 * 1024**2
    """How long SQLite's own log is made: what may be in it at a checkpoint, and the largest spread behind that."""


PRODUCTION = SqliteTuning()
