"""A gateway that stands still for seconds (a paused machine, a swapping host) goes on as if nothing had been."""

import asyncio
import signal
from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.fault("SIGSTOP for seconds, then SIGCONT")]

PAUSE = 3.0


@pytest.mark.parametrize(("dialect", "store", "link_breaks"), [("0.1", "sqlite", True), ("0.2", "sqlite", False)])
async def test_a_pause_loses_and_doubles_nothing(
    tmp_path: Path, dialect: Dialect, store: str, *, link_breaks: bool
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.serve()
        scene.backend.close("tools")
        for tool in ("again", "once", "later"):
            await scene.call(tool)
        await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=3)
        scene.gateway.signal(signal.SIGSTOP)
        scene.backend.open()
        connections = scene.agent.connections
        if link_breaks:
            await scene.agent.drop()
        else:
            await scene.call("once")
        # The pause itself is the fault; nothing happens that could be waited for.
        await asyncio.sleep(PAUSE)
        scene.gateway.signal(signal.SIGCONT)
        await scene.agent.wait_connections(connections + link_breaks)
        await scene.recorded(scene.calls[2], "accepted")
        address = str((await scene.backend.wait(lambda seen: seen.tool == "later"))[0].content["callback_url"])
        answer = {"outcome": "failure", "error": "not this time"}
        assert (await scene.http.post(address, json=answer)).status_code == 200
        for call in scene.calls:
            await call.result(PATIENCE)
        await scene.settled()
        rows = await scene.verify()
        assert [rows[call.call_id]["state"] for call in scene.calls] == [
            "succeeded",
            "succeeded",
            "failed",
            *([] if link_breaks else ["succeeded"]),
        ]
        assert all(len(call.results) == 1 for call in scene.calls)
        assert len(scene.backend.seen) == len(scene.calls)
        await scene.stop()
        await scene.verify_journal()
