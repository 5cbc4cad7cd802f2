"""The OpenAPI document: complete, with examples that fit its own schemas."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest

from gateway.events import CLIENT_KINDS
from gateway.http.app import describe
from gateway.http.auth import ACCESS
from gateway.http.client_events import CLIENT_MODELS


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe("9.9.9").openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def fits(document: dict[str, Any], schema: dict[str, Any], example: Any) -> None:
    jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(example)


def references(value: Any) -> set[str]:
    match value:
        case {"$ref": str(ref), **rest}:
            return {ref} | references(rest)
        case dict():
            members = cast(dict[str, Any], value).values()
            return set[str]().union(*(references(member) for member in members))
        case list():
            return set[str]().union(*(references(item) for item in cast(list[Any], value)))
        case _:
            return set()


async def test_the_document_is_served(api: httpx.AsyncClient) -> None:
    served = (await api.get("/openapi.json")).json()
    assert served["openapi"].startswith("3.1")
    assert served["info"]["version"] == "9.9.9"
    assert (await api.get("/openapi.json")).json() == served


async def test_other_requests_are_answered_while_the_document_is_written(api: httpx.AsyncClient) -> None:
    writing = asyncio.create_task(api.get("/openapi.json"))
    answered = 0
    while not writing.done():
        assert (await api.get("/healthz")).status_code == 200
        answered += 1
        # Without a socket a request ends without a pause.
        await asyncio.sleep(0)
    assert (await writing).status_code == 200
    # Beside a loop that writes it, one or two are.
    assert answered > 10


def test_the_committed_document_is_the_one_that_is_printed() -> None:
    printed = subprocess.run([sys.executable, "-m", "gateway", "openapi"], capture_output=True, check=True, timeout=60)
    committed = Path(__file__).parents[2] / "config/openapi.json"
    assert printed.stdout.decode() == committed.read_text(encoding="utf-8"), "run `make schema`"


def test_every_member_is_described(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for member, described in schema.get("properties", {}).items():
            assert described.get("description"), f"{name}.{member}"


def test_requests_are_closed_and_answers_open(document: dict[str, Any]) -> None:
    def reached(value: Any, found: set[str]) -> set[str]:
        for ref in references(value):
            if ref not in found:
                found.add(ref)
                reached(document["components"]["schemas"][ref.rpartition("/")[2]], found)
        return found

    described = [operation for _, operation in operations(document)]
    asked = reached([operation.get("requestBody") for operation in described], set())
    answered = reached([operation["responses"] for operation in described], set())
    assert not asked & answered
    for ref in asked | answered:
        schema = document["components"]["schemas"][ref.rpartition("/")[2]]
        assert schema.get("additionalProperties", True) is (ref in answered), ref
        constants = {name for name, member in schema["properties"].items() if "const" in member}
        assert constants <= set(schema.get("required", ())), ref


def test_what_has_a_default_may_be_left_out_of_a_request(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in ("AuthorInput", "ImageInput", "MessagePostedInput"):
        # Generators of TypeScript take what has a `default` for what is always there.
        assert all("default" not in member for member in schemas[name]["properties"].values()), name
    assert "role" not in schemas["AuthorInput"].get("required", ())
    assert schemas["Author"]["required"] == ["role"]
    assert schemas["ImageInput"]["required"] == ["type", "url"]


def test_every_route_is_described(document: dict[str, Any]) -> None:
    described = operations(document)
    assert {operation["operationId"] for _, operation in described} == set(ACCESS) - {
        "eraseSession",
        "listNativeEvents",
        "getLlms",
    }
    for route, operation in described:
        assert operation["summary"], route
        assert operation["description"], route
        assert operation["tags"], route
        assert "422" not in operation["responses"] or "problem+json" in str(operation["responses"]["422"]), route


def test_every_success_has_an_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    for route, operation in operations(document):
        successes = [response for status, response in operation["responses"].items() if status[0] == "2"]
        assert successes, route
        for response in successes:
            for content in response.get("content", {}).values():
                assert content["example"], route
                fits(document, content["schema"], content["example"])
            assert response.get("content") or operation["operationId"] == "closeSession", route


def test_every_body_has_examples_that_fit_its_schema(document: dict[str, Any]) -> None:
    bodies = {
        route: operation["requestBody"] for route, operation in operations(document) if "requestBody" in operation
    }
    assert len(bodies) == 12
    for route, body in bodies.items():
        content = body["content"]["application/json"]
        assert content["examples"], route
        for example in content["examples"].values():
            fits(document, content["schema"], example["value"])


def test_every_route_documents_its_errors_with_examples(document: dict[str, Any]) -> None:
    for route, operation in operations(document):
        problems = {status: response for status, response in operation["responses"].items() if status[0] in "45"}
        expected = {"500"}
        if operation["security"]:
            expected |= {"401", "403", "503"}
        if "requestBody" in operation:
            expected |= {"400", "413", "415"}
        if any(parameter["in"] == "path" for parameter in operation.get("parameters", [])):
            expected |= {"404"}
        assert expected <= set(problems), route
        for status, response in problems.items():
            if route == "GET /readyz" and status == "503":
                continue
            content = response["content"]["application/problem+json"]
            for example in content["examples"].values():
                assert str(example["value"]["status"]) == status
                fits(document, content["schema"], example["value"])


def test_every_parameter_is_described(document: dict[str, Any]) -> None:
    for route, operation in operations(document):
        named = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
        assert named == {part[1:-1] for part in route.split("/") if part.startswith("{")}
        assert all(parameter["description"] for parameter in operation.get("parameters", [])), route


def test_security_follows_the_access_table(document: dict[str, Any]) -> None:
    for route, operation in operations(document):
        access = ACCESS[operation["operationId"]]
        schemes = {name for way in operation["security"] for name in way}
        if access.scope is None:
            assert not schemes, route
            continue
        others = {"callbackToken"} if access.token else {"toolToken"} if access.tools else set[str]()
        assert schemes == {"bearer", "apiKey"} | others
        assert f"`{access.scope}`" in operation["description"]


def test_every_reference_has_its_schema(document: dict[str, Any]) -> None:
    names = {ref.removeprefix("#/components/schemas/") for ref in references(document)}
    assert names <= set(document["components"]["schemas"])


def test_clients_may_post_exactly_the_documented_kinds() -> None:
    assert set(CLIENT_MODELS) == CLIENT_KINDS


def test_a_redrive_says_that_what_was_asked_may_be_gone(document: dict[str, Any]) -> None:
    assert "/problems/gone" in str(document["paths"]["/v1/calls/{call_id}/redrive"]["post"]["responses"]["410"])
