"""The route class of all operations, which authenticates before it reads the body, and shared parameters."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, cast

from fastapi import Depends, Path
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, PlainValidator
from pydantic_core import ErrorDetails
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from gateway.errors import InvalidRequest
from gateway.events import CallId, InteractionId, SessionId
from gateway.http.auth import ACCESS, Authenticator, Caller
from gateway.http.body import JsonRequest, misfit, misfit_query, refuse_query, refuse_repeats
from gateway.http.forward import Forwarding
from gateway.http.idempotency import IdempotentRequests
from gateway.http.openapi import document
from gateway.http.operation import options_of
from gateway.http.sse import Followers
from gateway.runtime.app import Gateway

_NO_QUERY = QueryParams()
_LARGEST_SEQUENCE = 2**63 - 1
_DECIDES = "answerInteraction"
"""The operation whose body must not repeat a member, since readers differ on which value counts."""


class ApiState:
    """The state that the routes of one application share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.authenticator = Authenticator(gateway)
        self.forwarding = Forwarding(gateway)
        self.once = IdempotentRequests(gateway)
        self.followers = Followers()
        gateway.call_when_reloaded(lambda _: self.followers.end_refused())


class ApiRequest(JsonRequest):
    """A request to the API."""

    @property
    def query_params(self) -> QueryParams:
        """The query parameters; requests without any share one empty object."""
        return super().query_params if self.scope["query_string"] else _NO_QUERY

    @property
    def cookies(self) -> dict[str, str]:
        """Always empty: the API uses no cookies, but FastAPI parses them otherwise."""
        return {}

    @property
    def api_state(self) -> ApiState:
        """The shared state of all routes."""
        return cast(ApiState, self.app.state.api_state)


class OperationRoute(APIRoute):
    """An operation: authenticates the caller, parses the body strictly, then runs here or at the session's owner."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        # Only the route's own tag, or the router's if it has none.
        options["tags"] = options["tags"][-1:]
        options["status_code"] = options.get("status_code") or 200
        super().__init__(path, endpoint, **{**options, **options_of(endpoint)})
        self._begins = self.path.partition("{")[0]
        document(self)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Most requests are for another route; comparing the prefix before the first parameter is cheap.
        return super().matches(scope) if scope["path"].startswith(self._begins) else (Match.NONE, {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        operation, handle = str(self.operation_id), super().get_route_handler()
        body = None if self.body_field is None else self.body_field.field_info
        model = None if body is None else cast(type[BaseModel], body.annotation)
        queries = [cast(type[BaseModel], field.field_info.annotation) for field in self.dependant.query_params]
        takes_token = ACCESS[operation].token
        # A GET without parameters ignores its query: clients may send paging parameters to every list.
        is_closed = not queries and "GET" not in (self.methods or ())

        async def checked(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as exc:
                found = cast(Sequence[ErrorDetails], exc.errors())
                if model is None or found[0]["loc"][0] == "query":
                    raise misfit_query(found, queries[0], request) from exc
                raise misfit("invalid-request", found, exc.body, model, skip=1) from exc

        async def admitted(request: Request) -> Response:
            request = ApiRequest(request.scope, request.receive)
            api = request.api_state
            await api.authenticator.admit(request, operation)
            for query in queries:
                refuse_repeats(query, request)
            # Accept extra parameters at a callback URL: a proxy may add some.
            if is_closed and not (takes_token and "token" in request.query_params):
                refuse_query(request, has_body=body is not None)
            if body is not None:
                await request.read(optional=not body.is_required(), unique=operation == _DECIDES)
            elif request.method == "POST":
                await request.read_none()
            return await api.forwarding.run(request, checked)

        return admitted


async def _gateway_of(request: ApiRequest) -> Gateway:
    return request.api_state.gateway


async def _caller_of(request: ApiRequest) -> Caller:
    return cast(Caller, request.state.caller)


GatewayDep = Annotated[Gateway, Depends(_gateway_of)]
"""The gateway of the application."""
CallerDep = Annotated[Caller, Depends(_caller_of)]
"""The authenticated caller of the request."""


def read_sequence(text: object, parameter: str) -> int:
    """Parse the sequence in a path or header; `parameter` is its name.

    Raises:
        InvalidRequest: the text is not a sequence.
    """
    given = str(text)
    if given.isascii() and given.isdigit() and len(given) <= 19 and int(given) <= _LARGEST_SEQUENCE:
        return int(given)
    reason = f"{given[:50]!r} is not a sequence: expected a whole number from 0"
    raise InvalidRequest(reason, pointer=parameter)


SessionPath = Annotated[SessionId, Path(description="The session's id.")]
CallPath = Annotated[CallId, Path(description="The gateway's id of the call, as in `webhook-id`.")]
InteractionPath = Annotated[InteractionId, Path(description="The interaction's id.")]
LetterPath = Annotated[str, Path(description="The dead letter's id: a call_id, or SESSION:SEQUENCE:TARGET.")]
NamePath = Annotated[str, Path(description="The name.")]
SequencePath = Annotated[
    int,
    PlainValidator(lambda given: read_sequence(given, "sequence"), json_schema_input_type=int),
    Path(description="The sequence of an event in the session."),
]
