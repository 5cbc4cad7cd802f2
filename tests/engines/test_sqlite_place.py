"""A database file, its log, its lock or its folder that is removed, replaced or linked while the engine has it open."""
# The files are small and local, and moving them is what happens here.
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
from gateway.store.sqlite.place import FilePlace
from gateway.store.sqlite.readers import Readers
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, row_of, said, texts
from tests.engines.sqlite_looker import look_and_close

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "dragoman.db"


async def _not_ready(engine: SqliteEngine) -> str:
    """Wait until the store says that it takes no writes for what has happened to its files."""
    async with asyncio.timeout(20):
        # Nobody tells. The disk cannot be asked for its room at once where the folder is gone.
        while (found := await engine.health()).writable or "cannot be looked at" in found.detail:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found.detail


async def _ready(engine: SqliteEngine) -> None:
    async with asyncio.timeout(20):
        # Nobody tells that it is well again.
        while not (await engine.health()).writable:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _rename_file(path: Path) -> Callable[[], object]:
    aside = path.with_name("aside.db")
    path.rename(aside)
    return lambda: aside.rename(path)


def _rename_folder(path: Path) -> Callable[[], object]:
    aside = path.parent.with_name("aside")
    path.parent.rename(aside)
    return lambda: aside.rename(path.parent)


def _replace_folder(path: Path) -> Callable[[], object]:
    aside = path.parent.with_name("aside")
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    path.parent.rename(aside)
    path.parent.with_name("copy").rename(path.parent)

    def back() -> None:
        path.parent.rename(path.parent.with_name("copy"))
        aside.rename(path.parent)

    return back


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


def _rename_log(path: Path) -> Callable[[], object]:
    log = path.with_name("dragoman.db-wal")
    log.rename(path.with_name("aside"))
    return lambda: path.with_name("aside").replace(log)


def _name_of(take_away: Callable[[Path], Callable[[], object]]) -> str:
    return take_away.__name__.strip("_")


@pytest.mark.parametrize(
    "take_away",
    [
        _replace_file,
        _rename_folder,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (_rename_file, _link_instead, _replace_folder, _rename_log)
        ),
    ],
    ids=_name_of,
)
async def test_nothing_is_written_while_the_database_is_away_and_all_goes_on_when_it_is_back(
    path: Path, take_away: Callable[[Path], Callable[[], object]]
) -> None:
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            await engine.commit(Step(ALICE, (said("before"),)))
            put_back = take_away(path)
            assert "put it back" in await _not_ready(engine)
            for _ in range(3):
                with pytest.raises(EngineUnavailable, match="put it back"):
                    await engine.commit(Step(ALICE, (said("lost"),)))
            assert await texts(engine) == ["before"]
            put_back()
            await _ready(engine)
            await engine.commit(Step(ALICE, (said("after"),)))
    events = [(one["log_level"], one["event"]) for one in logs]
    # Once for each file that moved.
    assert list(dict.fromkeys(events)) == [
        ("error", "the database was taken away"),
        ("warning", "it is back where it was, and all goes on"),
    ]
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["before", "after"]


async def test_a_write_that_comes_just_after_the_first_look_waits_for_the_second(path: Path) -> None:
    path.touch()
    place = FilePlace(path)
    place.remember()
    for back in (True, False):
        put_back = _rename_file(path)
        with pytest.raises(EngineUnavailable, match="not where"):
            place.refuse_another()
        waiting = asyncio.create_task(asyncio.to_thread(place.check))
        assert place.trouble is None
        if back:
            put_back()
            await waiting
        else:
            with pytest.raises(EngineUnavailable, match="is gone"):
                await waiting


async def test_a_reader_that_opens_the_database_late_makes_none(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        place = FilePlace(path)
        place.remember()
        late = Readers(path, place)
        for take_away in (_rename_file, _rename_log, _replace_file, _link_instead):
            put_back = take_away(path)
            with pytest.raises(EngineUnavailable):
                await late.ask(answer, session(ALICE))
            put_back()
            files = {file.name.removeprefix(path.name) for file in path.parent.iterdir()}
            assert files == {"", "-wal", "-shm", ".lock"}
        assert await late.ask(answer, session(ALICE)) is not None
        await late.close()


async def test_a_removed_database_is_never_made_again_by_who_lost_it(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        for file in path.parent.iterdir():
            file.unlink()
        detail = await _not_ready(engine)
        assert all(word in detail for word in ("dragoman.db'", "dragoman.db-wal'", "dragoman.db.lock'", "restart"))
        with pytest.raises(EngineUnavailable):
            await engine.commit(Step(ALICE, (said("lost"),)))
        assert list(path.parent.iterdir()) == []
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await engine.session(ALICE) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dragoman.db", "aside.db"])
async def test_what_the_log_held_is_saved_when_it_is_parted_from_the_database(path: Path, name: str) -> None:
    kept = path.with_name("kept.db")
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("kept"),)))
        path.with_name("dragoman.db-wal").rename(path.with_name("gone"))
        path.rename(path.with_name(name))
        await _not_ready(engine)
        # As if it was killed now.
        shutil.copy(path.with_name(name), kept)
    async with SqliteEngine(kept, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]


