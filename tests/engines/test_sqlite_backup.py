"""A SQLite database as a file: migrated, backed up while it is written, restored under new fences."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

import pytest

from gateway.errors import EngineLocked, EngineUnusable, Fenced, OperatorError, SchemaTooNew
from gateway.events import SessionId
from gateway.store.roster import RESTORED
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.backup import back_up, bump_fences, migrate, restore, schema_of
from gateway.store.sqlite.lock import locate
from gateway.store.sqlite.schema import APPLICATION, FIRST, NEWEST
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
        old.execute("CREATE TABLE sessions (session_id TEXT PRIMARY KEY)")
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute(f"PRAGMA user_version = {FIRST - 1}")


# Migrating


async def test_migrating_creates_a_database_once(path: Path) -> None:
    assert schema_of(path) == 0
    assert migrate(path) == (0, NEWEST)
    assert migrate(path) == (NEWEST, NEWEST)
    async with SqliteEngine(path, FakeClock()):
        assert schema_of(path) == NEWEST
        with pytest.raises(EngineLocked):
            migrate(path)


# Backing up


@pytest.mark.slow
async def test_a_backup_made_under_load_is_of_one_moment(path: Path, target: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        await asyncio.to_thread(_make_large, path)
        ended = asyncio.Event()

        async def write_pairs() -> int:
            count = 0
            while not ended.is_set() or count < 50:
                # The second is only begun when the first is on the disk.
                await engine.commit(Step(ALICE, (said(str(count)),)))
                await engine.commit(Step(BOB, (said(str(count)),)))
                count += 1
            return count

        writing = asyncio.ensure_future(write_pairs())
        # A copy in steps would begin again at each of these commits.
        async with asyncio.timeout(60):
            made = await asyncio.to_thread(back_up, path, target)
        assert (made.sessions, made.schema, made.size > 100_000_000) == (2, NEWEST, True)
        with pytest.raises(OperatorError, match="exists, and a backup never replaces a file"):
            await asyncio.to_thread(back_up, path, target)
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
    back_up(path, target)
    async with SqliteEngine(target, FakeClock()) as copy:
        for session_id, sequence in told:
            assert (await row_of(copy, session_id)).last_sequence >= sequence


def _make_large(path: Path, *, rows: int = 60_000) -> None:
    """Add so many rows of two kilobytes."""
    with closing(sqlite3.connect(path)) as large:
        large.execute(
            "INSERT INTO notes WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " SELECT 'ballast-' || i, hex(randomblob(1000)) FROM n",
            (rows,),
        )
        large.commit()


def test_a_backup_never_replaces_a_file(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    target.write_text("precious")
    for name in ("file", "dangling"):
        target.with_name(name).symlink_to(target if name == "file" else "nowhere")
    for name in ("copy.db", "file", "dangling"):
        with pytest.raises(OperatorError, match="exists, and a backup never replaces a file"):
            back_up(path, target.with_name(name))
    # The log of a database that is gone would be read as that of the backup.
    target.with_name("other.db-wal").touch()
    with pytest.raises(OperatorError, match=r"other\.db-wal' exists"):
        back_up(path, target.with_name("other.db"))
    assert target.read_text() == "precious"
    assert {one.name for one in target.parent.iterdir()} == {"copy.db", "file", "dangling", "other.db-wal"}


def test_a_file_that_appears_while_a_copy_grows_is_not_replaced(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    _make_large(path)
    refused: list[str] = []

    def run() -> None:
        try:
            back_up(path, target)
        except OperatorError as exc:
            refused.append(str(exc))

    thread = threading.Thread(target=run)
    thread.start()
    _wait_for_partial(target)
    target.write_text("precious")
    thread.join(60)
    assert len(refused) == 1
    assert "exists by now" in refused[0]
    assert [one.name for one in target.parent.iterdir()] == ["copy.db"]
    assert target.read_text() == "precious"


def test_a_backup_is_private(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target)
    assert target.stat().st_mode & 0o777 == 0o600


def _wait_for_partial(target: Path, process: "subprocess.Popen[bytes] | None" = None) -> None:
    end = monotonic() + 60
    while not any(one.stat().st_size > 1_000_000 for one in target.parent.glob("*.partial")):
        assert process is None or process.poll() is None, "it ended by itself"
        assert monotonic() < end
        # The file has no event for its growth.
        sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_backup_killed_half_way_leaves_no_file_of_that_name(path: Path, target: Path, number: signal.Signals) -> None:
    asyncio.run(fill(path))
    _make_large(path)
    code = (
        "import sys; from pathlib import Path; from gateway.store.sqlite.backup import back_up\n"
        "back_up(*map(Path, sys.argv[1:]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(target)], stderr=subprocess.PIPE) as process:
        try:
            _wait_for_partial(target, process)
            process.send_signal(number)
            assert process.wait(20) == -number
        finally:
            process.kill()
    assert not target.exists()
    # Ctrl-C cleans up; a kill cannot.
    assert bool([*target.parent.iterdir()]) is (number == signal.SIGKILL)
    assert back_up(path, target).size > 60_000_000


def test_only_a_database_of_ours_is_backed_up(path: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="nothing to back up"):
        back_up(path, target)
    path.write_text("no database at all" * 1_000)
    with pytest.raises(EngineUnusable, match="not a database"):
        back_up(path, target)
    asyncio.run(fill(tmp_path / "other.db"))
    with pytest.raises(EngineUnusable, match="folder"):
        back_up(tmp_path / "other.db", tmp_path / "no" / "copy.db")
    assert [*target.parent.iterdir()] == []


async def test_no_backup_takes_the_name_of_a_file_of_the_database(path: Path, tmp_path: Path) -> None:
    await fill(path)
    sides = [path.with_name(path.name + side) for side in ("-wal", "-shm", "-journal", ".lock")]
    for target in (path, *sides):
        with pytest.raises(OperatorError, match="is a file of the database: name another one"):
            back_up(path, target)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteEngine(path, FakeClock()) as engine:
        with pytest.raises(OperatorError, match="exists"):
            back_up(path, link)
        await engine.commit(Step(ALICE, (said("goes on"),)))
        assert (await engine.health()).writable
    assert await words_of(path) == ["kept", "goes on"]


def test_a_target_that_is_a_folder_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(fill(path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for name in (".", "..", "folder", ""):
        with pytest.raises(OperatorError, match=r"is a folder: name a file in it"):
            back_up(path, Path(name))
    with pytest.raises(OperatorError, match=r"pipe' exists"):
        back_up(path, Path("pipe"))
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
        "try: back_up(*map(Path, sys.argv[1:]))\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    with closing(sqlite3.connect(path)) as source:
        # So that only the copy is written.
        source.execute("PRAGMA journal_mode = DELETE")
    command = ["strace", "-f", "-qq", "-o", os.devnull]
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
                lambda: back_up(path, path.parent / "open" / "copy.db"), lambda: schema_of(path)
            ):  # fmt: skip
                with pytest.raises(EngineUnusable, match=rights):
                    attempt()


# Restoring


async def test_a_restored_database_is_the_backup_under_fences_that_nobody_has(path: Path, target: Path) -> None:
    fence = await fill(path)
    back_up(path, target)
    async with SqliteEngine(path, FakeClock()) as engine:
        await engine.beat("later", url="http://later", ttl=HOUR)
        late = await engine.take("later", ALICE)
        assert late is not None
        assert engine.generation.backup_at is None
        await engine.commit(Step(ALICE, (said("lost"),)))
    made, aside = restore(path, target)
    assert (made.sessions, made.events) == (2, 3)
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]
        assert engine.generation.backup_at == FakeClock().now()
        row = await row_of(engine)
        assert (row.owner, row.fence) == (None, fence + RESTORED)
        assert await engine.snapshot(ALICE) == b"folded"
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


def test_a_backup_is_restored_where_no_database_is_yet(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target)
    path.unlink()
    made, aside = restore(path, target)
    assert (made.sessions, aside) == (2, None)
    assert asyncio.run(words_of(path)) == ["kept"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_restores_belongs_to_the_user_of_the_gateway(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target)
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    restore(path, target)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 4321, 0o640)
    path.unlink()
    path.with_name("dragoman.db.before-restore").unlink()
    os.chown(path.parent, 1235, 4322)
    restore(path, target)
    assert (path.stat().st_uid, path.stat().st_gid) == (1235, 4322)


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
        (an_old_database, EngineUnusable, "check out commit f18d4caa"),
        (_damaged, EngineUnusable, "damaged"),
        (_nothing, EngineUnusable, "there is no backup"),
    ],
    ids=["text", "tables", "newer", "old", "damaged", "missing"],
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
    back_up(path, target)
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


def _make_killed(path: Path, target: Path) -> None:
    """Make a backup, and a database of a killed gateway whose last words are only in the -wal."""
    asyncio.run(fill(path, "first"))
    back_up(path, target)
    files = (path, path.with_name("dragoman.db-wal"))

    async def go_on() -> None:
        async with SqliteEngine(path, FakeClock()) as engine:
            await engine.commit(Step(ALICE, (said("in the log"),)))
            for file in files:
                shutil.copy(file, file.with_name("k-" + file.name))

    asyncio.run(go_on())
    for file in files:
        file.with_name("k-" + file.name).replace(file)


_KILLER = """
import os, shutil, signal, sys
from itertools import count
from pathlib import Path
from gateway.store.sqlite.backup import restore

