"""Builds the FastAPI application over one gateway."""

from functools import partial
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from gateway.errors import DragomanError
from gateway.http.errors import Refused, problem_of, problem_reply
from gateway.http.mcp.door import DOORS, McpDoor
from gateway.http.middleware import BodyLimits, RequestMiddleware
from gateway.http.openapi import make_face, write_openapi
from gateway.http.route import Face
from gateway.http.routes import ROUTES
from gateway.http.sse import Followers
from gateway.runtime.app import Gateway


def build_app(gateway: Gateway) -> FastAPI:
    """Make the application; the gateway is entered by whoever runs the server around it."""
    app = describe(gateway.version)
    app.state.face = Face(gateway)
    app.state.door = McpDoor(gateway)
    app.add_middleware(BodyLimits, gateway=gateway)
    app.add_middleware(RequestMiddleware, gateway=gateway)
    for raised in (DragomanError, Refused, HTTPException):
        app.add_exception_handler(raised, _tell)
    return app


def describe(version: str) -> FastAPI:
    """Make the application without a gateway behind it, for its OpenAPI document."""
    app = make_face(version)
    # Routes are looked through in their order, and nothing is asked as often as the doors.
    app.router.routes.extend([*DOORS, *ROUTES])
    app.openapi = partial(write_openapi, app)
    return app


def followers_of(app: FastAPI) -> Followers:
    """Find the open streams of an application, to end them when the server stops."""
    return cast(Face, app.state.face).followers


async def _tell(request: Request, exc: Exception) -> Response:
    request.state.problem = problem_of(exc)
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        allowed = ", ".join(_methods(request))
        response = problem_reply(Refused("method-not-allowed", f"this path takes {allowed}"))
        response.headers["allow"] = allowed
        return response
    return problem_reply(exc)


def _methods(request: Request) -> list[str]:
    # Each route knows its own method only; the header must name those of all routes with this path.
    found: set[str] = set()
    for route in cast(FastAPI, request.app).routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found | {"HEAD"} if "GET" in found else found)
