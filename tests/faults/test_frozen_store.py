"""PostgreSQL stands still for seconds: every session falls silent, and goes on with all that waited."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.simulators.huma_rules import Dialect
from tests.engines.postgres_server import start_own_server
from tests.faults.ground import until
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.faults.stores import postgres

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
            scene.witness.close("tools")
            for tool in ("once", "again", "once"):
                await scene.call(tool)
            await scene.witness.wait(lambda seen: seen.kind == "tool.requested", count=3)
            connections = scene.agent.connections
            server.freeze()
            try:
                began = monotonic()
                while monotonic() - began < pause:
                    # The agent asks once, and never again. The pause itself is the fault.
                    await scene.call("once")
                    await asyncio.sleep(pause / 20)
                scene.witness.open()
                if pause > lease:
                    assert not await scene.ready()
            finally:
                server.thaw()
            back = monotonic()
            for call in scene.calls:
                await call.result(20)
            observed().waited(monotonic() - back)
            assert scene.agent.connections == connections
            await until(scene.ready, within=20)
            await scene.settled(within=20)
            await scene.verify()
            assert {call.reading.outcome for call in scene.calls if call.reading} == {"success"}
            requests = [seen.key for seen in scene.witness.seen if seen.kind == "tool.requested"]
            assert len(requests) == len(set(requests)) == len(scene.calls)
            assert all(len(call.results) == 1 for call in scene.calls)
            assert "the lease is lost" in scene.gateway.whole_log() or pause < lease
            await scene.stop()
            await scene.verify_journal()
