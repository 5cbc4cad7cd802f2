"""The wall clock of a gateway jumps an hour: no deadline, signature or lease notices."""

from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.environment import until
from tests.faults.scene import Scene

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shim.missing() is not None, reason=shim.missing() or ""),
    pytest.mark.fault("Wall clock jumps by an hour"),
]

HOUR = 3600.0


async def timer_fired(scene: Scene) -> None:
    """Wait for the end of a timer that begins now; whatever the wall clock ended would have ended before it."""
    await (await scene.call("words")).result()

    async def delivered() -> bool:
        # Its result counts as delivered once a window without an error is over.
        return not await scene.store.pending()

    await until(delivered)


async def test_an_hour_forth_or_back_ends_no_call_before_its_time(tmp_path: Path, store: str) -> None:
    clock = shim.Clock(tmp_path)
    async with Scene(tmp_path, "0.2", store=store) as scene:
        scene.gateway.environment = await shim.preload(tmp_path) | clock.environment
        await scene.serve()
        scene.backend.close("tools")
        for tool in ("again", "once", "later"):
            await scene.call(tool)
        await scene.backend.wait(lambda _: True, count=3)
        for step in (HOUR, -HOUR):
            clock.step(step)
            await timer_fired(scene)
            rows = await scene.rows("/v1/calls")
            assert {row["state"] for row in rows if row["tool"] != "words"} == {"dispatched"}
            assert await scene.ready()
        scene.backend.open()
        for call in scene.calls[:2]:
            await call.result()
        await scene.recorded(scene.calls[2], "accepted")
        clock.step(HOUR)
        await timer_fired(scene)
        # Signatures are checked by the backend against the true time, and the callback's token still stands.
        assert await scene.call_back(scene.promised().success()) == 200
        await (await scene.call("once")).result()
        for call in scene.calls:
            await call.result()
            assert call.reading is not None
            assert call.reading.outcome == "success"
        await scene.settled()
        await scene.verify()
        assert len(scene.backend.seen) == 4
        await scene.stop()


async def test_a_gateway_that_restarts_under_a_wrong_clock_ends_no_call_and_loses_none(tmp_path: Path) -> None:
    clock = shim.Clock(tmp_path)
    async with Scene(tmp_path, "0.1", executor={"accepted_deadline": "3h"}) as scene:
        scene.gateway.environment = await shim.preload(tmp_path) | clock.environment
        await scene.serve()
        call = await scene.call("later")
        await scene.recorded(call, "accepted")
        scene.kill()
        await scene.dead()
        clock.step(HOUR)
        await scene.serve()
        assert await scene.call_back(scene.promised().success()) == 200
        await call.result()
        scene.kill()
        await scene.dead()
        clock.step(-HOUR)
        await scene.serve()
        await scene.settled()
        await scene.verify()
        await scene.stop()
        await scene.verify_journal()
