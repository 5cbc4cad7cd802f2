"""Who is let in: keys, scopes, callback tokens, and the loopback rule where there are no keys."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.events import SessionId
from gateway.http.auth import ACCESS, CALLBACK, LOCAL, TOOLS, Keyring
from gateway.http.routes import ROUTES
from gateway.settings.model import ApiKey
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE

NEEDS = [
    ("POST", "/v1/sessions", "drive"),
    ("GET", "/v1/sessions", "read"),
    ("GET", "/v1/sessions/x", "read"),
    ("DELETE", "/v1/sessions/x", "drive"),
    ("POST", "/v1/sessions/x/events", "drive"),
    ("GET", "/v1/sessions/x/mcp", "drive"),
    ("POST", "/v1/sessions/x/mcp/rotate", "drive"),
    ("GET", "/v1/sessions/x/events", "read"),
    ("GET", "/v1/sessions/x/events/stream", "read"),
    ("POST", "/v1/sessions/x/events/1/redeliver", "operate"),
    ("GET", "/v1/calls", "read"),
    ("GET", "/v1/calls/x", "read"),
    ("POST", "/v1/calls/x/outcome", "answer"),
    ("POST", "/v1/calls/x/progress", "answer"),
    ("POST", "/v1/calls/x/cancel", "operate"),
    ("POST", "/v1/calls/x/redrive", "operate"),
    ("GET", "/v1/interactions", "read"),
    ("GET", "/v1/interactions/stream", "read"),
    ("GET", "/v1/interactions/x", "read"),
    ("POST", "/v1/interactions/x/answer", "answer"),
    ("GET", "/v1/approvals", "read"),
    ("GET", "/v1/dead-letters", "read"),
    ("GET", "/v1/dead-letters/x", "read"),
    ("POST", "/v1/dead-letters/x/redrive", "operate"),
    ("POST", "/v1/dead-letters/redrive", "operate"),
    ("POST", "/v1/dead-letters/x/dismiss", "operate"),
    ("POST", "/v1/dead-letters/dismiss", "operate"),
    ("POST", "/v1/destinations/x/enable", "operate"),
    ("POST", "/v1/reload", "operate"),
    ("GET", "/v1/activity", "read"),
    ("GET", "/v1/runtimes", "read"),
    ("GET", "/v1/capabilities", "read"),
    ("GET", "/metrics", "read"),
    ("GET", "/version", "read"),
    ("GET", "/openapi.json", "read"),
]
ONLY = {"read": "look-only", "drive": "drive-only", "answer": "answer-only", "operate": "operate-only"}


@pytest.mark.parametrize(("method", "path", "scope"), NEEDS)
async def test_each_operation_needs_exactly_its_scope(
    stranger: httpx.AsyncClient, method: str, path: str, scope: str
) -> None:
    without = await stranger.request(method, path)
    assert without.status_code == 401
    assert without.headers["www-authenticate"].startswith("Bearer")
    assert without.json()["type"] == "/problems/unauthorized"
    for other, key in ONLY.items():
        # A stream that is let in would not end.
        asked = "HEAD" if other == scope and path.endswith("/stream") else method
        answer = await stranger.request(asked, path, headers=bearer(key))
        if other == scope:
            assert answer.status_code not in {401, 403}
        else:
            assert answer.status_code == 403
            assert answer.json()["scope"] == scope
            assert scope in answer.json()["detail"]


def test_every_operation_has_a_row_in_the_access_table() -> None:
    names = {route.operation_id for route in ROUTES}
    assert names | {"eraseSession", "listNativeEvents"} == set(ACCESS)


async def test_an_interaction_is_answered_with_one_of_two_scopes(stranger: httpx.AsyncClient) -> None:
    path, body = "/v1/interactions/x/answer", {"decision": "allow"}
    answers = {
        key: await stranger.post(path, json=body, headers=bearer(key)) for key in (*ONLY.values(), "approve-only")
    }
    assert {key: answer.status_code for key, answer in answers.items()} == {
        "look-only": 403, "drive-only": 403, "answer-only": 404, "operate-only": 403, "approve-only": 404
    }  # fmt: skip


@pytest.mark.parametrize(("method", "path", "scope"), [row for row in NEEDS if "/answer" not in row[1]])
async def test_the_scope_of_approvals_allows_nothing_else(
    stranger: httpx.AsyncClient, method: str, path: str, scope: str
) -> None:
    answer = await stranger.request(method, path, headers=bearer("approve-only"))
    assert (answer.status_code, answer.json()["scope"]) == (403, scope)


def test_no_key_may_approve_by_default_and_neither_may_tokens() -> None:
    key = ApiKey.model_validate({"name": "backend", "key": "k"})
    assert key.scopes == {"read", "drive", "operate", "answer"}
    assert all("approve" not in caller.scopes for caller in (CALLBACK, *TOOLS.values()))
    assert "approve" in LOCAL.scopes


async def test_erasing_needs_operate_besides_drive(
    stranger: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    refused = await stranger.delete(f"/v1/sessions/{session_id}?erase=true", headers=bearer("drive-only"))
    assert refused.status_code == 403
    assert refused.json()["scope"] == "operate"
    assert (await environment.gateway.session(SessionId(session_id))).state != "closed"
    allowed = await stranger.delete(f"/v1/sessions/{session_id}?erase=true", headers=bearer("all-of-it"))
    assert allowed.status_code == 204
    assert {one.event.kind for one in await environment.journal(session_id)} == {"opaque"}


async def test_native_frames_need_operate_besides_read(
    stranger: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    refused = await stranger.get(f"{path}?native=true", headers=bearer("look-only"))
    assert refused.status_code == 403
    assert refused.json()["scope"] == "operate"
    assert "native" not in (await stranger.get(path, headers=bearer("look-only"))).json()["data"][0]
    allowed = await stranger.get(f"{path}?native=true", headers=bearer("all-of-it"))
    assert [row["native"] for row in allowed.json()["data"]] == [None] * len(await environment.journal(session_id))


@pytest.mark.parametrize(
    "path", ["/healthz", "/livez", "/health", "/readyz", "/ready", "/llms.txt", "/problems", "/problems/not-found"]
)
async def test_pages_for_probes_and_explanations_are_open(stranger: httpx.AsyncClient, path: str) -> None:
    assert (await stranger.get(path)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YTpi"},
        {"authorization": "all-of-it"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"authorization": "Bearer wrong", "x-api-key": "all-of-it"},
    ],
)
async def test_a_wrong_key_is_told_without_being_repeated(stranger: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await stranger.get("/v1/sessions", headers=headers)
    assert answer.status_code == 401
    assert "all-of-it" not in answer.text


@pytest.mark.parametrize("headers", [{"x-api-key": "all-of-it"}, {"authorization": "bearer   all-of-it"}])
async def test_both_ways_of_sending_a_key_work(stranger: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await stranger.get("/v1/sessions", headers=headers)).status_code == 200


def test_a_keyring_finds_each_of_its_keys_and_no_other() -> None:
    keys = [ApiKey.model_validate({"name": f"k{n}", "key": f"schlüssel-{n}"}) for n in range(3)]
    wake = Keyring((key.key, key.name) for key in keys)
    assert [wake.find(f"schlüssel-{n}".encode()) for n in range(4)] == ["k0", "k1", "k2", None]


async def test_keys_of_a_reloaded_configuration_count_at_once(api: httpx.AsyncClient, environment: Environment) -> None:
    assert (await api.get("/v1/sessions")).status_code == 200
    await environment.reload({"api": {"keys": [{"name": "new", "key": "fresh"}]}})
    assert (await api.get("/v1/sessions")).status_code == 401
    assert (await api.get("/v1/sessions", headers=bearer("fresh"))).status_code == 200


async def test_pages_are_open_where_the_settings_say_so(stranger: httpx.AsyncClient, environment: Environment) -> None:
    await environment.reload({"api": {"open": ["metrics", "version"]}})
    statuses = [(await stranger.get(path)).status_code for path in ("/metrics", "/version", "/openapi.json")]
    assert statuses == [200, 200, 401]


async def test_a_callback_token_opens_its_own_call_only(
    stranger: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    own, other = await environment.ask("c-1"), await environment.ask("c-2")
    token, body = environment.token(own), {"outcome": "success", "result": 1}
    assert (await stranger.post(f"/v1/calls/{other}/outcome?token={token}", json=body)).status_code == 401
    assert (await stranger.get(f"/v1/calls/{own}?token={token}")).status_code == 401
    assert (await stranger.post(f"/v1/calls/{own}/cancel?token={token}")).status_code == 401
    assert (await stranger.post(f"/v1/calls/{own}/progress?token={token}", json={"at": 1})).status_code == 202
    assert (await stranger.post(f"/v1/calls/{own}/outcome?token={token}", json=body)).status_code == 200


async def test_a_key_counts_where_the_token_is_wrong(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await environment.ask()
    answer = await api.post(f"/v1/calls/{call_id}/outcome?token=old", json={"outcome": "success"})
    assert answer.status_code == 200


@pytest.fixture
async def open_environment() -> AsyncIterator[Environment]:
    """A gateway without any key."""
    async with environment_of({"api": {"keys": []}}) as made:
        yield made


@pytest.fixture
async def keyless(open_environment: Environment) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(open_environment.gateway, {}) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("app.localhost", 200),
        ("127.0.0.1", 200),
        ("127.8.8.8:99", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
async def test_without_keys_only_loopback_hosts_are_answered(
    keyless: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await keyless.get("/v1/sessions", headers={"host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["type"] == "/problems/foreign-origin"


async def test_without_keys_each_of_several_hosts_must_be_loopback(keyless: httpx.AsyncClient) -> None:
    for hosts in (["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"]):
        answer = await keyless.get("/v1/sessions", headers=[("host", host) for host in hosts])
        assert answer.status_code == 403, hosts
        assert answer.json()["type"] == "/problems/foreign-origin"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_without_keys_other_web_pages_cannot_post(
    keyless: httpx.AsyncClient, open_environment: Environment, origin: str
) -> None:
    await open_environment.attach()
    call_id = await open_environment.ask()
    answer = await keyless.post(f"/v1/calls/{call_id}/cancel", headers={"origin": origin})
    assert answer.status_code == 403
    assert (await open_environment.call("c-1")).canceling_until is None


async def test_without_keys_the_own_origin_and_no_origin_are_fine(keyless: httpx.AsyncClient) -> None:
    own = f"{keyless.base_url.scheme}://{keyless.base_url.netloc.decode()}"
    assert (await keyless.get("/v1/sessions", headers={"origin": own})).status_code == 200
    answer = await keyless.get("/v1/sessions")
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_without_keys_a_callback_may_come_by_its_public_name(
    keyless: httpx.AsyncClient, open_environment: Environment
) -> None:
    await open_environment.attach()
    call_id = await open_environment.ask()
    path, headers, body = f"/v1/calls/{call_id}/outcome", {"host": "gateway.example"}, {"outcome": "success"}
    assert (await keyless.post(f"{path}?token=no", json=body, headers=headers)).status_code == 401
    own = f"{path}?token={open_environment.token(call_id)}"
    assert (await keyless.post(own, json=body, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "length_and_body",
    [
        b"Content-Length: 4194304\r\n\r\n" + b"[" * 1_000,
        b"Content-Length: 5\r\n\r\n{nope",
        b"Transfer-Encoding: chunked\r\n\r\n10000\r\n" + b"[" * 65_536 + b"\r\n",
    ],
    ids=["4 MiB of which little has come", "broken", "endless"],
)
async def test_a_wrong_key_is_refused_before_the_body_is_read(url: str, length_and_body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Type: application/json\r\n"
    writer.write(head + length_and_body)
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
