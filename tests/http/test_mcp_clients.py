"""Clients with a token of their own at one address, over a real gateway on real sockets."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from adapters.mcp import ADAPTER
from gateway.adapter.port import Connector
from gateway.errors import EngineUnavailable
from gateway.events import SessionId, session_id as name_session
from tests.http.conftest import bearer, serving
from tests.http.environment import Environment, Rooms, environment_of, until
from tests.http.mcp_clients import MODES, Mode, Plain, call, connected, texts
from tests.http.test_calls_from_outside import SEVEN, TOOLS
from tests.pace import PATIENCE

SEVENS = {"rank": "7"}
ADA, BOB, NEW = "ada-token-0123456789", "bob-token-0123456789", "new-token-0123456789"
CLIENTS = [
    {"name": "ada", "token": ADA, "labels": {"team": "shop"}},
    {"name": "bob", "token": BOB},
]
DESK = {"adapter": "mcp", "labels": {"team": "none", "floor": "1"}, "clients": CLIENTS}
OTHER = {"adapter": "mcp", "clients": [{"name": "ada", "token": "other-desk-0123456789"}]}
DESKS = {**TOOLS, "desks": {"desk": DESK, "other": OTHER}}
ADAS = name_session(runtime="desk", native_session_id="ada")
GOOD = call("ask_for_cards", SEVENS)
_SERVER = "gateway.http.mcp.server"
"""The module that imports the library."""


CANNOT_BE_SAID: list[dict[str, Any]] = [
    {"kind": "message.posted", "content": "Hello"},
    {"kind": "context.updated", "name": "n", "context": {"a": 1}},
    {"kind": "context.updated", "name": "n", "context": {"a": 1}, "wakes_agent": True},
    {"kind": "turn.steered", "text": "Quick!"},
    {"kind": "turn.interrupted"},
    {"kind": "opaque", "channel": "c", "payload": {}},
]


def desk_of(*clients: dict[str, Any]) -> dict[str, Any]:
    """What a reload is to read: the desk with other clients."""
    return {"desks": {"desk": {"clients": list(clients)}}}


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of(DESKS) as made:
        made.backend.answers["ask_for_cards"] = SEVEN
        yield made


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real socket without a key."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as made:  # noqa: S501
        yield made


@pytest.fixture
def ada(client: httpx.AsyncClient) -> Plain:
    return Plain(client, "/mcp/r/desk", ADA)


async def kinds(environment: Environment, session_id: SessionId = ADAS) -> list[str]:
    return [one.event.kind for one in await environment.journal(session_id)]


def answer_texts(answer: dict[str, Any]) -> list[str]:
    return [block["text"] for block in answer["result"]["content"]]


async def test_the_request_of_a_client_is_kept_if_the_options_say_so(
    environment: Environment, ada: Plain, wire: httpx.AsyncClient
) -> None:
    path = f"/v1/sessions/{ADAS}/events?native=true"
    await ada.call("ask_for_cards", SEVENS)
    rows = (await wire.get(path)).json()["data"]
    assert [row["native"] for row in rows] == [None, None, None]
    await environment.reload({"desks": {"desk": {"keep_native": True}}})
    await ada.call("ask_for_cards", SEVENS)
    rows = (await wire.get(path)).json()["data"]
    frame = {"channel": "tools/call", "payload": {"name": "ask_for_cards", "arguments": SEVENS}, "omitted": None}
    assert [row["native"] for row in rows[3:]] == [{"frames": [frame], "reencoded": False}, None]


# Who comes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_needs_an_address_and_a_token_only(
    environment: Environment, wire: httpx.AsyncClient, url: str, mode: Mode
) -> None:
    async with connected(f"{url}/mcp/r/desk", ADA, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["ask_for_cards", "get_result"]
        result = await client.call_tool("ask_for_cards", SEVENS)
        assert (result.is_error, texts(result)) == (False, ['{"cards":["7H"]}'])
    session = (await wire.get(f"/v1/sessions/{ADAS}")).json()
    assert (session["runtime"], session["native_id"], session["state"]) == ("desk", "ada", "idle")
    assert (session["labels"], session["protocol"]) == ({"team": "shop", "floor": "1"}, ADAPTER.protocol)
    # It has no link that could be up or down.
    assert await kinds(environment) == ["session.opened", "tool.requested", "tool.finished"]


@pytest.mark.parametrize(
    "given", ["none", "wrong", "prefix", "longer", "other desk", "api key", "tool token", "basic", "no ascii"]
)
async def test_without_a_token_of_this_desk_nobody_is_let_in_whatever_the_method(
    environment: Environment, client: httpx.AsyncClient, given: str
) -> None:
    tool_token = await environment.gateway.tool_tokens.token(ADAS)
    authorization = {
        "none": None,
        "wrong": "Bearer wrong",
        "prefix": f"Bearer {ADA[:-1]}",
        "longer": f"Bearer {ADA}A",
        "other desk": "Bearer other-desk-0123456789",
        "api key": "Bearer all-of-it",
        "tool token": f"Bearer {tool_token}",
        "basic": "Basic YTpi",
        "no ascii": "Bearer é",
    }[given]
    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    for method in ("POST", "GET", "DELETE", "PUT", "HEAD"):
        content = b"[" * 1_000 if method in {"POST", "PUT"} else None
        refused = await client.request(method, "/mcp/r/desk", content=content, headers=headers)
        assert refused.status_code == 401, method
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"', method
        if method != "HEAD":
            assert refused.json()["type"] == "/problems/unauthorized", method
    assert await environment.engine.session(ADAS) is None


async def test_a_runtime_that_is_no_desk_has_no_token_that_is_right(client: httpx.AsyncClient) -> None:
    for runtime in ("nowhere", "finn", "%20"):
        for token in (ADA, "all-of-it"):
            refused = await client.post(f"/mcp/r/{runtime}", json=GOOD, headers=bearer(token))
            assert refused.status_code == 401, (runtime, token)


async def test_another_method_is_refused_at_once_and_opens_nothing(
    environment: Environment, client: httpx.AsyncClient
) -> None:
    headers = {**bearer(ADA), "accept": "text/event-stream"}
    for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"):
        async with asyncio.timeout(PATIENCE):
            refused = await client.request(method, "/mcp/r/desk", headers=headers)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST"), method
    assert await environment.engine.session(ADAS) is None


async def test_both_ways_of_sending_a_token_work(environment: Environment, client: httpx.AsyncClient) -> None:
    for headers in ({"x-api-key": ADA}, {"authorization": f"bearer   {ADA}"}):
        answer = await client.post("/mcp/r/desk", json=GOOD, headers={**headers, "accept": "application/json"})
        assert answer.json()["result"]["structuredContent"] == {"cards": ["7H"]}


async def test_a_desks_token_opens_nothing_else(client: httpx.AsyncClient, ada: Plain) -> None:
    await ada.send(GOOD)
    for method, path in (
        ("POST", f"/mcp/{ADAS}"), ("POST", f"/v1/sessions/{ADAS}/calls"), ("GET", f"/v1/sessions/{ADAS}"),
        ("GET", "/v1/calls"), ("POST", "/mcp/r/other"),
    ):  # fmt: skip
        assert (await client.request(method, path, headers=bearer(ADA))).status_code == 401


async def test_without_api_keys_other_hosts_and_pages_are_kept_out() -> None:
    async with (
        environment_of({**DESKS, "api": {"keys": []}}) as made,
        serving(made.gateway) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client,  # noqa: S501
    ):
        made.backend.answers["ask_for_cards"] = SEVEN
        plain = Plain(client, "/mcp/r/desk", ADA)
        for foreign in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            refused = await plain.send(GOOD, **foreign)
            assert (refused.status_code, refused.json()["type"]) == (403, "/problems/foreign-origin")
        assert not made.backend.asked
        assert (await plain.send(GOOD)).status_code == 200


async def test_the_log_names_the_client_and_never_its_token(
    environment: Environment, client: httpx.AsyncClient, ada: Plain, lines: list[MutableMapping[str, Any]]
) -> None:
    await ada.send(GOOD)
    await client.post("/mcp/r/desk", json=GOOD, headers=bearer(ADA + "A"))

    async def logged() -> list[str] | None:
        found = [line["key"] for line in lines if line.get("path") == "/mcp/r/desk"]
        return found if len(found) == 2 else None

    assert sorted(await until(logged)) == ["-", "desk/ada"]
    assert ADA not in str(lines)


# Its session --------------------------------------------------------------------------------------------------


async def test_each_client_has_a_session_of_its_own(environment: Environment, client: httpx.AsyncClient) -> None:
    for token in (ADA, BOB):
        await Plain(client, "/mcp/r/desk", token).call("ask_for_cards", SEVENS)
    await Plain(client, "/mcp/r/other", "other-desk-0123456789").call("ask_for_cards", SEVENS)
    asked = [(one.data["runtime"], one.data["native_session_id"]) for one in environment.backend.asked]
    assert asked == [("desk", "ada"), ("desk", "bob"), ("other", "ada")]


async def test_a_session_that_was_closed_is_opened_again_by_the_next_request(
    environment: Environment, wire: httpx.AsyncClient, ada: Plain
) -> None:
    await ada.call("ask_for_cards", SEVENS)
    assert (await wire.delete(f"/v1/sessions/{ADAS}")).status_code == 204
    await environment.reload(desk_of({**CLIENTS[0], "labels": {"team": "kitchen"}}))
    assert not (await ada.call("ask_for_cards", SEVENS))["result"]["isError"]
    assert (await kinds(environment)).count("session.opened") == 2
    # It is opened with the labels that the client has by then.
    assert (await environment.gateway.session(ADAS)).labels["team"] == "kitchen"


async def test_its_keys_are_apart_from_those_of_the_api_and_of_the_tool_token(
    environment: Environment, client: httpx.AsyncClient, wire: httpx.AsyncClient, ada: Plain
) -> None:
    key: dict[str, Any] = {"dragoman/key": "k"}
    await ada.call("ask_for_cards", SEVENS, **key)
    token = await environment.gateway.tool_tokens.token(ADAS)
    await Plain(client, f"/mcp/{ADAS}", token).call("ask_for_cards", SEVENS, **key)
    asked = {"tool": "ask_for_cards", "arguments": SEVENS, "key": "k"}
    assert (await wire.post(f"/v1/sessions/{ADAS}/calls", json=asked)).status_code in {200, 202}
    made = {row["native_call_id"] for row in (await wire.get("/v1/calls")).json()["data"]}
    assert made == {"caller:mcp client:k", "caller:tool token:k", "caller:backend:k"}


async def test_labels_of_the_client_say_which_tools_it_is_shown(environment: Environment, url: str, ada: Plain) -> None:
    shop = {"match": {"tool": "ask_for_cards", "label": {"team": "shop"}}, "to": "cards"}
    environment.configuration["routes"] = [shop]
    await environment.reload({})
    shown: dict[str, list[str]] = {}
    for token in (ADA, BOB):
        async with connected(f"{url}/mcp/r/desk", token, "auto") as client:
            shown[token] = [tool.name for tool in (await client.list_tools()).tools]
    assert shown == {ADA: ["ask_for_cards", "get_result"], BOB: []}


async def test_what_the_api_may_do_with_its_session(
    environment: Environment, wire: httpx.AsyncClient, ada: Plain
) -> None:
    await ada.call("ask_for_cards", SEVENS)
    before = await kinds(environment)
    for event in CANNOT_BE_SAID:
        refused = await wire.post(f"/v1/sessions/{ADAS}/events", json=event)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/inexpressible")
        assert f"does not support '{event['kind']}'" in refused.json()["detail"]
    assert await kinds(environment) == before
    opened = await wire.post("/v1/sessions", json={"runtime": "desk", "native_id": "ada"})
    assert (opened.status_code, opened.json()["pointer"]) == (400, "/runtime")
    called = await wire.post(f"/v1/sessions/{ADAS}/calls?wait=5", json={"tool": "ask_for_cards", "arguments": SEVENS})
    assert called.json()["outcome"]["result"] == {"cards": ["7H"]}


async def test_a_desk_has_no_link_that_could_be_down(
    environment: Environment, wire: httpx.AsyncClient, ada: Plain
) -> None:
    await ada.send(GOOD)
    shown = {one["name"]: one for one in (await wire.get("/v1/runtimes")).json()["data"]}
    assert (shown["desk"]["adapter"], shown["desk"]["links"]) == ("mcp", [])
    able = {one["runtime"]: one for one in (await wire.get("/v1/capabilities")).json()["data"]}["desk"]
    assert able["capabilities"]["accepts"] == []
    assert sorted(able["capabilities"]["emits"]) == ["tool.canceled", "tool.requested"]
    assert set(able["takes"].values()) == {None}
    ready = (await wire.get("/readyz")).json()
    assert (ready["ready"], ready["sessions"]) == (True, 1)
    page = (await wire.get("/metrics")).text
    assert 'dragoman_sessions{runtime="desk"} 1.0' in page
    assert 'dragoman_link_up{runtime="desk"}' not in page
    assert 'dragoman_links_asleep{runtime="desk"}' not in page
    assert 'dragoman_sessions_without_tools{runtime="desk"}' not in page


async def test_a_link_is_shown_at_its_own_runtime_only(environment: Environment, wire: httpx.AsyncClient) -> None:
    session_id = await environment.attach()
    rows = (await wire.get(f"/v1/runtimes?session_id={session_id}")).json()["data"]
    links = {row["name"]: [link["session_id"] for link in row["links"]] for row in rows}
    assert links == {"finn": [session_id], "desk": [], "other": []}


# Waiting ------------------------------------------------------------------------------------------------------


async def test_a_closed_connection_and_a_notification_cancel_as_in_any_session(
    environment: Environment, url: str, ada: Plain
) -> None:
    async def canceled(count: int) -> None:
        async def look() -> bool | None:
            return len(environment.backend.canceled) == count or None

        await until(look)

    async def asked(count: int) -> None:
        async def look() -> bool | None:
            return len(environment.backend.asked) == count or None

        await until(look)

    environment.backend.answers.clear()
    held = asyncio.create_task(ada.call("ask_for_cards", SEVENS, number=7))
    await asked(1)
    notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    assert (await ada.send(notification)).status_code == 202
    await canceled(1)
    held.cancel()
    await asyncio.wait({held})
    await environment.reload({"mcp": {"on_disconnect": "cancel"}})
    async with httpx.AsyncClient(base_url=url, verify=False) as leaving:  # noqa: S501
        held = asyncio.create_task(Plain(leaving, "/mcp/r/desk", ADA).call("ask_for_cards", {"rank": "8"}))
        await asked(2)
        held.cancel()
        await asyncio.wait({held})
    await canceled(2)


@pytest.mark.parametrize("progress", [False, True])
async def test_a_client_of_an_earlier_version_gets_a_stream_where_its_options_say_so(
    environment: Environment, client: httpx.AsyncClient, *, progress: bool
) -> None:
    await environment.reload(desk_of({**CLIENTS[0], "progress": progress}))
    asked = call("ask_for_cards", SEVENS, progressToken="p")
    answer = await Plain(client, "/mcp/r/desk", ADA, "2025-11-25").send(asked)
    assert answer.headers["content-type"].startswith("text/event-stream" if progress else "application/json")


async def test_a_client_reads_and_cancels_its_own_calls_over_the_api_and_nothing_else(
    environment: Environment, wire: httpx.AsyncClient, client: httpx.AsyncClient, ada: Plain
) -> None:
    environment.backend.answers.clear()
    await environment.reload({"mcp": {"hold": "300ms"}})
    await ada.call("ask_for_cards", SEVENS)
    own = environment.backend.asked[0].data["call_id"]
    made = await wire.post(f"/v1/sessions/{ADAS}/calls", json={"tool": "ask_for_cards", "arguments": SEVENS})
    await Plain(client, "/mcp/r/desk", BOB).call("ask_for_cards", SEVENS)
    bobs = environment.backend.asked[-1].data["call_id"]
    foreign = await Plain(client, "/mcp/r/desk", BOB).call("get_result", {"call_id": own})
    assert "no such call" in answer_texts(foreign)[0]
    assert own in answer_texts(await ada.call("get_result", {"call_id": own}))[0]
    read = await client.get(f"/v1/calls/{own}", headers=bearer(ADA))
    assert (read.status_code, read.json()["call_id"]) == (200, own)
    for token, call_id in ((ADA, made.json()["call_id"]), (ADA, bobs), (BOB, own), (ADA, "unknown")):
        for method, what in (("GET", ""), ("POST", "/cancel")):
            refused = await client.request(method, f"/v1/calls/{call_id}{what}", headers=bearer(token))
            assert refused.status_code == 404
    assert (await client.get(f"/v1/calls/{own}", headers=bearer("no-token-0123456789"))).status_code == 401
    for method, path in (("GET", "/v1/calls"), ("POST", f"/v1/calls/{own}/redrive"), ("GET", f"/v1/sessions/{ADAS}")):
        assert (await client.request(method, path, headers=bearer(ADA))).status_code == 401
    body = {"tool": "ask_for_cards", "arguments": SEVENS}
    assert (await client.post(f"/v1/sessions/{ADAS}/calls", json=body, headers=bearer(ADA))).status_code == 401
    assert not environment.backend.canceled
    assert (await client.post(f"/v1/calls/{own}/cancel", headers=bearer(ADA))).status_code == 202
    assert [one.data["call_id"] for one in environment.backend.canceled] == [own]
    # Without its line in the configuration, a client is let in nowhere.
    await environment.reload(desk_of({"name": "cleo", "token": NEW}))
    assert (await client.get(f"/v1/calls/{own}", headers=bearer(ADA))).status_code == 401
    assert (await client.get(f"/v1/calls/{own}", headers=bearer(NEW))).status_code == 404


async def test_without_api_keys_the_token_of_a_client_still_means_its_own_calls() -> None:
    keyless: dict[str, Any] = {**DESKS, "api": {"keys": []}, "mcp": {"hold": "300ms"}}
    async with (
        environment_of(keyless) as made,
        serving(made.gateway) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as local,  # noqa: S501
    ):
        await Plain(local, "/mcp/r/desk", ADA).call("ask_for_cards", SEVENS)
        call_id = made.backend.asked[0].data["call_id"]
        given: list[tuple[dict[str, str], int]] = [(bearer(ADA), 200), (bearer(BOB), 404), ({}, 200)]
        for headers, status in given:
            assert (await local.get(f"/v1/calls/{call_id}", headers=headers)).status_code == status


async def test_the_library_is_loaded_before_the_first_request_also_after_a_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with environment_of(DESKS) as made:
        monkeypatch.delitem(sys.modules, _SERVER, raising=False)
        async with serving(made.gateway):
            assert _SERVER in sys.modules
    async with environment_of(TOOLS) as made:
        monkeypatch.delitem(sys.modules, _SERVER, raising=False)
        async with serving(made.gateway):
            assert _SERVER not in sys.modules
            made.configuration = {**made.configuration, "desks": {"desk": DESK}}
            await made.reload({})
            assert _SERVER in sys.modules


# Reloads ------------------------------------------------------------------------------------------------------


async def test_a_reload_lets_clients_in_and_ends_them_at_once(
    environment: Environment, client: httpx.AsyncClient, wire: httpx.AsyncClient, ada: Plain
) -> None:
    answers = environment.backend.answers
    promised = answers.pop("ask_for_cards")
    held = asyncio.create_task(ada.call("ask_for_cards", SEVENS))

    async def asked() -> bool | None:
        return bool(environment.backend.asked) or None

    await until(asked)
    newcomer = Plain(client, "/mcp/r/desk", NEW)
    assert (await newcomer.send(GOOD)).status_code == 401
    await environment.reload(desk_of({"name": "cleo", "token": NEW}))
    for over in (ada, Plain(client, "/mcp/r/desk", BOB)):
        assert (await over.send(GOOD)).status_code == 401
    answers["ask_for_cards"] = promised
    assert not (await newcomer.call("ask_for_cards", SEVENS))["result"]["isError"]
    # What was called goes on, and its answer comes.
    call_id = environment.backend.asked[0].data["call_id"]
    assert (await wire.post(f"/v1/calls/{call_id}/outcome", json={"outcome": "success", "result": 7})).is_success
    assert answer_texts(await held) == ["7"]
    assert await kinds(environment) == ["session.opened", "tool.requested", "tool.finished"]


async def test_a_reload_rotates_a_token_and_the_session_stays(
    environment: Environment, client: httpx.AsyncClient, ada: Plain
) -> None:
    await ada.call("ask_for_cards", SEVENS)
    await environment.reload(desk_of({**CLIENTS[0], "token": NEW}))
    assert (await ada.send(GOOD)).status_code == 401
    assert not (await Plain(client, "/mcp/r/desk", NEW).call("ask_for_cards", SEVENS))["result"]["isError"]
    assert (await kinds(environment)).count("session.opened") == 1


async def test_a_desk_that_is_taken_away_lets_go_of_its_sessions_and_comes_back_with_them(
    environment: Environment, ada: Plain
) -> None:
    await ada.call("ask_for_cards", SEVENS)
    await environment.reload({"desks": {"desk": None}})
    assert (await ada.send(GOOD)).status_code == 401
    await environment.reload({"desks": {"desk": DESK}})
    assert not (await ada.call("ask_for_cards", SEVENS))["result"]["isError"]
    assert (await kinds(environment)).count("session.opened") == 1


class Lingering(Rooms):
    """A runtime that takes its time to be left."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving, self.may_leave = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Connector]:
        async with super().connector(options) as made:
            yield made
        self.leaving.set()
        await self.may_leave.wait()


