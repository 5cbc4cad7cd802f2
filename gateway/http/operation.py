"""One operation of the API: its route, what it needs, and all that its documentation says."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

Run = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One successful answer of an operation."""

    status: int
    description: str
    example: Any = None
    shape: Any = None
    """The type that describes the body; for documentation only, answers are written by hand."""
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the route table; `name` is the operationId and the key into `auth.ACCESS`."""

    name: str
    method: str
    path: str
    run: Run
    tag: str
    summary: str
    description: str
    answers: tuple[Answer, ...]
    problems: tuple[str, ...] = ()
    """Problems beyond those that follow from access, body and parameters."""
    body: Any = None
    """The type of the request body."""
    body_optional: bool = False
    body_examples: dict[str, Any] | None = None
    query: Any = None
    """The model of the query parameters."""
    aliases: tuple[str, ...] = ()
    """Other paths that do the same; the documentation has the first one only."""
    headers: tuple[tuple[str, str, str], ...] = ()
    """Name, description and example of request headers with a meaning of their own."""


def routes_of(
    operation: Operation, admit: Callable[[Request, str], None], run: Callable[[Request, Run], Awaitable[Response]]
) -> list[APIRoute]:
    """Make the route, and one for each alias: admit, then run, here or elsewhere.

    Bodies and parameters are read by the operation itself.
    """

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Any]:
            async def admitted(request: Request) -> Response:
                admit(request, operation.name)
                return await run(request, operation.run)

            return admitted

    return [
        Route(
            path,
            operation.run,
            methods=[operation.method],
            name=operation.name,
            operation_id=operation.name,
            tags=[operation.tag],
            summary=operation.summary,
            description=operation.description,
            status_code=operation.answers[0].status,
            response_model=None,
            response_class=Response,
            include_in_schema=path == operation.path,
        )
        for path in (operation.path, *operation.aliases)
    ]
