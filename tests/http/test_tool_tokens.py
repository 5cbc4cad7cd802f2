"""Tool tokens over a real gateway: what they open, what they do not, and when they are over."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.events import SessionId
from gateway.http.auth import ACCESS
from tests.engines.postgres_server import temporary_schema
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of

TOOLS = {"tools": {"ask_for_cards": {"description": "Ask.", "parameters": {"type": "object"}}}}
ASK = {"tool": "ask_for_cards"}


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(TOOLS) as made:
        yield made


async def token_of(api: httpx.AsyncClient, session_id: str) -> str:
    shown = (await api.get(f"/v1/sessions/{session_id}/mcp")).json()
    assert shown["url"] == f"http://gateway.example/mcp/{session_id}"
    return shown["token"]


async def test_a_tool_token_calls_the_tools_of_its_session_and_reads_its_calls(
    api: httpx.AsyncClient, environment: Environment, stranger: httpx.AsyncClient, session_id: str
) -> None:
    token = await token_of(api, session_id)
    assert token.startswith("dtt_")
    assert token == await token_of(api, session_id)
    for header in (bearer(token), {"x-api-key": token}):
        call = await stranger.post(f"/v1/sessions/{session_id}/calls", json={**ASK, "key": "k"}, headers=header)
        assert (call.status_code, call.json()["native_call_id"]) == (202, "caller:tool token:k")
        read = await stranger.get(call.headers["location"], headers=header)
        assert (read.status_code, read.json()["call_id"]) == (200, call.json()["call_id"])


@pytest.mark.parametrize("wrong", ["dtt_", "dtt_x", "dtt_é", "foreign", "rotated", "longer"])
async def test_a_token_that_is_not_the_sessions_is_refused(
    api: httpx.AsyncClient, environment: Environment, stranger: httpx.AsyncClient, session_id: str, wrong: str
) -> None:
    token = await token_of(api, session_id)
    call = await api.post(f"/v1/sessions/{session_id}/calls", json=ASK, headers=bearer(token))
    status = 404 if wrong == "foreign" else 401
    match wrong:
        case "foreign":
            wrong = await token_of(api, await environment.attach("agent-8"))
        case "rotated":
            new = (await api.post(f"/v1/sessions/{session_id}/mcp/rotate")).json()["token"]
            assert new == await token_of(api, session_id)
            wrong, token = token, new
        case "longer":
            wrong = token + "A"
        case _:
            pass
    headers = [(b"authorization", f"Bearer {wrong}".encode())]
    for method, path in (("POST", f"/v1/sessions/{session_id}/calls"), ("GET", call.headers["location"])):
        refused = await stranger.request(method, path, json=ASK if method == "POST" else None, headers=headers)
        assert refused.status_code == (401 if method == "POST" else status)
        assert wrong not in refused.text
        allowed = await stranger.request(method, path, json=ASK if method == "POST" else None, headers=bearer(token))
        assert allowed.status_code in {200, 202}
    assert (await stranger.get("/v1/calls/unknown", headers=bearer(token))).status_code == 404


async def test_a_tool_token_reads_and_cancels_its_own_calls_and_no_others(
    api: httpx.AsyncClient, environment: Environment, stranger: httpx.AsyncClient, session_id: str
) -> None:
    headers = bearer(await token_of(api, session_id))
    path = f"/v1/sessions/{session_id}/calls"
    own = (await stranger.post(path, json=ASK, headers=headers)).json()["call_id"]
    by_key = (await api.post(path, json=ASK)).json()["call_id"]
    agents = await environment.ask(state="accepted")
    other = await environment.attach("agent-8")
    theirs = bearer(await token_of(api, other))
    foreign = (await stranger.post(f"/v1/sessions/{other}/calls", json=ASK, headers=theirs)).json()["call_id"]
    for call_id in (by_key, agents, foreign, "unknown"):
        for method, what in (("GET", ""), ("POST", "/cancel")):
            refused = await stranger.request(method, f"/v1/calls/{call_id}{what}", headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (404, "/problems/not-found")
            assert refused.json()["detail"] == f"this token made no call {call_id!r}"
    for what in ("outcome", "progress", "redrive"):
        refused = await stranger.post(f"/v1/calls/{own}/{what}", json={}, headers=headers)
        assert refused.status_code == 401
    assert not environment.backend.canceled
    canceled = await stranger.post(f"/v1/calls/{own}/cancel", json={"reason": "enough"}, headers=headers)
    assert (canceled.status_code, canceled.json()["call_id"]) == (202, own)
    assert [one.data["call_id"] for one in environment.backend.canceled] == [own]


async def test_a_rotated_token_is_not_told_that_its_call_is_gone(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, session_id: str
) -> None:
    old = bearer(await token_of(api, session_id))
    call = (await stranger.post(f"/v1/sessions/{session_id}/calls", json=ASK, headers=old)).headers["location"]
    for _ in range(3):
        await api.post(f"/v1/sessions/{session_id}/mcp/rotate")
    for method, path in (("GET", call), ("POST", f"{call}/cancel")):
        assert (await stranger.request(method, path, headers=old)).status_code == 401
    assert (await stranger.get(call, headers=bearer(await token_of(api, session_id)))).status_code == 200


OTHERS = [
    ("POST", "/v1/sessions"), ("GET", "/v1/sessions"), ("GET", "/v1/sessions/{}"), ("DELETE", "/v1/sessions/{}"),
    ("POST", "/v1/sessions/{}/events"), ("GET", "/v1/sessions/{}/events"), ("GET", "/v1/sessions/{}/events/stream"),
    ("GET", "/v1/sessions/{}/mcp"), ("POST", "/v1/sessions/{}/mcp/rotate"), ("GET", "/v1/calls"),
    ("POST", "/v1/calls/x/outcome"), ("POST", "/v1/calls/x/progress"), ("POST", "/v1/calls/x/redrive"),
    ("GET", "/metrics"), ("POST", "/v1/reload"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), OTHERS)
async def test_it_opens_nothing_else(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, session_id: str, method: str, path: str
) -> None:
    headers = bearer(await token_of(api, session_id))
    assert (await stranger.request(method, path.format(session_id), headers=headers)).status_code == 401


def test_only_three_operations_take_it() -> None:
    assert [name for name, access in ACCESS.items() if access.tools] == ["callTool", "getCall", "cancelCall"]


async def test_rotating_counts_on_every_instance_of_a_store() -> None:
    schema = temporary_schema()
    async with environment_of(TOOLS, schema=schema) as one, environment_of(TOOLS, schema=schema) as other:
        session_id = await one.attach()
        async with in_process(one.gateway, bearer("all-of-it")) as here:
            old = await token_of(here, session_id)
            assert await other.gateway.tool_tokens.kind_of(SessionId(session_id), old.encode()) == "tool token"
            new = (await here.post(f"/v1/sessions/{session_id}/mcp/rotate")).json()["token"]
            path = f"/v1/sessions/{session_id}/calls"
            call = (await here.post(path, json=ASK, headers=bearer(new))).headers["location"]
        async with in_process(other.gateway, {}) as there:
            assert (await there.get(call, headers=bearer(old))).status_code == 401
            assert (await there.get(call, headers=bearer(new))).status_code == 200


async def test_a_token_that_was_read_while_it_was_rotated_is_not_remembered(
    api: httpx.AsyncClient, environment: Environment, monkeypatch: pytest.MonkeyPatch, session_id: str
) -> None:
    note, read, go_on = environment.engine.note, asyncio.Event(), asyncio.Event()

    async def slowly(name: str) -> str | None:
        monkeypatch.setattr(environment.engine, "note", note)
        found = await note(name)
        read.set()
        await go_on.wait()
        return found

    tokens, session = environment.gateway.tool_tokens, SessionId(session_id)
    monkeypatch.setattr(environment.engine, "note", slowly)
    looking = asyncio.create_task(tokens.token(session))
    await read.wait()
    new = await tokens.rotate(session)
    go_on.set()
    old = await looking
    assert old != new
    assert await tokens.token(session) == new
    assert await tokens.kind_of(session, old.encode()) is None


async def test_without_api_keys_a_tool_token_still_means_its_one_session() -> None:
    async with environment_of({**TOOLS, "api": {"keys": []}}) as made, in_process(made.gateway, {}) as local:
        session_id = await made.attach()
        token = await token_of(local, session_id)
        path = f"/v1/sessions/{await made.attach('agent-8')}/calls"
        assert (await local.post(path, json=ASK)).status_code == 202
        assert (await local.post(path, json=ASK, headers={"authorization": "Basic YTpi"})).status_code == 202
        assert (await local.post(path, json=ASK, headers=bearer(token))).status_code == 401
        rebound = {**bearer(token), "host": "evil.example"}
        assert (await local.post(f"/v1/sessions/{session_id}/calls", json=ASK, headers=rebound)).status_code == 403


@pytest.mark.parametrize("way", ["", "/rotate"])
async def test_only_who_may_drive_is_shown_it_and_only_for_a_session_that_is_there(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, session_id: str, way: str
) -> None:
    method = "POST" if way else "GET"
    refused = await stranger.request(method, f"/v1/sessions/{session_id}/mcp{way}", headers=bearer("look-only"))
    assert (refused.status_code, refused.json()["scope"]) == (403, "drive")
    assert (await api.request(method, f"/v1/sessions/nowhere/mcp{way}")).status_code == 404
    shown = await api.request(method, f"/v1/sessions/{session_id}/mcp{way}")
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")


async def test_a_session_opened_again_does_not_take_its_old_token_again(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    old = await token_of(api, session_id)
    await api.post(f"/v1/sessions/{session_id}/mcp/rotate")
    await api.delete(f"/v1/sessions/{session_id}?erase=true")
    again = await api.post("/v1/sessions", json={"runtime": "finn", "native_id": "agent-7"})
    assert again.json()["session_id"] == session_id
    assert await token_of(api, session_id) != old
