"""Finds the instance that owns a session, and forwards requests to it.

Addresses come only from the store's list of instances; redirects are not followed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import structlog
from yarl import URL

from gateway.errors import Elsewhere
from gateway.events import SessionId
from gateway.guard import spawn
from gateway.links.http_session import describe
from gateway.links.names import Resolver
from gateway.log_limit import limited
from gateway.runtime.cluster.hops import HEADER, HopCaller, Hops
from gateway.runtime.lease import LeaseKeeper
from gateway.runtime.services import Services
from gateway.runtime.session.registry import Sessions
from gateway.store.rows import Instance

log = structlog.get_logger(__name__)

_LOOK = 0.2
_WATCH = 2.0
_CHUNK = 64 * 1024
_CONNECT = 2.0
_DEADLINE = 40.0
"""Seconds for a whole exchange; longer than the owner's own deadline, so that its error arrives."""
_MOST_CONNECTIONS = 256
_MOST_ANSWER = 16 * 1024**2
_ALONE = 5.0
"""Seconds to wait until this instance starts a session again, if no other instance shares the store."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request to forward."""

    method: str
    path: str
    """The unchanged path with the query."""
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)
    caller: HopCaller


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """The response of the owner."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


class Unreached(Exception):
    """The connection to the owner failed, so nothing was sent."""


def make_peer_client() -> aiohttp.ClientSession:
    """Make the HTTP client for other instances; call it inside the running event loop."""
    return aiohttp.ClientSession(
        # If the owner closes a kept-alive connection during a request, it is unknown whether it received the request.
        connector=aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, force_close=True, resolver=Resolver()),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_DEADLINE, connect=_CONNECT),
        auto_decompress=False,
        # The proxies of the environment are for external hosts.
        trust_env=False,
    )


class Forwarder:
    """Forwards requests to other instances."""

    def __init__(
        self, services: Services, keeper: LeaseKeeper, sessions: Sessions, *, client: aiohttp.ClientSession, hops: Hops
    ) -> None:
        self._engine = services.engine
        self._clock = services.clock
        self._keeper = keeper
        self._sessions = sessions
        self._metrics = services.metrics
        self._client = client
        self._hops = hops
        self._tasks = services.tasks

    @property
    def instance(self) -> str:
        """The id of this instance, or `-` without a lease."""
        return "-" if self._keeper.lease is None else self._keeper.lease.instance

    def patience(self) -> float:
        """Return the monotonic time until which a request may wait for an owner."""
        wait = 2 * self._keeper.ttl.total_seconds() if self._keeper.shared else _ALONE
        return self._clock.monotonic() + wait

    async def owner(self, session_id: SessionId, *, until: float) -> Instance | None:
        """Find the instance that owns a session; None if this instance answers the request.

        Raises:
            Elsewhere: no instance took the session over in time.
        """
        while True:
            if self._sessions.owned(session_id) is not None:
                return None
            owner = await self._engine.owner(session_id)
            if owner is not None and owner.instance_id != self.instance:
                return owner
            row = await self._engine.session(session_id)
            if row is None or row.state == "closed":
                return None
            if self._clock.monotonic() >= until:
                self._metrics.forwarded("nobody")
                raise Elsewhere(session_id, "no live instance owns the session")
            await asyncio.sleep(_LOOK)

    async def pause(self, session_id: SessionId, *, until: float) -> None:
        """Wait before the next search for an owner.

        Raises:
            Elsewhere: there is no time left.
        """
        if self._clock.monotonic() >= until:
            raise Elsewhere(session_id, "the instance that owns the session is unreachable")
        await asyncio.sleep(_LOOK)

    async def ask(self, owner: Instance, session_id: SessionId, request: ForwardedRequest) -> ForwardedAnswer:
        """Forward a request, and wait for the response as long as the instance owns the session.

        Raises:
            Unreached: nothing was sent; the session may get another owner soon.
            Elsewhere: the request was sent, and no response arrived.
        """
        exchange = spawn("forwarding", self._exchange(owner, request), self._tasks)
        try:
            while not (await asyncio.wait({exchange}, timeout=_WATCH))[0]:
                now = await self._engine.owner(session_id)
                if now is None or now.instance_id != owner.instance_id:
                    raise self._unsure(owner, session_id, "it no longer owns the session")
            answered = exchange.result()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            self._metrics.forwarded("unreachable")
            self._warn("session owner unreachable", owner, describe(exc))
            raise Unreached(describe(exc)) from exc
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise self._unsure(owner, session_id, describe(exc)) from exc
        finally:
            exchange.cancel()
        self._metrics.forwarded("answered")
        return answered

    async def _exchange(self, owner: Instance, request: ForwardedRequest) -> ForwardedAnswer:
        url = URL(owner.url.rstrip("/") + request.path, encoded=True)
        signature = self._hops.sign(request.method, request.path, request.body, request.caller, owner.instance_id)
        headers = [*request.headers, (HEADER, signature)]
        async with self._client.request(
            request.method, url, headers=headers, data=request.body, allow_redirects=False
        ) as response:
            answer = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                answer += chunk
                if len(answer) > _MOST_ANSWER:
                    raise aiohttp.ClientPayloadError("the answer is too large")
            return ForwardedAnswer(response.status, list(response.headers.items()), bytes(answer))

    def _unsure(self, owner: Instance, session_id: SessionId, reason: str) -> Elsewhere:
        self._metrics.forwarded("unsure")
        self._warn("forwarded request unanswered", owner, reason)
        text = "the instance that owns the session did not respond; the request may or may not be recorded"
        return Elsewhere(session_id, text, unsure=True)

    def _warn(self, text: str, owner: Instance, reason: str) -> None:
        limited(log.warning, text, per=owner.instance_id, instance=owner.instance_id, reason=reason)
