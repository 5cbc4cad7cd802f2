"""The connector of OpenHands V1: finds the agent-server, creates conversations over REST, links over a WebSocket."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any, cast

import aiohttp

from adapters.openhands.v1 import wire
from adapters.openhands.v1.app import AppServer, open_app
from adapters.openhands.v1.creating import conversation_id_for, losses_of, request_for, tools_of
from adapters.openhands.v1.history import StoredEvents
from adapters.openhands.v1.link import open_link
from adapters.openhands.v1.newest import Newest
from adapters.openhands.v1.options import OpenHandsV1Options, is_conversation_id, with_dashes
from adapters.openhands.v1.posting import places_of
from adapters.openhands.v1.server import Conversation, ServerConnection, rest_client
from adapters.openhands.v1.tuning import PRODUCTION, V1Tuning
from adapters.openhands.wire import COUNT_PATH, OPENAPI_PATH, SERVER_INFO_PATH, app_server
from gateway.adapter.port import Created, Link, Order, Receiver, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.links.http_session import shared_session
from gateway.links.rest import MAX_SHORT, RestClient, refusal

_IDENTIFY = timedelta(seconds=3)
"""Time limit for a page that only identifies a server."""
_LARGEST_DOCUMENT = 4 * 1024**2
_CREATION = timedelta(seconds=60)
_PROMPT_EVENTS = 20
"""Events in which the system prompt is searched; an ACP agent writes others first (OV54)."""


@asynccontextmanager
async def open_connector(
    options: OpenHandsV1Options, tuning: V1Tuning = PRODUCTION
) -> AsyncGenerator["OpenHandsV1Connector"]:
    """Open the connector of one runtime, with HTTP connections that all links share."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(shared_session())
        if options.app is not None:
            app = await stack.enter_async_context(open_app(options.app, options.connect_timeout, tuning))
            yield OpenHandsV1Connector(options, session, app, tuning)
        else:
            rest = await stack.enter_async_context(rest_client(options.url, options.key))
            yield OpenHandsV1Connector(options, session, rest, tuning)


