"""Forwards requests for sessions that another instance owns, unchanged, and returns its response.

This instance has authenticated the caller; the caller's key or callback token also authenticates the request at the
owner. A header marks forwarded requests, so that no request is forwarded twice if two instances disagree.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Elsewhere
from gateway.events import SessionId
from gateway.http.errors import problem_of, problem_reply
from gateway.runtime.app import Gateway
from gateway.runtime.cluster.forwarding import ForwardedAnswer, ForwardedRequest, Unreached

Run = Callable[[Request], Awaitable[Response]]

FORWARDED = "dragoman-forwarded"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
NOT_HERE = "dragoman-not-here"
"""Marks the response of an instance that did nothing, because it does not own the session."""

# Valid for one connection only (RFC 9110, 7.6.1), or generated for the next one.
_OF_A_HOP = frozenset(
    {
        "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# The origin was checked here; the owner would compare it with another host.
_CHECKED_HERE = frozenset({"origin", FORWARDED})
_OF_MIDDLEWARE = frozenset(
    {"date", "server", "x-content-type-options", "referrer-policy", "server-timing", "x-request-id"}
)


class Forwarding:
    """Runs operations here or at the session's owner."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self, request: Request, operation: Run) -> Response:
        """Run an operation here, or forward it to the session's owner.

        Raises:
            Elsewhere: no instance took the session over in time, or the owner's response was lost.
        """
        until: float | None = None
        while True:
            try:
                return await operation(request)
            except Elsewhere as exc:
                if exc.unsure:
                    raise
                until = until or self._gateway.forwarder.patience()
                session_id = SessionId(exc.session_id)
                if FORWARDED in request.headers:
                    if await self._gateway.forwarder.owner(session_id, until=until) is not None:
                        return _not_here(request, session_id)
                    continue
                forwarded = ForwardedRequest(
                    request.method, _target(request), self._headers(request), await request.body()
                )
                answered = await self.ask_owner(session_id, forwarded, until=until)
                if answered is not None:
                    return response_of(answered)

    def request_of(self, request: Request, path: str, body: bytes, *more: tuple[str, str]) -> ForwardedRequest:
        """Build another request with the credentials of this one; `more` are additional headers."""
        own = {"idempotency-key", "content-type", TRACEPARENT, *(name for name, _ in more)}
        headers = [(name, value) for name, value in self._headers(request) if name not in own]
        return ForwardedRequest("POST", path, [*headers, ("content-type", "application/json"), *more], body)

    async def ask_owner(
        self, session_id: SessionId, forwarded: ForwardedRequest, *, until: float
    ) -> ForwardedAnswer | None:
        """Forward a request to the owner of a session; return None if this instance owns it.

        Raises:
            Elsewhere: no instance took the session over in time, or the owner's response was lost.
        """
        forwarder = self._gateway.forwarder
        while True:
            owner = await forwarder.owner(session_id, until=until)
            if owner is None:
                return None
            try:
                answered = await forwarder.ask(owner, session_id, forwarded)
            except Unreached:
                await forwarder.pause(session_id, until=until)
                continue
            if answered.status != 503 or all(name.lower() != NOT_HERE for name, _ in answered.headers):
                return answered
            await forwarder.pause(session_id, until=until)

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        named = {name.strip().lower() for name in request.headers.get("connection", "").split(",")}
        # The client encodes headers as UTF-8, the encoding of keys with letters beyond ASCII.
        given = ((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in request.headers.raw)
        kept = [
            (name, value)
            for name, value in given
            if name not in _OF_A_HOP and name not in _CHECKED_HERE and name not in named
        ]
        return [*kept, (FORWARDED, self._gateway.forwarder.instance)]


def _target(request: Request) -> str:
    path = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _not_here(request: Request, session_id: SessionId) -> Response:
    exc = Elsewhere(session_id, "another instance owns the session now")
    request.state.problem = problem_of(exc)
    response = problem_reply(exc)
    response.headers[NOT_HERE] = "1"
    return response


def response_of(answered: ForwardedAnswer) -> Response:
    """Convert an owner's response."""
    response = Response(answered.body, answered.status)
    for name, value in answered.headers:
        if name.lower() not in _OF_A_HOP | _OF_MIDDLEWARE:
            response.headers.append(name, value)
    return response
