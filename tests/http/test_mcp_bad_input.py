"""What MCP clients do wrong, over real sockets: each gets a clear answer, and nothing is called."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest

from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import Environment, environment_of
from tests.http.mcp_clients import NEWEST, Plain, call
from tests.http.test_calls_from_outside import SEVEN, TOOLS
from tests.pace import PATIENCE

SEVENS = {"rank": "7"}
GOOD = call("ask_for_cards", SEVENS)


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS) as made:
        made.backend.answers["ask_for_cards"] = SEVEN
        yield made


@pytest.fixture
async def token(wire: httpx.AsyncClient, session_id: str) -> str:
    return (await wire.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket without a key."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as made:  # noqa: S501
        yield made


@pytest.fixture
def plain(client: httpx.AsyncClient, session_id: str, token: str) -> Plain:
    return Plain(client, f"/mcp/{session_id}", token)


async def test_an_address_with_a_slash_at_its_end_is_the_same_endpoint(
    client: httpx.AsyncClient, session_id: str, token: str
) -> None:
    answer = await Plain(client, f"/mcp/{session_id}/", token).call("ask_for_cards", {"rank": "7"})
    assert answer["result"]["isError"] is False
    for path in ("/mcp/r/x/", "/mcp/t/x/", "/mcp/s/x/"):
        assert (await client.post(path)).status_code == 401


@pytest.mark.parametrize("given", ["none", "wrong", "api key", "foreign", "rotated", "basic"])
async def test_without_the_sessions_token_nobody_is_let_in_whatever_the_method(
    environment: Environment,
    wire: httpx.AsyncClient,
    client: httpx.AsyncClient,
    session_id: str,
    token: str,
    given: str,
) -> None:
    headers = {
        "none": {},
        "wrong": bearer("dtt_wrong"),
        "api key": bearer("all-of-it"),
        "foreign": bearer(token),
        "rotated": bearer(token),
        "basic": {"authorization": "Basic YTpi"},
    }[given]
    if given == "foreign":
        session_id = await environment.attach("agent-8")
    if given == "rotated":
        await wire.post(f"/v1/sessions/{session_id}/mcp/rotate")
    for method in ("POST", "GET", "DELETE", "PUT", "HEAD"):
        content = b"[" * 1_000 if method in {"POST", "PUT"} else None
        refused = await client.request(method, f"/mcp/{session_id}", content=content, headers=headers)
        assert refused.status_code == 401, method
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"', method
        if method != "HEAD":
            assert refused.json()["type"] == "/problems/unauthorized", method
            assert token not in refused.text, method


async def test_an_unknown_session_is_told_only_to_who_could_have_its_token(
    environment: Environment, client: httpx.AsyncClient, token: str
) -> None:
    assert (await client.post("/mcp/nowhere", json=GOOD, headers=bearer(token))).status_code == 401
    right = await environment.gateway.tool_tokens.token("nowhere")  # type: ignore[arg-type]
    unknown = await client.post("/mcp/nowhere", json=GOOD, headers=bearer(right))
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/not-found")


async def test_another_method_is_refused_at_once(client: httpx.AsyncClient, session_id: str, token: str) -> None:
    headers = {**bearer(token), "accept": "text/event-stream"}
    for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"):
        async with asyncio.timeout(PATIENCE):
            refused = await client.request(method, f"/mcp/{session_id}", headers=headers)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST"), method


def nested(levels: int) -> bytes:
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask_for_cards","arguments":' + deep + b"}}"


def with_rank(text: str) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask_for_cards","arguments":{"rank":'
        + text.encode()
        + b"}}}"
    )


RANK = "/params/arguments/rank"


NOT_STRICT: list[tuple[bytes, str | None]] = [
    (with_rank("NaN"), RANK),
    (with_rank("-Infinity"), RANK),
    (with_rank("1e999"), RANK),
    (with_rank("1" * 30), RANK),
    (with_rank("1" * 5_000), RANK),
    (with_rank('"\\ud800"'), RANK),
    (with_rank('"7","rank":"8"'), RANK),
    (with_rank('[{"a/b":1,"a/b":2}]'), RANK + "/0/a~1b"),
    (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', "/id"),
    (nested(100), "/params/arguments" + "/a" * 62),
    (b"[" * 100_000, None),
    (b"{", None),
    (b"", None),
    (b"\xff\xfe", None),
    (json.dumps({"a": [0] * 30_000}).encode(), ""),
]


@pytest.mark.parametrize("version", ["2025-11-25", NEWEST])
async def test_what_is_no_strict_json_is_a_parse_error_with_its_place(
    environment: Environment, plain: Plain, version: str
) -> None:
    for body, pointer in NOT_STRICT:
        refused = await plain.send(body, **{"mcp-protocol-version": version})
        assert refused.status_code == 400, body
        told = refused.json()
        assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", None, -32700), body
        assert told["error"].get("data") == (None if pointer is None else {"pointer": pointer}), body
    assert not environment.backend.asked


@pytest.mark.parametrize("version", ["2025-11-25", NEWEST])
async def test_batches_and_bare_values_are_refused(environment: Environment, plain: Plain, version: str) -> None:
    for body in (b"[]", json.dumps([GOOD]).encode(), json.dumps([GOOD, GOOD]).encode(), b'"a"', b"7", b"null"):
        refused = await plain.send(body, **{"mcp-protocol-version": version})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600), body
    assert not environment.backend.asked


ODD: tuple[Any, ...] = ({}, [], None, True, 1.5)
ODD_IDS: list[dict[str, Any]] = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in ODD]


NO_REQUESTS: list[dict[str, Any]] = [
    {},
    {"jsonrpc": "1.0", "id": 1, "method": "ping"},
    {"id": 1, "method": "ping"},
    *ODD_IDS,
    {"jsonrpc": "2.0", "id": 1, "method": 7},
    {"jsonrpc": "2.0", "id": 1},
    {**GOOD, "params": [1]},
    {**GOOD, "params": {"name": 7}},
    {**GOOD, "params": {"name": "ask_for_cards", "arguments": [1]}},
    {**GOOD, "params": {"name": "ask_for_cards", "_meta": [1]}},
    {**GOOD, "method": "tools/sing"},
    {**GOOD, "method": "resources/list", "params": {}},
    {**GOOD, "method": "prompts/list", "params": {}},
    {**GOOD, "method": "tasks/list", "params": {}},
    {**GOOD, "method": "sampling/createMessage", "params": {}},
]


async def test_what_is_no_request_of_the_protocol_is_an_error_and_no_fault_of_ours(
    environment: Environment, plain: Plain, lines: list[MutableMapping[str, Any]]
) -> None:
    for body in NO_REQUESTS:
        answer = await plain.send(body)
        assert answer.status_code in {200, 400, 404}, body
        assert answer.json()["error"]["code"] in {-32600, -32601, -32602}, body
    assert not environment.backend.asked
    assert not [line for line in lines if line["log_level"] in {"error", "critical"}]


async def test_an_unknown_version_of_the_protocol_is_told(environment: Environment, plain: Plain) -> None:
    for version in ("1999-01-01", "2099-01-01", "x", ""):
        answer = await plain.send(GOOD, **{"mcp-protocol-version": version})
        assert answer.status_code == 400, version
        assert answer.json()["error"]["code"] < 0, version
    assert not environment.backend.asked


async def test_a_body_that_is_too_large_or_no_json_is_refused_before_it_is_read(
    environment: Environment, plain: Plain
) -> None:
    large = await plain.send(b" " * (4 * 1024**2 + 1))
    assert (large.status_code, large.json()["type"]) == (413, "/problems/too-large")
    form = await plain.send(b"a=b", **{"content-type": "application/x-www-form-urlencoded"})
    assert (form.status_code, form.json()["type"]) == (415, "/problems/unsupported-media-type")
    packed = await plain.send(b"{}", **{"content-encoding": "gzip"})
    assert packed.status_code == 415


async def test_arguments_have_a_bound_of_their_own(environment: Environment, plain: Plain) -> None:
    answer = await plain.call("ask_for_cards", {"rank": "7" * 1024**2})
    assert answer["result"]["isError"]
    assert "at most 1048576" in answer["result"]["content"][0]["text"]
    assert not environment.backend.asked


async def test_who_accepts_nothing_that_is_sent_is_told_so(plain: Plain) -> None:
    assert (await plain.send(GOOD, accept="text/html")).status_code == 406


async def test_an_open_get_holds_nothing(client: httpx.AsyncClient, session_id: str, token: str) -> None:
    headers = {**bearer(token), "accept": "text/event-stream", "mcp-protocol-version": "2025-11-25"}
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(client.get(f"/mcp/{session_id}", headers=headers) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {405}


NOWHERE = (
    "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp/{}",
    "/.well-known/oauth-protected-resource/mcp/r/desk", "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration", "/register", "/mcp", "/mcp/{}/x", "/mcp/r/desk/x",
)  # fmt: skip


async def test_who_looks_for_a_server_of_tokens_finds_none(
    client: httpx.AsyncClient, session_id: str, token: str
) -> None:
    for path in NOWHERE:
        for method in ("GET", "POST"):
            for headers in ({}, bearer(token)):
                answer = await client.request(method, path.format(session_id), headers=headers)
                assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-path"), path


async def test_without_api_keys_other_hosts_and_pages_are_kept_out() -> None:
    async with (
        environment_of({**TOOLS, "api": {"keys": []}}) as made,
        serving(made.gateway) as (_, url),
        plain_client(url) as client,
    ):
        made.backend.answers["ask_for_cards"] = SEVEN
        session_id = await made.attach()
        token = (await client.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        plain = Plain(client, f"/mcp/{session_id}", token)
        assert (await plain.send(GOOD)).status_code == 200
        for foreign in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            refused = await plain.send(GOOD, **foreign)
            assert (refused.status_code, refused.json()["type"]) == (403, "/problems/foreign-origin")
        assert len(made.backend.asked) == 1
        assert (await client.post(f"/mcp/{session_id}", json=GOOD, headers={"authorization": ""})).status_code == 401


async def test_a_slip_of_ours_is_an_internal_error_that_shows_nothing(
    environment: Environment, plain: Plain, lines: list[MutableMapping[str, Any]]
) -> None:
    environment.fail("call", RuntimeError("canary"))
    answer = await plain.call("get_result", {"call_id": "c-1"})
    environment.fail("call", None)
    assert answer["error"] == {"code": -32603, "message": "internal error"}
    assert [line["part"] for line in lines if line["log_level"] == "error"] == ["mcp"]


async def test_without_the_library_clients_are_told_what_to_install(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.http.mcp.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    refused = await plain.send(GOOD)
    assert (refused.status_code, refused.json()["type"]) == (404, "/problems/unknown-path")
    assert "pip install ./gateway/sdk '.[mcp]'" in refused.json()["detail"]
