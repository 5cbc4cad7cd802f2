"""Two real processes on PostgreSQL: killed, stopped in order, and cut off from the database."""

import asyncio
import signal

import httpx
import pytest
from fastapi import Response

from tests.pace import within
from tests.scenarios.environment import GOOD, Scene, ended, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replica_processes import START, Fleet, Serving, fleet

pytestmark = pytest.mark.slow

MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}
HAND_OVER = 0.5
"""Seconds from the end of one link to the next."""


async def pair(gateways: Fleet, *, through_wire: bool = False) -> tuple[str, Serving, Serving]:
    """Start two processes; the first one carries the session."""
    one = await gateways.serve("one", through_wire=through_wire)
    assert isinstance(gateways.scene, Scene)
    await gateways.scene.agent.wait_connected()
    session_id = await one.session()
    await one.wait_carries(session_id)
    return session_id, one, await gateways.serve("two")


@pytest.mark.timing
async def test_a_killed_process_is_replaced_within_two_leases_and_its_calls_end(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("done again"))
    # The longer the lease, the less of it goes to a machine that is slow.
    async with fleet(newer, lease="4s") as gateways:
        session_id, one, two = await pair(gateways)
        assert not await two.carries(session_id)
        async with two.stream(session_id, after=0) as source:
            call = await newer.agent.call("ask", GOOD)
            await newer.hooks.wait_for(name="ask")
            loop = asyncio.get_running_loop()
            killed = loop.time()
            one.signal(signal.SIGKILL)
            # A request that the dying process had in hand would be answered that it may be on record.
            await one.ended()
            # Who asks meanwhile waits for the next owner.
            posting = asyncio.create_task(two.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202))
            await two.wait_carries(session_id)
            assert loop.time() - killed < within(2 * 4)
            gate.open()
            assert (await ended(call)).result == "done again"
            await posting
            seen = [int(item["id"].partition(".")[0]) for item in await source.until("tool.finished") if "id" in item]
            assert seen == list(range(1, len(seen) + 1))
        attempts = newer.hooks.of("ask")
        assert {asked.key for asked in attempts} == {(await two.call_of(call.call_id))["call_id"]}
        assert len(call.results) == 1
        shown = (await two.get("/v1/instances"))["data"]
        assert [row["sessions"] for row in shown if row["alive"]] == [1]


@pytest.mark.timing
async def test_a_process_that_is_stopped_hands_over_before_anybody_notices(newer: Scene) -> None:
    async with fleet(newer, lease="20s") as gateways:
        session_id, leaving, staying = await pair(gateways)
        loop, taken = asyncio.get_running_loop(), list[float]()
        # A machine that stalls may make one of them longer, so the next may show how long it takes.
        for number in range(3):
            links = newer.agent.connections
            leaving.signal(signal.SIGTERM)
            await newer.agent.wait_disconnected()
            down = loop.time()
            await newer.agent.wait_connections(links + 1)
            taken.append(loop.time() - down)
            print(f"handed over in {taken[-1] * 1000:.0f} ms")  # noqa: T201
            # None waits for the end of the lease.
            assert taken[-1] < 10
            assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
            assert await leaving.ended() == 0
            assert "Traceback" not in leaving.log.read_text()
            assert await staying.carries(session_id)
            if taken[-1] < within(HAND_OVER):
                break
            leaving, staying = staying, await gateways.serve(f"next-{number}")
        assert min(taken) < within(HAND_OVER), taken


async def test_a_process_cut_off_from_the_database_is_silent_before_another_one_takes_over(newer: Scene) -> None:
    # It falls silent a sixth of a lease before another one may take over.
    async with fleet(newer, lease="6s") as gateways:
        session_id, one, two = await pair(gateways, through_wire=True)
        assert one.wire is not None
        first = (await two.get(f"/v1/sessions/{session_id}"))["owner"]
        one.wire.half_open()
        await two.wait_carries(session_id, within=within(2 * 6))
        assert newer.agent.connections == 2
        assert "lease lost" in one.log.read_text()
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
        one.wire.heal()

        async def lives_again() -> bool:
            shown = (await two.get("/v1/instances"))["data"]
            return any(row["url"] == one.url and row["alive"] and row["instance_id"] != first for row in shown)

        await until(lives_again)

        async def release_name() -> bool:
            return len(newer.agent.sockets) == 1

        await until(release_name)
        await one.post(f"/v1/sessions/{session_id}/events", MESSAGE, status=202)
        assert await two.carries(session_id)
        assert newer.agent.connections == 2


async def test_an_outcome_that_is_called_back_to_the_other_process_is_taken(newer: Scene) -> None:
    async with fleet(newer, lease="20s") as gateways:
        _, one, two = await pair(gateways)
        said = await gateways.doctor("two")
        assert f"at {one.url}, sessions: 1" in said
        assert f"at {two.url}, sessions: 0" in said
        assert "synchronous_commit" in said
        newer.hooks.scripts["ask"] = Response(status_code=202)
        call = await newer.agent.call("ask", GOOD)
        [asked] = await newer.hooks.wait_for(name="ask")
        await two.wait_call(call.call_id, "accepted")
        target = httpx.URL(asked.data["callback_url"]).raw_path.decode()
        answer = await two.http.post(target, json=success("called back"), headers={"authorization": ""})
        assert answer.status_code == 200, answer.text
        assert (await ended(call)).result == "called back"


async def test_no_session_is_taken_over_twice(newer: Scene) -> None:
    names = [f"agent-{number}" for number in range(40)]
    agents = [newer.huma.agent(name) for name in names]
    # Two processes that start at once keep the machine from everything else for a while.
    async with fleet(newer, lease="5s") as gateways:
        one = await gateways.serve("one")
        ids: list[str] = []
        for name in names:
            opened = await one.post("/v1/sessions", {"runtime": "finn", "native_id": name}, status=201)
            ids.append(opened["session_id"])
        for agent in agents:
            await agent.wait_connected()
        others = [await gateways.serve(name) for name in ("two", "three")]
        one.signal(signal.SIGKILL)
        for agent in (newer.agent, *agents):
            await agent.wait_connections(2, within=START)
        shown = {row["url"]: row["sessions"] for row in (await others[0].get("/v1/instances"))["data"] if row["alive"]}
        assert sorted(shown.values()) == [20, 21]
        assert all(agent.connections == 2 for agent in (newer.agent, *agents))
        rows = [await other.metrics() for other in others]
        assert sum(row["dragoman_sessions_owned"] for row in rows) == 41
        assert all(row["dragoman_fenced_total"] == 0 for row in rows)
