"""The settings of one Socket.IO link: its address, its time limits and the particulars of its server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True, slots=True)
class Target:
    """The address and settings of a link."""

    url: str
    """Base URL of the server; `path` is relative to its host."""
    query: Mapping[str, str] = field(repr=False)
    path: str = "/socket.io/"
    connect_timeout: timedelta = timedelta(seconds=10)
    send_timeout: timedelta = timedelta(seconds=20)
    """How long a peer may leave a message unread before the link counts as lost."""
    refusal_grace: timedelta = timedelta(milliseconds=100)
    """Time after connecting in which an error or a disconnect counts as a refusal."""
    terminal_codes: frozenset[str] = frozenset()
    """Refusal codes that make another attempt useless."""
    mirrored: frozenset[str] = frozenset()
    """Channels on which the server may send the same message twice in a row; the second one is dropped."""
    ack_timeout: timedelta | None = None
    """How long to wait for the acknowledgement of each frame; None requests no acknowledgement."""
    unacknowledged: str = "a message that is rejected gets none"
    """The explanation of a missing acknowledgement."""
    read_refusal: Callable[[object], tuple[str, str, bool] | None] | None = None
    """Read the data of a CONNECT_ERROR as code, text and whether it is final; None if it is unknown."""
    silence: str | None = None
    """The meaning of a handshake that the server never answers; None if it has none."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that must not appear in an error."""

    @property
    def address(self) -> str:
        """URL of the handshake without its query, which may hold keys."""
        return f"{self.url.rstrip('/')}/{self.path.strip('/')}/"

    def handshake_url(self, transport: Literal["websocket", "polling"] = "websocket") -> str:
        """Return the URL of the handshake, with the query."""
        parts = urlsplit(self.url)
        query = urlencode({**self.query, "transport": transport, "EIO": "4"})
        return f"{parts.scheme}://{parts.netloc}/{self.path.strip('/')}/?{query}"
