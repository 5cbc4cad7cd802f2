"""The problem table, and what the edge does with what nobody foresaw."""

import json
import re
from collections.abc import MutableMapping
from io import StringIO
from typing import Any

import httpx
import pytest

from gateway import errors
from gateway.http.errors import EXCEPTIONS, PROBLEMS, Refused, problem_of, problem_reply
from gateway.runtime.log import configure
from tests.http.environment import Environment

RAISED: list[tuple[Exception, int, str]] = [
    (errors.InvalidRequest("x", pointer="/a"), 400, "invalid-request"),
    (errors.BindingRequired("x", pointer="/binding"), 400, "binding-required"),
    (errors.Unauthorized("x"), 401, "unauthorized"),
    (errors.Forbidden("x"), 403, "forbidden"),
    (errors.OwnCall("x"), 403, "own-call"),
    (errors.NotApprover("x"), 403, "not-approver"),
    (errors.NotFound("x"), 404, "not-found"),
    (errors.Conflict("x"), 409, "conflict"),
    (errors.ApprovalStale("x"), 409, "approval-stale"),
    (errors.CallHeld("x"), 409, "held"),
    (errors.UseInteraction("x"), 409, "use-interaction"),
    (errors.CallOver("x"), 410, "call-over"),
    (errors.Gone("x", first_sequence=5), 410, "gone"),
    (errors.Truncated(5), 410, "gone"),
    (errors.TooLarge("x"), 413, "too-large"),
    (errors.UnknownTool("x"), 404, "unknown-tool"),
    (errors.InvalidArguments("x"), 422, "invalid-arguments"),
    (errors.Denied("x"), 422, "denied"),
    (errors.CallDiffers("x"), 409, "call-differs"),
    (errors.Draining("x"), 503, "draining"),
    (errors.Inexpressible("x"), 422, "inexpressible"),
    (errors.CannotExpress("x", path="/content"), 422, "inexpressible"),
    (errors.MalformedFrame("x"), 400, "invalid-request"),
    (errors.InvalidConfiguration("f", ()), 422, "invalid-configuration"),
    (errors.LinkRefused("401"), 502, "runtime-refused"),
    (errors.LinkLost("x"), 502, "runtime-unreachable"),
    (errors.EngineUnavailable("/data/dragoman.db: no space left"), 503, "unavailable"),
    (errors.Overloaded("x"), 503, "overloaded"),
    (errors.Elsewhere("s", "x", unsure=True), 503, "session-owner-unavailable"),
    (errors.Stale("x"), 503, "busy"),
    (errors.EngineLocked("x"), 500, "internal"),
    (ValueError("x"), 500, "internal"),
]


@pytest.mark.parametrize(("raised", "status", "name"), RAISED)
async def test_each_exception_is_told_as_its_problem(
    api: httpx.AsyncClient, environment: Environment, raised: Exception, status: int, name: str
) -> None:
    environment.fail("session", raised)
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
    api: httpx.AsyncClient, environment: Environment, raised: Exception
) -> None:
    environment.fail("session", raised)
    assert int((await api.get("/v1/sessions/x")).headers["retry-after"]) >= 1


async def test_inner_workings_are_not_told(api: httpx.AsyncClient, environment: Environment) -> None:
    for raised in (errors.EngineUnavailable("/data/secret.db"), ValueError("secret"), errors.EngineLocked("secret")):
        environment.fail("session", raised)
        assert "secret" not in (await api.get("/v1/sessions/x")).text


async def test_a_wrong_cursor_is_told_as_a_parameter(api: httpx.AsyncClient) -> None:
    answer = await api.get("/v1/sessions?after=not-one-of-ours")
    assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (400, "after")
    assert "pointer" not in answer.json()


def test_a_long_detail_is_cut() -> None:
    assert len(problem_reply(Refused("conflict", "x" * 100_000)).body) < 2_000


