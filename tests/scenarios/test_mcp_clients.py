"""MCP clients with a token of their own in front of real files, on two replicas, over a restart and a takeover."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from gateway.events import session_id as name_session
from tests.http.conftest import bearer
from tests.http.mcp_clients import MODES, Mode, Plain, connected, texts
from tests.scenarios.environment import GOOD, Running, Scene, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import Replica, cluster
from tests.scenarios.test_canary import files

TOKEN = "desk-canary-7Hn3-0123456789"
ADAS = name_session(runtime="desk", native_session_id="ada")
DESK: dict[str, Any] = {
    "runtimes": {"desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": TOKEN, "labels": {"team": "shop"}}]}}
}


@pytest.fixture
def desk(newer: Scene) -> Scene:
    """A HUMA agent, and beside it a client that comes."""
    newer.configure(DESK)
    return newer


def ada(gateway: Running) -> Plain:
    return Plain(gateway.http, "/mcp/r/desk", TOKEN)


def said(answer: dict[str, Any]) -> list[str]:
    assert not answer["result"]["isError"], answer
    return [block["text"] for block in answer["result"]["content"]]


async def owner_and_other(one: Replica, other: Replica) -> tuple[Replica, Replica]:
    """Tell who carries the client's session."""
    ids = [(await replica.get("/readyz"))["instance_id"] for replica in (one, other)]

    async def look() -> str | None:
        owner = await one.owner(ADAS)
        return owner if owner in ids else None

    return (one, other) if await until(look) == ids[0] else (other, one)


async def test_first_requests_at_two_replicas_at_once_open_one_session(desk: Scene) -> None:
    store = cluster(desk)
    desk.hooks.scripts["ask"] = success("seven")
    async with store.replica() as a, store.replica() as b:
        calls = [ada(one).call("ask", GOOD, number=n) for n, one in enumerate([a, b] * 4)]
        assert [said(answer) for answer in await asyncio.gather(*calls)] == [["seven"]] * 8
        assert len(await a.events(ADAS, "session.opened")) == 1
        assert not await a.events(ADAS, "link.changed")
        # Whichever is asked, a key means one call.
        first, again = [await ada(one).call("ask", GOOD, number=1, **{"dragoman/key": "order 1"}) for one in (a, b)]
        assert said(first) == said(again)
    assert len(desk.hooks.of("ask")) == 9


async def test_the_replica_that_does_not_carry_the_session_serves_it_too(desk: Scene) -> None:
    store, gate = cluster(desk), Gate()
    desk.hooks.scripts["ask"] = gate.answering(success("seven"))
    async with store.replica() as a, store.replica() as b:
        await ada(a).send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        _, other = await owner_and_other(a, b)
        held = asyncio.create_task(ada(other).call("ask", GOOD))
        [asked] = await desk.hooks.wait_for(name="ask")
        assert (asked.data["native_session_id"], asked.data["labels"]) == ("ada", {"team": "shop"})
        gate.open()
        assert said(await held) == ["seven"]
        assert (await ada(other).call("sing", {}))["error"]["code"] == -32602
        assert (await ada(other).call("ask", {**GOOD, "rank": "1"}))["result"]["isError"]
        # So does a cancel.
        desk.hooks.scripts["ask"] = Response(status_code=202)
        held = asyncio.create_task(ada(other).call("ask", {**GOOD, "rank": "8"}, number=7, **{"dragoman/key": "k"}))
        await other.wait_call("caller:mcp client:k", "accepted")
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await ada(other).send(cancelled)).status_code == 202
        await desk.hooks.wait_for(name="tool.canceled")
        held.cancel()
        await asyncio.wait({held})


@pytest.mark.parametrize("mode", MODES)
async def test_the_webhook_names_the_version_that_a_client_has_negotiated(desk: Scene, mode: Mode) -> None:
    desk.hooks.scripts["ask"] = success("seven")
    async with desk.running() as gateway:
        async with connected(f"{gateway.url}/mcp/r/desk", TOKEN, mode) as client:
            await client.call_tool("ask", GOOD)
            version = client.session.protocol_version
        assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert [one.data["protocol"] for one in desk.hooks.of("ask")] == [f"mcp/{version}"]


async def test_a_client_is_answered_although_its_session_changes_hands_meanwhile(desk: Scene) -> None:
    store = cluster(desk)
    desk.hooks.scripts["ask"] = Response(status_code=202)
    async with store.replica() as a, store.replica() as b:
        await ada(a).send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        one, other = await owner_and_other(a, b)
        held = asyncio.create_task(ada(other).call("ask", GOOD))
        [asked] = await desk.hooks.wait_for(name="ask")
        await one.wait_call(f"{(await one.get('/v1/calls'))['data'][0]['native_call_id']}", "accepted")
        one.faults.cut_off = True
        its_own = (await other.get("/readyz"))["instance_id"]

        async def taken_over() -> bool:
            return await other.owner(ADAS) == its_own

        await until(taken_over)
        await other.http.post(f"/v1/calls/{asked.data['call_id']}/outcome", json=success("seven"))
        assert said(await held) == ["seven"]
        desk.hooks.scripts["ask"] = success("eight")
        assert said(await ada(other).call("ask", {**GOOD, "rank": "8"})) == ["eight"]
        assert len(desk.hooks.asked) == 2
        one.faults.cut_off = False


