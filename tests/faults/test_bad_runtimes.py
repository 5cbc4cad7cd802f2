"""Runtimes that repeat, withdraw, reconnect in storms and forget: each call is carried out once and ends once."""

import asyncio
from pathlib import Path

import pytest

from gateway.testing.runtimes.herm.server import Manners as HermManners
from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.environment import until
from tests.faults.fleet import HermScene
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

on_postgres = pytest.mark.parametrize(("dialect", "store"), [("0.2", "postgres")])
"""For the faults of which the simulation proves the SQLite half."""
both = pytest.mark.parametrize(("dialect", "store"), [("0.1", "sqlite"), ("0.2", "postgres")])
MANY = 30


async def finish(scene: Scene) -> None:
    await scene.settled()
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


@pytest.mark.fault("A call frame three times, before and after its outcome", simulated="repeated-call-runs-again")
@on_postgres
async def test_a_call_that_is_asked_three_times_is_carried_out_once(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run()
        scene.backend.close("tools")
        calls = [await scene.call(tool) for tool in ("once", "again", "once")]
        for _ in range(2):
            for call in calls:
                await scene.agent.call(call.tool, call.arguments, call.call_id)
        await scene.backend.wait(lambda _: True, count=3)
        scene.backend.open()
        for call in calls:
            await call.result()
        await scene.settled()
        for call in calls:
            await scene.agent.call(call.tool, call.arguments, call.call_id)
            await call.wait_results(2)
        assert len(scene.backend.seen) == 3
        await finish(scene)


@pytest.mark.fault("Calls withdrawn while their results are in flight")
@both
async def test_a_cancel_that_races_with_the_result_leaves_one_outcome(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store, slots=MANY) as scene:
        await scene.run()
        # Each cancel comes a little later than the one before, so that some are early and some late.
        for number in range(MANY):
            call = await scene.call("once")
            await asyncio.sleep(0.001 * number)
            await scene.agent.cancel(call)
        for call in scene.calls:
            await call.result()
        # What is still on its way would be seen before it is counted.
        await scene.settled()
        rows = await scene.verify(strictly=False)
        assert {row["state"] for row in rows.values()} <= {"succeeded", "canceled"}
        await finish(scene)


@pytest.mark.fault("Links that break repeatedly with calls in flight", simulated="delivery-counts-when-written")
@on_postgres
async def test_a_link_that_breaks_again_and_again_loses_no_call(tmp_path: Path, dialect: Dialect, store: str) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run()
        for number in range(4):
            scene.backend.close("tools")
            for tool in ("again", "once", "once"):
                await scene.call(tool)
            await scene.backend.wait(lambda _: True, count=3 * (number + 1))
            links = scene.agent.connections
            # In the middle of the results, which leave at the same moment.
            scene.backend.open()
            await asyncio.sleep(0.01 * number)
            await scene.agent.drop()
            await scene.relinked(links)
        for call in scene.calls:
            await call.result()
        assert len(scene.backend.seen) == len(scene.calls)
        await finish(scene)


@pytest.mark.fault("Links of 40 sessions cut at once")
async def test_a_storm_of_reconnects_loses_no_call(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2") as scene:
        await scene.serve()
        others = [scene.huma.agent(f"agent-{number}") for number in range(40)]
        # Opening a session with a native id of its own needs no entry in the configuration.
        for agent in others:
            body = {"runtime": "finn", "native_id": agent.agent_id}
            assert (await scene.http.post("/v1/sessions", json=body)).status_code == 201
        for agent in others:
            await agent.wait_connected()
        scene.backend.close("tools")
        for agent in others:
            scene.calls.append(await agent.call("once", {"n": agent.agent_id}))
        await scene.backend.wait(lambda _: True, count=len(others))
        for agent in others:
            await agent.drop()
        scene.backend.open()
        for call in scene.calls:
            await call.result(PATIENCE)
        assert len(scene.backend.seen) == len(others)
        await finish(scene)


@pytest.mark.fault("Herm server that lost the cursor, or lists everything again")
@pytest.mark.parametrize("replays", [True, False], ids=["replays", "lists"])
async def test_a_cursor_that_is_gone_costs_a_look_at_the_whole_list(tmp_path: Path, *, replays: bool) -> None:
    async with HermScene(tmp_path, manners=HermManners(replays=replays, keepalive=0.5)) as scene:
        await scene.run()
        for tool in ("once", "again"):
            await scene.call(tool).answered()
        for _ in range(3):
            streams = scene.agent.streams_opened
            # What the stream was resumed after is not in the list any more.
            del scene.agent.events[: len(scene.agent.events) // 2]
            scene.agent.drop_streams()
            asked = scene.call("once")
            await scene.relinked(streams)
            await asked.answered()
        scene.agent.end_turn()
        await scene.settled()
        await scene.verify()
        assert len(scene.backend.seen) == len(scene.calls)
        assert scene.agent.violations == []
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("Herm server that executes posts and drops the connection without a response")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_answer_whose_receipt_was_lost_is_on_record_once(tmp_path: Path, store: str) -> None:
    async with HermScene(tmp_path, manners=HermManners(keepalive=0.5), store=store) as scene:
        await scene.run()
        for _ in range(3):
            scene.server.lose_answers()
            asked = scene.call("once")
            await asked.answered(10)

        async def linked() -> bool:
            return scene.agent.streams > 0

        await until(linked)
        await scene.settled()
        await scene.verify()
        assert scene.agent.violations == []
        await scene.stop()
        await scene.verify_journal()
