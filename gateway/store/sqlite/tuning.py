"""The waiting times and limits of the SQLite store; tests pass others."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTuning:
    """Values in seconds unless stated otherwise."""

    synchronous: Literal["FULL", "OFF"] = "FULL"
    """Whether a commit waits until it is on disk."""
    lock: float = 5.0
    """The wait of a statement for another connection."""
    confirm: float = 1.0
    """The time that a file must be missing or replaced before it counts."""
    probe: float = 5.0
    """The timeout of a test write, after which the disk counts as not writable."""
    log_tries: int = 100
    """The tries of an erasure to empty the log."""

    young: int = 1_000
    """The events and calls after which open rows are listed in their indexes; a query for open rows reads them all."""


PRODUCTION = SqliteTuning()
