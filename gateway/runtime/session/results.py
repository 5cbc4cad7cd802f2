"""Interprets the result of a send. Pure.

The effect depends on the protocol: silence means delivery, or the runtime acknowledges each send.

| result of the link | silence means delivery | an acknowledgement is required |
|---|---|---|
| sent | in flight, delivered if no error follows | unknown |
| delivered, refused, moot | recorded as such | recorded as such |
| busy | queued again | queued again |
| it cannot be expressed | dead | dead |
| the link broke | pending; the next link starts with it | pending; tried, unless it was certainly not sent |
| unexpected exception | pending; dead the third time | pending and tried; dead the third time |
"""

from typing import Literal

from gateway.adapter.port import Receipt
from gateway.errors import CannotExpress, LinkLost
from gateway.events.frozen import frozen
from gateway.store.step import SendState


@frozen
class Meaning:
    """The effect of a send's result on its event."""

    state: SendState | None = None
    """Its fate; None while it is undecided."""
    reason: str | None = None
    then: Literal["next", "again", "cut"] = "next"
    """Send the next event, queue this one again, or stop using the link."""
    tried: bool = False
    """Whether it may have been sent, although the acknowledgement is missing."""
    unsent: bool = False
    """Whether the runtime has certainly not received it."""


SENT, AGAIN = Meaning(), Meaning(then="again", unsent=True)
_UNCONFIRMED = "the runtime did not confirm it"


def read_result(result: Receipt | Exception, *, silent: bool) -> Meaning:
    """Interpret the result of a send by the table above."""
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