async def test_a_removed_lock_file_lets_nobody_in_and_is_told(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        path.with_name("dragoman.db.lock").unlink()
        with pytest.raises(EngineLocked, match=f"process {os.getpid()} uses the database"):
            await SqliteEngine(path, FakeClock()).__aenter__()
        assert "the lock of the database" in await _not_ready(engine)
        # The database itself is where it was.
        await engine.commit(Step(ALICE, (said("kept"),)))
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]
        assert (await engine.health()).writable


async def test_a_database_of_two_names_is_refused_and_under_another_name_locked(path: Path) -> None:
    other = path.parent.with_name("other.db")
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            other.hardlink_to(path)
            async with asyncio.timeout(20):
                while not any("hard link" in one.get("reason", "") for one in logs):  # noqa: ASYNC110 - a log
                    await asyncio.sleep(0.02)
            assert (await engine.health()).writable
            with pytest.raises(EngineUnusable, match="2 names"):
                await SqliteEngine(other, FakeClock()).__aenter__()
            path.unlink()
            with pytest.raises(EngineLocked, match=f"process {os.getpid()} uses the database"):
                await SqliteEngine(other, FakeClock()).__aenter__()
            assert "is gone" in await _not_ready(engine)
    async with SqliteEngine(other, FakeClock()) as engine:
        assert (await row_of(engine)).last_sequence == 1


@pytest.mark.slow
async def test_a_database_that_may_only_be_read_by_now_goes_on_and_is_warned_of(path: Path) -> None:
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            path.chmod(0o400)
            async with asyncio.timeout(20):
                while not any("may only be read" in one.get("reason", "") for one in logs):  # noqa: ASYNC110 - a log
                    await asyncio.sleep(0.02)
            await engine.commit(Step(ALICE, (said("kept"),)))
            assert (await engine.health()).writable
            path.chmod(0o600)
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["kept"]


@pytest.mark.slow
async def test_another_number_is_only_warned_of_where_numbers_mean_little(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("overlay / overlay rw 0 0\n")
    monkeypatch.setattr(sqlite_lock, "_MOUNTS", mounts)
    with capture_logs() as logs:
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            put_back = _replace_file(path)
            async with asyncio.timeout(20):
                while not any("seems to be" in one.get("reason", "") for one in logs):  # noqa: ASYNC110 - a log
                    await asyncio.sleep(0.02)
            assert (await engine.health()).writable
            # That there is nothing is plain everywhere.
            put_back()
            path.rename(path.with_name("aside.db"))
            assert "is gone" in await _not_ready(engine)


async def test_a_lock_of_somebody_else_in_a_common_folder_is_in_nobodys_way(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes files of others")
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(sqlite_lock, "_SHARED_FOLDERS", (tmp_path / "none", first, second))
    for folder in (first, second):
        folder.mkdir()
    async with SqliteEngine(path, FakeClock()):
        (lock,) = first.iterdir()
    assert not lock.exists()
    lock.write_text("12345")
    os.chown(lock, 65534, 65534)
    async with SqliteEngine(path, FakeClock()):
        assert [one.name for one in second.iterdir()] == [lock.name]
        path.with_name("dragoman.db.lock").unlink()
        with pytest.raises(EngineLocked):
            await SqliteEngine(path, FakeClock()).__aenter__()
    assert lock.read_text() == "12345"


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
            kept = await engine.read(session_id, limit=100_000)
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
"""What opens, copies, locks or changes a file by a descriptor, or changes one behind SQLite's back."""
ALLOWED = {
    # Files of locks and the list of mounts, never the database.
    "lock.py": {"take", "_open_lock", "_open_either_way", "_hold", "check_place", "is_unsteady"},
    # A copy of an older database, before the process opens that.
    "migrate_0_2.py": {"keep_copy", "_sync"},
    # A new file, before SQLite opens it.
    "privacy.py": {"make_private"},
    # Commands with a process of their own.
    "backup.py": None,
    "replacing.py": None,
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


def test_only_commands_use_what_opens_a_database_as_a_file() -> None:
    words = ("store.sqlite.backup", "store.sqlite import backup", "store.sqlite.replacing")
    using = {
        str(file.relative_to(ROOT / "gateway"))
        for file in (ROOT / "gateway").rglob("*.py")
        if any(word in file.read_text() for word in words)
    }
    assert {one for one in using if not one.startswith("cli/")} == {
        "store/sqlite/backup.py",
        "store/sqlite/transfer.py",
    }, using