async def test_a_session_closed_at_one_replica_is_opened_again_at_the_other(desk: Scene) -> None:
    store = cluster(desk)
    desk.hooks.scripts["ask"] = success("seven")
    async with store.replica() as a, store.replica() as b:
        assert said(await ada(a).call("ask", GOOD)) == ["seven"]
        assert (await b.http.delete(f"/v1/sessions/{ADAS}")).status_code == 204
        assert said(await ada(b).call("ask", GOOD)) == ["seven"]
        assert said(await ada(a).call("ask", GOOD)) == ["seven"]
        assert len(await a.events(ADAS, "session.opened")) == 2


async def test_a_replica_that_leaves_gives_an_idle_clients_session_to_the_other(desk: Scene) -> None:
    store = cluster(desk)
    desk.hooks.scripts["ask"] = success("seven")
    async with store.replica() as b:
        async with store.replica() as a:
            assert said(await ada(a).call("ask", GOOD)) == ["seven"]
        assert said(await ada(b).call("ask", GOOD)) == ["seven"]
        assert await b.owner(ADAS) == (await b.get("/readyz"))["instance_id"]


async def test_a_client_goes_on_behind_a_restart(desk: Scene) -> None:
    desk.hooks.scripts["ask"] = Response(status_code=202)
    async with desk.running() as gateway:
        held = asyncio.create_task(ada(gateway).call("ask", GOOD, number=1, **{"dragoman/key": "k"}))
        call = await gateway.wait_call("caller:mcp client:k", "accepted")
        held.cancel()
        await asyncio.wait({held})
    async with desk.running() as gateway:
        again = asyncio.create_task(ada(gateway).call("ask", GOOD, number=1, **{"dragoman/key": "k"}))
        await gateway.http.post(f"/v1/calls/{call['call_id']}/outcome", json=success("seven"))
        assert said(await again) == ["seven"]
        assert [one["event"]["kind"] for one in await gateway.events(ADAS)] == [
            "session.opened", "tool.requested", "tool.finished",
        ]  # fmt: skip
    assert len(desk.hooks.of("ask")) == 1


async def test_a_reload_of_the_file_lets_clients_in_and_ends_them(desk: Scene) -> None:
    desk.hooks.scripts["ask"] = success("seven")
    fresh = "another-token-0123456789"
    async with desk.running() as gateway:
        assert said(await ada(gateway).call("ask", GOOD)) == ["seven"]
        desk.configure({"runtimes": {"desk": {"clients": [{"name": "bob", "token": fresh}]}}})
        assert await gateway.post("/v1/reload", status=200) == {
            "changed": ["runtimes.desk"],
            "restarted": ["desk"],
        }
        assert (await ada(gateway).send({})).status_code == 401
        async with connected(f"{gateway.url}/mcp/r/desk", fresh, "auto") as client:
            assert texts(await client.call_tool("ask", GOOD)) == ["seven"]
        desk.configure({"runtimes": {"desk": {"clients": [{"name": "bob", "token": "short"}]}}})
        refused = await gateway.post("/v1/reload", status=422)
        assert [one["path"] for one in refused["errors"]] == ["runtimes.desk.clients[0].token"]
        # A bad file changes nothing.
        async with connected(f"{gateway.url}/mcp/r/desk", fresh, "auto") as client:
            assert texts(await client.call_tool("ask", GOOD)) == ["seven"]
    desk.is_clean()


async def test_a_clients_token_is_found_nowhere(desk: Scene, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    desk.configure({"logging": {"level": "debug"}})
    desk.hooks.scripts["ask"] = success("seven")
    seen: list[str] = []
    async with desk.running() as gateway:
        for name in ("httpx", "httpcore", "uvicorn", "aiohttp", "asyncio", "mcp"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        await ada(gateway).call("ask", GOOD)
        for headers in (bearer(TOKEN + "A"), {"authorization": TOKEN}, {"x-api-key": f"{TOKEN}B"}):
            refused = await gateway.http.post("/mcp/r/desk", json={}, headers=headers)
            assert refused.status_code == 401
            seen.append(refused.text)
        seen.append((await gateway.http.get(f"/mcp/r/desk?token={TOKEN}", headers=bearer(TOKEN))).text)
        desk.configure({"runtimes": {"desk": {"clients": [{"name": "ada", "token": f"{TOKEN} x"}]}}})
        seen.append(str(await gateway.post("/v1/reload", status=422)))
        pages = ("/v1/sessions", "/v1/calls", "/v1/runtimes", "/v1/capabilities", "/metrics")
        seen += [(await gateway.http.get(page)).text for page in pages]
        seen.append(str(await gateway.events(ADAS)))
    logged = "".join(capfd.readouterr())
    assert "desk/ada" in logged
    assert [one[:200] for one in (logged, *seen) if TOKEN in one] == []
    assert [name for name, text in files(tmp_path) if TOKEN in text] == []
