"""The database file is taken away under a gateway: no call is carried out that could not be written where it lasts."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.environment import until
from tests.faults.load import Load
from tests.faults.scene import Scene
from tests.faults.stores import SqliteFile, given

pytestmark = [pytest.mark.faults, pytest.mark.fault("Database file moved away and back, under load")]


def _asked(scene: Scene) -> int:
    return len([seen for seen in scene.backend.seen if seen.kind == "tool.requested"])


async def _not_ready(scene: Scene) -> None:
    async def so() -> bool:
        assert scene.gateway.alive, scene.log()
        answer = await scene.http.get("/readyz")
        return answer.status_code == 503 and "put it back" in answer.text

    await until(so)


async def _refused(scene: Scene, more: int) -> None:
    """Wait until the session was refused a write so many more times."""
    line = "the engine is unavailable"
    before = scene.gateway.whole_log().count(line)

    async def so() -> bool:
        return scene.gateway.whole_log().count(line) - before >= more

    await until(so)


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_calls_wait_while_the_database_is_away(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    place = folder if what == "folder" else folder / "dragoman.db"
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        await scene.serve()
        session_id = await scene.session_id()
        async with Load(scene) as load:
            await load.more(20)
            place.rename(tmp_path / "aside")
            await _not_ready(scene)
            asked = _asked(scene)
            late = [await scene.call("once") for _ in range(5)]
            event: dict[str, Any] = {"kind": "context.updated", "name": "news", "context": {}, "description": "x"}
            answer = await scene.http.post(f"/v1/sessions/{session_id}/events", json=event)
            assert answer.status_code == 503
            await _refused(scene, 3)
            assert (await scene.http.get("/healthz")).status_code == 200
            assert _asked(scene) == asked
            assert [call.reading for call in late] == [None] * 5
            (tmp_path / "aside").rename(place)
            await until(scene.ready)
            await load.more(20)
        for call in late:
            await call.result(15)
        await scene.settled(within=30)
        await scene.verify(strictly=False)
        await scene.stop()
        await scene.verify_journal()


@pytest.mark.fault("Database file, log and lock removed while calls run")
async def test_no_call_is_carried_out_into_a_file_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        await scene.serve()
        await (await scene.call("once")).result()
        await scene.settled()
        for file in folder.iterdir():
            file.unlink()
        await _not_ready(scene)
        asked = _asked(scene)
        for _ in range(20):
            await scene.call("once")
        await _refused(scene, 3)
        assert _asked(scene) == asked
        assert list(folder.iterdir()) == []
        scene.calls.clear()
        scene.kill()
        await scene.dead()
