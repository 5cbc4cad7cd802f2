"""Builds the FastAPI application over one gateway."""

from typing import Any, cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from gateway.errors import DragomanError
from gateway.http.auth import Authenticator
from gateway.http.docs import write_openapi
from gateway.http.edge import Edge
from gateway.http.errors import Refused, problem_of, problem_reply
from gateway.http.forward import Forwarding
from gateway.http.operation import Answer, Operation, routes_of
from gateway.http.reply import dump
from gateway.http.routes import all_operations
from gateway.http.sse import Followers
from gateway.runtime.app import Gateway


def build_app(gateway: Gateway) -> FastAPI:
    """Make the application; the gateway is entered by whoever runs the server around it."""
    # Interactive pages would load scripts from elsewhere, and a redirect for a slash would drop the body.
    app = FastAPI(
        title="Dragoman",
        version=gateway.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.followers = Followers()
    operations = (*all_operations(gateway, app.state.followers), _document(app))
    gate, forwarding = Authenticator(gateway), Forwarding(gateway)
    for operation in operations:
        app.router.routes.extend(routes_of(operation, gate.admit, forwarding.run))
    app.state.operations = operations
    app.add_middleware(Edge, gateway=gateway)
    for raised in (DragomanError, Refused, HTTPException):
        app.add_exception_handler(raised, _tell)
    return app


def followers_of(app: FastAPI) -> Followers:
    """Find the open streams of an application, to end them when the server stops."""
    return cast(Followers, app.state.followers)


async def _tell(request: Request, exc: Exception) -> Response:
    request.state.problem = problem_of(exc)
    response = problem_reply(exc).response()
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    # Each route knows its own method only; the header must name those of all routes with this path.
    found: set[str] = set()
    for route in cast(FastAPI, request.app).routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _document(app: FastAPI) -> Operation:
    written: dict[str, Any] = {}

    async def openapi(request: Request) -> Response:
        del request
        if not written:
            written.update(write_openapi(app.state.operations, app.routes, version=app.version))
        return Response(dump(written), media_type="application/json")

    return Operation(
        name="getOpenapi",
        method="GET",
        path="/openapi.json",
        run=openapi,
        tag="pages",
        summary="This document",
        description="The description of the whole API in OpenAPI 3.1.",
        answers=(Answer(200, "The document.", {"openapi": "3.1.0"}, dict[str, Any]),),
    )
