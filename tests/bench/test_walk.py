"""Whether counting what a call passes sees a call, all of it, and nothing else."""

from pathlib import Path

import pytest

from tests.bench.walk import walk
from tests.scenarios.releases import THIS


@pytest.mark.slow
async def test_a_call_is_seen_from_its_frame_to_its_settlement(tmp_path: Path) -> None:
    seen = await walk(THIS, tmp_path)
    rooms = {str(Path(name).parent) for name in seen.files}
    assert {"adapters/huma", "gateway/links/socketio", "gateway/core", "gateway/store/sqlite"} <= rooms
    # The thread that writes is one of its own.
    assert any(name.startswith("gateway/store/sqlite/writer.py:") for name in seen.functions)
    assert not any(name.startswith(("gateway/testing", "gateway/http", "gateway/cli")) for name in seen.files)
    assert len(seen.functions) == len(set(seen.functions)) > 2 * len(seen.files)
    # What was asked, what came of it, and that it was told.
    assert seen.commits == 3
    assert seen.tasks >= 1
