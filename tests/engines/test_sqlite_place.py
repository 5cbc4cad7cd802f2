"""A database file, its -wal, its lock file or its folder that is removed, replaced or linked in use."""
# The files are small and local, and moving them is the subject.
# ruff: noqa: ASYNC240

import ast
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineLocked, EngineUnavailable, EngineUnusable
from gateway.events import SessionId
from gateway.store.questions.sessions import session
from gateway.store.sqlite import SqliteEngine, lock as sqlite_lock
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.readers import Readers
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, journal, open_session, row_of, said, texts
from tests.engines.sqlite_looker import look_and_close
from tests.pace import PATIENCE

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "dragoman.db"


def _rename_file(path: Path) -> Callable[[], object]:
    aside = path.with_name("aside.db")
    path.rename(aside)
    return lambda: aside.rename(path)


def _rename_folder(path: Path) -> Callable[[], object]:
    aside = path.parent.with_name("aside")
    path.parent.rename(aside)
    return lambda: aside.rename(path.parent)


def _replace_folder(path: Path) -> Callable[[], object]:
    aside, copy = path.parent.with_name("aside"), path.parent.with_name("copy")
    shutil.copytree(path.parent, copy)
    path.parent.rename(aside)
    copy.rename(path.parent)

    def put_back() -> None:
        path.parent.rename(copy)
        aside.rename(path.parent)

    return put_back


def _replace_file(path: Path) -> Callable[[], object]:
    aside = path.with_name("aside.db")
    path.rename(aside)
    shutil.copy(aside, path)
    return lambda: aside.replace(path)


def _link_instead(path: Path) -> Callable[[], object]:
    aside = path.with_name("aside.db")
    path.rename(aside)
    path.symlink_to("/dev/null")
    return lambda: aside.replace(path)


def _rename_wal(path: Path) -> Callable[[], object]:
    wal = path.with_name("dragoman.db-wal")
    wal.rename(path.with_name("aside"))
    return lambda: path.with_name("aside").replace(wal)


def _rename_lock(path: Path) -> Callable[[], object]:
    lock = path.with_name("dragoman.db.lock")
    lock.rename(path.with_name("aside"))
    return lambda: path.with_name("aside").replace(lock)


def _name_of(take_away: Callable[[Path], Callable[[], object]]) -> str:
    return take_away.__name__.strip("_")


@pytest.mark.parametrize(
    "take_away",
    [_rename_file, _replace_file, _link_instead, _rename_folder, _replace_folder, _rename_wal, _rename_lock],
    ids=_name_of,
)
@pytest.mark.parametrize("settled", [True, False])
async def test_nothing_is_written_while_a_file_is_away_and_all_goes_on_when_it_is_back(
    path: Path, take_away: Callable[[Path], Callable[[], object]], *, settled: bool
) -> None:
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            if settled:
                # Nothing has happened in the folder for long.
                os.utime(path.parent, (0, 0))
            await engine.commit(Step(ALICE, (said("before"),)))
            put_back = take_away(path)
            with pytest.raises(EngineUnavailable, match="put it back"):
                await engine.commit(Step(ALICE, (said("lost"),)))
            health = await engine.health()
            assert (health.writable, "put it back" in health.detail) == (False, True)
            assert await texts(engine) == ["before"]
            put_back()
            assert (await engine.health()).writable
            await engine.commit(Step(ALICE, (said("after"),)))
    assert [(one["log_level"], one["event"]) for one in logs] == [
        ("error", "the database file was removed or replaced"),
        ("warning", "the database file is in its place again"),
    ]
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["before", "after"]


@pytest.mark.parametrize(("settled", "looks"), [(True, 1), (False, 4)])
def test_a_check_looks_at_the_folder_alone_while_nothing_happens_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, settled: bool, looks: int
) -> None:
    for file in (path, path.with_name("dragoman.db-wal"), path.with_name("dragoman.db.lock")):
        file.touch()
    guard, seen, stat = FileGuard(path, confirm=0.0), list[Path](), os.stat

    def look(file: Path) -> os.stat_result:
        seen.append(file)
        return stat(file)

    guard.remember()
    if settled:
        os.utime(path.parent, (0, 0))
    guard.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", look)
        guard.check()
    assert len(seen) == looks


@pytest.mark.parametrize("back", [True, False])
async def test_a_commit_waits_for_a_second_look_at_a_file_that_is_away(path: Path, *, back: bool) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        put_back = _rename_file(path)
        waiting = asyncio.ensure_future(engine.commit(Step(ALICE, (said("late"),))))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        if back:
            put_back()
            assert (await waiting).last_sequence == 2
        else:
            with pytest.raises(EngineUnavailable, match="No such file"):
                await waiting
            put_back()


async def test_readiness_tells_of_a_removed_file_before_any_commit(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        path.unlink()
        async with asyncio.timeout(PATIENCE):
            health = await engine.health()
        assert (health.writable, str(path) in health.detail) == (False, True)


async def test_a_reader_that_opens_the_database_late_creates_none(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        guard = FileGuard(path, confirm=0.01)
        guard.remember()
        late = Readers(path, guard)
        for take_away in (_rename_file, _rename_wal, _replace_file, _link_instead):
            put_back = take_away(path)
            with pytest.raises(EngineUnavailable):
                await late.ask(answer, session(ALICE))
            put_back()
            files = {file.name.removeprefix(path.name) for file in path.parent.iterdir()}
            assert files == {"", "-wal", "-shm", ".lock"}
        assert await late.ask(answer, session(ALICE)) is not None
        await late.close()


async def test_a_gateway_that_lost_its_database_creates_no_other(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        for file in path.parent.iterdir():
            file.unlink()
        with pytest.raises(EngineUnavailable, match="put it back"):
            await engine.commit(Step(ALICE, (said("lost"),)))
        assert list(path.parent.iterdir()) == []
    assert list(path.parent.iterdir()) == []
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await engine.session(ALICE) is None


@pytest.mark.parametrize("name", ["dragoman.db", "aside.db"])
async def test_the_wal_is_saved_into_a_database_that_it_is_parted_from(path: Path, name: str) -> None:
    kept = path.with_name("kept.db")
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("kept"),)))
        path.with_name("dragoman.db-wal").rename(path.with_name("gone"))
        path.rename(path.with_name(name))
        assert not (await engine.health()).writable
        # As a kill would leave it.
        shutil.copy(path.with_name(name), kept)
    async with SqliteEngine(kept, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]