async def test_a_desk_that_a_reload_has_not_come_to_yet_says_to_come_again() -> None:
    runtime = Lingering()
    async with (
        environment_of(TOOLS, runtime=runtime) as made,
        serving(made.gateway) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client,  # noqa: S501
    ):
        made.backend.answers["ask_for_cards"] = SEVEN
        plain = Plain(client, "/mcp/r/desk", ADA)
        reread = made.reread
        made.configuration = {**made.configuration, "desks": {"desk": DESK}}
        made.reread = lambda: reread().model_copy(update={"runtimes": {"desk": reread().runtimes["desk"]}})
        reloading = asyncio.create_task(made.gateway.reload())
        await runtime.leaving.wait()
        early = await plain.send(GOOD)
        assert (early.status_code, early.json()["type"]) == (503, "/problems/session-owner-unavailable")
        assert early.headers["retry-after"] == "2"
        runtime.may_leave.set()
        await reloading
        assert (await plain.send(GOOD)).status_code == 200


# The store and the bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["session", "open_session"])
async def test_while_the_store_is_away_a_client_is_told_to_come_again(
    environment: Environment, ada: Plain, method: str
) -> None:
    environment.fail(method, EngineUnavailable("the disk is gone"))
    refused = await ada.send(GOOD)
    environment.fail(method, None)
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
    assert refused.headers["retry-after"] == "5"
    assert not environment.backend.asked
    assert not (await ada.call("ask_for_cards", SEVENS))["result"]["isError"]


async def test_no_more_sessions_are_opened_than_may_be(
    environment: Environment, client: httpx.AsyncClient, ada: Plain
) -> None:
    await ada.send(GOOD)
    await environment.reload({"limits": {"sessions": 1}})
    refused = await Plain(client, "/mcp/r/desk", BOB).send(GOOD)
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
    assert (await ada.send(GOOD)).status_code == 200


async def test_a_gateway_with_idle_clients_drains_at_once(environment: Environment, ada: Plain) -> None:
    await ada.call("ask_for_cards", SEVENS)
    # Far below `limits.drain`, 25 s by default.
    async with asyncio.timeout(15):
        await environment.gateway.drain()