class OpenHandsV1Connector:
    """All connections to one agent-server, or to the sandboxes of one app server."""

    def __init__(
        self,
        options: OpenHandsV1Options,
        session: aiohttp.ClientSession,
        source: RestClient | AppServer,
        tuning: V1Tuning,
    ) -> None:
        """`source` is the agent-server's client, or the app server that knows the agent-servers."""
        self._options = options
        self._session = session
        self._source = source
        self._tuning = tuning
        self._unseen: Newest[tuple[str, ...]] = Newest()

    async def create(self, order: Order) -> Created:
        """Create a conversation; nothing of it starts before its first message (OV18)."""
        source = self._source
        if isinstance(source, RestClient):
            return await self._create(await self._server(source, self._options.url, self._options.key), order)
        if self._options.conversation is None:
            return Created(await source.create(), losses_of(None, order))
        async with source.sandbox() as sandbox, rest_client(sandbox.url, sandbox.key) as rest:
            created = await self._create(await self._server(rest, sandbox.url, sandbox.key), order)
            source.note(created.native_id, sandbox.sandbox_id)
            return created

    async def _create(self, server: ServerConnection, order: Order) -> Created:
        conversation = self._options.conversation
        if conversation is None:
            raise LinkRefused("NO_CONVERSATION", "the options name no conversation to create", terminal=True)
        body = request_for(conversation, order, server.version)
        wanted = conversation_id_for(order)
        try:
            answer = await server.rest.post(wire.CONVERSATIONS_PATH, body, within=_CREATION)
        except LinkLost as exc:
            if exc.unsent or wanted is None:
                raise
            # The conversation may exist: its id is ours.
            answer = await server.rest.get(wire.conversation_path(wanted), {}, within=_CREATION)
            if answer.status == HTTPStatus.NOT_FOUND:
                raise LinkLost(str(exc), unsent=True) from exc
        if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            # Other members of the error quote the request, whose keys are not all known here (OV6).
            raise LinkRefused("HTTP_422", f"{server.rest.mask(answer.where)}{places_of(answer.body)}", terminal=True)
        if not 200 <= answer.status < 300:
            # Without the server's words, which may quote the request.
            raise _without_words(refusal(answer, server.rest.mask), server.rest.mask(answer.where))
        made = answer.read_object(server.rest.mask)
        native_id = made.get("id")
        if not isinstance(native_id, str) or not is_conversation_id(native_id):
            raise LinkLost("the response to the creation has no valid id")
        if answer.status != HTTPStatus.CREATED:
            # Nothing of the request was used (OV17).
            _check_same(made, body)
        return Created(with_dashes(native_id), losses_of(conversation, order), tools_of(conversation, order))

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Read the tools from the stored system prompt; None before the first message, and for ACP agents (OV53)."""
        async with self._server_of(native_id) as server:
            history = StoredEvents(self._conversation(server, _checked(native_id)))
            number = 0
            async with aclosing(history.after(None)) as events:
                async for event in events:
                    match event:
                        case {"kind": wire.SYSTEM_PROMPT, "tools": [_, *_] as tools}:
                            return tuple(tool for one in cast("list[Any]", tools) if (tool := _read_tool(one)))
                        case {"kind": wire.SYSTEM_PROMPT}:
                            return None
                        case _ if (number := number + 1) >= _PROMPT_EVENTS:
                            return None
                        case _:
                            pass
        return None

    @asynccontextmanager
    async def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AsyncGenerator[Link]:
        """Open a link to one conversation and pass on the events after the cursor."""
        _checked(native_id)
        async with (
            self._server_of(native_id) as server,
            open_link(self._conversation(server, native_id), self._session, receiver, resume_after) as link,
        ):
            yield link

    def _conversation(self, server: ServerConnection, native_id: str) -> Conversation:
        return Conversation(server, native_id, self._options, self._tuning, self._unseen)

    @asynccontextmanager
    async def _server_of(self, native_id: str) -> AsyncGenerator[ServerConnection]:
        """Find the server of a conversation; the sandbox of an app server may have another address each time."""
        source = self._source
        if isinstance(source, RestClient):
            yield await self._server(source, self._options.url, self._options.key)
            return
        sandbox = await source.find(native_id)
        async with rest_client(sandbox.url, sandbox.key) as rest:
            yield await self._server(rest, sandbox.url, sandbox.key)

    async def _server(self, rest: RestClient, url: str, key: str) -> ServerConnection:
        return ServerConnection(rest, url, key, await self._identify(rest))

    async def _identify(self, rest: RestClient) -> tuple[int, int]:
        """Return the version of an agent-server (OV2).

        Raises:
            LinkRefused: it is another server, or too old.
        """
        within = self._options.connect_timeout
        answer = await rest.get(SERVER_INFO_PATH, {}, within=within, most=MAX_SHORT)
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise refusal(answer, rest.mask)
        version = wire.version_of(answer.body) if answer.status == HTTPStatus.OK else None
        if version is None:
            raise await self._explain(rest, answer.where)
        if version < wire.OLDEST:
            name, least = ".".join(map(str, version)), ".".join(map(str, wire.OLDEST))
            raise LinkRefused(
                "OLD_SERVER", f"this is agent-server {name}; adapter openhands-v1 needs {least} or newer", terminal=True
            )
        return version

    async def _explain(self, rest: RestClient, where: str) -> LinkRefused:
        """Name the server that is no agent-server, and the adapter or option for it (OV72)."""
        document = await self._look(rest, OPENAPI_PATH)
        version = app_server(document)
        if version is not None or type(await self._look(rest, COUNT_PATH)) is int:
            name = f"the app server of OpenHands{'' if version is None else f' ({version})'}"
            fix = "write its address as `app: {url: …}` in place of `url`"
        else:
            name = "no agent-server of OpenHands V1"
            fix = "servers up to 1.6 speak V0: use adapter openhands for them"
        return LinkRefused("WRONG_PROTOCOL", f"{rest.mask(where)}: this is {name}; {fix}", terminal=True)

    async def _look(self, rest: RestClient, path: str) -> object:
        """Read a page that may identify the server; None without one."""
        try:
            answer = await rest.get(path, {}, within=_IDENTIFY, most=_LARGEST_DOCUMENT)
        except (LinkLost, LinkRefused):
            return None
        return answer.body if answer.status == HTTPStatus.OK else None


def _checked(native_id: str) -> str:
    if not is_conversation_id(native_id):
        raise LinkRefused("BAD_CONVERSATION_ID", f"{native_id[:100]!r} is not a conversation id", terminal=True)
    return native_id


def _without_words(failure: LinkLost | LinkRefused, where: str) -> LinkLost | LinkRefused:
    if isinstance(failure, LinkRefused):
        return LinkRefused(failure.code, where, terminal=failure.terminal, until_reload=failure.until_reload)
    return LinkLost(where)


def _check_same(made: dict[str, Any], body: dict[str, Any]) -> None:
    """Check that an existing conversation has our MCP server, whose address is in no other (OV17).

    Raises:
        LinkRefused: it has not.
    """
    wanted = _address_in(body.get("agent") or body.get("agent_settings"))
    if _address_in(made.get("agent")) != wanted:
        reason = "a conversation of this id exists already, with other tools"
        raise LinkRefused("CONVERSATION_EXISTS", reason, terminal=True)


def _address_in(agent: object) -> str | None:
    match agent:
        case {"mcp_config": {wire.MCP_SERVER: {"url": str(url)}}}:
            return url
        case {"mcp_config": {"mcpServers": {wire.MCP_SERVER: {"url": str(url)}}}}:
            return url
        case _:
            return None


def _read_tool(given: object) -> Tool | None:
    """Read one tool of a system prompt; one of an MCP server has its own name and schema there (OV47)."""
    match given:
        case {"title": str(), "mcp_tool": {"name": str(name)}}:
            tool = cast("dict[str, Any]", given)["mcp_tool"]
            schema = tool.get("inputSchema")
            parameters = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
            return Tool(name, _text(tool.get("description")), parameters)
        case {"title": str(name)}:
            return Tool(name, _text(cast("dict[str, Any]", given).get("description")), {})
        case _:
            return None


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""
