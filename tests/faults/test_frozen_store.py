"""PostgreSQL stands still for seconds: every session falls silent, and goes on with all that waited."""

import asyncio
import signal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.engines.postgres_server import start_own_server
from tests.faults.environment import until
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.faults.stores import postgres
from tests.faults.test_replicas import HANDED_OVER
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults


class Leased(Scene):
    """A scene whose gateway has a lease of a certain length."""

    def __init__(self, folder: Path, dialect: Dialect, lease: float, **more: Any) -> None:
        self.lease = lease
        super().__init__(folder, dialect, **more)


@pytest.mark.fault("PostgreSQL frozen for 4 s, and for longer than the lease", on="postgres")
@pytest.mark.parametrize(
    ("dialect", "lease", "pause"), [("0.1", 6.0, 4.0), ("0.2", 3.0, 6.0)], ids=["within", "beyond"]
)
async def test_calls_in_flight_and_calls_that_arrive_meanwhile_are_all_answered(
    tmp_path: Path, dialect: Dialect, lease: float, pause: float
) -> None:
    with start_own_server() as server:
        async with Leased(tmp_path, dialect, lease, store=postgres(server.dsn)) as scene:
            await scene.run()
            scene.backend.close("tools")
            for tool in ("once", "again", "once"):
                await scene.call(tool)
            await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=3)
            connections = scene.agent.connections
            server.freeze()
            try:
                began = monotonic()
                while monotonic() - began < pause:
                    # The agent asks once, and never again. The pause itself is the fault.
                    await scene.call("once")
                    await asyncio.sleep(pause / 20)
                scene.backend.open()
                if pause > lease:
                    assert not await scene.ready()
            finally:
                server.thaw()
            back = monotonic()
            for call in scene.calls:
                await call.result(PATIENCE)
            observed().waited(monotonic() - back)
            assert scene.agent.connections == connections
            await until(scene.ready, within=PATIENCE)
            await scene.settled(within=PATIENCE)
            await scene.verify()
            assert {call.reading.outcome for call in scene.calls if call.reading} == {"success"}
            requests = [seen.key for seen in scene.backend.seen if seen.kind == "tool.requested"]
            assert len(requests) == len(set(requests)) == len(scene.calls)
            assert all(len(call.results) == 1 for call in scene.calls)
            assert "lease lost" in scene.gateway.whole_log() or pause < lease
            await scene.stop()
            await scene.verify_journal()


@pytest.mark.fault("PostgreSQL frozen for 4 s, and for longer than the lease", on="replicas")
@pytest.mark.parametrize(
    ("dialect", "lease", "pause", "first"),
    [("0.1", 6.0, 4.0, "owner"), ("0.2", 3.0, 6.0, "owner"), ("0.2", 3.0, 6.0, "other")],
    ids=["within", "beyond", "beyond, and the other one is back first"],
)
async def test_where_two_share_the_store_every_call_is_answered_by_whoever_comes_first(
    tmp_path: Path, dialect: Dialect, lease: float, pause: float, first: str
) -> None:
    with start_own_server() as server:
        async with Leased(tmp_path, dialect, lease, store=postgres(server.dsn)) as scene:
            await scene.run()
            other = await scene.another("other")
            other.fork()
            await until(other.ready, within=PATIENCE)
            scene.backend.close("tools")
            for tool in ("once", "again", "once"):
                await scene.call(tool)
            await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=3)
            server.freeze()
            try:
                began = monotonic()
                while monotonic() - began < pause:
                    # The agent asks once, and never again. The pause itself is the fault.
                    await scene.call(("once", "again")[len(scene.calls) % 2])
                    await asyncio.sleep(pause / 20)
                if first == "other":
                    scene.gateway.signal(signal.SIGSTOP)
            finally:
                server.thaw()
            back = monotonic()
            if first == "other":
                await scene.relinked(1, within=lease + 5)
                scene.gateway.signal(signal.SIGCONT)
            scene.backend.open()
            for call in scene.calls:
                await call.result(PATIENCE)
            took = monotonic() - back
            observed().waited(took)
            # What the owner has heard it hands to whoever has the session now.
            assert took <= (lease + 5 if first == "other" else 5), took
            for instance in (scene.gateway, other):
                await until(instance.ready, within=PATIENCE)
            await scene.settled(within=PATIENCE)
            await scene.verify(strictly=False)
            assert all(len(call.results) == 1 for call in scene.calls)
            # What may have been done is not done again: its outcome is unknown where its session was taken over.
            unsure = [call for call in scene.calls[:3] if call.tool == "once"] if first == "other" else []
            assert [call for call in scene.calls if call.reading and call.reading.outcome != "success"] == unsure
            requests = [seen.key for seen in scene.backend.seen if seen.kind == "tool.requested"]
            once = {row["call_id"] for row in await scene.rows("/v1/calls") if row["tool"] == "once"}
            assert all(requests.count(key) == 1 for key in once)
            assert scene.agent.connections == (2 if first == "other" else 1)
            assert (HANDED_OVER in scene.gateway.whole_log()) == (first == "other")
            for instance in (scene.gateway, other):
                await instance.stop()
            await scene.verify_journal()
