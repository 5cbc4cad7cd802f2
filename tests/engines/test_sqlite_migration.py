"""A database of release 0.2.0 becomes one of this release, with the steps that a killed gateway left in its log."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import EngineLocked, EngineUnusable
from gateway.events import CallId
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.backup import migrate, schema_of
from gateway.store.sqlite.lock import FileLock
from gateway.store.sqlite.migrate_0_2 import is_old
from gateway.store.sqlite.schema import APPLICATION, FIRST, MIGRATIONS, NEWEST
from gateway.store.step import RUNTIME
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, row_of, texts
from tests.scenarios.killed import digest, load

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIES = "destination:log"


@pytest.mark.parametrize("files", [("unsettled_sqlite.sql",), ("unsettled_sqlite.sql", "packed_together.sql")])
async def test_steps_in_the_log_go_into_the_tables(tmp_path: Path, files: tuple[str, ...]) -> None:
    path = tmp_path / "dragoman.db"
    with closing(sqlite3.connect(path)) as file:
        for name in files:
            file.executescript((HERE / name).read_text(encoding="utf-8"))
        assert file.execute("SELECT count(*) FROM calls").fetchone() == (0,)
    async with SqliteEngine(path, FakeClock()) as engine:
        assert (await engine.health()).extra["schema"] == str(NEWEST)
        call = await engine.call(CallId("call-1"))
        assert call is not None
        assert (call.session_id, call.state, call.request_sequence, call.outcome_sequence) == (ALICE, "succeeded", 2, 3)
        assert {send.target: send.state for send in await engine.sends_of(ALICE, 3)} == {
            RUNTIME: "delivered",
            COPIES: "pending",
        }
        alice, bob = await row_of(engine), await row_of(engine, BOB)
        assert (alice.last_sequence, alice.cursor) == (3, "7")
        assert (bob.last_sequence, bob.state, bob.snapshot) == (3, "running", b"folded")
        assert [one.sequence for one in await engine.read(ALICE)] == [1, 2, 3]
        assert await texts(engine, BOB) == ["one", "two"]


def test_all_that_release_0_2_0_reads_is_in_the_new_tables(tmp_path: Path) -> None:
    path, expected = load(tmp_path)
    assert expected["steps"] > 0
    assert migrate(path) == (6, NEWEST)
    assert digest(path, migrated=True) == expected["tables"]
    with closing(sqlite3.connect(path)) as file:
        found = {event_id for (event_id,) in file.execute("SELECT event_id FROM events")}
        assert found.issuperset(expected["acknowledged"])
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert stat.S_IMODE(path.with_name("dragoman.db.before-0.3").stat().st_mode) == stat.S_IMODE(path.stat().st_mode)


def test_the_first_tables_of_this_release_get_all_later_migrations(tmp_path: Path) -> None:
    made, grown = tmp_path / "made.db", tmp_path / "grown.db"
    with closing(sqlite3.connect(grown)) as file:
        for statement in (*MIGRATIONS[0], f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FIRST}"):
            file.execute(statement)
    assert (migrate(made), migrate(grown)) == ((0, NEWEST), (FIRST, NEWEST))
    load(tmp_path)
    migrate(tmp_path / "dragoman.db")
    assert _objects(made) == _objects(grown) == _objects(tmp_path / "dragoman.db")


def _objects(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def test_the_copy_before_the_migration_is_migrated_to_the_same(tmp_path: Path) -> None:
    path, expected = load(tmp_path)
    migrate(path)
    copy = path.with_name("dragoman.db.before-0.3")
    assert schema_of(copy) == 6
    assert not is_old(path)
    copy.rename(tmp_path / "again.db")
    migrate(tmp_path / "again.db")
    assert digest(tmp_path / "again.db", migrated=True) == expected["tables"]


def test_a_migration_that_cannot_keep_a_copy_changes_nothing(tmp_path: Path) -> None:
    path, expected = load(tmp_path)
    # Nothing can be renamed over a folder.
    path.with_name("dragoman.db.before-0.3").mkdir()
    with pytest.raises(EngineUnusable, match="cannot keep a copy"):
        migrate(path)
    assert schema_of(path) == 6
    path.with_name("dragoman.db.before-0.3").rmdir()
    migrate(path)
    assert digest(path, migrated=True) == expected["tables"]


def test_a_migration_is_refused_while_a_gateway_has_the_database(tmp_path: Path) -> None:
    path, _ = load(tmp_path)
    lock = FileLock(path)
    lock.acquire()
    try:
        with pytest.raises(EngineLocked, match=f"process {os.getpid()} uses the database"):
            migrate(path)
    finally:
        lock.release()
    assert schema_of(path) == 6


@pytest.mark.faults
def test_a_migration_that_is_killed_at_any_step_leaves_the_old_database_or_the_new_one(tmp_path: Path) -> None:
    load(tmp_path)
    command = [sys.executable, "-m", "tests.engines.migration_killer", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Every statement of the rebuild, every row that was replayed, and the files of the copy.
    assert found["steps"] > 300, found
    assert found["old"] > 300, found
    assert found["new"] > 1, found
