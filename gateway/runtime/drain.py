"""The stop of one process: new work is refused at once, work in flight ends first, then held requests.

In flight are attempts at executors, sends and creations on the wire, held requests, and input that is not committed.
Accepted calls, queued calls and waiting messages are not: the next process continues with them.
"""

from collections import Counter

from gateway.errors import Draining
from gateway.runtime.wakeup import Ending

MOST_NAMED = 20
"""Entries of `describe` before the rest is only counted."""

InFlight = Counter[tuple[str, str]]
"""How often a kind of work is in flight at a place: `("held request", "for session finn/agent_1")`."""


class Drain:
    """The progress of one gateway's stop."""

    def __init__(self) -> None:
        self.begun = Ending()
        """Set when the stop begins: no new work is accepted."""
        self.over = Ending()
        """Set when nothing is in flight or `limits.drain` has passed: held requests and streams end."""

    def refuse_new(self) -> None:
        """Raise while the gateway stops.

        Raises:
            Draining: the stop has begun.
        """
        if self.begun.happened:
            raise Draining("the gateway is stopping and accepts no new work; try again in a few seconds")


def describe(work: InFlight) -> str:
    """Name what is in flight: `2 held requests for session finn/agent_1, 1 attempt at ...`."""
    named = [f"{count} {noun}{'' if count == 1 else 's'} {place}" for (noun, place), count in sorted(work.items())]
    more = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f", and {more} more" if more > 0 else "")
