"""SIGKILL in the middle of a write to the database file itself, which SQLite only does while it checkpoints."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shim.missing() is not None, reason=shim.missing() or ""),
    pytest.mark.fault("SIGKILL during a WAL checkpoint, one page torn"),
]

MIDDLE = 700
"""Which of a checkpoint's pages is torn; there are some thousands."""
LARGE = "x" * 30_000
"""Some hundred calls of this size make SQLite's log long enough for a checkpoint, and each result fits HUMA."""


async def test_a_checkpoint_cut_in_the_middle_of_a_page_loses_nothing(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2", slots=4) as scene:
        await scene.run()
        await (await scene.call("once")).result()
        await scene.settled()
        scene.kill()
        await scene.dead()
        # Not before the next start: making the tables is a write to the file as well.
        scene.gateway.environment = await shim.preload(tmp_path) | shim.death_in(tmp_path / "dragoman.db", MIDDLE)
        await scene.serve()
        for _ in range(1_000):
            if not scene.gateway.alive:
                break
            call = await scene.call("again", text=LARGE)
            with suppress(TimeoutError):
                # No answer may as well mean that the machine is busy.
                await call.result(2)
        await scene.dead()
        on_record = await scene.store.committed()
        assert len(on_record) > 5
        scene.gateway.environment = {}
        await scene.serve()
        for call in scene.calls:
            if call.call_id in on_record:
                await call.result(PATIENCE)
        await scene.settled()
        await scene.verify(strictly=False)
        await scene.stop()
        await scene.verify_journal()
