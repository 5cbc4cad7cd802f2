"""Where a Socket.IO link leads, and what is particular about the server there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect."""

    url: str
    query: Mapping[str, str] = field(repr=False)
    path: str = "/socket.io/"
    transports: tuple[str, ...] = ("websocket",)
    """What is tried in turn; it must end on a websocket, since long polling loses bursts of over 16 packets."""
    connect_timeout: timedelta = timedelta(seconds=10)
    send_timeout: timedelta = timedelta(seconds=20)
    """How long a peer may leave a message unread before the link counts as lost."""
    refusal_grace: timedelta = timedelta(milliseconds=100)
    """How long after connecting an error or a hang-up still counts as a refusal."""
    terminal_codes: frozenset[str] = frozenset()
    """Refusal codes that trying again cannot mend."""
    mirrored: frozenset[str] = frozenset()
    """Channels on which a server may say one thing twice in a row; the second is left out."""
    ack_timeout: timedelta | None = None
    """How long to wait for the acknowledgement of each frame; None asks for none."""
    unacknowledged: str = "a message that is rejected gets none"
    """What a missing acknowledgement may mean."""
    read_refusal: Callable[[object], tuple[str, str, bool] | None] | None = None
    """Says a CONNECT_ERROR of the protocol as code, text and whether it is final; None where it is not known."""
    silence: str | None = None
    """What it means that the server takes the connection and never answers; None where it means nothing."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What must never show in a log line or an error."""

    @property
    def address(self) -> str:
        """URL of the handshake without its query, which may hold keys."""
        return f"{self.url.rstrip('/')}/{self.path.strip('/')}/"
