"""Two gateways on one store: one of them carries each session, and a client may ask either."""

import asyncio
import hashlib
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import Response
from structlog.testing import capture_logs

from gateway.events import SessionId
from gateway.runtime.calls.callbacks import keep_key
from gateway.runtime.cluster.hops import HEADER, HopCaller
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.runtime.tuning import Tuning
from gateway.store.postgres import PostgresEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import said
from tests.engines.postgres_server import drop_schema, dsn, new_schema
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, GOOD, Scene, ended, plain_http, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import LEASE, Faulty, Replica, cluster, owner_and_other
from tests.scenarios.test_api import CREATED

MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}


async def test_one_of_two_carries_a_session_and_both_show_it(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        assert newer.agent.connections == 1
        assert not await other.carries(session_id)
        assert await a.owner(session_id) == await b.owner(session_id)
        shown = (await b.get("/v1/instances"))["data"]
        assert {row["url"]: (row["alive"], row["sessions"]) for row in shown} == {
            one.url: (True, 1),
            other.url: (True, 0),
        }
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        opened = await other.post("/v1/sessions", {"runtime": "finn", "native_id": "finn"}, status=200)
        assert opened["session_id"] == session_id
        assert not await other.carries(session_id)
        assert newer.agent.connections == 1
        series = await one.metrics()
        assert series["dragoman_sessions_owned"] == 1
        assert 0 < series["dragoman_lease_seconds_left"] <= LEASE
        ready, among = await one.get("/readyz"), (await one.get("/v1/instances"))["data"]
        assert ready["checks"]["lease"] == "ok"
        assert ready["instance_id"] in {each["instance_id"] for each in among if each["url"] == one.url}
        assert (ready["sessions"], (await other.get("/readyz"))["sessions"]) == (1, 0)


async def test_a_session_opened_at_one_is_carried_there(newer: Scene) -> None:
    store = cluster(newer)
    newer.huma.agent("gill")
    async with store.replica() as a, store.replica() as b:
        for here, there, name in ((a, b, "gill"), (b, a, "gus")):
            newer.huma.agent(name)
            opened = await here.post("/v1/sessions", {"runtime": "finn", "native_id": name}, status=201)
            await here.wait_carries(opened["session_id"])
            assert not await there.carries(opened["session_id"])
        # Closed at one and opened at the other: whoever owned it last hears of it.
        session_id = opened["session_id"]
        assert (await b.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        await a.post("/v1/sessions", {"runtime": "finn", "native_id": "gus"}, status=200)
        await owner_and_other(session_id, [a, b])


async def test_every_request_that_needs_the_owner_may_be_sent_to_the_other(newer: Scene) -> None:
    store = cluster(newer)
    gate = Gate()
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])

        posted = await other.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)
        assert posted["data"][0]["event"]["kind"] == "message.posted"

        newer.hooks.scripts["ask"] = Response(status_code=202)
        call = await newer.agent.call("ask", GOOD)
        row = await other.wait_call(call.call_id, "accepted")
        [asked] = await newer.hooks.wait_for(name="ask")
        await other.post(f"/v1/calls/{row['call_id']}/progress", {"percent": 40}, status=202)
        target = httpx.URL(asked.data["callback_url"]).raw_path.decode()
        async with plain_http() as http:
            answer = await http.post(other.url + target, json=success("by callback"))
            assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
            again = await http.post(other.url + target, json=success("by callback"))
            assert again.status_code == 200
            late = await http.post(other.url + target, json=success("another one"))
            assert late.status_code == 409
            assert late.headers["content-type"] == "application/problem+json"
            assert (await http.post(other.url + target + "x", json=success())).status_code == 401
        sequence = answer.json()["outcome_sequence"]
        assert (await ended(call)).result == "by callback"

        fresh = await other.post(f"/v1/calls/{row['call_id']}/redrive", {"new_key": True}, status=202)
        assert fresh["redrive_of"] == row["call_id"]

        newer.hooks.scripts["free"] = gate.answering(success())
        held = await newer.agent.call("free", {})
        row = await other.wait_call(held.call_id, "dispatched")
        canceled = await other.post(f"/v1/calls/{row['call_id']}/cancel", {"reason": "enough"}, status=202)
        assert canceled["canceling_until"] is not None
        gate.open()
        await ended(held)

        await other.post(f"/v1/sessions/{session_id}/events/{sequence}/redeliver", {"target": "runtime"}, status=202)
        refused = await other.http.post(f"/v1/sessions/{session_id}/events", json={"kind": "turn.mistaken"})
        assert refused.status_code == 400

        assert (await other.http.delete(f"/v1/sessions/{session_id}", params={"erase": "true"})).status_code == 204
        assert (await one.get(f"/v1/sessions/{session_id}"))["state"] == "closed"
        assert all(event["event"]["kind"] == "opaque" for event in (await one.events(session_id))[1:2])
        series = await other.metrics()
        assert series['dragoman_forwards_total{result="answered"}'] >= 8
        assert (await one.metrics())['dragoman_forwards_total{result="answered"}'] == 0