# A second gateway


@pytest.mark.parametrize("name", ["dragoman.db", "link.db", "folder/dragoman.db"])
async def test_a_second_gateway_is_refused_under_every_name(path: Path, name: str) -> None:
    path.with_name("link.db").symlink_to(path)
    path.with_name("folder").symlink_to(path.parent)
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        with pytest.raises(EngineLocked, match=f"process {os.getpid()} uses the database"):
            await SqliteEngine(path.parent / name, FakeClock()).__aenter__()
        assert (await engine.health()).writable


async def test_a_database_with_two_hard_links_is_refused(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
    other = path.parent.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(EngineUnusable, match="has 2 hard links"):
            await SqliteEngine(name, FakeClock()).__aenter__()
    other.unlink()
    async with SqliteEngine(path, FakeClock()) as engine:
        assert (await row_of(engine)).last_sequence == 1


@pytest.mark.parametrize(("kind", "refused"), [("nfs4", True), ("cifs", True), ("overlay", False)])
async def test_a_network_file_system_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, kind: str, refused: bool
) -> None:
    _mount(monkeypatch, tmp_path, kind)
    engine = SqliteEngine(path, FakeClock())
    if refused:
        with pytest.raises(EngineUnusable, match=f"network file system \\({kind}\\)"):
            await engine.__aenter__()
    else:
        async with engine:
            pass


@pytest.mark.parametrize("kind", ["overlay", "fuse.sshfs"])
async def test_a_changed_inode_only_warns_where_the_file_system_changes_inodes(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    _mount(monkeypatch, tmp_path, kind)
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            put_back = _replace_file(path)
            assert (await engine.health()).writable
            put_back()
            path.rename(path.with_name("aside.db"))
            assert not (await engine.health()).writable
            path.with_name("aside.db").rename(path)
    assert [one["event"] for one in logs][:2] == [
        "the database file seems to be another one",
        "the database file was removed or replaced",
    ]


def _mount(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    mounts = folder / "mounts"
    mounts.write_text(f"somewhere / {kind} rw 0 0\n")
    monkeypatch.setattr(sqlite_lock, "_MOUNTS", mounts)


# The locks of SQLite itself


def _commit_until_looked_at_and_killed(path: Path, lines: int) -> dict[SessionId, int]:
    command = [sys.executable, str(HERE / "committer.py"), str(path), "watched"]
    told: dict[SessionId, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if number in {lines // 3, lines // 2}:
                # It closes the database as the last one, were it not for the locks of the first.
                look_and_close(path)
            if number == lines:
                process.send_signal(signal.SIGKILL)
            if line.endswith("\n"):
                session_id, sequence = line.split()
                told[SessionId(session_id)] = int(sequence)
    assert process.returncode < 0
    return told


async def test_nothing_is_lost_by_sigkill_after_another_process_has_opened_and_closed_the_database(path: Path) -> None:
    told = await asyncio.to_thread(_commit_until_looked_at_and_killed, path, 300)
    assert len(told) == 8
    async with SqliteEngine(path, FakeClock()) as engine:
        for session_id, sequence in told.items():
            row = await row_of(engine, session_id)
            assert row.last_sequence >= sequence
            kept = await journal(engine, session_id)
            assert [one.sequence for one in kept] == list(range(1, row.last_sequence + 1))


OPENERS = {
    "open",
    "fdopen",
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "touch",
    "chmod",
    "lchmod",
    "fchmod",
    "chown",
    "copy",
    "copy2",
    "copyfile",
    "copytree",
    "move",
    "truncate",
    "ftruncate",
    "flock",
    "lockf",
    "mkstemp",
    "NamedTemporaryFile",
    "sendfile",
    "link",
    "hardlink_to",
}
"""Calls that open, copy, lock or change a file by a descriptor, or change one behind SQLite's back."""
ALLOWED = {
    # Lock files and the list of mounts, never the database.
    "lock.py": {"acquire", "_lock", "_read_mounts"},
    # A new file, before SQLite opens it.
    "privacy.py": {"make_private"},
    # Commands with a process of their own.
    "backup.py": None,
}


def test_nothing_in_the_process_opens_the_database_besides_sqlite() -> None:
    found: list[str] = []
    for file in sorted((ROOT / "gateway" / "store" / "sqlite").glob("*.py")):
        allowed = ALLOWED.get(file.name, set())
        if allowed is None:
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name in allowed:
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call):
                    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
                    if name in OPENERS:
                        found.append(f"{file.name}:{call.lineno} {name}")
    assert found == []


def test_only_commands_open_a_database_as_a_file() -> None:
    words = ("store.sqlite.backup", "store.sqlite import backup")
    using = {
        str(file.relative_to(ROOT / "gateway"))
        for file in (ROOT / "gateway").rglob("*.py")
        if any(word in file.read_text() for word in words)
    }
    assert {one for one in using if not one.startswith("cli/")} == {"store/sqlite/transfer.py"}, using
