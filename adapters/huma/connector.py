"""The connector of HUMA: creates agents over REST, links to them over Socket.IO."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp

from adapters.huma import wire
from adapters.huma.options import AgentOptions, AnyHumaOptions
from gateway.adapter.options import rest_base
from gateway.adapter.port import Created, Link, Order, Receiver, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.events import Loss
from gateway.links.flat_tools import flatten
from gateway.links.http_session import shared_session
from gateway.links.masking import Mask
from gateway.links.rest import MAX_SHORT, RestClient
from gateway.links.socketio.client import open_link
from gateway.links.socketio.target import Target


@asynccontextmanager
async def open_connector(options: AnyHumaOptions) -> AsyncGenerator["HumaConnector"]:
    """Open the connector of one runtime, with HTTP connections that all links share."""
    key = options.api_key.get_secret_value()
    base = rest_base(options.url, options.rest_url)
    async with (
        shared_session() as session,
        RestClient(base, headers={wire.KEY_HEADER: key}, mask=Mask((key,))) as rest,
    ):
        yield HumaConnector(options, session, rest)


_MIRRORED = frozenset({wire.FROM_SERVER, wire.ERRORS})


class HumaConnector:
    """All connections to one HUMA runtime."""

    def __init__(self, options: AnyHumaOptions, session: aiohttp.ClientSession, rest: RestClient) -> None:
        self._options = options
        self._session = session
        self._rest = rest

    async def create(self, order: Order) -> Created:
        """Create an agent; HUMA has no labels, so they are not sent."""
        options = self._options
        if options.agent is None:
            raise LinkRefused("NO_AGENT", "set agent to create one", terminal=True)
        body, losses = _describe(options.agent, order)
        answer = await self._rest.post(wire.AGENTS_PATH, body, within=options.connect_timeout, most=MAX_SHORT)
        match answer.read_object(self._rest.mask).get("id"):
            case str(agent_id) if agent_id:
                return Created(agent_id, losses, tools=tuple(tool.name for tool in order.tools))
            case _:
                raise LinkLost("the response to the new agent has no id")

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Return None: no published page of HUMA describes a query for an agent's tools."""
        del native_id
        return None

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        """Open a link to one agent; HUMA has no replay, so `resume_after` has no effect."""
        del resume_after
        options = self._options
        key = options.api_key.get_secret_value()
        target = Target(
            url=options.url,
            query=wire.connection_query(agent_id=native_id, api_key=key),
            path=options.path,
            connect_timeout=options.connect_timeout,
            refusal_grace=options.refusal_grace,
            terminal_codes=wire.TERMINAL_CODES,
            mirrored=_MIRRORED,
            secrets=(key,),
        )
        return open_link(target, receiver, session=self._session)


def _describe(agent: AgentOptions, order: Order) -> tuple[dict[str, object], tuple[Loss, ...]]:
    flat = [flatten(tool) for tool in order.tools]
    instructions = agent.instructions if order.instructions is None else order.instructions
    new = wire.NewAgent(
        name=agent.name if order.name is None else order.name,
        agent_type=agent.agent_type,
        metadata=agent.metadata,
        class_name=agent.class_name,
        personality=agent.personality,
        instructions=instructions,
        tools=[tool.form for tool in flat],
        router_type=agent.router_type,
        addons=agent.addons,
        voice=agent.voice,
        ttl_seconds=agent.ttl_seconds,
    )
    return wire.create_agent(new), tuple(loss for tool in flat for loss in tool.losses)
