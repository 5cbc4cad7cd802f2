"""Limits of an OpenHands V1 link that are not options; tests use smaller ones. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Tuning:
    """Times in seconds; production uses the defaults."""

    ping: float = 20.0
    """Interval of WebSocket pings; without a pong for half of it the connection is dead."""
    first_frame: float = 5.0
    """Silence of a new socket after which the history comes from pages: a running tool blocks it (OV13)."""
    quiet: float = 60.0
    """Silence after which the link asks whether the conversation still exists (trap 13)."""
    page: int = 100
    """Events of one page; the server allows no more (OV21)."""
    pages: int = 10_000
    """Maximum number of pages of one listing."""
    ids: int = 100_000
    """Number of event ids that are remembered."""
    settle: float = 10.0
    """Maximum wait for the snapshot after a status (OV34), and for the echo of a message."""
    proof: float = 5.0
    """Time in which an accepted approval must show an effect (OV34)."""
    command: float = 30.0
    """Time limit of a command that waits for no tool."""
    again: float = 0.5
    """First pause before `/run` is repeated; doubles up to `again_most`."""
    again_most: float = 15.0
    poll: float = 2.0
    """Interval of status queries at an app server, for all conversations together (OV74)."""


PRODUCTION = V1Tuning()
