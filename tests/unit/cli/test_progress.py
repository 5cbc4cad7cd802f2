"""What takes long says how far it is, on stderr: drawn in a terminal, as lines elsewhere, and Ctrl-C ends it."""

import asyncio
import re
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.cli.progress import Progress, count_of
from gateway.store.sqlite.schema import open_writer
from tests.scenarios.terminal import BOUND, environment_of, screen

ROWS = 80_000


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a database that takes a second or so to copy, and the configurations of two."""
    monkeypatch.chdir(tmp_path)
    Path("gateway.yaml").write_text("engine: {path: old.db}\n")
    Path("new.yaml").write_text("engine: {path: new.db}\n")
    with closing(open_writer(tmp_path / "old.db")) as made:
        made.execute(
            "INSERT INTO notes WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " SELECT 'ballast-' || i, hex(randomblob(20)) FROM n",
            (ROWS,),
        )
    return tmp_path


async def test_a_copy_in_a_terminal_draws_one_line_and_takes_it_away(large: Path) -> None:
    async with screen(None, "copy", "gateway.yaml", "new.yaml", width=60) as shown:
        assert await shown.ended() == 0
    drawn = re.findall(r"\r\x1b\[K([^\r]*)", shown.raw.decode())
    assert any(re.match(r"(copying|checking) notes: [\d,]+ of 80,000 rows, \d+%", line) for line in drawn), drawn
    assert drawn[-1].startswith("sessions"), "the line is gone before the result is written"
    assert max(map(len, (line for line in drawn[:-1]))) < 60
    assert "ok: new.yaml has everything" in shown.text


async def test_ctrl_c_ends_a_copy_at_once_and_nothing_is_kept(large: Path) -> None:
    async with screen(None, "copy", "gateway.yaml", "new.yaml") as shown:
        await shown.shows("notes: ")
        shown.type("\x03")
        assert await shown.ended() == 130
    assert "Traceback" not in shown.text
    with closing(sqlite3.connect(large / "new.db")) as new:
        assert new.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    async with screen(None, "copy", "gateway.yaml", "new.yaml") as shown:
        assert await shown.ended() == 0


async def test_short_work_in_a_pipe_says_nothing_of_itself(large: Path) -> None:
    for words in (("migrate",), ("backup", "copy.db"), ("restore", "copy.db")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words,
            env=environment_of(None), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate()
        assert (process.returncode, err) == (0, b""), words
        assert out.count(b"\n") == (2 if words[0] == "restore" else 1)


def test_the_line_says_what_is_known() -> None:
    progress = Progress("opening")
    assert progress.line() == "opening, 0s"
    progress.tell("copying", 3 * 1024**2, 0)
    assert progress.line() == "copying, 0s"
    progress.tell("copying\x1b[2J", 3 * 1024**2, 2 * 1024**2)
    assert progress.line() == "copying [2J: 2 MiB of 2 MiB, 100%"
    progress = Progress("x", count_of("rows"))
    progress.tell("copying", 1_000, 4_000)
    assert progress.line() == "copying: 1,000 of 4,000 rows, 25%"
    end = time.monotonic() + 10
    while "left" not in progress.line():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert re.fullmatch(r"copying: 1,000 of 4,000 rows, 25%, \d+/s, \ds left", progress.line())


async def test_in_a_pipe_a_line_comes_every_few_seconds(large: Path) -> None:
    code = (
        "import sys; from gateway.cli import progress\n"
        "progress._WRITTEN = 0.05\n"
        "with progress.Progress('waiting') as shown: sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    assert process.stdin is not None
    async with asyncio.timeout(BOUND):
        lines = [await process.stderr.readline() for _ in range(3)]
        process.stdin.close()
        assert await process.wait() == 0
    assert lines == [b"\xc2\xb7 waiting, 0s\n"] * 3
