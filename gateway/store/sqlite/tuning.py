"""The waiting times of the SQLite store; tests pass others."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTuning:
    """Seconds, unless said otherwise."""

    synchronous: Literal["FULL", "OFF"] = "FULL"
    """Whether a commit waits until it is on disk."""
    lock: float = 5.0
    """How long a statement waits for another connection."""
    confirm: float = 1.0
    """How long a file must be missing or replaced until that counts."""
    probe: float = 5.0
    """How long the disk may take until it counts as one that takes no writes."""
    log_tries: int = 100
    """How often an erasure tries to empty the log before it gives up."""


PRODUCTION = SqliteTuning()
