"""Whether counting what a call passes sees a call, all of it, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.bench.walk import walk
from tests.scenarios.releases import THIS

_PAGE = Path(__file__).parents[2] / "gateway/README.md"
_ROW = re.compile(
    r"^\| (functions|files|tasks|commits|wake-ups of the event loop)[^|]*\| +\d+ \| +(\d+) \|$", re.MULTILINE
)


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
    told = {name: int(now) for name, now in _ROW.findall(_PAGE.read_text(encoding="utf-8"))}
    assert (told["tasks"], told["commits"]) == (seen.tasks, seen.commits)
    assert told["functions"] == pytest.approx(len(seen.functions), rel=0.05)
    assert told["files"] == pytest.approx(len(seen.files), rel=0.05)
    assert told["wake-ups of the event loop"] == pytest.approx(seen.turns, rel=0.3)
