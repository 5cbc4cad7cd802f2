"""Connections that break: cut, half-open and slow, to the runtime and to the executor, through a proxy.

HUMA has no replay, so what an agent says into a broken connection is said again by it, as a person would ask again.
"""

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.testing.runtimes.herm.server import Manners as HermManners
from gateway.testing.runtimes.huma.rules import Dialect
from gateway.testing.runtimes.huma.server import Manners
from gateway.testing.runtimes.openhands.progress import Manners as OpenHandsManners
from tests.faults.environment import until
from tests.faults.fleet import HermScene, OpenHandsScene
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

both = pytest.mark.parametrize("dialect", ["0.1", "0.2"])
QUICK = timedelta(seconds=3)
"""How often a runtime pings: soon noticed by the tests, and not missed by a busy machine."""
TOOLS = ("again", "once", "words", "once", "again")


def hurt(wire: Proxy, how: str) -> None:
    """Do to a wire what a network does."""
    match how:
        case "cut":
            wire.refuse()
        case "half-open":
            wire.half_open()
        case _:
            wire.delay(0.15)


HOW = [
    pytest.param("cut", marks=pytest.mark.fault("Link cut, and refused for a while")),
    pytest.param("half-open", marks=pytest.mark.fault("Link half-open")),
    pytest.param("delay", marks=pytest.mark.fault("Link slow")),
]


@both
@pytest.mark.parametrize("how", HOW)
async def test_calls_in_flight_survive_what_happens_to_the_wire_of_a_huma_agent(
    tmp_path: Path, dialect: Dialect, how: str
) -> None:
    # A slow wire must not look like a dead one to the runtime, which would then drop it.
    manners = Manners() if how == "delay" else Manners(heartbeat=QUICK)
    async with Scene(tmp_path, dialect, manners=manners, through=["runtime"]) as scene:
        await scene.serve()
        wire = scene.wires["runtime"]
        await (await scene.call("once")).result()
        scene.backend.close("tools")
        for tool in TOOLS:
            await scene.call(tool)
        await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=5)
        connections = scene.agent.connections
        hurt(wire, how)
        scene.backend.open()
        if how != "delay":
            # The outcomes are on record while nobody can be told.
            for call in scene.calls:
                await scene.recorded(call, "succeeded")
            await scene.unlinked()
            wire.heal()
            await scene.relinked(connections)
        for call in scene.calls:
            await call.result(PATIENCE)
        wire.heal(keep=True)
        await (await scene.call("again")).result()
        await scene.settled()
        await scene.verify(strictly=False)
        assert len(scene.backend.seen) == 6
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.parametrize("how", HOW)
async def test_calls_in_flight_survive_what_happens_to_the_wire_of_herm(tmp_path: Path, how: str) -> None:
    async with HermScene(tmp_path, manners=HermManners(keepalive=0.5), through=["runtime"]) as scene:
        await scene.serve()
        wire = scene.wires["runtime"]
        await scene.call("once").answered()
        scene.backend.close("tools")
        for tool in TOOLS:
            scene.call(tool)
        await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=5)
        streams = scene.agent.streams_opened
        hurt(wire, how)
        scene.backend.open()
        if how != "delay":
            for asked in scene.calls:
                await scene.reached(asked.asked_id, "succeeded")
            # What is asked meanwhile is in the list that the next link reads.
            scene.call("once")
            scene.call("again")
            await scene.noticed()
            wire.heal()
            await scene.relinked(streams)
        for asked in scene.calls:
            await asked.answered(15)
        wire.heal(keep=True)
        await scene.call("again").answered()
        scene.agent.end_turn()
        await scene.settled()
        await scene.verify()
        assert scene.agent.violations == []
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.parametrize("how", HOW)
async def test_what_happened_behind_a_broken_wire_of_openhands_is_on_record_once(tmp_path: Path, how: str) -> None:
    async with OpenHandsScene(tmp_path, manners=OpenHandsManners(heartbeat=QUICK), through=["runtime"]) as scene:
        await scene.serve()
        wire, work = scene.wires["runtime"], scene.agent
        assert await scene.post({"kind": "message.posted", "content": "first"}) == 202
        await work.wait_for(lambda payload: payload["args"].get("content") == "first")
        connections = work.connections
        hurt(wire, how)
        for number in range(5):
            await work.agent_runs(f"echo {number}", str(number))
        if how != "delay":
            await scene.noticed()
            wire.heal()
        await scene.relinked(connections if how != "delay" else 0)
        wire.heal(keep=True)
        assert await scene.post({"kind": "message.posted", "content": "second"}) == 202
        await work.wait_for(lambda payload: payload["args"].get("content") == "second")
        session = await scene.session_id()
        ran = [f"echo {number}" for number in range(5)]

        async def recorded() -> bool:
            events = await scene.rows(f"/v1/sessions/{session}/events")
            asked = [one["event"] for one in events if one["event"]["kind"] == "tool.requested"]
            assert len({one["event_id"] for one in events}) == len(events)
            return [one["arguments"].get("command") for one in asked] == ran

        await until(recorded)
        await scene.settled()
        await scene.verify()
        assert scene.heard() == ["first", "second"]
        assert work.violations == []
        assert scene.backend.seen == []
        await scene.stop()
        await scene.verify_journal()


