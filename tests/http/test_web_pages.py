"""Requests that a foreign web page has sent are refused in every interface, with a valid key too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gateway.addresses import read_origin
from gateway.settings.model import Api
from tests.http.conftest import bearer, in_process, plain_client, serving
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE

CLIENT = "ada-s-own-token-of-some-length"
MCP: dict[str, Any] = {
    "api": {"origins": ["HTTPS://App.Example.com:443/", "vscode-webview://panel"]},
    "tools": {"ask_for_cards": {"parameters": {"type": "object"}}},
    "desks": {"desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": CLIENT}]}},
}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
FOREIGN = "https://evil.example"


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    """A gateway with keys, a page of its own and clients of MCP."""
    async with environment_of(MCP) as made:
        yield made


ALLOWED = (
    "http://localhost",
    "http://LOCALHOST:3000",
    "https://app.localhost",
    "http://127.0.0.1:6274",
    "http://127.8.8.8",
    "http://[::1]:8080",
    "http://[0:0:0:0:0:0:0:1]",
    "http://gateway.example",
    "HTTP://Gateway.Example:80",
    "https://app.example.com",
    "https://app.example.com:443",
    "vscode-webview://panel",
)
REFUSED = (
    "https://gateway.example",
    "http://gateway.example:8080",
    "http://gateway.example.",
    "http://app.example.com",
    "https://app.example.com.evil.example",
    "https://evil.example/https://app.example.com",
    "https://app.example.com@evil.example",
    "https://app.example.com https://evil.example",
    "https://app.example.com, https://evil.example",
    "http://localhost.",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://[::2]",
    "http://[::1",
    "http://localhost:0",
    "http://localhost:99999",
    "chrome-extension://localhost",
    "vscode-webview://other",
    "file://",
    "null",
    "NULL",
    "",
    "*",
    FOREIGN,
)


async def test_an_origin_is_loopback_or_public_url_or_listed(api: httpx.AsyncClient) -> None:
    for origin in (*ALLOWED, *REFUSED):
        answer = await api.get("/v1/sessions", headers={"origin": origin})
        assert answer.status_code == (200 if origin in ALLOWED else 403), origin
        assert answer.is_success or answer.json()["type"] == "/problems/foreign-origin"


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        (["http://localhost", "https://app.example.com"], 200),
        (["https://app.example.com", FOREIGN], 403),
        ([FOREIGN, "http://localhost"], 403),
    ],
)
async def test_of_several_origins_each_must_be_allowed(url: str, origins: list[str], status: int) -> None:
    async with plain_client(url) as client:
        headers = [("Origin", origin) for origin in origins]
        assert (await client.get("/v1/sessions", headers=headers)).status_code == status


async def test_every_interface_refuses_a_foreign_page_with_its_valid_token(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    call_id = await environment.ask()
    async with plain_client(url) as client:
        tools = (await client.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        event = {"kind": "turn.steered", "text": "from elsewhere"}
        outcome = f"/v1/calls/{call_id}/outcome?token={environment.token(call_id)}"
        anonymous = {"authorization": ""}
        requests: list[tuple[str, str, Any, dict[str, str]]] = [
            ("GET", f"/v1/sessions/{session_id}", None, {}),
            ("GET", "/v1/sessions", None, {"authorization": "", "x-api-key": "all-of-it"}),
            ("GET", "/openapi.json", None, {}),
            ("POST", f"/v1/sessions/{session_id}/events", event, {}),
            ("POST", f"/v1/sessions/{session_id}/calls", {"tool": "ask_for_cards", "arguments": {}}, bearer(tools)),
            ("POST", f"/v1/calls/{call_id}/cancel", {}, {}),
            ("POST", outcome, {"outcome": "success"}, anonymous),
            ("GET", f"/v1/sessions/{session_id}/events/stream", None, {}),
            ("GET", "/v1/interactions/stream", None, {}),
            ("POST", f"/mcp/{session_id}", LIST, bearer(tools)),
            ("POST", "/mcp/r/desk", LIST, bearer(CLIENT)),
            ("POST", "/mcp/t/unknown", LIST, bearer(tools)),
        ]
        for method, path, body, headers in requests:
            for origin in (FOREIGN, "null"):
                answer = await client.request(method, path, json=body, headers={**headers, "origin": origin})
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/foreign-origin"), path
        assert (await environment.call("c-1")).state == "accepted"
        assert "from elsewhere" not in str(await environment.journal(session_id))
        # From an allowed page, and from none, they are served; the first MCP request loads a library.
        client.timeout = httpx.Timeout(60)
        for headers in ({"origin": "https://app.example.com"}, {}):
            steered = await client.post(f"/v1/sessions/{session_id}/events", json=event, headers=headers)
            listed = await client.post("/mcp/r/desk", json=LIST, headers={**bearer(CLIENT), **headers})
            settled = await client.post(outcome, json={"outcome": "success"}, headers={**anonymous, **headers})
            assert (steered.status_code, listed.status_code, settled.status_code) == (202, 200, 200)


async def test_with_keys_any_host_is_served(api: httpx.AsyncClient) -> None:
    assert (await api.get("/v1/sessions", headers={"host": "dragoman.example.com"})).status_code == 200


async def test_without_keys_a_request_that_names_no_host_is_refused() -> None:
    async with environment_of({"api": {"keys": []}}) as made, serving(made.gateway) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /v1/sessions HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
    assert b" 403 " in answer.splitlines()[0], answer
    assert b"only a loopback Host such as 127.0.0.1 is allowed" in answer


async def test_a_rebound_name_is_no_allowed_page(api: httpx.AsyncClient) -> None:
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    assert (await api.get("/v1/sessions", headers=headers)).status_code == 403


async def test_health_is_shown_to_every_page(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/healthz", headers={"origin": FOREIGN})).status_code == 200


async def test_without_keys_a_loopback_page_must_be_the_host_itself() -> None:
    cases = [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", 200),
        ("LOCALHOST:8080", "http://localhost:8080", 200),
        ("localhost", "http://localhost:80", 200),
        ("localhost:443", "https://localhost", 200),
        ("[::1]:8080", "http://[::1]:8080", 200),
        ("127.0.0.1:8080", "http://127.0.0.1:3000", 403),
        ("127.0.0.1:8080", "http://localhost:8080", 403),
        ("127.0.0.1:8080", "https://app.example.com", 200),
        ("127.0.0.1:8080", "http://gateway.example", 200),
        ("127.0.0.1:8080", "null", 403),
        ("evil.example", "http://evil.example", 403),
    ]
    async with (
        environment_of({"api": {"keys": [], "origins": ["https://app.example.com"]}}) as made,
        in_process(made.gateway, {}) as keyless,
    ):
        for host, origin, status in cases:
            answer = await keyless.get("/v1/sessions", headers={"host": host, "origin": origin})
            assert answer.status_code == status, (host, origin)


async def test_a_reload_changes_the_pages(environment: Environment, api: httpx.AsyncClient) -> None:
    headers = {"origin": "https://new.example"}
    assert (await api.get("/v1/sessions", headers=headers)).status_code == 403
    await environment.reload({"api": {"origins": ["https://new.example"]}})
    assert (await api.get("/v1/sessions", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/page",
        "https://*.example.com",
        "https://",
        "https://ä.example",
    ],
)
def test_what_is_no_origin_cannot_be_listed(wrong: str) -> None:
    with pytest.raises(ValidationError, match=r"e\.g\. https://app"):
        Api.model_validate({"origins": [wrong]})


def test_origins_have_one_form() -> None:
    assert read_origin("HTTP://[0:0::1]:80") == "http://[::1]"
    assert read_origin("https://X.example:8443") == "https://x.example:8443"
    assert read_origin("https://x.example/") is None