async def test_of_two_that_start_at_once_one_creates_the_session_of_an_autostart(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {**CREATED, "autostart": True}}})
    store = cluster(newer)
    up: asyncio.Queue[Replica] = asyncio.Queue()
    stop = asyncio.Event()

    async def run() -> None:
        async with store.replica() as one:
            await up.put(one)
            await stop.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(run())
        a, b = await up.get(), await up.get()
        session_id = await a.session()
        await owner_and_other(session_id, [a, b])
        # Whoever was second ends as soon as it finds what the first one has made.
        second = {task for task in asyncio.all_tasks() if task.get_name() == "dragoman-autostart"}
        if second:
            _, undone = await asyncio.wait(second, timeout=PATIENCE)
            assert not undone
        assert len((await b.get("/v1/sessions"))["data"]) == 1
        assert len(newer.huma.agents) == 2
        stop.set()


async def test_dead_letters_are_redriven_wherever_their_sessions_are_carried(newer: Scene) -> None:
    store = cluster(newer)
    newer.huma.agent("gill")
    newer.configure({"executors": {"cards": {"idempotent": False}}})
    newer.hooks.scripts["ask"] = Response(status_code=500)
    async with store.replica() as a, store.replica() as b:
        opened = await b.post("/v1/sessions", {"runtime": "finn", "native_id": "gill"}, status=201)
        await b.wait_carries(opened["session_id"])
        calls = [await newer.huma.agent(name).call("ask", GOOD) for name in ("finn", "gill")]
        for call in calls:
            assert "unknown" in ((await ended(call)).error or "")
        newer.hooks.scripts["ask"] = success("at last")
        done = (await a.http.post("/v1/dead-letters/redrive", json={})).json()
        assert (done["found"], done["redriven"], done["failed"]) == (2, 2, [])
        rows = (await a.get("/v1/calls"))["data"]
        assert sum(row["redrive_of"] is not None for row in rows) == 2
        assert {row["session_id"] for row in rows if row["redrive_of"]} == {row["session_id"] for row in rows}


async def test_a_session_that_cannot_be_taken_up_keeps_no_other_from_it(newer: Scene) -> None:
    store = cluster(newer)
    newer.huma.agent("gill")
    async with store.replica() as a:
        opened = await a.post("/v1/sessions", {"runtime": "finn", "native_id": "gill"}, status=201)
        spoiled = opened["session_id"]
        other = await a.session()
    faults: list[Faulty] = []

    def spoil(engine: Faulty) -> None:
        engine.spoiled = spoiled
        faults.append(engine)

    async with store.replica(prepare=spoil) as a:
        await a.wait_carries(other)
        assert not await a.carries(spoiled)
        faults[0].spoiled = ""
        await a.wait_carries(spoiled)


async def test_a_write_with_a_key_is_carried_out_once_wherever_it_is_sent(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        await owner_and_other(session_id, [a, b])
        path = f"/v1/sessions/{session_id}/events"
        answers = await asyncio.gather(
            *(one.http.post(path, json=MESSAGE, headers={"idempotency-key": "k1"}) for one in (a, b, a, b))
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.content for answer in answers}) == 1
        assert sum("idempotency-replayed" in answer.headers for answer in answers) == 3
        assert len(await a.events(session_id, kind="message.posted")) == 1


