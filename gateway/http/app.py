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
from gateway.http.mcp.endpoint import MCP_ROUTES, McpHandler
from gateway.http.middleware import BodyLimits, RequestMiddleware
from gateway.http.openapi import make_api_state, write_openapi
from gateway.http.route import ApiState
from gateway.http.routes import ROUTES
from gateway.http.sse import Followers
from gateway.http.ui.routes import UI_ROUTES
from gateway.runtime.app import Gateway


def build_app(gateway: Gateway) -> FastAPI:
    """Make the application; the caller must enter the gateway's context around the server."""
    app = describe(gateway.version)
    app.state.api_state = ApiState(gateway)
    app.state.mcp = McpHandler(gateway)
    app.router.routes.extend(UI_ROUTES)
    app.add_middleware(BodyLimits, gateway=gateway)
    roots = {str(getattr(route, "path", "")).split("/", 2)[1] for route in app.routes}
    app.add_middleware(RequestMiddleware, gateway=gateway, roots=roots)
    for raised in (DragomanError, Refused, HTTPException):
        app.add_exception_handler(raised, _tell)
    return app


def describe(version: str) -> FastAPI:
    """Make the application without a gateway behind it, for its OpenAPI document."""
    app = make_api_state(version)
    # Routes match in order, and MCP requests are the most frequent.
    app.router.routes.extend([*MCP_ROUTES, *ROUTES])
    app.openapi = partial(write_openapi, app)
    return app


def followers_of(app: FastAPI) -> Followers:
    """Return the open streams of an application."""
    return cast(ApiState, app.state.api_state).followers


async def _tell(request: Request, exc: Exception) -> Response:
    request.state.problem = problem_of(exc)
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        allowed = ", ".join(_methods(request))
        response = problem_reply(Refused("method-not-allowed", f"this path allows {allowed}"))
        response.headers["allow"] = allowed
        return response
    return problem_reply(exc)


def _methods(request: Request) -> list[str]:
    # Each route has one method; the header must name those of all routes with this path.
    found: set[str] = set()
    for route in cast(FastAPI, request.app).routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found | {"HEAD"} if "GET" in found else found)
