"""The record of one outbound row, its state machine, and the meaning of a send's result. Pure.

`TABLE` is the state machine; gateway/core/README.md shows it. A row that only the ledger holds has no record, unless
this process must remember something about it (`stored`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.adapter.port import Receipt
from gateway.errors import CannotExpress, LinkLost
from gateway.events.frozen import frozen
from gateway.store.step import SendState

State = Literal["stored", "queued", "leaving", "in_flight", "settling"]
"""`in_flight`: sent, and not confirmed; `settling`: its fate is known, and not committed."""
Happening = Literal[
    "planned", "taken", "dropped", "sent", "answered", "busy", "unsent", "lost", "lost_in_step", "failed", "proven",
    "rejected", "requested",
]  # fmt: skip


@dataclass(slots=True)
class Row:
    """What this process knows about one outbound row."""

    sequence: int
    state: State = "stored"
    attempt: Literal["none", "written", "to_reset"] = "none"
    """Whether this process has committed its attempt, or must reset it, because nothing was sent."""
    doubt: bool = False
    """Whether an earlier link of this process may have sent it."""
    again: bool = False
    """Whether somebody has requested it again and it has not left since."""
    faults: int = 0
    """Unexpected link failures that it caused."""
    kind: str = ""
    since: float = 0.0
    """When it was sent."""
    repeats: bool = False
    """Whether it is in flight as a retransmit, or its mark is not committed."""
    note: str | None = None
    """The note that it gets after delivery."""

    @property
    def is_blank(self) -> bool:
        """Whether the ledger alone can hold it."""
        return self.state == "stored" and self.attempt == "none" and not (self.doubt or self.again or self.faults)


@frozen
class Move:
    """What an event does to a row."""

    to: State
    attempt: Literal["", "reset", "forget"] = ""
    """`reset` if this process has written it and the row cannot have been sent."""
    doubt: bool = False


TABLE: Mapping[tuple[State, Happening], Move] = {
    ("stored", "planned"): Move("queued"),
    ("stored", "lost"): Move("stored", "reset"),
    ("stored", "lost_in_step"): Move("stored", "reset"),
    ("stored", "failed"): Move("settling"),
    ("queued", "taken"): Move("leaving"),
    ("queued", "dropped"): Move("settling"),
    ("queued", "lost"): Move("stored", "reset"),
    ("queued", "lost_in_step"): Move("queued", "reset"),
    ("leaving", "sent"): Move("in_flight"),
    ("leaving", "answered"): Move("settling"),
    ("leaving", "busy"): Move("queued", "reset"),
    ("leaving", "unsent"): Move("stored", "reset"),
    ("leaving", "lost"): Move("stored", doubt=True),
    ("leaving", "failed"): Move("settling"),
    ("in_flight", "proven"): Move("settling"),
    ("in_flight", "rejected"): Move("settling"),
    ("in_flight", "failed"): Move("settling"),
    ("in_flight", "requested"): Move("stored", "forget"),
    ("in_flight", "lost"): Move("stored", doubt=True),
    ("settling", "rejected"): Move("settling"),
    ("settling", "requested"): Move("stored", "forget"),
    ("settling", "lost"): Move("settling"),
}


@frozen
class Meaning:
    """The effect of a send's result on its row; with `answered`, its fate."""

    what: Literal["sent", "answered", "busy", "unsent", "lost"]
    fate: SendState | None = None
    reason: str | None = None


SENT, BUSY, UNSENT, LOST = Meaning("sent"), Meaning("busy"), Meaning("unsent"), Meaning("lost")
_UNCONFIRMED = "the runtime did not confirm it"


def read_result(result: Receipt | BaseException, *, silent: bool) -> Meaning:
    """Interpret the result of a send; `silent` is whether silence means delivery.

    Without it, a missing acknowledgement is final: the delivery is unknown.
    """
    match result:
        case Receipt(state="sent", reason=reason):
            unknown = f"{_UNCONFIRMED}: {reason}" if reason else _UNCONFIRMED
            return SENT if silent else Meaning("answered", "unknown", unknown)
        case Receipt(state="busy"):
            return BUSY
        case Receipt(state="delivered" | "refused" | "moot" as fate, reason=reason):
            return Meaning("answered", fate, reason)
        case CannotExpress():
            return Meaning("answered", "dead", result.reason)
        case LinkLost(unsent=True):
            return UNSENT
        case _:
            return LOST
