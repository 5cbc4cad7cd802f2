"""An agent-server and one of its conversations, as the parts of a link need them."""

from datetime import timedelta

from adapters.openhands.v1.newest import Newest
from adapters.openhands.v1.options import OpenHandsV1Options
from adapters.openhands.v1.tuning import V1Tuning
from adapters.openhands.wire import KEY_HEADER
from gateway.events.frozen import frozen
from gateway.links.masking import Mask
from gateway.links.rest import RestClient


def rest_client(url: str, key: str) -> RestClient:
    """Make a client of an agent-server; the key may be empty."""
    return RestClient(url, headers={KEY_HEADER: key} if key else {}, mask=Mask((key,)))


@frozen
class ServerConnection:
    """An agent-server."""

    rest: RestClient
    url: str
    key: str
    """Empty if the server has none."""
    version: tuple[int, int]


@frozen
class Conversation:
    """One conversation of a server, and the limits of its link."""

    server: ServerConnection
    native_id: str
    options: OpenHandsV1Options
    tuning: V1Tuning
    unseen: Newest[tuple[str, ...]]
    """By conversation, the hashes of messages that an ended link may have stored, and must run, without an echo."""

    @property
    def rest(self) -> RestClient:
        """The client of the server."""
        return self.server.rest

    @property
    def within(self) -> timedelta:
        """Time limit for a connection and for a query that waits for no tool."""
        return self.options.connect_timeout
