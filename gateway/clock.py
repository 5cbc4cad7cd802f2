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
