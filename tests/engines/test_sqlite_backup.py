"""A SQLite database as a file: migrated, backed up while it is written, restored under new fences."""

import asyncio
import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest

from gateway.errors import EngineLocked, EngineUnusable, Fenced, OperatorError, SchemaTooNew
from gateway.events import SessionId
from gateway.store.roster import RESTORED
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.backup import back_up, bump_fences, migrate, restore, schema_of
from gateway.store.sqlite.schema import MIGRATIONS
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    close_session,
    open_session,
    row_of,
    said,
    texts,
)

HERE = Path(__file__).parent
HOUR = timedelta(hours=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "copy.db"


async def fill(path: Path, words: str = "kept") -> int:
    """Write two sessions, the open one owned; answers its fence."""
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        await close_session(engine, BOB)
        await engine.beat("before", url="http://before", ttl=HOUR)
        row = await engine.take("before", ALICE)
        assert row is not None
        await engine.commit(Step(ALICE, (said(words),), snapshot=b"folded"))
        return row.fence


async def words_of(path: Path) -> list[str]:
    async with SqliteEngine(path, FakeClock()) as engine:
        return await texts(engine)


def an_old_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as old:
        old.executescript((HERE / "schema_1.sql").read_text(encoding="utf-8"))


# Migrating


async def test_migrating_makes_a_database_or_brings_it_up_to_date(path: Path, tmp_path: Path) -> None:
    assert schema_of(path) == 0
    assert migrate(path) == (0, len(MIGRATIONS))
    assert migrate(path) == (len(MIGRATIONS), len(MIGRATIONS))
    old = tmp_path / "old.db"
    an_old_database(old)
    assert schema_of(old) == 1
    assert migrate(old) == (1, len(MIGRATIONS))
    assert await words_of(old) == ["a word", "who?"]
    async with SqliteEngine(path, FakeClock()):
        assert schema_of(path) == len(MIGRATIONS)
        with pytest.raises(EngineLocked):
            migrate(path)


# Backing up


async def test_a_backup_made_under_load_is_of_one_moment(path: Path, target: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        ended = asyncio.Event()

        async def pairs() -> int:
            count = 0
            while not ended.is_set() or count < 50:
                # The second is only begun when the first is on the disk.
                await engine.commit(Step(ALICE, (said(str(count)),)))
                await engine.commit(Step(BOB, (said(str(count)),)))
                count += 1
            return count

        writing = asyncio.ensure_future(pairs())
        for number in range(5):
            made = await asyncio.to_thread(back_up, path, target, force=number > 0)
            assert (made.sessions, made.schema) == (2, len(MIGRATIONS))
        ended.set()
        written = await writing
        assert await texts(engine) == [str(number) for number in range(written)]
    async with SqliteEngine(target, FakeClock()) as copy:
        first, second = await texts(copy), await texts(copy, BOB)
        assert 0 <= len(first) - len(second) <= 1
        assert first == [str(number) for number in range(len(first))]
        assert (await row_of(copy)).last_sequence == 1 + len(first)
        await copy.commit(Step(ALICE, (said("goes on"),)))
    assert {file.name for file in target.parent.iterdir()} == {"copy.db", "copy.db.lock"}


def _killed_at_work(path: Path) -> list[tuple[SessionId, int]]:
    command = [sys.executable, str(HERE / "committer.py"), str(path), "forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = [process.stdout.readline().split() for _ in range(100)]
        finally:
            process.kill()
    return [(SessionId(session_id), int(sequence)) for session_id, sequence in told]


async def test_a_backup_needs_no_gateway_and_takes_what_only_the_log_has(path: Path, target: Path) -> None:
    told = await asyncio.to_thread(_killed_at_work, path)
    assert path.with_name("dragoman.db-wal").stat().st_size
    back_up(path, target, force=False)
    async with SqliteEngine(target, FakeClock()) as copy:
        for session_id, sequence in told:
            assert (await row_of(copy, session_id)).last_sequence >= sequence


def test_a_file_that_exists_is_only_replaced_when_asked_to(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    target.write_text("precious")
    with pytest.raises(OperatorError, match="--force"):
        back_up(path, target, force=False)
    assert target.read_text() == "precious"
    back_up(path, target, force=True)
    assert asyncio.run(words_of(target)) == ["kept"]


def test_a_backup_is_as_private_as_the_database(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    path.chmod(0o600)
    back_up(path, target, force=False)
    assert target.stat().st_mode & 0o777 == 0o600


def _make_large(path: Path) -> None:
    with closing(sqlite3.connect(path)) as large:
        large.execute(
            "INSERT INTO notes WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
            " SELECT 'ballast-' || i, hex(randomblob(1000)) FROM n"
        )
        large.commit()


def _end_half_way(work: str, first: Path, second: Path, partial: Path, number: signal.Signals) -> None:
    """Run something in a process of its own and send it a signal while the partial file grows."""
    code = (
        "import signal, sys; from pathlib import Path; from gateway.store.sqlite import backup\n"
        "look = backup.examine\n"
        # A copy that is whole waits for the signal, which may come late to a quick one.
        "def examine(path, **more): return signal.pause() if path.suffix == '.partial' else look(path, **more)\n"
        f"backup.examine = examine; first, second = map(Path, sys.argv[1:]); backup.{work}"
    )
    command = [sys.executable, "-c", code, str(first), str(second)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            end = monotonic() + 60
            while not (partial.exists() and partial.stat().st_size > 1_000_000):
                assert process.poll() is None, "it ended by itself"
                assert monotonic() < end
                sleep(0.001)
            process.send_signal(number)
            # Ctrl-C is no fault of the file.
            assert process.wait(20) == -number
        finally:
            process.kill()


def test_a_backup_killed_half_way_leaves_no_file_of_that_name(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    _make_large(path)
    target.write_text("the backup of yesterday")
    partial = target.with_name("copy.db.partial")
    for number in (signal.SIGINT, signal.SIGKILL):
        _end_half_way("back_up(first, second, force=True)", path, target, partial, number)
        assert target.read_text() == "the backup of yesterday"
        # Ctrl-C cleans up; a kill cannot, and the next backup takes over what it left.
        assert partial.exists() is (number == signal.SIGKILL)
    made = back_up(path, target, force=True)
    assert made.size > 60_000_000
    assert not partial.exists()


@pytest.mark.slow
def test_a_restore_killed_half_way_leaves_the_database_as_it_was(path: Path, target: Path) -> None:
    asyncio.run(fill(path, "of the backup"))
    _make_large(path)
    back_up(path, target, force=False)
    path.unlink()
    asyncio.run(fill(path, "of today"))
    _end_half_way("restore(first, second)", path, target, path.with_name("dragoman.db.partial"), signal.SIGKILL)
    assert asyncio.run(words_of(path)) == ["of today"]
    _, aside = restore(path, target)
    assert aside is not None
    assert asyncio.run(words_of(path)) == ["of the backup"]
    assert asyncio.run(words_of(aside)) == ["of today"]


def test_two_backups_to_one_file_do_not_mix(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    with target.with_name("copy.db.partial").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OperatorError, match=r"another process writes .*copy\.db\.partial"):
            back_up(path, target, force=False)
    assert not target.exists()


def test_what_is_no_database_of_ours_is_not_backed_up(path: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="nothing to back up"):
        back_up(path, target, force=False)
    path.write_text("no database at all" * 1_000)
    with pytest.raises(EngineUnusable, match="not a database"):
        back_up(path, target, force=False)
    asyncio.run(fill(tmp_path / "other.db"))
    with pytest.raises(EngineUnusable, match="folder"):
        back_up(tmp_path / "other.db", tmp_path / "no" / "copy.db", force=False)
    assert [*target.parent.iterdir()] == []


# Restoring


async def test_a_restored_database_is_the_backup_under_fences_that_nobody_has(path: Path, target: Path) -> None:
    fence = await fill(path)
    back_up(path, target, force=False)
    async with SqliteEngine(path, FakeClock()) as engine:
        await engine.beat("later", url="http://later", ttl=HOUR)
        late = await engine.take("later", ALICE)
        assert late is not None
        await engine.commit(Step(ALICE, (said("lost"),)))
    made, aside = restore(path, target)
    assert (made.sessions, made.events) == (2, 3)
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]
        row = await row_of(engine)
        assert (row.owner, row.fence, row.snapshot) == (None, fence + RESTORED, b"folded")
        assert (await row_of(engine, BOB)).fence == RESTORED
        await engine.beat("after", url="http://after", ttl=HOUR)
        taken = await engine.take("after", ALICE)
        assert taken is not None
        for old in (fence, late.fence):
            with pytest.raises(Fenced):
                await engine.commit(Step(ALICE, (said("of the past"),), fence=old))
        await engine.commit(Step(ALICE, (said("of today"),), fence=taken.fence))
    assert aside is not None
    assert aside.name == "dragoman.db.before-restore"
    assert await words_of(aside) == ["kept", "lost"]
    assert await words_of(target) == ["kept"]


async def test_each_restore_keeps_what_it_replaces_with_its_log(path: Path, target: Path) -> None:
    await fill(path, "first")
    back_up(path, target, force=False)
    # As after kill -9: the last words are in the log alone.
    async with SqliteEngine(path, FakeClock()) as engine:
        await engine.commit(Step(ALICE, (said("in the log"),)))
        killed = [path.with_name(path.name + side) for side in ("", "-wal")]
        for file in killed:
            shutil.copy(file, file.with_name("k-" + file.name))
    for file in killed:
        file.with_name("k-" + file.name).replace(file)
    _, first = restore(path, target)
    _, second = restore(path, target)
    assert first is not None
    assert second is not None
    assert second.name == "dragoman.db.before-restore-2"
    assert await words_of(first) == ["first", "in the log"]
    assert await words_of(second) == ["first"]
    assert await words_of(path) == ["first"]


def test_a_backup_is_restored_where_no_database_is_yet(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target, force=False)
    path.unlink()
    made, aside = restore(path, target)
    assert (made.sessions, aside) == (2, None)
    assert asyncio.run(words_of(path)) == ["kept"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_restores_belongs_to_the_user_of_the_gateway(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target, force=False)
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    restore(path, target)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 4321, 0o640)
    path.unlink()
    os.chown(path.parent, 1235, 4322)
    restore(path, target)
    assert (path.stat().st_uid, path.stat().st_gid) == (1235, 4322)


async def test_a_backup_of_an_earlier_release_is_brought_up_to_date(path: Path, target: Path) -> None:
    an_old_database(target)
    made, _ = restore(path, target)
    assert made.schema == len(MIGRATIONS)
    assert schema_of(target) == 1
    assert await words_of(path) == ["a word", "who?"]


def _nothing(path: Path) -> None:
    assert not path.exists()


def _text(path: Path) -> None:
    path.write_text("no database" * 1_000)


def _another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE sessions (x)")


def _newer(path: Path) -> None:
    migrate(path)
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")


def _damaged(path: Path) -> None:
    asyncio.run(fill(path))
    with closing(sqlite3.connect(path)) as other:
        root = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events_once'").fetchone()[0]
        size = other.execute("PRAGMA page_size").fetchone()[0]
        other.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xaa" * size
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (_text, EngineUnusable, "not a database"),
        (_another_program, EngineUnusable, "not a database of Dragoman"),
        (_newer, SchemaTooNew, "use the newer release"),
        (_damaged, EngineUnusable, "damaged"),
        (_nothing, EngineUnusable, "there is no backup"),
    ],
    ids=["text", "tables", "newer", "damaged", "missing"],
)
def test_what_cannot_be_restored_leaves_the_database_as_it_is(
    path: Path, target: Path, make: Callable[[Path], None], error: type[Exception], text: str
) -> None:
    asyncio.run(fill(path))
    before = path.read_bytes()
    make(target)
    with pytest.raises(error, match=text):
        restore(path, target)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir() if file.is_file()} == {"dragoman.db", "dragoman.db.lock"}


async def test_nothing_is_restored_while_a_gateway_runs(path: Path, target: Path) -> None:
    await fill(path)
    back_up(path, target, force=False)
    async with SqliteEngine(path, FakeClock()) as engine:
        for attempt in (lambda: restore(path, target), lambda: bump_fences(path)):
            with pytest.raises(EngineLocked, match="stop that gateway"):
                attempt()
        await engine.commit(Step(ALICE, (said("untouched"),)))
    with pytest.raises(OperatorError, match="the database itself"):
        restore(path, path)
    assert await words_of(path) == ["kept", "untouched"]


async def test_fences_of_a_database_restored_by_other_means_are_made_new(path: Path) -> None:
    fence = await fill(path)
    assert bump_fences(path) == 2
    async with SqliteEngine(path, FakeClock()) as engine:
        row = await row_of(engine)
        assert (row.owner, row.fence) == (None, fence + RESTORED)
        with pytest.raises(Fenced):
            await engine.commit(Step(ALICE, (said("of the past"),), fence=fence))
    with pytest.raises(EngineUnusable, match="no database"):
        bump_fences(path.with_name("missing.db"))
