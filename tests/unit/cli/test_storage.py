"""The commands about the database say what they did, or in one line why they did not."""

import asyncio
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import app
from gateway.store.roster import RESTORED
from gateway.store.rows import SessionRow
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.lock import FileLock
from gateway.store.sqlite.schema import APPLICATION, FIRST, NEWEST
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, row_of, said

NOW = NEWEST


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, and where its database will be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    Path("gateway.yaml").write_text("engine: {path: my.db}\n")
    return tmp_path / "my.db"


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="dragoman")


def _fill(path: Path) -> None:
    async def fill() -> None:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            await engine.commit(Step(ALICE, (said(),)))

    asyncio.run(fill())


def _row(path: Path) -> SessionRow:
    async def look() -> SessionRow:
        async with SqliteEngine(path, FakeClock()) as engine:
            return await row_of(engine)

    return asyncio.run(look())


def _complains(result: Result, *parts: str, code: int = 1) -> None:
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 or code == 2
    for part in parts:
        assert part in result.stderr


# migrate


def test_migrate_makes_the_tables_and_says_from_where_to_where(database: Path) -> None:
    result = _run("migrate", "--check")
    assert (result.exit_code, result.stdout) == (1, f"{database}: schema none -> {NOW}, not applied yet\n")
    assert not database.exists()
    assert _run("migrate").stdout == f"{database}: schema none -> {NOW}\n"
    for words in (("migrate",), ("migrate", "--check")):
        result = _run(*words)
        assert (result.exit_code, result.stdout) == (0, f"{database}: schema {NOW}, up to date\n")


@pytest.mark.parametrize(
    "words", [("migrate",), ("migrate", "--check"), ("backup", "copy.db"), ("restore", "--bump-fences")]
)
def test_a_database_of_an_earlier_release_is_refused_with_the_commit_that_migrates_it(
    database: Path, words: tuple[str, ...]
) -> None:
    _make_old(database)
    before = database.read_bytes()
    _complains(_run(*words), f"has schema {FIRST - 1} ", "check out commit f18d4caa")
    assert database.read_bytes() == before


def _make_old(database: Path) -> None:
    with closing(sqlite3.connect(database)) as old:
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute(f"PRAGMA user_version = {FIRST - 1}")


# backup and restore


def test_a_backup_is_described_and_never_replaces_a_file(database: Path) -> None:
    _fill(database)
    result = _run("backup", "copy.db")
    assert result.exit_code == 0
    told = (
        rf"copy\.db: 1 session, 2 events, \d+ KiB, schema {NOW}, copied from {re.escape(str(database))} and checked\n"
    )
    assert re.fullmatch(told, result.stdout)
    assert result.stderr == ""
    before = Path("copy.db").read_bytes()
    _complains(_run("backup", "copy.db"), "copy.db' exists, and a backup never replaces a file")
    assert "No such option" in _run("backup", "copy.db", "--force").stderr
    assert Path("copy.db").read_bytes() == before


def test_a_backup_is_restored_under_new_fences(database: Path) -> None:
    _fill(database)
    assert _run("backup", "copy.db").exit_code == 0
    database.unlink()
    result = _run("restore", "copy.db")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{database}: 1 session, 2 events, ")
    assert result.stdout.endswith("restored from copy.db, with new fencing tokens\n")
    assert _row(database).fence == RESTORED
    result = _run("restore", "copy.db")
    assert result.stdout.splitlines()[1] == f"{database}.before-restore: the previous database"


def test_fences_are_made_new_without_a_backup(database: Path) -> None:
    _fill(database)
    result = _run("restore", "--bump-fences")
    assert (result.exit_code, result.stdout) == (0, f"{database}: 1 session with new fencing tokens and no owner\n")
    assert _row(database).fence == RESTORED


@pytest.mark.parametrize("words", [(), ("copy.db", "--bump-fences")])
def test_restore_wants_a_file_or_to_bump_fences(words: tuple[str, ...]) -> None:
    _complains(_run("restore", *words), "pass either FILE or --bump-fences", code=2)


def test_the_database_is_locked_under_its_own_name_also_behind_a_link(database: Path, tmp_path: Path) -> None:
    _fill(database)
    assert _run("backup", "copy.db").exit_code == 0
    (tmp_path / "link.db").symlink_to(database)
    Path("link.yaml").write_text("engine: {path: link.db}\n")
    lock = FileLock(database)
    lock.acquire()
    try:
        for words in (("restore", "copy.db"), ("restore", "--bump-fences"), ("migrate",)):
            for config in ("gateway.yaml", "link.yaml"):
                result = _run(*words, "--config", config)
                _complains(result, f"process {os.getpid()} uses the database", "stop that gateway")
        _complains(_run("copy", "gateway.yaml", "gateway.yaml"), "the same database", code=2)
    finally:
        lock.release()
    assert _run("restore", "copy.db", "--config", "link.yaml").exit_code == 0
    assert (tmp_path / "link.db").is_symlink()
    assert _row(database).fence == RESTORED


