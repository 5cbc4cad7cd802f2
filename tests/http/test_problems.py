"""The problem table, and what the edge does with what nobody foresaw."""

from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from gateway import errors
from gateway.http.errors import EXCEPTIONS, PROBLEMS, Refused, problem_of, problem_reply
from tests.http.fake_gateway import MemoryGateway

RAISED: list[tuple[Exception, int, str]] = [
    (errors.InvalidRequest("x", pointer="/a"), 400, "invalid-request"),
    (errors.Unauthorized("x"), 401, "unauthorized"),
    (errors.Forbidden("x"), 403, "forbidden"),
    (errors.NotFound("x"), 404, "not-found"),
    (errors.Conflict("x"), 409, "conflict"),
    (errors.Gone("x", first_sequence=5), 410, "gone"),
    (errors.Truncated(5), 410, "gone"),
    (errors.TooLarge("x"), 413, "too-large"),
    (errors.Inexpressible("x"), 422, "inexpressible"),
    (errors.CannotExpress("x", path="/content"), 422, "inexpressible"),
    (errors.MalformedFrame("x"), 400, "invalid-request"),
    (errors.InvalidConfiguration("f", ()), 422, "invalid-configuration"),
    (errors.LinkRefused("401"), 502, "runtime-refused"),
    (errors.LinkLost("x"), 502, "runtime-unreachable"),
    (errors.EngineUnavailable("/data/dragoman.db: no space left"), 503, "unavailable"),
    (errors.Overloaded("x"), 503, "overloaded"),
    (errors.Elsewhere("s", "x", unsure=True), 503, "elsewhere"),
    (errors.Stale("x"), 503, "busy"),
    (errors.EngineLocked("x"), 500, "internal"),
    (ValueError("x"), 500, "internal"),
]


@pytest.mark.parametrize(("raised", "status", "name"), RAISED)
async def test_each_exception_is_told_as_its_problem(
    api: httpx.AsyncClient, gateway: MemoryGateway, raised: Exception, status: int, name: str
) -> None:
    gateway.faults["session"] = raised
    answer = await api.get("/v1/sessions/x")
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{name}")
    assert answer.headers["content-type"] == "application/problem+json"
    page = (await api.get(answer.json()["type"])).json()
    assert page["type"] == answer.json()["type"]
    assert page["meaning"]
    assert page["mend"]


def test_every_leaf_of_the_tree_that_a_client_can_meet_is_in_the_table() -> None:
    raised = {type(exc) for exc, _, _ in RAISED}
    assert set(EXCEPTIONS) <= raised
    assert {PROBLEMS[name].name for name in EXCEPTIONS.values()} <= set(PROBLEMS)


def test_an_unlisted_subclass_is_told_as_its_parent() -> None:
    class Missing(errors.NotFound):
        pass

    assert problem_of(Missing("x")).name == "not-found"


async def test_all_problems_are_listed_and_explained(stranger: httpx.AsyncClient) -> None:
    pages = (await stranger.get("/problems")).json()["data"]
    assert [page["type"] for page in pages] == [kind.type for kind in PROBLEMS.values()]


@pytest.mark.parametrize("raised", [errors.EngineUnavailable("x"), errors.Overloaded("x"), errors.Stale("x")])
async def test_what_may_pass_says_when_to_try_again(
    api: httpx.AsyncClient, gateway: MemoryGateway, raised: Exception
) -> None:
    gateway.faults["session"] = raised
    assert int((await api.get("/v1/sessions/x")).headers["retry-after"]) >= 1


async def test_inner_workings_are_not_told(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    for raised in (errors.EngineUnavailable("/data/secret.db"), ValueError("secret"), errors.EngineLocked("secret")):
        gateway.faults["session"] = raised
        assert "secret" not in (await api.get("/v1/sessions/x")).text


async def test_a_wrong_cursor_is_told_as_a_parameter(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    gateway.faults["session"] = errors.InvalidRequest("not one of ours", pointer="after")
    body = (await api.get("/v1/sessions/x")).json()
    assert body["errors"] == [{"parameter": "after", "detail": "not one of ours"}]
    assert "pointer" not in body


def test_a_long_detail_is_cut() -> None:
    assert len(problem_reply(Refused("conflict", "x" * 100_000)).body) < 2_000


async def test_a_mistake_is_a_500_without_details_and_one_log_line(
    api: httpx.AsyncClient, gateway: MemoryGateway, lines: list[MutableMapping[str, Any]]
) -> None:
    gateway.faults["session"] = ZeroDivisionError("inner workings")
    answer = await api.get("/v1/sessions/x")
    assert answer.status_code == 500
    assert "inner workings" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    (line,) = lines
    assert (line["event"], line["log_level"], line["exc_info"]) == (
        "request failed",
        "error",
        gateway.faults["session"],
    )


async def test_a_mistake_outside_of_any_route_is_caught_as_well(api: httpx.AsyncClient, gateway: MemoryGateway) -> None:
    gateway.faults["render_metrics"] = RuntimeError("x")
    assert (await api.get("/metrics")).json()["type"] == "/problems/internal"


async def test_each_request_is_one_line_without_its_query(
    api: httpx.AsyncClient, gateway: MemoryGateway, session_id: str, lines: list[MutableMapping[str, Any]]
) -> None:
    gateway.ask(session_id)
    await api.post("/v1/calls/c-1/outcome?token=token-c-1", json={"outcome": "success"})
    await api.get("/v1/sessions?limit=0&token=sesame")
    await api.get("/healthz")
    await api.get("/v1/sessions", headers={"authorization": "Bearer sesame"})
    told = [(line["log_level"], line["method"], line["path"], line["status"], line["key"]) for line in lines]
    assert told == [
        ("info", "POST", "/v1/calls/c-1/outcome", 200, "callback"),
        ("info", "GET", "/v1/sessions", 400, "backend"),
        ("debug", "GET", "/healthz", 200, "-"),
        ("info", "GET", "/v1/sessions", 401, "-"),
    ]
    assert "token" not in str(lines)
    assert "sesame" not in str(lines)


async def test_every_answer_has_the_security_headers(api: httpx.AsyncClient, stranger: httpx.AsyncClient) -> None:
    for answer in (
        await api.get("/v1/sessions"),
        await stranger.get("/v1/sessions"),
        await stranger.get("/healthz"),
        await api.get("/nowhere"),
        await api.put("/v1/sessions"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
