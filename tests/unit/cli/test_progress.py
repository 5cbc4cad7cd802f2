"""A long command shows one line in a terminal and nothing in a pipe, and Ctrl-C ends it."""

import asyncio
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store.sqlite.schema import open_writer
from tests.scenarios.terminal import BOUND, environment_of, screen, terminal

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


async def test_a_copy_in_a_terminal_draws_one_line_and_removes_it(large: Path) -> None:
    async with screen(None, "copy", "gateway.yaml", "new.yaml", width=20) as shown:
        assert await shown.ended() == 0
    drawn = re.findall(r"\r\x1b\[K([^\r]*)", shown.raw.decode())
    assert drawn[0] == "copying and compari"
    assert drawn[-1].startswith("sessions"), "the line is removed before the result is written"
    assert "ok: copied everything" in shown.text


async def test_ctrl_c_ends_a_copy_at_once_and_nothing_is_kept(large: Path) -> None:
    async with screen(None, "copy", "gateway.yaml", "new.yaml") as shown:
        await shown.shows("copying and comparing")
        async with asyncio.timeout(BOUND):
            # Nobody tells when the copy has begun.
            while not (large / "new.db-wal").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
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


async def test_a_count_in_a_terminal_is_drawn_over_itself() -> None:
    code = (
        "from time import monotonic; from gateway.cli.progress import Progress, count_of\n"
        "end = monotonic() + 0.5\n"
        "with Progress('redriven', count_of('calls')) as shown:\n"
        "    while monotonic() < end: shown.update('redriven\\x1b[2J', 1_000, 4_000)"
    )
    plain = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": ""}
    async with terminal([sys.executable, "-c", code], environment_of(None, plain)) as shown:
        assert await shown.ended() == 0
    drawn = re.findall(r"\r\x1b\[K([^\r]*)", shown.raw.decode())
    assert drawn[:2] == ["redriven …", "redriven\\x1b[2J: 1,000 of 4,000 calls, 25%"]
    assert 3 <= len(drawn) <= 8
    assert drawn[-1] == ""
