"""The OpenAPI document, written from the operations, the access table and the problem table."""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Literal

from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from gateway.http.auth import ACCESS, SCOPES
from gateway.http.errors import PROBLEMS, ProblemKind
from gateway.http.operation import Operation
from gateway.http.shapes import Problem

_REF = "#/components/schemas/{model}"
_DESCRIPTION = """A durable gateway between agent runtimes and the backend that serves them.

Send the API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`. Lists answer `{"data": [...], "next": cursor}`;
errors are `application/problem+json`, and `/problems` explains each type."""

_TAGS = (
    ("sessions", "One lasting conversation with a runtime."),
    ("events", "What happened in a session: post, read, follow."),
    ("calls", "What agents ask the host for, and the outcomes."),
    ("interactions", "What agents ask a person for."),
    ("operating", "What operators look after."),
    ("pages", "Health, metrics, version and the meaning of problems."),
)

_SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of the configuration."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same, as a header."},
    "callbackToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "Part of the `callback_url` that an executor gets; it is good for one call only.",
    },
}

_PATH_PARAMETERS = {
    "session_id": "The session's id.",
    "call_id": "The call's id, ours, as in `webhook-id`.",
    "interaction_id": "The interaction's id.",
    "letter": "The dead letter's id: a call_id, or SESSION:SEQUENCE:TARGET.",
    "sequence": "The sequence of an event in the session.",
    "name": "The name.",
}

_Mode = Literal["validation", "serialization"]
_Key = tuple[str, _Mode]


def write_openapi(operations: Sequence[Operation], routes: Sequence[BaseRoute], *, version: str) -> dict[str, Any]:
    """Write the whole document."""
    document = get_openapi(
        title="Dragoman",
        version=version,
        summary="Durable tool calls and events between agent runtimes and HTTP backends",
        description=_DESCRIPTION,
        routes=routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas, definitions = _schemas(operations)
    for operation in operations:
        written = document["paths"][operation.path][operation.method.lower()]
        written["responses"] = {**_answers(operation, schemas), **_problems(operation)}
        if parameters := _parameters(operation):
            written["parameters"] = parameters
        if operation.body is not None:
            written["requestBody"] = _request_body(operation, schemas)
        _describe_access(written, operation.name)
    document["components"] = {"schemas": definitions, "securitySchemes": _SECURITY}
    return document


def _schemas(operations: Iterable[Operation]) -> tuple[dict[_Key, Any], dict[str, Any]]:
    wanted: dict[_Key, TypeAdapter[Any]] = {("Problem", "serialization"): TypeAdapter(Problem)}
    for operation in operations:
        if operation.body is not None:
            wanted[operation.name, "validation"] = TypeAdapter(operation.body)
        for answer in operation.answers:
            if answer.shape is not None:
                wanted[f"{operation.name} {answer.status}", "serialization"] = TypeAdapter(answer.shape)
    inputs: list[tuple[str, _Mode, TypeAdapter[Any]]] = [
        (name, mode, adapter) for (name, mode), adapter in wanted.items()
    ]
    by_key, document = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    definitions: dict[str, Any] = document["$defs"]
    # A plain string is read as one text block; the model's schema does not show what its validator takes.
    members = definitions["MessagePosted"]["properties"]
    members["content"] = {"title": "Content", "anyOf": [{"type": "string"}, members["content"]]}
    return dict(by_key), definitions


def _answers(operation: Operation, schemas: dict[_Key, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for answer in operation.answers:
        entry: dict[str, Any] = {"description": answer.description}
        if answer.shape is not None:
            schema = schemas[f"{operation.name} {answer.status}", "serialization"]
            entry["content"] = {answer.media_type: {"schema": schema, "example": answer.example}}
        written[str(answer.status)] = entry
    return written


def _problems(operation: Operation) -> dict[str, Any]:
    names = [*operation.problems, "internal", "unavailable"]
    access = ACCESS[operation.name]
    if access.scope is not None:
        names += ["unauthorized", "forbidden", "foreign-origin"]
    if operation.body is not None:
        names += ["invalid-request", "invalid-json", "request-timeout", "too-large", "unsupported-media-type"]
    if operation.query is not None:
        names += ["invalid-request"]
    # Health and the problem pages read nothing that could be away.
    kinds = [kind for name, kind in PROBLEMS.items() if name in names and (access.scope or name != "unavailable")]
    statuses = sorted({kind.status for kind in kinds} - {answer.status for answer in operation.answers})
    return {str(status): _problem([kind for kind in kinds if kind.status == status]) for status in statuses}


def _problem(kinds: Sequence[ProblemKind]) -> dict[str, Any]:
    described = " ".join(f"`{kind.type}`: {kind.title}." for kind in kinds)
    examples = {
        kind.name: {
            "summary": kind.title,
            "value": {
                "type": kind.type,
                "title": kind.title,
                "status": kind.status,
                "detail": kind.detail or kind.meaning,
            },
        }
        for kind in kinds
    }
    return {
        "description": f"{HTTPStatus(kinds[0].status).phrase}. {described}",
        "content": {
            "application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}, "examples": examples}
        },
    }


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": text,
            "schema": {"type": "integer" if name == "sequence" else "string"},
        }
        for name, text in _PATH_PARAMETERS.items()
        if f"{{{name}}}" in operation.path
    ]
    if operation.query is not None:
        schema = TypeAdapter(operation.query).json_schema()
        for name, described in schema["properties"].items():
            text = described.pop("description", described.pop("title", name))
            parameters.append({"name": name, "in": "query", "description": text, "schema": described})
    for name, text, example in operation.headers:
        schema = {"type": "string"}
        parameters.append({"name": name, "in": "header", "description": text, "schema": schema, "example": example})
    return parameters


def _request_body(operation: Operation, schemas: dict[_Key, Any]) -> dict[str, Any]:
    examples = {name: {"value": value} for name, value in (operation.body_examples or {}).items()}
    schema = schemas[operation.name, "validation"]
    return {
        "required": not operation.body_optional,
        "content": {"application/json": {"schema": schema, "examples": examples}},
    }


def _describe_access(written: dict[str, Any], name: str) -> None:
    access = ACCESS[name]
    if access.scope is None:
        written["security"] = []
        return
    written["security"] = [{"bearer": []}, {"apiKey": []}, *([{"callbackToken": []}] if access.token else [])]
    written["x-scope"] = access.scope
    ways = " or the call's callback token" if access.token else ""
    opens = f" (open where `api.open` lists `{access.page}`)" if access.page else ""
    written["description"] += f"\n\nNeeds the scope `{access.scope}`{ways}{opens}: {SCOPES[access.scope]}"
