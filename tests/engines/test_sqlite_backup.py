"""A SQLite database as a file: migrated, backed up while it is written, restored under new fences."""

import asyncio
import fcntl
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

import pytest

from gateway.errors import EngineLocked, EngineUnusable, Fenced, OperatorError, SchemaTooNew
from gateway.events import SessionId
from gateway.store.roster import RESTORED
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.backup import back_up, bump_fences, migrate, restore, schema_of
from gateway.store.sqlite.schema import NEWEST
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
    assert migrate(path) == (0, NEWEST)
    assert migrate(path) == (NEWEST, NEWEST)
    old = tmp_path / "old.db"
    an_old_database(old)
    assert schema_of(old) == 1
    assert migrate(old) == (1, NEWEST)
    assert await words_of(old) == ["a word", "who?"]
    async with SqliteEngine(path, FakeClock()):
        assert schema_of(path) == NEWEST
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
            assert (made.sessions, made.schema) == (2, NEWEST)
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


async def test_no_backup_takes_the_place_of_the_database_that_it_is_of(path: Path, tmp_path: Path) -> None:
    await fill(path)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteEngine(path, FakeClock()) as engine:
        for target in (path, link, *(path.with_name(path.name + side) for side in ("-wal", "-shm", ".lock"))):
            for force in (False, True):
                with pytest.raises(OperatorError, match=r"the database.*: name another") as caught:
                    back_up(path, target, force=force)
                assert "--force" not in str(caught.value)
        await engine.commit(Step(ALICE, (said("goes on"),)))
        assert (await engine.health()).writable
    assert await words_of(path) == ["kept", "goes on"]


async def test_no_backup_takes_the_place_of_another_gateways_database(path: Path, target: Path, tmp_path: Path) -> None:
    await fill(path, "of this one")
    await fill(target, "of another")
    link = tmp_path / "link.db"
    link.symlink_to(target)
    async with SqliteEngine(target, FakeClock()) as engine:
        for name in (target, link):
            refusal = rf"process {os.getpid()} uses the database '{target}'.*: stop that gateway, or name another file"
            with pytest.raises(EngineLocked, match=refusal):
                back_up(path, name, force=True)
        # Also where only the second lock is left.
        target.with_name("copy.db.lock").unlink()
        with pytest.raises(EngineLocked):
            back_up(path, target, force=True)
        await engine.commit(Step(ALICE, (said("goes on"),)))
    assert await words_of(target) == ["of another", "goes on"]
    back_up(path, target, force=True)
    assert await words_of(target) == ["of this one"]


async def test_a_gateway_that_starts_while_a_copy_grows_keeps_its_database(path: Path, target: Path) -> None:
    await fill(path, "of this one")
    await fill(target, "of another")
    engine = SqliteEngine(target, FakeClock())
    begun: list[object] = []

    def tell(what: str, done: int, total: int) -> None:
        del done, total
        if what == "checking" and not begun:
            begun.append(asyncio.run_coroutine_threadsafe(engine.__aenter__(), loop).result(20))

    loop = asyncio.get_running_loop()
    with pytest.raises(EngineLocked):
        await asyncio.to_thread(back_up, path, target, force=True, tell=tell)
    assert begun
    assert await texts(engine) == ["of another"]
    await engine.__aexit__()


def test_the_log_of_a_killed_gateway_is_not_read_as_that_of_a_backup(path: Path, target: Path) -> None:
    asyncio.run(fill(path, "of the source"))
    _killed_at_work(target)
    assert target.with_name("copy.db-wal").stat().st_size
    made = back_up(path, target, force=True)
    assert (made.sessions, made.events) == (2, 3)
    assert {file.name for file in target.parent.iterdir()} == {"copy.db", "copy.db.lock"}
    assert asyncio.run(words_of(target)) == ["of the source"]


def test_a_log_without_its_database_is_not_read_as_that_of_a_backup(path: Path, target: Path) -> None:
    asyncio.run(fill(path, "of the source"))
    _killed_at_work(target)
    target.unlink()
    back_up(path, target, force=False)
    assert asyncio.run(words_of(target)) == ["of the source"]


def test_a_backup_that_replaces_one_leaves_nothing_else_and_no_other_name_of_it_changes(
    path: Path, target: Path
) -> None:
    asyncio.run(fill(path))
    back_up(path, target, force=False)
    yesterday = target.with_name("yesterday.db")
    yesterday.hardlink_to(target)
    before = yesterday.read_bytes()
    back_up(path, target, force=True)
    assert {file.name for file in target.parent.iterdir()} == {"copy.db", "yesterday.db"}
    assert yesterday.read_bytes() == before
    assert not target.samefile(yesterday)


