"""The connector of one runtime; its links share one HTTP client."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from gateway.adapter.port import Created, Link, Order, Receiver, Tool
from gateway.errors import LinkRefused
from gateway.links.masking import Mask
from gateway.links.rest import RestClient

from .link import open_link
from .options import PigeonOptions


@asynccontextmanager
async def open_connector(options: PigeonOptions) -> AsyncGenerator["PigeonConnector"]:
    """Open the HTTP client; leaving closes it."""
    key = options.api_key.get_secret_value()
    headers = {"Authorization": f"Bearer {key}"}
    async with RestClient(options.url, headers=headers, mask=Mask((key,))) as client:
        yield PigeonConnector(options, client)


class PigeonConnector:
    """Implements `gateway.adapter.port.Connector`."""

    def __init__(self, options: PigeonOptions, client: RestClient) -> None:
        self._options = options
        self._client = client

    async def create(self, order: Order) -> Created:
        """Refuse: the protocol cannot create a session."""
        del order
        raise LinkRefused("NO_CREATION", "the Pigeon protocol cannot create a session", terminal=True)

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Return None: the protocol has no request for the tools of a session."""
        del native_id
        return None

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        """Open a link; `resume_after` is the number of the last event that the gateway has recorded."""
        return open_link(self._client, receiver, native_id=native_id, options=self._options, after=resume_after)