@pytest.mark.slow
async def test_a_request_is_passed_on_once_and_waits_for_an_owner_in_vain(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        path = f"/v1/sessions/{session_id}/events"
        mark, body = other.gateway.hops.sign, json.dumps(MESSAGE).encode()
        caller = HopCaller("backend", frozenset({"drive"}), hashlib.sha256(API_KEY.encode()).digest())
        signed = {HEADER: mark("POST", path, body, caller, other.gateway.forwarder.instance)}
        answer = await other.http.post(path, content=body, headers=signed | {"content-type": "application/json"})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/session-owner-unavailable")
        assert answer.headers["dragoman-not-here"] == "1"
        assert answer.headers["retry-after"]
        # Somebody who lives and answers nobody owns it from now on.
        owner = await one.owner(session_id)
        assert owner is not None
        await _steal(store.schema, session_id, owner, lives=20.0)
        with capture_logs() as logs:
            answer = await other.http.post(path, json=MESSAGE)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/session-owner-unavailable")
        assert (await other.metrics())['dragoman_forwards_total{result="unreachable"}'] > 1
        assert [line["event"] for line in logs].count("session owner unreachable") == 1


async def test_a_session_that_changed_hands_is_let_go_before_anything_is_said(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a:
        session_id = await a.session()
        await a.wait_carries(session_id)
        owner = await a.owner(session_id)
        assert owner is not None
        await _steal(store.schema, session_id, owner, lives=1.0)
        connections = newer.agent.connections
        # It waits until the thief is dead and the session is carried here again.
        await a.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)
        await newer.agent.wait_connections(connections + 1)
        assert len(await a.events(session_id, kind="message.posted")) == 1
        series = await a.metrics()
        assert series["dragoman_fenced_total"] == 1
        assert series["dragoman_takeovers_total"] >= 1
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


@pytest.mark.slow
async def test_instance_without_lease_renewal_pauses_and_rejoins(newer: Scene) -> None:
    store = cluster(newer)
    # It falls silent a sixth of a lease before another one may take over.
    async with store.replica(lease=2 * LEASE) as a, store.replica(lease=2 * LEASE) as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        first = await one.owner(session_id)
        one.faults.cut_off = True
        await other.wait_carries(session_id, within=3 * LEASE)
        assert newer.agent.connections == 2
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        one.faults.cut_off = False

        async def lives_again() -> bool:
            shown = (await other.get("/v1/instances"))["data"]
            return any(row["url"] == one.url and row["alive"] and row["instance_id"] != first for row in shown)

        await until(lives_again)

        async def release_name() -> bool:
            return len(newer.agent.sockets) == 1

        # It has heard on, until it knew that the session goes on elsewhere.
        await until(release_name)
        assert (await one.metrics())["dragoman_leases_lost_total"] == 1
        await one.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)
        assert await other.carries(session_id)


async def silent(one: Replica) -> None:
    """Wait until a gateway that is cut off from its store has lost its lease."""

    async def so() -> bool:
        return "no valid lease" in (await one.http.get("/readyz")).json()["checks"]["lease"]

    await until(so, within=3 * LEASE)


@pytest.mark.slow
async def test_who_lost_its_lease_to_nobody_goes_on_with_all_that_waited(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("in time"))
    # Longer than the lease, so that the first call is not tried again.
    newer.configure({"executors": {"cards": {"timeout": "20s"}}})
    async with cluster(newer).replica() as one:
        await one.wait_link("up")
        session_id = await one.session()
        first = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        one.faults.cut_off = True
        await silent(one)
        gate.open()
        later = [await newer.agent.call("free", {"n": number}) for number in range(5)]
        answer = await one.http.post(f"/v1/sessions/{session_id}/events", json=MESSAGE)
        assert answer.status_code == 503
        assert not any(call.results for call in (first, *later))
        one.faults.cut_off = False
        for call in (first, *later):
            assert (await ended(call)).outcome == "success"
        assert newer.agent.connections == 1
        keys = [asked.key for asked in newer.hooks.asked]
        assert len(keys) == len(set(keys)) == 6
        assert all(len(call.results) == 1 for call in (first, *later))
        await one.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)


@pytest.mark.slow
async def test_a_session_whose_history_went_on_meanwhile_is_begun_anew_from_the_store(newer: Scene) -> None:
    async with cluster(newer).replica() as one:
        await one.wait_link("up")
        session_id = SessionId(await one.session())
        one.faults.cut_off = True
        await silent(one)
        await PostgresEngine.commit(one.faults, Step(session_id, (said("by somebody else"),)))
        one.faults.cut_off = False
        await newer.agent.wait_connections(2)
        await one.wait_link("up")
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
        numbers = [event["sequence"] for event in await one.events(session_id)]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.slow
