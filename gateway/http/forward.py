"""Forwards requests for sessions that another instance owns, and returns its response.

This instance has authenticated the caller. The owner gets the caller's name and scopes in a signed header, and no
credential. No request is forwarded twice if two instances disagree.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Elsewhere
from gateway.events import SessionId
from gateway.http.auth import Caller, is_forwarded, target_of
from gateway.http.errors import problem_of, problem_reply
from gateway.runtime.app import Gateway
from gateway.runtime.cluster.forwarding import ForwardedAnswer, ForwardedRequest, Unreached
from gateway.runtime.cluster.hops import HEADER, HopCaller

Run = Callable[[Request], Awaitable[Response]]

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
NOT_HERE = "dragoman-not-here"
"""Marks the response of an instance that did nothing, because it does not own the session."""

_PASSED_ON = frozenset({"content-type", "idempotency-key", TRACEPARENT, TRACESTATE, "x-request-id"})
"""The headers of a client that the owner gets; any other one may contain a secret."""
# Valid for one connection only (RFC 9110, 7.6.1), or generated for the next one.
_OF_A_HOP = frozenset(
    {"connection", "content-length", "keep-alive", "proxy-authenticate", "trailer", "transfer-encoding", "upgrade"}
)
_OF_MIDDLEWARE = frozenset(
    {"date", "server", "x-content-type-options", "referrer-policy", "server-timing", "x-request-id", HEADER}
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
                if is_forwarded(request):
                    if await self._gateway.forwarder.owner(session_id, until=until) is not None:
                        return _not_here(request, session_id)
                    continue
                body, sender = await request.body(), _hop_caller(request.state.caller)
                forwarded = ForwardedRequest(request.method, target_of(request), _passed_on(request), body, sender)
                answered = await self.ask_owner(session_id, forwarded, until=until)
                if answered is not None:
                    return response_of(answered)

    def request_of(
        self, request: Request, caller: Caller, path: str, body: bytes, *more: tuple[str, str]
    ) -> ForwardedRequest:
        """Build another request of a caller for the same reason as this one; `more` are additional headers."""
        kept = [(name, value) for name, value in _passed_on(request) if name == "x-request-id"]
        headers = [*kept, ("content-type", "application/json"), *more]
        return ForwardedRequest("POST", path, headers, body, _hop_caller(caller))

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
            names = {name.lower() for name, _ in answered.headers}
            if HEADER not in names:
                # It has refused the signature, or its release does not know signatures.
                text = "the instance that owns the session did not accept the forwarded request"
                raise Elsewhere(session_id, text, unsure=answered.status < 400)
            if answered.status != 503 or NOT_HERE not in names:
                return answered
            await forwarder.pause(session_id, until=until)


def _passed_on(request: Request) -> list[tuple[str, str]]:
    given = ((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in request.headers.raw)
    return [(name, value) for name, value in given if name in _PASSED_ON]


def _hop_caller(caller: Caller) -> HopCaller:
    return HopCaller(caller.name, caller.scopes, caller.digest)


def _not_here(request: Request, session_id: SessionId) -> Response:
    exc = Elsewhere(session_id, "the session does not run on this instance")
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
