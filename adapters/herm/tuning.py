"""How much a link to Herm holds, where no option says so; tests give less."""

from dataclasses import dataclass

from gateway.adapter.port import LARGEST_FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class HermTuning:
    """Bytes, unless said otherwise; production takes them as they stand here."""

    buffered: int = 1_000
    buffered_bytes: int = 8 * 1024**2
    """Events that wait while the history is read, and their bytes; the server's own buffers hold the rest."""
    ids: int = 100_000
    """Of how many events the ids are remembered."""
    event_bytes: int = LARGEST_FRAME
    """What one event of the stream may have, if `limits.frame` is not less; a longer one is rejected, and one of eight
    times as many ends the link."""
    history_bytes: int = 256 * 1024**2
    """What the events of one history may take in memory; the same."""


PRODUCTION = HermTuning()
