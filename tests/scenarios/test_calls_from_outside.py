"""Calls from outside in front of a real HUMA agent, on two replicas, over a restart and a takeover."""

import asyncio
from itertools import product
from typing import Any

import pytest
from fastapi import Response

from gateway.events import CallId
from gateway.store.call import Call
from tests.http.mcp_clients import NEWEST, Plain, call
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import Gate, success, update
from tests.scenarios.replicas import cluster, owner_and_other

WAIT = {"wait": "20s"}


def path_of(session_id: str) -> str:
    return f"/v1/sessions/{session_id}/calls"


def watch_joins(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> asyncio.Future[CallId | None]:
    """Return the id of the call that the next request without a key joins, once it has joined it."""
    deduplicator, joined = gateway.gateway.deduplicator, asyncio.get_running_loop().create_future()
    join = deduplicator.join_open_call

    async def look(*asked: Any) -> Call | None:
        call = await join(*asked)
        joined.set_result(None if call is None else call.call_id)
        return call

    monkeypatch.setattr(deduplicator, "join_open_call", look)
    return joined


async def test_the_replica_that_does_not_carry_the_session_answers_with_the_outcome(newer: Scene) -> None:
    store, gate = cluster(newer), Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("seven"))
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        _, other = await owner_and_other(session_id, [a, b])
        keyed = {"tool": "ask", "arguments": GOOD, "key": "k"}
        held = asyncio.create_task(other.http.post(path_of(session_id), json=keyed, params=WAIT, timeout=30))
        await newer.hooks.wait_for(name="ask")
        again = await other.http.post(path_of(session_id), json=keyed)
        gate.open()
        answer = await held
        assert (answer.status_code, answer.json()["outcome"]["result"]) == (200, "seven")
        assert (again.status_code, again.json()["call_id"]) == (202, answer.json()["call_id"])
        assert len(newer.hooks.asked) == 1
        refused = await other.http.post(path_of(session_id), json={**keyed, "arguments": {**GOOD, "rank": "8"}})
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/call-differs")
        unknown = await other.http.post(path_of(session_id), json={"tool": "sing"})
        assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/unknown-tool")