async def test_a_mistake_is_a_500_without_details_and_one_log_line(
    api: httpx.AsyncClient, environment: Environment, lines: list[MutableMapping[str, Any]]
) -> None:
    mistake = ZeroDivisionError("inner workings")
    environment.fail("session", mistake)
    answer = await api.get("/v1/sessions/x")
    assert answer.status_code == 500
    assert "inner workings" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    (line,) = lines
    assert (line["event"], line["log_level"], line["exc_info"]) == ("request failed", "error", mistake)


async def test_each_request_is_one_line_without_its_query(
    api: httpx.AsyncClient, environment: Environment, session_id: str, lines: list[MutableMapping[str, Any]]
) -> None:
    call_id = await environment.ask()
    lines.clear()
    token = environment.token(call_id)
    await api.post(f"/v1/calls/{call_id}/outcome?token={token}", json={"outcome": "success"})
    await api.get("/v1/sessions?limit=0&token=sesame")
    await api.get("/healthz")
    await api.get("/v1/sessions", headers={"authorization": "Bearer sesame"})
    requests = [line for line in lines if line["event"].startswith("request ")]
    told = [(line["log_level"], line["method"], line["path"], line["status"], line["key"]) for line in requests]
    assert told == [
        ("debug", "POST", f"/v1/calls/{call_id}/outcome", 200, "callback"),
        ("info", "GET", "/v1/sessions", 400, "backend"),
        ("debug", "GET", "/healthz", 200, "-"),
        ("info", "GET", "/v1/sessions", 401, "-"),
    ]
    assert token not in str(lines)
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


@pytest.fixture
def written(environment: Environment) -> StringIO:
    """What the gateway's log says from now on, as JSON lines."""
    stream = StringIO()
    configure(level="debug", format="json", stream=stream)
    return stream


@pytest.mark.parametrize("given", ["a-1", "00-0af7651916cd43dd8448eb211c80319c/b+c=", "x" * 128])
async def test_a_request_keeps_the_id_it_came_with_in_its_answer_and_its_log_lines(
    api: httpx.AsyncClient, written: StringIO, given: str
) -> None:
    answers = [
        await api.get("/v1/sessions", headers={"X-Request-Id": given}),
        await api.get("/v1/sessions/nope", headers={"X-Request-Id": given}),
        await api.get("/nowhere", headers={"X-Request-Id": given}),
    ]
    assert [answer.headers.get_list("x-request-id") for answer in answers] == [[given]] * 3
    assert [json.loads(line)["request_id"] for line in written.getvalue().splitlines()] == [given] * 3


@pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "a\tb", "é", '"'])
async def test_a_request_without_a_plain_id_gets_one_of_its_own(
    api: httpx.AsyncClient, written: StringIO, given: str | None
) -> None:
    headers = {} if given is None else {b"X-Request-Id": given.encode()}
    ids = [(await api.get("/v1/sessions", headers=headers)).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)
    assert ids[0] != ids[1]
    assert [json.loads(line)["request_id"] for line in written.getvalue().splitlines()] == ids


async def test_the_libraries_of_client_and_server_write_no_line_of_their_own_and_no_query(
    wire: httpx.AsyncClient, written: StringIO
) -> None:
    await wire.get("/v1/sessions?limit=17")
    assert "17" not in json.loads(written.getvalue())["path"]
    assert [json.loads(line)["event"] for line in written.getvalue().splitlines()] == ["request served"]


@pytest.mark.parametrize("path", ["/healthz", "/v1/sessions", "/v1/sessions/nope", "/nowhere", "/openapi.json"])
async def test_a_head_is_answered_as_a_get_is_but_without_the_body(wire: httpx.AsyncClient, path: str) -> None:
    asked, looked = await wire.get(path), await wire.head(path)
    assert (looked.status_code, looked.content) == (asked.status_code, b"")
    apart = {"date", "server-timing", "x-request-id"}
    assert {n: v for n, v in looked.headers.items() if n not in apart} == {
        n: v for n, v in asked.headers.items() if n not in apart
    }


async def test_a_head_does_not_do_what_only_a_post_may(api: httpx.AsyncClient) -> None:
    answer = await api.head("/v1/reload")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "POST", b"")
