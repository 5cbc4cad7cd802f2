"""Extends FastAPI's OpenAPI document with access, problems, examples and webhooks."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib.resources import files
from typing import Any, cast

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from dragoman.models.described import docstrings_of
from dragoman.models.responses import Problem
from gateway.http.auth import ACCESS, SCOPES
from gateway.http.errors import PROBLEMS

_PROBLEM = "application/problem+json"
_PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_DESCRIPTION = """A durable gateway between agent runtimes and the backend that serves them.

Send the API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`. Lists return `{"data": [...], "next": cursor}`.
Errors are `application/problem+json`, and `/problems` explains each type."""

_TAGS = (
    ("sessions", "Conversations with runtimes."),
    ("events", "The events of a session: post, list, follow."),
    ("calls", "Tool calls and their outcomes."),
    ("interactions", "Requests for human input: approvals, questions, secrets."),
    ("operating", "Operations for operators."),
    ("webhooks", "Requests to executors and destinations."),
    ("pages", "Health, metrics, version and problem types."),
)

_SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A configured API key."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key in another header."},
    "callbackToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "Part of the `callback_url` that an executor receives; valid for one call.",
    },
    "toolToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "A session's tool token (`GET /v1/sessions/{session_id}/mcp`), or an MCP client's token: it "
        "allows calls of its session's tools, and reading and canceling its own calls.",
    },
}


def make_api_state(version: str) -> FastAPI:
    """Make the application without routes, and without interactive pages, which load scripts from other hosts."""
    return FastAPI(
        title="Dragoman",
        version=version,
        summary="Durable tool calls and events between agent runtimes and HTTP backends",
        description=_DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "http://127.0.0.1:8080", "description": "A local gateway, as `serve` starts it."}],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect for a slash would drop the body.
        redirect_slashes=False,
        # Tracing would look for a tracer on each request and expose query strings, which contain callback tokens.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )


def write_openapi(app: FastAPI) -> dict[str, Any]:
    """Return the complete document; it is generated once per application."""
    if app.openapi_schema is None:
        app.openapi_schema = _written(app)
    return app.openapi_schema


def _written(app: FastAPI) -> dict[str, Any]:
    from gateway.http.webhooks import router as webhooks

    written = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        webhooks=webhooks.routes,
        tags=app.openapi_tags,
        servers=app.servers,
        license_info=app.license_info,
    )
    recorded = _read_examples()
    routes = {route.operation_id: route for route in app.routes if isinstance(route, APIRoute)}
    for operation in (operation for path in written["paths"].values() for operation in path.values()):
        _describe_parameters(operation, routes[operation["operationId"]])
        _add_examples(operation, recorded.get(operation["operationId"], {}))
    components = written["components"]
    components["schemas"]["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["securitySchemes"] = _SECURITY
    # If a model differs between requests and responses, the response keeps the plain name.
    text = re.sub(r"-Output(?=\W)", "", re.sub(r"-Input(?=\W)", "Input", orjson.dumps(written).decode()))
    renamed: dict[str, Any] = orjson.loads(text)
    for name, schema in renamed["components"]["schemas"].items():
        schema["title"] = name
    return renamed


def _read_examples() -> dict[str, dict[str, Any]]:
    """Read the recorded examples of all operations."""
    folder = files("gateway.http.routes") / "examples"
    return {name: one for file in folder.iterdir() for name, one in orjson.loads(file.read_bytes()).items()}


def _add_examples(operation: dict[str, Any], recorded: dict[str, Any]) -> None:
    # Not through FastAPI, which omits the nulls of an example.
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["examples"] = {name: {"value": body} for name, body in recorded.get("requests", {}).items()}
    for status, example in recorded.get("responses", {}).items():
        for content in operation["responses"][status]["content"].values():
            content["example"] = example


def _describe_parameters(operation: dict[str, Any], route: APIRoute) -> None:
    """Describe the query parameters by the docstrings of their model, which FastAPI does not read."""
    models = [cast(type[BaseModel], field.field_info.annotation) for field in route.dependant.query_params]
    texts = {
        model.model_fields[member].alias or member: text
        for model in models
        for member, text in docstrings_of(model).items()
    }
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query" and (text := texts.get(parameter["name"])) is not None:
            parameter["description"] = parameter["schema"]["description"] = text


def problems(*names: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for some problems, by status."""
    kinds = [kind for name, kind in PROBLEMS.items() if name in names]
    written: dict[int | str, dict[str, Any]] = {}
    for status in sorted({kind.status for kind in kinds}):
        told = [kind for kind in kinds if kind.status == status]
        described = " ".join(f"`{kind.type}`: {kind.title}." for kind in told)
        shown = {
            kind.name: {
                "summary": kind.title,
                "value": {
                    "type": kind.type,
                    "title": kind.title,
                    "status": kind.status,
                    "detail": kind.detail or kind.meaning,
                },
            }
            for kind in told
        }
        written[status] = {
            "description": f"{HTTPStatus(status).phrase}. {described}",
            "content": {_PROBLEM: {"schema": _PROBLEM_SCHEMA, "examples": shown}},
        }
    return written


def document(route: APIRoute) -> None:
    """Add the problems, security and description to a route that follow from its access, body and parameters."""
    access = ACCESS[str(route.operation_id)]
    own = {status: told for status, told in route.responses.items() if _PROBLEM not in told.get("content", {})}
    names = [*_named(route.responses.values()), "internal"]
    if access.scope is not None:
        # Health and the problem pages read no store.
        names += ["unavailable", "starting", "unauthorized", "forbidden", "foreign-origin"]
    if "POST" in (route.methods or ()):
        names += ["invalid-request", "invalid-json", "request-timeout", "too-large", "unsupported-media-type"]
    if route.dependant.query_params or "GET" not in (route.methods or ()):
        names += ["invalid-request"]
    route.responses = {**problems(*names), **own, "default": _OTHER}
    extra: dict[str, Any] = {"security": []}
    if access.scope is not None:
        others = {"callbackToken": access.token, "toolToken": access.tools}
        extra["security"] = [
            {"bearer": []},
            {"apiKey": []},
            *({name: []} for name, will_do in others.items() if will_do),
        ]
        extra["x-scope"] = access.scope
        ways = " or the call's callback token" if access.token else ""
        if access.tools:
            ways += " or the tool token that made the call" if "{call_id}" in route.path else " or its tool token"
        opens = f" (open where `api.open` lists `{access.page}`)" if access.page else ""
        route.description += f"\n\nRequires the scope `{access.scope}`{ways}{opens}: {SCOPES[access.scope]}"
        if access.instead is not None:
            route.description += f" Or `{access.instead}`: {SCOPES[access.instead]}"
    route.openapi_extra = extra


_OTHER: dict[str, Any] = {
    "description": "Any other problem.",
    "content": {_PROBLEM: {"schema": _PROBLEM_SCHEMA}},
}


def _named(responses: Iterable[dict[str, Any]]) -> list[str]:
    return [name for told in responses for name in told.get("content", {}).get(_PROBLEM, {}).get("examples", {})]
