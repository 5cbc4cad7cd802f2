"""The connector of Herm: opens sessions over REST, links to them over REST and server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import quote

from adapters.herm import wire
from adapters.herm.link import open_link
from adapters.herm.options import HermOptions
from adapters.herm.tuning import PRODUCTION, HermTuning
from gateway.adapter.port import Created, Link, Order, Receiver, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.events import Loss
from gateway.links.masking import Mask
from gateway.links.rest import RestClient
from gateway.strict_json import pointer

_SHORTEST_SECRET = 8
"""Shorter header values are versions and flags; masking them would make texts unreadable."""


@asynccontextmanager
async def open_connector(options: HermOptions, tuning: HermTuning = PRODUCTION) -> AsyncGenerator["HermConnector"]:
    """Open the connector of one runtime, with an HTTP client that all links share."""
    key = options.api_key.get_secret_value()
    more = {name: value.get_secret_value() for name, value in options.headers.items()}
    secrets = [key, *(value for value in more.values() if len(value) >= _SHORTEST_SECRET)]
    headers = {**more, options.auth_header: f"{options.auth_scheme} {key}".strip()}
    async with RestClient(options.url, headers=headers, mask=Mask(secrets)) as client:
        yield HermConnector(options, client, tuning)


class HermConnector:
    """All connections to one Herm runtime."""

    def __init__(self, options: HermOptions, client: RestClient, tuning: HermTuning) -> None:
        self._options = options
        self._tuning = tuning
        self._client = client

    async def create(self, order: Order) -> Created:
        """Open a session of the agent; labels are not sent, and tools belong to the agent."""
        options = self._options
        if options.agent_id is None:
            raise LinkRefused("NO_AGENT", "set agent_id to open sessions", terminal=True)
        title = options.title if order.name is None else order.name
        body = wire.create_session(user_id=options.user_id, title=title, metadata=options.metadata)
        answer = await self._client.post(
            _fill(options.create_path, options.agent_id), body, within=options.connect_timeout
        )
        native_id = wire.session_id_of(answer.read_object(self._client.mask))
        if native_id is None:
            raise LinkLost("the response to the new session has no id")
        return Created(native_id, _list_losses(order))

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Return None: no published page of Herm describes a query for an agent's tools."""
        del native_id
        return None

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        """Open a link to one session; `resume_after` is the sequence of the last recorded event."""
        options = self._options
        paths = (_fill(options.events_path, native_id), _fill(options.stream_path, native_id))
        after = int(resume_after) if resume_after is not None and resume_after.isdecimal() else None
        return open_link(self._client, receiver, paths=paths, options=options, tuning=self._tuning, after=after)


def _list_losses(order: Order) -> tuple[Loss, ...]:
    paths = [pointer("/tools", tool.name) for tool in order.tools]
    note = "declare the tool on the agent in Herm"
    losses = [Loss(how="dropped", path=path, note=note) for path in paths]
    if order.instructions is not None:
        losses.append(Loss(how="dropped", path="/instructions", note="Herm stores instructions on the agent"))
    return tuple(losses)


def _fill(path: str, native_id: str) -> str:
    # Quoting keeps dots, and a path of dots would name another resource.
    name = "%2E" * len(native_id) if native_id in {".", ".."} else quote(native_id, safe="")
    return path.replace("{session_id}", name).replace("{agent_id}", name)
