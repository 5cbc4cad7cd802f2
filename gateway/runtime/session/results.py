"""What it means for an event how its send went. Pure.

Where silence counts as delivery, and where it does not:

| the link said | silence delivers | an answer is awaited |
|---|---|---|
| sent | on its way, believed to be delivered when nothing is said against it | unknown |
| delivered, refused, moot | that | that |
| busy | waits here again | waits here again |
| it cannot be expressed | dead | dead |
| the link broke | pending, the next link begins with it | pending; tried, unless it surely has not left |
| anything that nobody foresaw | pending; dead the third time | pending and tried; dead the third time |
"""

from typing import Literal

from gateway.adapter.port import Receipt
from gateway.errors import CannotExpress, LinkLost
from gateway.events.frozen import frozen
from gateway.store.step import SendState


@frozen
class Meaning:
    """What a send's result means for its event."""

    state: SendState | None = None
    """Its fate; None while that is open."""
    reason: str | None = None
    then: Literal["next", "again", "cut"] = "next"
    """Whether the next one leaves, this one waits again, or nothing more leaves by this link."""
    tried: bool = False
    """Whether it may have left although an answer is missing that would say so."""
    unsent: bool = False
    """Whether the runtime has certainly not taken it."""


SENT, AGAIN = Meaning(), Meaning(then="again", unsent=True)
_UNCONFIRMED = "the runtime did not confirm it"


def read_result(result: Receipt | Exception, *, silent: bool) -> Meaning:
    """Say what a send's result means (the table above)."""
    match result:
        case Receipt(state="sent", reason=reason):
            return SENT if silent else Meaning("unknown", f"{_UNCONFIRMED}: {reason}" if reason else _UNCONFIRMED)
        case Receipt(state="busy"):
            return AGAIN
        case Receipt(state="delivered" | "refused" | "moot" as state, reason=reason):
            return Meaning(state, reason)
        case CannotExpress():
            return Meaning("dead", result.reason)
        case LinkLost(unsent=unsent):
            return Meaning(then="cut", tried=not silent and not unsent, unsent=unsent)
        case _:
            return Meaning(then="cut", tried=not silent)