def test_what_is_missing_or_of_another_kind_is_said_in_one_line(database: Path) -> None:
    _complains(_run("backup", "copy.db"), f"there is no database at {str(database)!r}")
    _fill(database)
    _complains(_run("backup", "no/copy.db"), "/no' does not exist")
    _complains(_run("restore", "copy.db"), "there is no backup at 'copy.db'")
    _complains(_run("restore", "gateway.yaml"), "'gateway.yaml'", "is it a database of Dragoman")
    _complains(_run("restore", "my.db"), "the database itself")
    _complains(_run("backup", "."), "is a folder: name a file in it")
    _complains(_run("backup", "my.db"), "my.db' is a file of the database: name another one")


@pytest.mark.parametrize(
    ("fault", "code"),
    [(KeyboardInterrupt, 130), (lambda: OSError(5, "the disk is broken"), 1)],
    ids=["ctrl-c", "fault"],
)
def test_a_restore_that_was_interrupted_leaves_the_database_as_it_was(
    database: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], BaseException], code: int
) -> None:
    _fill(database)
    assert _run("backup", "copy.db").exit_code == 0
    before, row = database.with_name("my.db.before-restore"), _row(database)

    def fail(old: object, new: object) -> None:
        raise fault()

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        result = _run("restore", "copy.db")
    assert (result.exit_code, result.stdout) == (code, "")
    assert before.samefile(database)
    # The second name goes at the next start.
    assert _row(database) == row
    assert not before.exists()


def test_an_engine_that_keeps_nothing_has_nothing_to_look_after() -> None:
    Path("memory.yaml").write_text("engine: {type: memory}\n")
    for words in (("migrate",), ("backup", "copy.db"), ("restore", "copy.db")):
        _complains(_run(*words, "--config", "memory.yaml"), "the memory engine of this configuration keeps no data")
    _complains(_run("copy", "gateway.yaml", "memory.yaml"), "keeps no data")


# copy


def test_a_copy_shows_both_sides_of_every_table(database: Path, tmp_path: Path) -> None:
    _fill(database)
    Path("new.yaml").write_text("engine: {path: new.db}\n")
    result = _run("copy", "gateway.yaml", "new.yaml")
    assert result.exit_code == 0
    *lines, last = result.stdout.splitlines()
    sums: dict[str, set[tuple[str, str]]] = {}
    for line in lines:
        found = re.fullmatch(r"(\w+) +(old|new) +(\d+) rows  sha256 ([0-9a-f]{64})", line)
        assert found is not None, line
        sums.setdefault(found[1], set()).add((found[3], found[4]))
    assert len(lines) == 2 * len(sums)
    assert {name: len(both) for name, both in sums.items()} == dict.fromkeys(sums, 1)
    assert next(iter(sums["events"]))[0] == "2"
    assert last == "ok: copied everything from gateway.yaml to new.yaml"
    # Of what follows, clients of the old database know nothing.
    assert _row(tmp_path / "new.db") == replace(_row(database), shared_sequence=2)
    _complains(_run("copy", "gateway.yaml", "new.yaml"), "is not empty (table sessions)")


def test_a_copy_needs_a_source_of_this_release(database: Path) -> None:
    Path("new.yaml").write_text(json.dumps({"engine": {"path": "new.db"}}))
    _complains(_run("copy", "gateway.yaml", "new.yaml"), "there is no database")
    _make_old(database)
    _complains(_run("copy", "gateway.yaml", "new.yaml"), "check out commit f18d4caa")


# for programs


def test_every_command_about_the_database_speaks_json(database: Path) -> None:
    _fill(database)
    Path("new.yaml").write_text("engine: {path: new.db}\n")
    said: dict[str, list[dict[str, object]]] = {}
    for words in (
        ("migrate", "--check"), ("backup", "copy.db"), ("restore", "copy.db"), ("restore", "--bump-fences"),
        ("copy", "gateway.yaml", "new.yaml"),
    ):  # fmt: skip
        result = _run(*words, "--json")
        assert (result.exit_code, result.stderr) == (0, ""), words
        assert result.stdout.isascii()
        said[words[0] + words[1]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert said["migrate--check"] == [
        {"database": str(database), "before": NOW, "after": NOW, "waits": False, "note": ""}
    ]
    (backup,) = said["backupcopy.db"]
    assert (backup["file"], backup["sessions"], backup["events"]) == ("copy.db", 1, 2)
    (restored,) = said["restorecopy.db"]
    assert restored["before_restore"] == f"{database}.before-restore"
    assert said["restore--bump-fences"] == [{"database": str(database), "sessions": 1}]
    tables = said["copygateway.yaml"]
    assert all(one["old"] == one["new"] for one in tables)
    assert {"table": "sessions"}.items() <= tables[0].items()
