"""The interfaces through which all code gets the time and fresh ids. Pure."""

from datetime import datetime
from typing import Protocol

from gateway.events import EventId


class Clock(Protocol):
    """Tells time; a fake one makes tests instant."""

    def now(self) -> datetime:
        """Return the current UTC time; it never goes backwards in a process, and advances while the machine sleeps."""
        ...

    def timestamp(self) -> float:
        """Return the same time as seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed moment, to measure durations; it may stand still while the machine sleeps."""
        ...


class Ids(Protocol):
    """Creates unique ids."""

    def event_id(self) -> EventId:
        """Create an id; ids sort by the time of their creation."""
        ...

    def token(self) -> str:
        """Create an unguessable URL-safe text."""
        ...

    def span_id(self) -> str:
        """Create 16 unique hexadecimal digits, not all zero; they may be guessable."""
        ...

    def jitter(self) -> float:
        """Return a random number in [0, 1), which spreads retries; it may be guessable."""
        ...


def describe_stall(late: float) -> str:
    """Describe why a timer fired `late` seconds too late; empty if it was in time, so that the peer is at fault."""
    if late < 1:
        return ""
    return f"this process did not run for {late:.0f} s, because it was stopped or its machine is overloaded"
