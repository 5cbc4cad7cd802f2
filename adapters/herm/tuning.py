"""Limits of a link to Herm that are not options; tests use smaller ones."""

from dataclasses import dataclass

from gateway.adapter.port import LARGEST_FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class HermTuning:
    """Limits in bytes, unless stated otherwise; production uses the defaults."""

    buffered: int = 1_000
    buffered_bytes: int = 8 * 1024**2
    """Number and bytes of events that are buffered while the history is read; the rest waits in the socket."""
    ids: int = 100_000
    """Number of event ids that are remembered."""
    event_bytes: int = LARGEST_FRAME
    """Size of one event of the stream, if `limits.frame` is not less; a longer event is rejected, and one of eight
    times the size ends the link."""
    history_bytes: int = 256 * 1024**2
    """Memory of the events of one history."""


PRODUCTION = HermTuning()