async def test_whoever_waits_is_answered_although_the_session_changes_hands_meanwhile(newer: Scene) -> None:
    store = cluster(newer)
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        token = (await one.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        keyed = {"tool": "ask", "arguments": GOOD, "key": "api"}
        held = [asyncio.create_task(other.http.post(path_of(session_id), json=keyed, params=WAIT, timeout=30))]
        keys = ["caller:backend:api"]
        # Over MCP too: at either replica, as JSON and as a stream that tells progress.
        for number, (at, meta) in enumerate(product((one, other), ({}, {"progressToken": "p"}))):
            asking = call("ask", GOOD, number=number, **{"dragoman/key": f"mcp-{number}", **meta})
            held.append(asyncio.create_task(Plain(at.http, f"/mcp/{session_id}", token, NEWEST).send(asking)))
            keys.append(f"caller:tool token:mcp-{number}")
        asked = await newer.hooks.wait_for(len(held), name="ask")
        for key in keys:
            await other.wait_call(key, "accepted")
        one.faults.cut_off = True
        await other.wait_carries(session_id)
        assert not any(waiting.done() for waiting in held)
        for request in asked:
            await other.http.post(f"/v1/calls/{request.data['call_id']}/outcome", json=success("seven"))
        over_api, *over_mcp = [await waiting for waiting in held]
        assert (over_api.status_code, over_api.json()["outcome"]["result"]) == (200, "seven")
        assert {(answer.status_code, '"text":"seven"' in answer.text) for answer in over_mcp} == {(200, True)}
        assert len(newer.hooks.asked) == len(held)
        one.faults.cut_off = False


async def test_a_key_finds_its_call_again_behind_a_restart(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=202)
    keyed = {"tool": "ask", "arguments": GOOD, "key": "k"}
    async with newer.running() as gateway:
        session_id = await gateway.session()
        opened = await gateway.http.post(path_of(session_id), json=keyed)
        await gateway.wait_call("caller:backend:k", "accepted")
    async with newer.running() as gateway:
        again = await gateway.http.post(path_of(session_id), json=keyed)
        assert (again.status_code, again.json()["call_id"]) == (202, opened.json()["call_id"])
        path = f"/v1/calls/{opened.json()['call_id']}"
        await gateway.http.post(f"{path}/outcome", json=success("seven"))
        assert (await gateway.get(path))["outcome"]["result"] == "seven"
        # The agent has seen nothing of it, and is served as ever.
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
    assert len(newer.hooks.of("ask")) == 1


async def test_a_repeat_behind_a_restart_goes_on_with_what_the_process_before_has_left(
    newer: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with newer.running() as gateway:
        session_id = await gateway.session()
        token = (await gateway.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        held = asyncio.create_task(Plain(gateway.http, f"/mcp/{session_id}", token).call("ask", GOOD))
        [asked] = await newer.hooks.wait_for(name="ask")
        await until(lambda: _accepted(gateway))
    assert "Not finished" in (await held)["result"]["content"][0]["text"]
    async with newer.running() as gateway:
        joined = watch_joins(gateway, monkeypatch)
        repeat = asyncio.create_task(Plain(gateway.http, f"/mcp/{session_id}", token).call("ask", GOOD))
        assert await joined == asked.data["call_id"]
        await gateway.http.post(f"/v1/calls/{asked.data['call_id']}/outcome", json=success("seven"))
        assert (await repeat)["result"]["content"] == [{"type": "text", "text": "seven"}]
    assert len(newer.hooks.of("ask")) == 1


async def test_what_was_heard_before_a_restart_runs_anew(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = success("seven")
    for count in (1, 2):
        async with newer.running() as gateway:
            session_id = await gateway.session()
            token = (await gateway.get(f"/v1/sessions/{session_id}/mcp"))["token"]
            answer = await Plain(gateway.http, f"/mcp/{session_id}", token).call("ask", GOOD)
            assert answer["result"]["content"] == [{"type": "text", "text": "seven"}]
        assert len(newer.hooks.of("ask")) == count


async def _accepted(gateway: Running) -> bool:
    return [row["state"] for row in (await gateway.get("/v1/calls"))["data"]] == ["accepted"]


async def test_a_turn_that_is_only_inferred_ends_although_a_callers_call_is_open(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=202)
    newer.configure({"runtimes": {"finn": {"turn_quiet": "50ms", "turn_timeout": "200ms"}}})
    async with newer.running() as gateway:
        session_id = await gateway.session()
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
        await gateway.http.post(path_of(session_id), json={"tool": "ask", "arguments": GOOD, "key": "k"})
        await gateway.wait_call("caller:backend:k", "accepted")

        async def idle() -> bool:
            return (await gateway.get(f"/v1/sessions/{session_id}"))["state"] == "idle"

        await until(idle)
        assert (await gateway.get("/v1/calls"))["data"][0]["state"] == "accepted"


async def test_a_result_that_the_runtime_could_not_be_told_reaches_its_caller_whole(newer: Scene) -> None:
    long = "x" * 70_000
    newer.hooks.scripts["ask"] = success(long, updates=[update("cards.moved", left=3)])
    async with newer.running() as gateway:
        session_id = await gateway.session()
        answer = await gateway.http.post(path_of(session_id), json={"tool": "ask", "arguments": GOOD}, params=WAIT)
        assert answer.json()["outcome"]["result"] == long
        [finished] = await gateway.events(session_id, "tool.finished")
        assert (finished["losses"], finished["event"]["updates"][0]["name"]) == ([], "cards.moved")
        # The updates were for whoever asked, too.
        assert not await gateway.events(session_id, "context.updated")


async def test_an_mcp_client_is_served_by_the_replica_that_does_not_carry_the_session(newer: Scene) -> None:
    store, gate = cluster(newer), Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("seven"))
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        token = (await one.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        plain = Plain(other.http, f"/mcp/{session_id}", token)
        held = asyncio.create_task(plain.call("ask", GOOD))
        await newer.hooks.wait_for(name="ask")
        gate.open()
        assert (await held)["result"]["content"] == [{"type": "text", "text": "seven"}]
        [asked] = await one.events(session_id, "tool.requested")
        assert (asked["origin"]["adapter"], asked["origin"]["protocol"]) == ("caller", "mcp/2025-03-26")
        unknown = await plain.call("sing", {})
        assert unknown["error"]["code"] == -32602
        unfit = await plain.call("ask", {**GOOD, "rank": "1"})
        assert unfit["result"]["isError"]
        # A cancel reaches the instance that carries the session, too.
        newer.hooks.scripts["ask"] = Response(status_code=202)
        held = asyncio.create_task(plain.call("ask", {**GOOD, "rank": "8"}, number=7, **{"dragoman/key": "k"}))
        await other.wait_call("caller:tool token:k", "accepted")
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await plain.send(cancelled)).status_code == 202
        [told] = await newer.hooks.wait_for(name="tool.canceled")
        assert told.data["call_id"] == newer.hooks.of("ask")[-1].data["call_id"]
        held.cancel()
        await asyncio.wait({held})


async def test_a_replica_that_stops_tells_whoever_is_held_to_wait_on_and_the_other_does(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "2s"}})
    store = cluster(newer)
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with store.replica() as staying:
        async with store.replica() as leaving:
            session_id = await leaving.session()
            token = (await leaving.get(f"/v1/sessions/{session_id}/mcp"))["token"]
            held = asyncio.create_task(Plain(leaving.http, f"/mcp/{session_id}", token).call("ask", GOOD))
            [asked] = await newer.hooks.wait_for(name="ask")
            await leaving.gateway.drain()
            told = (await held)["result"]
            assert (told["isError"], "Not finished" in told["content"][0]["text"]) == (False, True)
        there = Plain(staying.http, f"/mcp/{session_id}", token)
        waiting = asyncio.create_task(there.call("get_result", {"call_id": asked.data["call_id"]}))
        await staying.http.post(f"/v1/calls/{asked.data['call_id']}/outcome", json=success("seven"))
        assert (await waiting)["result"]["content"] == [{"type": "text", "text": "seven"}]


async def test_a_repeat_at_another_replica_goes_on_with_what_nobody_listens_to(
    newer: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cluster(newer)
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        token = (await one.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        here, there = (Plain(gateway.http, f"/mcp/{session_id}", token) for gateway in (one, other))
        held = asyncio.create_task(here.call("ask", GOOD))
        await newer.hooks.wait_for(name="ask")
        beside = asyncio.create_task(there.call("ask", GOOD))
        # Somebody listens to the first one, at the other replica: this is another call.
        [first, second] = await newer.hooks.wait_for(2, name="ask")
        held.cancel()
        await asyncio.wait({held})

        async def left() -> bool:
            async with other.gateway.deduplicator.listening_alone(CallId(first.data["call_id"])) as alone:
                return alone

        await until(left)
        joined = watch_joins(other, monkeypatch)
        repeat = asyncio.create_task(there.call("ask", GOOD, number=2))
        assert await joined == first.data["call_id"]
        await one.http.post(f"/v1/calls/{second.data['call_id']}/outcome", json=success("second"))
        await one.http.post(f"/v1/calls/{first.data['call_id']}/outcome", json=success("first"))
        answers = [(await one)["result"]["content"][-1]["text"] for one in (beside, repeat)]
        assert answers == ["second", "first"]
        assert len(newer.hooks.of("ask")) == 2