def test_what_no_backup_can_be_put_at_is_said_in_words(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(fill(path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for force in (False, True):
        for name in (".", "..", "folder", ""):
            with pytest.raises(OperatorError, match=r"is a folder: name a file in it"):
                back_up(path, Path(name), force=force)
        with pytest.raises(OperatorError, match=r"'pipe' is no file that can be replaced"):
            back_up(path, Path("pipe"), force=force)
    assert sorted(tmp_path.iterdir()) == before


def cannot(reason: str) -> NoReturn:
    """Leave the test out, or fail where nothing may be left out."""
    if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_a_full_disk_is_that_of_the_copy(path: Path, target: Path) -> None:
    if shutil.which("strace") is None:
        cannot("the disk is filled by strace: apt-get install strace")
    asyncio.run(fill(path))
    code = (
        "import sys; from pathlib import Path; from gateway.store.sqlite.backup import back_up\n"
        "try: back_up(*map(Path, sys.argv[1:]), force=False)\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-P", f"{target}.partial"]
    command += ["-e", "trace=pwrite64,fsync", "-e", "inject=pwrite64:error=ENOSPC"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(path), str(target)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr and done.returncode:
        cannot(f"this machine lets us trace nothing: {done.stderr.strip()}")
    full = "database or disk is full"
    assert done.stdout == f"EngineUnusable cannot write {str(target)!r} ({full}): make room on its disk\n"
    assert [*target.parent.iterdir()] == []


@contextmanager
def _as_another_user() -> Generator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_database_that_this_user_may_not_read_is_a_matter_of_rights() -> None:
    # What pytest makes, no other user may look into.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dragoman.db"
        asyncio.run(fill(path))
        path.chmod(0o600)
        path.parent.chmod(0o755)
        (path.parent / "open").mkdir()
        (path.parent / "open").chmod(0o777)
        rights = r"cannot open '.*dragoman\.db' .*: may this user read and write it.*Run this as the gateway's user"
        with _as_another_user():
            for attempt in (
                lambda: back_up(path, path.parent / "open" / "copy.db", force=False), lambda: schema_of(path)
            ):  # fmt: skip
                with pytest.raises(EngineUnusable, match=rights):
                    attempt()


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
    assert made.schema == NEWEST
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
        newer.execute(f"PRAGMA user_version = {NEWEST + 1}")


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
        (_newer, SchemaTooNew, "run the newer release"),
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


# A restore that is cut short


def _as_killed(path: Path, target: Path) -> None:
    """Make a backup, and a database with words in its log that the backup lacks."""
    asyncio.run(fill(path, "first"))
    back_up(path, target, force=False)

    async def go_on() -> None:
        async with SqliteEngine(path, FakeClock()) as engine:
            await engine.commit(Step(ALICE, (said("in the log"),)))
            for file in (path, path.with_name("dragoman.db-wal")):
                shutil.copy(file, file.with_name("k-" + file.name))

    asyncio.run(go_on())
    for file in (path, path.with_name("dragoman.db-wal")):
        file.with_name("k-" + file.name).replace(file)


def _names(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir() if file.is_file()} - {"dragoman.db-shm"}


MOVES = ("rename", "rename", "replace")
"""What gives a database and its log their other names, and the backup the database's."""


@pytest.mark.parametrize("fault", [KeyboardInterrupt, lambda: OSError(5, "it is broken")], ids=["ctrl-c", "fault"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(len(MOVES)))
def test_a_restore_that_is_interrupted_puts_the_database_back_and_says_so(
    path: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    done: bool,
    fault: Callable[[], BaseException],
) -> None:
    _as_killed(path, target)
    before = _names(path)
    left = iter(range(len(MOVES)))

    def interrupted(move: Callable[[object, object], None]) -> Callable[[object, object], None]:
        def run(old: object, new: object) -> None:
            cut = next(left, None) == number
            if done or not cut:
                move(old, new)
            if cut:
                raise fault()

        return run

    with monkeypatch.context() as patched:
        for name in set(MOVES):
            patched.setattr(os, name, interrupted(getattr(os, name)))
        with pytest.raises((KeyboardInterrupt, OSError)) as caught:
            restore(path, target)
    assert _names(path) == before
    assert asyncio.run(words_of(path)) == ["first", "in the log"]
    assert caught.value.__notes__ == [f"{str(path)!r} is as it was"]
    _, aside = restore(path, target)
    assert aside is not None
    assert aside.name == "dragoman.db.before-restore"


def test_a_database_that_cannot_be_put_back_is_told_with_the_way_to_do_it(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _as_killed(path, target)
    move = os.rename
    count = iter(range(9))

    def broken(old: object, new: object) -> None:
        if next(count):
            raise OSError(5, "the disk is broken")
        move(str(old), str(new))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", broken)
        with pytest.raises(EngineUnusable, match=r"cannot be put back .*the disk is broken.*`mv ") as caught:
            restore(path, target)
    _do_as_told(str(caught.value))
    assert asyncio.run(words_of(path)) == ["first", "in the log"]


def _do_as_told(text: str) -> None:
    told = re.search(r"`(mv [^`]+)`", text)
    assert told is not None
    subprocess.run(["sh", "-c", told[1]], check=True)


def _kill_behind(number: int, path: Path, target: Path) -> None:
    """Restore in a process of its own that is killed once it has renamed that many files."""
    code = (
        "import os, signal, sys; from pathlib import Path; from gateway.store.sqlite.backup import restore\n"
        "left, move = iter(range(int(sys.argv[3]), -1, -1)), os.rename\n"
        "def rename(old, new): move(old, new); next(left) > 1 or os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.rename = rename; restore(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), str(target), str(number)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()


@pytest.mark.parametrize("number", [1, 2])
async def test_no_empty_database_is_begun_where_a_restore_was_killed(path: Path, target: Path, number: int) -> None:
    await asyncio.to_thread(_as_killed, path, target)
    await asyncio.to_thread(_kill_behind, number, path, target)
    told = r"no database at .*dragoman\.db'.* restore again .*before-restore.*empty database"
    with pytest.raises(EngineUnusable, match=told) as caught:
        await SqliteEngine(path, FakeClock()).__aenter__()
    for attempt in (lambda: migrate(path), lambda: bump_fences(path)):
        with pytest.raises(EngineUnusable, match=told):
            attempt()
    _nothing(path)
    _do_as_told(str(caught.value))
    assert await words_of(path) == ["first", "in the log"]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_restore_that_was_killed_is_made_again(path: Path, target: Path, number: int) -> None:
    await asyncio.to_thread(_as_killed, path, target)
    await asyncio.to_thread(_kill_behind, number, path, target)
    _, aside = restore(path, target)
    assert aside is None
    assert await words_of(path) == ["first"]
    # Its log has gone with it.
    assert await words_of(path.with_name("dragoman.db.before-restore")) == ["first", "in the log"]


def test_an_empty_database_is_begun_where_what_was_set_aside_is_moved_away(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target, force=False)
    _, aside = restore(path, target)
    assert aside is not None
    path.unlink()
    aside.rename(path.with_name("old.db"))
    assert migrate(path) == (0, NEWEST)


def test_the_newest_database_that_was_set_aside_is_the_one_to_put_back(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target, force=False)
    for number in (9, 12):
        path.rename(path.with_name(f"dragoman.db.before-restore-{number}"))
        shutil.copy(target, path)
    _, aside = restore(path, target)
    assert aside is not None
    assert aside.name == "dragoman.db.before-restore-13"
    path.unlink()
    with pytest.raises(EngineUnusable, match=r"`mv \S+\.before-restore-13 \S+`"):
        migrate(path)


def test_a_backup_is_on_the_disk_before_the_database_loses_its_name(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _as_killed(path, target)
    partial = path.with_name("dragoman.db.partial")
    seen: list[str] = []
    sync, move = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        if partial.exists() and os.path.samestat(os.fstat(descriptor), partial.stat()):
            seen.append("synced")
        sync(descriptor)

    def note_move(old: Path, new: Path) -> None:
        seen.append(new.name)
        move(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", note_sync)
        patched.setattr(os, "rename", note_move)
        restore(path, target)
    assert seen == ["synced", "dragoman.db.before-restore", "dragoman.db.before-restore-wal"]


def test_what_a_copy_has_left_half_done_is_no_backup(path: Path) -> None:
    asyncio.run(fill(path))
    partial = path.with_name("dragoman.db.partial")
    partial.write_text("half of it")
    with pytest.raises(OperatorError, match="interrupted"):
        restore(path, partial)
    assert partial.read_text() == "half of it"
