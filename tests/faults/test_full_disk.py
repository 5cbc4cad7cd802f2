"""A disk that is full: nothing is taken that cannot be written, and everything goes on once there is room."""

import json
import resource
from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.environment import until
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.fault("File size limit reached")]


class Disk:
    """Lets the files of a running process grow no further: the write fails as it does on a full disk."""

    def __init__(self, scene: Scene) -> None:
        self._pid = scene.gateway.pid
        self._log = scene.folder / "dragoman.db-wal"
        self._limits = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        # What the log has in reserve counts as used up: it is blank behind what is said.
        used = len(self._log.read_bytes().rstrip(b"\0"))
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (used, self._limits[1]))

    def free(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, self._limits)


async def refusals(scene: Scene, more: int) -> None:
    """Wait until the gateway is not ready, and the session was refused a write so many more times."""
    line = "store unavailable"
    before = scene.gateway.whole_log().count(line)

    async def so() -> bool:
        assert scene.gateway.alive, scene.log()
        refused = scene.gateway.whole_log().count(line) - before
        return refused >= more and (await scene.http.get("/readyz")).status_code == 503

    await until(so)


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_a_full_disk_costs_time_and_nothing_else(tmp_path: Path, dialect: Dialect) -> None:
    async with Scene(tmp_path, dialect, copies=True) as scene:
        scene.log_refusals()
        await scene.serve()
        session_id = await scene.session_id()
        scene.backend.close("events")
        await (await scene.call("once")).result()
        await scene.backend.wait(lambda seen: seen.kind == "tool.finished")
        scene.backend.close("tools")
        for tool in ("again", "once", "once"):
            await scene.call(tool)
        await scene.backend.wait(lambda seen: seen.kind == "tool.requested", count=4)

        disk = Disk(scene)
        disk.fill()
        scene.backend.open()
        for tool in ("once", "again", "later"):
            await scene.call(tool)

        await refusals(scene, 1)
        event = {"kind": "context.updated", "name": "news", "context": {"a": 1}, "description": "x"}
        answer = await scene.http.post(f"/v1/sessions/{session_id}/events", json=event)
        assert answer.status_code == 503
        assert (await scene.http.get("/healthz")).status_code == 200
        assert len([seen for seen in scene.backend.seen if seen.kind == "tool.requested"]) == 4
        assert [len(call.results) for call in scene.calls] == [1, 0, 0, 0, 0, 0, 0]

        disk.free()
        await until(scene.ready)
        late = scene.calls[-1]
        row = await scene.recorded(late, "accepted")
        await scene.http.post(f"/v1/calls/{row['call_id']}/outcome", json={"outcome": "failure", "error": "no"})
        for call in scene.calls:
            await call.result(PATIENCE)
        await scene.settled()
        await scene.verify()
        assert [call.reading.outcome for call in scene.calls if call.reading] == [*["success"] * 6, "failure"]
        requests = [seen.key for seen in scene.backend.seen if seen.kind == "tool.requested"]
        assert len(requests) == len(set(requests)) == len(scene.calls)
        copied = {seen.content["event"]["call_id"] for seen in scene.backend.seen if seen.kind == "tool.finished"}
        assert copied == set(requests)
        scene.kill()
        await scene.dead()
        await scene.verify_journal()


async def test_what_was_asked_while_the_disk_was_full_is_taken_in_its_order(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2") as scene:
        scene.log_refusals()
        await scene.serve()
        first = await scene.call("once")
        await first.result()
        await scene.settled()
        disk = Disk(scene)
        disk.fill()
        await scene.call("again")
        await refusals(scene, 1)
        await scene.agent.call(first.tool, first.arguments, first.call_id)
        withdrawn = await scene.call("once")
        await scene.agent.cancel(withdrawn)
        await refusals(scene, 3)
        disk.free()
        await first.wait_results(2, 15)
        for call in scene.calls:
            await call.result(PATIENCE)
        await scene.settled()
        await scene.verify(strictly=False)
        assert [call.reading.outcome for call in scene.calls if call.reading] == ["success", "success", "canceled"]


async def test_a_full_disk_is_logged_once_with_its_end_however_often_sessions_try(tmp_path: Path) -> None:
    async def is_over() -> bool:
        return "store available again" in scene.gateway.whole_log()

    async with Scene(tmp_path, "0.2") as scene:
        scene.log_refusals()
        await scene.serve()
        await (await scene.call("once")).result()
        await scene.settled()
        disk = Disk(scene)
        disk.fill()
        await scene.call("again")
        await refusals(scene, 4)
        disk.free()
        await until(is_over)
        await scene.calls[-1].result(PATIENCE)
        await scene.settled()
        lines = [json.loads(line) for line in scene.gateway.whole_log().splitlines()]
        outage = [line for line in lines if line["event"].startswith("store ") and line["level"] != "debug"]
        assert [line["event"] for line in outage] == ["store unavailable", "store available again"]
        assert outage[0]["failures"] == 1
        assert outage[1]["failures"] >= 4
        assert outage[1]["seconds"] >= 1
