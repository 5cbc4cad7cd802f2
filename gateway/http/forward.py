"""Requests for sessions that another instance carries: passed on to it as they came, and its answer passed back.

The caller was let in here already; its own key or callback token lets the request in there. What is passed on
is marked, so that it is never passed on twice: two instances that disagree answer instead of asking each other.
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
NOT_HERE = "dragoman-not-here"
"""Marks an answer of an instance that did nothing, because it does not carry the session."""

# Of one connection only (RFC 9110, 7.6.1), or written anew for the next one.
_OF_A_HOP = frozenset(
    {
        "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# The page that sent it was checked here; there, the host it would be compared with is another one.
_OF_THE_DOOR = frozenset({"origin", FORWARDED})
_OF_THE_EDGE = frozenset({"date", "server", "x-content-type-options", "referrer-policy", "x-request-id"})


class Forwarding:
    """Runs operations here or where they belong."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self, request: Request, operation: Run) -> Response:
        """Carry an operation out; its body is read at most once, and kept by the request.

        Raises:
            Elsewhere: nobody took the session up in time, or the owner's answer was lost.
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
        """Write another request in the name of whoever sent this one, with some headers `more`."""
        own = {"idempotency-key", "content-type", *(name for name, _ in more)}
        headers = [(name, value) for name, value in self._headers(request) if name not in own]
        return ForwardedRequest("POST", path, [*headers, ("content-type", "application/json"), *more], body)

    async def ask_owner(
        self, session_id: SessionId, forwarded: ForwardedRequest, *, until: float
    ) -> ForwardedAnswer | None:
        """Pass something on to whoever carries a session; None where that is decided here.

        Raises:
            Elsewhere: nobody took the session up in time, or the owner's answer was lost.
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
        kept = [
            (name, value)
            for name, value in request.headers.items()
            if name not in _OF_A_HOP and name not in _OF_THE_DOOR and name not in named
        ]
        return [*kept, (FORWARDED, self._gateway.forwarder.instance)]


def _target(request: Request) -> str:
    path = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _not_here(request: Request, session_id: SessionId) -> Response:
    exc = Elsewhere(session_id, "another instance carries the session by now")
    request.state.problem = problem_of(exc)
    response = problem_reply(exc)
    response.headers[NOT_HERE] = "1"
    return response


def response_of(answered: ForwardedAnswer) -> Response:
    """Pass an owner's answer back."""
    response = Response(answered.body, answered.status)
    for name, value in answered.headers:
        if name.lower() not in _OF_A_HOP | _OF_THE_EDGE:
            response.headers.append(name, value)
    return response