async def test_what_does_not_fit_while_no_lease_runs_costs_the_link_and_is_told_afterwards(newer: Scene) -> None:
    newer.configure({"limits": {"inbound_bytes": "64KiB"}})
    async with cluster(newer).replica() as one:
        await one.wait_link("up")
        one.faults.cut_off = True
        await silent(one)
        calls = [await newer.agent.call("free", {"text": "x" * 20_000}) for _ in range(30)]
        await newer.agent.wait_disconnected()
        # Nobody is told anything that is not on record, and no new link is made meanwhile.
        assert not any(call.results for call in calls)
        assert newer.agent.connections == 1
        one.faults.cut_off = False
        await newer.agent.wait_connections(2)
        await one.wait_events("link.changed", reason="the inbox is full")
        told = [(await ended(call)) for call in calls[:10]]
        assert {reading.outcome for reading in told} == {"success", "failure"}
        assert all("overloaded" in (reading.error or "overloaded") for reading in told)


@pytest.mark.slow
async def test_a_call_in_flight_when_a_lease_is_lost_ends_as_after_a_crash(newer: Scene) -> None:
    store = cluster(newer)
    gate = Gate()
    newer.configure({"executors": {"cards": {"idempotent": False, "concurrency": 1, "timeout": "60s"}}})
    newer.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        call = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        one.faults.cut_off = True
        await other.wait_carries(session_id, within=3 * LEASE)
        row = await other.wait_call(call.call_id, "failed")
        assert row["unknown"]
        assert "unknown" in ((await ended(call)).error or "")
        one.faults.cut_off = False
        # It is broken off once this is known, and its executor is told nothing.
        canceled = 'dragoman_executor_attempts_total{executor="cards",result="canceled"}'

        async def broken_off() -> bool:
            return (await one.metrics()).get(canceled) == 1

        await until(broken_off)
        assert [asked.kind for asked in newer.hooks.asked] == ["tool.requested"]
        gate.open()
        other.faults.cut_off = True
        await one.wait_carries(session_id, within=4 * LEASE)
        # Its only slot was given back.
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"


async def test_a_leaving_instance_hands_its_sessions_over_at_once(newer: Scene) -> None:
    # Nobody finds out by looking, nor by the end of a lease.
    newer.tuning = Tuning(takeover_look=60.0)
    newer.configure({"limits": {"drain": "5m"}})
    store = cluster(newer)
    async with store.replica(lease=30) as b:
        newer.configure({"runtimes": {"finn": {"agent_id": "finn"}}})
        names = [f"agent-{number}" for number in range(12)]
        for name in names:
            newer.huma.agent(name)
        async with store.replica(lease=30) as a:
            ids: list[str] = []
            for name in names:
                opened = await a.post("/v1/sessions", {"runtime": "finn", "native_id": name}, status=201)
                ids.append(opened["session_id"])
            for session_id in ids:
                await a.wait_carries(session_id)
            gate = Gate()
            newer.hooks.scripts["ask"] = gate.answering(success("to the end"))
            busy = newer.huma.agent(names[0])
            call = await busy.call("ask", GOOD)
            await newer.hooks.wait_for(name="ask")
            leaving = asyncio.create_task(a.gateway.drain())
            for session_id in ids[1:]:
                await b.wait_carries(session_id)
            # The busy one stays where its call is until that has ended.
            assert not await b.carries(ids[0])
            gate.open()
            assert (await ended(call)).result == "to the end"
            await b.wait_carries(ids[0])
            await leaving
            # What still comes to the leaving one is passed on.
            await a.post(f"/v1/sessions/{ids[3]}/events", MESSAGE, status=202)
        assert (await b.metrics())["dragoman_fenced_total"] == 0


async def test_a_decision_that_is_stale_again_and_again_is_made_in_the_end(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a:
        session_id = await a.session()
        await a.wait_carries(session_id)
        a.faults.stale = 6
        await a.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)
        assert a.faults.stale == 0
        assert len(await a.events(session_id, kind="message.posted")) == 1


async def test_two_first_starts_agree_on_the_key_of_callbacks() -> None:
    clock, schema = SystemClock(), new_schema()
    try:
        async with PostgresEngine(dsn(), clock, schema=schema) as one:
            async with PostgresEngine(dsn(), clock, schema=schema) as other:
                keys = await asyncio.gather(*(keep_key(engine, SystemIds(clock)) for engine in (one, other) * 4))
            assert len(set(keys)) == 1
            assert await keep_key(one, SystemIds(clock)) == keys[0]
    finally:
        await drop_schema(schema)


async def _steal(schema: str, session_id: Any, owner: str, *, lives: float) -> None:
    """Let an instance that nobody can reach own a session."""
    async with PostgresEngine(dsn(), SystemClock(), schema=schema) as thief:
        await thief.release(owner, {session_id})
        await thief.beat("thief", url="http://127.0.0.1:1", ttl=timedelta(seconds=lives))
        assert await thief.take("thief", session_id) is not None