WATCHED = {
    "open", "sqlite3.connect", "sqlite3.connect/handle", "os.chmod", "os.chown", "os.link", "os.rename", "os.remove",
    "tempfile.mkstemp", "fcntl.flock",
}

def restore_and_die(folder, step):
    def count_down(event, arguments):
        nonlocal step
        if event in WATCHED:
            step -= 1
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count_down)
    restore(folder / "dragoman.db", folder / "backup.db")

killed = Path(sys.argv[1])
for step in count(1):
    folder = killed.with_name(str(step))
    shutil.copytree(killed, folder)
    child = os.fork()
    if not child:
        restore_and_die(folder, step)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
"""
"""Restores copies of a folder in processes that kill themselves one call later each: opening or changing a file."""


def test_a_restore_killed_at_any_step_leaves_the_old_or_the_new_database(path: Path) -> None:
    killed = path.with_name("killed")
    killed.mkdir()
    _make_killed(killed / "dragoman.db", killed / "backup.db")
    subprocess.run([sys.executable, "-c", _KILLER, str(killed)], check=True, timeout=100)
    outcomes: list[bool] = []
    for step in count(1):
        database = path.parent / str(step) / "dragoman.db"
        if not database.parent.exists():
            break
        before = database.with_name("dragoman.db.before-restore")
        replaced = before.exists() and not before.samefile(database)
        outcomes.append(replaced)
        # The gateway starts with a complete database, without any help.
        assert asyncio.run(words_of(database)) == (["first"] if replaced else ["first", "in the log"])
        if replaced:
            assert asyncio.run(words_of(before)) == ["first", "in the log"]
        else:
            assert restore(database, database.with_name("backup.db"))[1] == before
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes)
    assert outcomes[-2:] == [True, True]
    assert not outcomes[0]


@pytest.mark.parametrize("size", [300_000, 1_000_000])
def test_a_restore_on_a_full_disk_leaves_the_database_as_it_was(path: Path, target: Path, size: int) -> None:
    asyncio.run(fill(path, "of the backup"))
    _make_large(path, rows=1_000)
    back_up(path, target)
    path.unlink()
    asyncio.run(fill(path, "of today"))
    code = (
        "import resource, signal, sys; from pathlib import Path; from gateway.store.sqlite.backup import restore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)\n"
        "try: restore(*map(Path, sys.argv[1:3]))\n"
        "except Exception as exc: print(type(exc).__name__)"
    )
    command = [sys.executable, "-c", code, str(path), str(target), str(size)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "EngineUnusable\n"
    assert {file.name for file in path.parent.iterdir() if file.is_file()} == {"dragoman.db", "dragoman.db.lock"}
    assert asyncio.run(words_of(path)) == ["of today"]


def test_a_damaged_database_is_kept_with_its_wal(path: Path, target: Path) -> None:
    _make_killed(path, target)
    path.write_bytes(b"damaged" * 1_000)
    wal = path.with_name("dragoman.db-wal").read_bytes()
    _, before = restore(path, target)
    assert before is not None
    assert before.read_bytes() == b"damaged" * 1_000
    assert before.with_name(before.name + "-wal").read_bytes() == wal
    assert asyncio.run(words_of(path)) == ["first"]


def test_the_wal_of_a_removed_database_is_not_read_as_that_of_the_backup(path: Path, target: Path) -> None:
    _make_killed(path, target)
    path.unlink()
    _, before = restore(path, target)
    assert before is None
    assert path.with_name("dragoman.db.before-restore-wal").exists()
    assert asyncio.run(words_of(path)) == ["first"]


def test_the_database_of_an_earlier_restore_is_not_replaced(path: Path, target: Path) -> None:
    _make_killed(path, target)
    _, before = restore(path, target)
    assert before is not None
    with pytest.raises(OperatorError, match=r"before-restore' is from an earlier restore: move it away first"):
        restore(path, target)
    before.rename(before.with_name("kept.db"))
    assert restore(path, target)[1] == before
    assert asyncio.run(words_of(before.with_name("kept.db"))) == ["first", "in the log"]


def test_a_database_with_two_names_is_not_restored(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target)
    path.with_name("other.db").hardlink_to(path)
    with pytest.raises(EngineUnusable, match="has 2 hard links"):
        restore(path, target)
    assert path.samefile(path.with_name("other.db"))


def test_a_link_to_the_database_stays_a_link(path: Path, target: Path) -> None:
    asyncio.run(fill(path))
    back_up(path, target)
    link = path.with_name("link.db")
    link.symlink_to(path)
    restore(locate(link), target)
    assert link.is_symlink()
    assert asyncio.run(words_of(link)) == ["kept"]