# The wire to the executor


@pytest.mark.fault("Executor's connection cut before the request")
async def test_a_request_that_certainly_never_arrived_is_sent_again_to_every_executor(tmp_path: Path) -> None:
    # The attempts have to last for as long as nobody can be reached.
    patience = {"attempts": 20, "backoff": {"initial": "500ms", "maximum": "1s"}}
    async with Scene(tmp_path, "0.2", through=["executor"], executor=patience) as scene:
        await scene.serve()
        scene.wires["executor"].refuse()
        calls = [await scene.call(tool) for tool in ("again", "once")]

        async def tried_again() -> bool:
            rows = [await scene.row_of(call.call_id) for call in calls]
            return all(row is not None and (row["attempt"] > 1 or row["state"] == "failed") for row in rows)

        await until(tried_again)
        scene.wires["executor"].heal()
        for call in calls:
            await call.result(PATIENCE)
        await scene.settled()
        rows = await scene.verify()
        # A reset after the connection was taken may have come after the request, so it is sure for nobody.
        assert rows[calls[0].call_id]["state"] == "succeeded"
        await scene.stop()


@pytest.mark.fault("Executor's connection cut after the request, before the response")
async def test_an_answer_that_is_cut_off_is_asked_for_again_or_unknown(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.1", through=["executor"]) as scene:
        await scene.serve()
        wire = scene.wires["executor"]
        for tool in ("again", "once"):
            cut = wire.break_after(b"HTTP/1.1 200", side="server", pass_on=False)
            call = await scene.call(tool)
            await call.result()
            assert cut.done.is_set()
        await scene.settled()
        rows = await scene.verify()
        assert [rows[call.call_id]["unknown"] for call in scene.calls] == [False, True]
        assert [seen.tool for seen in scene.backend.seen] == ["again", "again", "once"]
        await scene.stop()


@pytest.mark.fault("Executor's connection half-open")
async def test_a_half_open_connection_to_an_executor_ends_with_the_attempt(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2", through=["executor"], executor={"timeout": "3s"}) as scene:
        await scene.serve()
        wire = scene.wires["executor"]
        await (await scene.call("again")).result()
        scene.backend.close("tools")
        calls = [await scene.call(tool) for tool in ("again", "once")]
        await scene.backend.wait(lambda _: True, count=3)
        wire.half_open()
        scene.backend.open()
        await calls[1].result(PATIENCE)
        wire.heal()
        await calls[0].result(PATIENCE)
        await scene.settled()
        rows = await scene.verify()
        assert [rows[call.call_id]["unknown"] for call in scene.calls] == [False, False, True]
        await scene.stop()


@pytest.mark.fault("Executor's connection slow")
async def test_a_slow_connection_to_an_executor_costs_time_only(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.1", through=["executor"]) as scene:
        await scene.serve()
        scene.wires["executor"].delay(0.2)
        for _ in range(5):
            await scene.call("once")
        for call in scene.calls:
            await call.result()
        await scene.settled()
        await scene.verify()
        assert len(scene.backend.seen) == 5
        await scene.stop()
