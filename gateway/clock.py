"""The interfaces through which all code gets the time and fresh ids. Pure."""

from datetime import datetime
from typing import Protocol

from gateway.events import EventId


class Clock(Protocol):
    """Tells time; a fake one makes tests instant."""

    def now(self) -> datetime:
        """Say the time in UTC; it never runs backwards within a process, and goes on while the machine sleeps."""
        ...

    def timestamp(self) -> float:
        """Say the same as seconds since 1970, for what needs no more than a number."""
        ...

    def monotonic(self) -> float:
        """Say seconds since some fixed moment, for measuring spans; it may stand still while the machine sleeps."""
        ...


class Ids(Protocol):
    """Mints what must be unique."""

    def event_id(self) -> EventId:
        """Mint an id that sorts by time of minting."""
        ...

    def token(self) -> str:
        """Mint an unguessable URL-safe text."""
        ...

    def span_id(self) -> str:
        """Mint 16 hexadecimal digits, not all zero, that differ from others but may be guessed."""
        ...

    def jitter(self) -> float:
        """Return a random number in [0, 1), with which retries spread; it may be guessed."""
        ...


def describe_stall(late: float) -> str:
    """Describe why a timer fired `late` seconds too late; empty if it was in time, so that the peer is at fault."""
    if late < 1:
        return ""
    return f"this process did not run for {late:.0f} s, because it was stopped or its machine is overloaded"
