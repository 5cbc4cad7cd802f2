"""The connector of OpenHands: creates conversations and fills gaps over REST, links over Socket.IO."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import aiohttp

from adapters.openhands import wire
from adapters.openhands.catchup import HistoryPage, NoStore, Tracker, fill, newest_state
from adapters.openhands.options import OpenHandsOptions, is_conversation_id
from adapters.openhands.tools import find_tools, with_registered, with_server
from gateway.adapter.port import Created, Frame, Link, McpEndpoint, Order, Receipt, Receiver, RestTimes, Tool
from gateway.errors import LinkCrowded, LinkLost, LinkRefused
from gateway.events import Loss
from gateway.links.http_session import shared_session
from gateway.links.masking import Mask
from gateway.links.rest import MAX_SHORT, RestClient
from gateway.links.socketio.client import SocketLink, open_link
from gateway.links.socketio.target import Target

_REGISTERED = timedelta(seconds=30)
"""How long settings with our server are not read again; each later link reads them."""
_IDENTIFY = timedelta(seconds=3)
"""Time limit for a server that refuses us to report its protocol."""
_LARGEST_INFO = 64 * 1024
_LARGEST_DOCUMENT = 4 * 1024**2
_STATE_WAIT = timedelta(seconds=1)
"""Time for a server without REST to start the agent of a conversation that we have joined."""
_OWN_CODES = frozenset({"ADDRESS_REFUSED", "REDIRECT_REFUSED", "BAD_CONVERSATION_ID", "NO_CONVERSATION"})
"""Refusals by the gateway itself; another protocol of the server cannot explain them."""


@asynccontextmanager
async def open_connector(
    options: OpenHandsOptions, *, registered: timedelta = _REGISTERED
) -> AsyncGenerator["OpenHandsConnector"]:
    """Open the connector of one runtime, with HTTP connections that all links share."""
    headers = {wire.KEY_HEADER: options.key} if options.key else {}
    async with (
        shared_session() as session,
        RestClient(options.rest_base, headers=headers, mask=Mask((options.key or "",))) as rest,
    ):
        yield OpenHandsConnector(options, session, rest, registered=registered)


class ConversationLink:
    """A link that reports an eviction of the conversation."""

    def __init__(self, link: SocketLink, tracker: Tracker) -> None:
        self._link = link
        self._tracker = tracker

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        """Send the frames of one event."""
        return self._link.send_all(frames)

    def prove(self) -> Awaitable[None]:
        """Let the server answer a ping."""
        return self._link.prove()

    async def wait_closed(self) -> str:
        """Wait until the connection has ended and return the reason."""
        reason = await self._link.wait_closed()
        if self._tracker.is_evicted:
            raise LinkCrowded(wire.CROWDED)
        return reason


class OpenHandsConnector:
    """All connections to one OpenHands server."""

    def __init__(
        self, options: OpenHandsOptions, session: aiohttp.ClientSession, rest: RestClient, *, registered: timedelta
    ) -> None:
        self._options = options
        self._session = session
        self._rest = rest
        self._endpoint: McpEndpoint | None = None
        """Our MCP server for the server's settings."""
        self._registering = asyncio.Lock()
        self._registered = registered
        self._registered_until = 0.0
        """The loop's time until which the settings are not read again."""
        self._tools_problem: str | None = "the server's settings have not been read yet"

    @property
    def tools_problem(self) -> str | None:
        """The reason why the server's settings lack our MCP server; None if they contain it."""
        return self._tools_problem

    async def register_tools(self, endpoint: McpEndpoint) -> None:
        """Add our MCP server to the server's settings if they lack it."""
        if endpoint != self._endpoint:
            self._endpoint, self._registered_until = endpoint, 0.0
        await self._register()

    async def _register(self) -> None:
        """Read the settings and add our server if they lack it; skipped for `registered` after a success."""
        async with self._registering:
            endpoint, now = self._endpoint, asyncio.get_running_loop().time()
            if endpoint is None or now < self._registered_until:
                return
            try:
                await self._write_settings(endpoint)
            except (LinkLost, LinkRefused) as exc:
                self._tools_problem = f"the settings of OpenHands do not name the tools: {exc}"
            except ValueError as exc:
                self._tools_problem = f"the settings of OpenHands cannot be written back: {exc}"
            else:
                self._tools_problem, self._registered_until = None, now + self._registered.total_seconds()

    async def _write_settings(self, endpoint: McpEndpoint) -> None:
        changed = with_registered(await self._settings(), endpoint)
        if changed is None:
            return
        within = self._options.connect_timeout
        answer = await self._rest.post(wire.SETTINGS_PATH, changed, within=within, most=MAX_SHORT)
        if answer.status != HTTPStatus.OK:
            # The server's error quotes the settings, including the keys of other MCP servers.
            raise LinkRefused(f"HTTP_{answer.status}", answer.where)
        if with_registered(await self._settings(), endpoint) is not None:
            raise LinkRefused("NOT_STORED", f"{answer.where}, but the settings do not name the tools")

    async def _settings(self) -> dict[str, Any]:
        answer = await self._rest.get(wire.SETTINGS_PATH, {}, within=self._options.connect_timeout, most=MAX_SHORT)
        if answer.status == HTTPStatus.NOT_FOUND:
            raise LinkRefused("NO_SETTINGS", f"{answer.where}: {wire.SETTINGS_FIX}")
        return answer.read_object(self._rest.mask)

    async def create(self, order: Order) -> Created:
        """Create a conversation; labels are not sent to the server."""
        try:
            return await self._create(order)
        except LinkRefused as exc:
            raise await self._identify(exc) from None

    async def _create(self, order: Order) -> Created:
        options = self._options
        if options.conversation is None:
            raise LinkRefused("NO_CONVERSATION", "the options name no conversation to create", terminal=True)
        body = options.conversation.model_dump(exclude_none=True)
        if order.instructions is not None:
            body["conversation_instructions"] = order.instructions
        secrets = [options.key or ""]
        if order.mcp is not None:
            secrets.append(order.mcp.ticket.get_secret_value())
            if not order.mcp.shared or "mcp_config" in body:
                # The `mcp_config` of a creation replaces the settings until the agent starts again.
                body["mcp_config"] = with_server(body.get("mcp_config", {}), order.mcp)
        answer = await self._rest.post(wire.CONVERSATIONS_PATH, body, within=options.wait_timeout, most=MAX_SHORT)
        # The server's error may quote the whole request.
        mask = Mask(secrets)
        try:
            made = answer.read_object(mask)
        except LinkRefused as exc:
            match answer.body:
                case {"msg_id": wire.SETTINGS_MISSING}:
                    detail = f"{answer.where}: {wire.SETTINGS_FIX}"
                    raise LinkRefused(wire.SETTINGS_MISSING, detail, terminal=True) from exc
                case {"msg_id": str(code)} if exc.code != "UNAUTHORIZED":
                    detail = mask(f"{answer.where}: {answer.message or 'no reason given'}")
                    raise LinkRefused(mask(code[:100]), detail, terminal=True) from exc
                case _:
                    raise
        match made.get("conversation_id"):
            case str(name) if is_conversation_id(name):
                return Created(
                    name, _list_losses(order), () if order.mcp is None else tuple(t.name for t in order.tools)
                )
            case _:
                raise LinkLost("the response to the creation has no valid conversation_id")

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Read the tools from the stored system prompt; this does not start the agent."""
        try:
            return find_tools((await self._read_events(native_id, 0)).events)
        except NoStore:
            return None

    @asynccontextmanager
    async def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AsyncGenerator[Link]:
        """Open a link to one conversation and catch up.

        The replay arrives during the handshake. Events between replay and live come from the store, before
        `caught_up`.
        """
        if not is_conversation_id(native_id):
            # The server's socket would accept it and write outside its own folder (OH12).
            raise LinkRefused("BAD_CONVERSATION_ID", f"{native_id[:100]!r} is not a conversation id", terminal=True)
        # Before the join, which may start the agent: an agent reads the settings at its start.
        await self._register()
        resume = _read_cursor(resume_after)
        latest = -1 if resume is None else max(-1, resume - wire.OVERLAP)
        newer_state = asyncio.Event()
        tracker = Tracker(receiver, resume, on_newer_state=newer_state.set)
        async with AsyncExitStack() as stack:
            stack.callback(tracker.give_up)
            try:
                connecting = open_link(self._target(native_id, latest), tracker, session=self._session)
                link = await stack.enter_async_context(connecting)
                starting = await self._catch_up(
                    native_id, tracker, since=latest + 1, resume=resume, newer_state=newer_state
                )
                if link.ended is not None:
                    raise LinkLost(link.ended)
            except (LinkLost, LinkRefused) as exc:
                if tracker.is_evicted:
                    raise LinkCrowded(wire.CROWDED) from None
                raise (await self._identify(exc) if isinstance(exc, LinkRefused) else exc) from None
            tracker.caught_up(starting=starting)
            yield ConversationLink(link, tracker)

    async def _catch_up(
        self, native_id: str, tracker: Tracker, *, since: int, resume: int | None, newer_state: asyncio.Event
    ) -> bool | None:
        """Fetch the events that the replay lacks; return whether the agent is starting, or None if unknown."""
        # Query the status before the store: the store then has the events of an agent that started meanwhile.
        shown, status = tracker.newest_state, await self._status(native_id)
        try:
            await fill(tracker, partial(self._read_events, native_id), since=since, resume=resume)
        except NoStore:
            # Only the replay exists. It shows the state before our join, which may start the agent again.
            newer_state.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STATE_WAIT.total_seconds()):
                    await newer_state.wait()
            return False
        is_starting = status == "STARTING" and tracker.newest_state == shown
        return True if is_starting else False if status == "RUNNING" else None

    async def _identify(self, refusal: LinkLost | LinkRefused) -> LinkLost | LinkRefused:
        """Explain a refusal by a V1 server, which has neither the socket nor the paths of V0."""
        code = refusal.code if isinstance(refusal, LinkRefused) else None
        if code in _OWN_CODES:
            return refusal
        try:
            if (version := wire.v1_version(await self._look(wire.SERVER_INFO_PATH))) is not None:
                server = f"agent-server {version}"
            elif (version := wire.app_server(await self._look(wire.OPENAPI_PATH, most=_LARGEST_DOCUMENT))) is not None:
                server = f"app server {version}"
            elif code != "UNAUTHORIZED" and type(await self._look(wire.COUNT_PATH)) is int:
                # A server of both protocols has not refused the path.
                server = "app server"
            else:
                return refusal
        except (LinkLost, LinkRefused):
            return refusal
        return LinkRefused(
            "WRONG_PROTOCOL",
            f"this is an OpenHands V1 server ({server}); adapter openhands speaks V0, the protocol of servers from 0.17"
            " to 1.6. Use adapter openhands-v1, with `url` for an agent-server and `app` for an app server"
            f" (response: {refusal})",
            terminal=True,
        )

    async def _look(self, path: str, *, most: int = _LARGEST_INFO) -> object:
        """Read a page that may identify the server; None without one."""
        answer = await self._rest.get(path, {}, within=min(_IDENTIFY, self._options.connect_timeout), most=most)
        return answer.body if answer.status == HTTPStatus.OK else None

    def _target(self, native_id: str, latest: int) -> Target:
        options = self._options
        key = options.key
        return Target(
            url=options.url,
            query=wire.connection_query(
                conversation_id=native_id,
                latest_event_id=latest,
                providers_set=options.providers_set,
                session_api_key=key,
            ),
            path=options.path,
            connect_timeout=options.wait_timeout,
            refusal_grace=type(options.wait_timeout)(0),
            ack_timeout=options.ack_timeout,
            unacknowledged=wire.unacknowledged(options.action_event),
            read_refusal=wire.read_refusal,
            silence=wire.SILENCE,
            secrets=(key,) if key else (),
        )

    @property
    def rest_times(self) -> RestTimes:
        """The pauses before a stopped or evicted conversation is connected again."""
        wait = self._options.evicted_wait
        return RestTimes(look_again=self._options.look_again, crowded=wait, crowded_most=10 * wait)

    async def is_stopped(self, native_id: str) -> bool:
        """Query the status by REST, because a join would start the agent; False for a server without REST."""
        try:
            status = await self._status(native_id)
            if status is not None:
                return status in wire.ENDED
            # An orderly end of the agent loop leaves this state (OH21, OH65).
            return newest_state((await self._read_events(native_id, 0, newest_first=True)).events) == wire.STOPPED
        except NoStore:
            return False
        except (LinkLost, LinkRefused) as exc:
            # A server with web pages answers every path.
            raise await self._identify(exc) from None

    async def _status(self, native_id: str, *, again: bool = True) -> str | None:
        """Query the native status of a conversation; None if the server does not report it."""
        answer = await self._rest.get(_path(native_id), {}, within=self._options.connect_timeout, most=MAX_SHORT)
        if answer.status in wire.NO_REST:
            return None
        if answer.status == wire.FAILED:
            # This happens now and then while a file is being written, and always if the server should have Docker but
            # neither has nor uses it (OH61).
            return await self._status(native_id, again=False) if again else None
        if answer.status == HTTPStatus.OK and not answer.body:
            return wire.UNKNOWN
        status = answer.read_object(self._rest.mask).get("status")
        return status if isinstance(status, str) else None

    async def _read_events(self, native_id: str, start: int, *, newest_first: bool = False) -> HistoryPage:
        query = {"start_id": str(start), "limit": str(wire.PAGE), **({"reverse": "true"} if newest_first else {})}
        answer = await self._rest.get(f"{_path(native_id)}/events", query, within=self._options.connect_timeout)
        if answer.status in wire.NO_REST:
            raise NoStore
        match answer.read_object(self._rest.mask):
            case {"events": list(), "has_more": bool(has_more)} as page:
                return HistoryPage(tuple(cast("list[object]", page["events"])), has_more)
            case _:
                raise LinkLost("the response of the event store has no events")


def _path(native_id: str) -> str:
    return f"{wire.CONVERSATIONS_PATH}/{quote(native_id, safe='')}"


def _list_losses(order: Order) -> tuple[Loss, ...]:
    losses: list[Loss] = []
    if order.tools and order.mcp is None:
        note = f"{len(order.tools)} tools not sent: set mcp_url or public_url so that OpenHands can reach this gateway"
        losses.append(Loss(how="dropped", path="/tools", note=note))
    if order.name is not None:
        losses.append(Loss(how="dropped", path="/name", note="OpenHands names conversations itself"))
    return tuple(losses)


def _read_cursor(cursor: str | None) -> int | None:
    return int(cursor) if cursor is not None and cursor.isascii() and cursor.isdigit() and len(cursor) < 19 else None
