"""A database file is removed, replaced, linked or made read-only under a gateway.

No call is carried out that could not be written where it lasts.
"""
# The files are small and local, and moving them is what happens here.
# ruff: noqa: ASYNC240

import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import EngineUnusable
from gateway.runtime.system_clock import SystemClock
from gateway.store.sqlite import SqliteEngine
from tests.faults.environment import until
from tests.faults.load import Load
from tests.faults.scene import Scene
from tests.faults.stores import SqliteFile, given
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.fault("Database file moved away and back")]

NAME = "dragoman.db"
CHECKPOINT = 5_000_000
"""Bytes of a log that SQLite would have worked off by then."""

Fault = Callable[[Path], Callable[[], object]]
"""Does something to the folder of the database; returns what undoes it."""


def _asked(scene: Scene) -> int:
    return len([seen for seen in scene.backend.seen if seen.kind == "tool.requested"])


async def _not_ready(scene: Scene, because: str = "put it back") -> None:
    async def so() -> bool:
        assert scene.gateway.alive, scene.log()
        answer = await scene.http.get("/readyz")
        return answer.status_code == 503 and because in answer.text

    await until(so)


async def _refused(scene: Scene, more: int) -> None:
    """Wait until the session was refused a write so many more times."""
    line = "store unavailable"
    before = scene.gateway.whole_log().count(line)

    async def so() -> bool:
        return scene.gateway.whole_log().count(line) - before >= more

    await until(so)


async def _logged(scene: Scene, text: str) -> None:
    async def so() -> bool:
        return text in scene.gateway.whole_log()

    await until(so)


def _aside(folder: Path) -> Path:
    return folder.with_name("aside")


def _rename_file(folder: Path) -> Callable[[], object]:
    (folder / NAME).rename(_aside(folder))
    return lambda: _aside(folder).rename(folder / NAME)


def _rename_folder(folder: Path) -> Callable[[], object]:
    folder.rename(_aside(folder))
    return lambda: _aside(folder).rename(folder)


def _replace_file(folder: Path) -> Callable[[], object]:
    (folder / NAME).rename(_aside(folder))
    shutil.copy(_aside(folder), folder / NAME)
    copied = (folder / NAME).read_bytes()

    def back() -> None:
        assert (folder / NAME).read_bytes() == copied, "it was written into a file that was never opened"
        _aside(folder).replace(folder / NAME)

    return back


def _replace_folder(folder: Path) -> Callable[[], object]:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(_aside(folder))
    folder.with_name("copy").rename(folder)
    copied = {file.name: file.read_bytes() for file in folder.iterdir()}

    def back() -> None:
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == copied
        shutil.rmtree(folder)
        _aside(folder).rename(folder)

    return back


def _rename_lock(folder: Path) -> Callable[[], object]:
    lock = folder / f"{NAME}.lock"
    lock.rename(_aside(folder))
    return lambda: _aside(folder).replace(lock)


def _replace_lock(folder: Path) -> Callable[[], object]:
    back = _rename_lock(folder)
    (folder / f"{NAME}.lock").touch()
    return back


def _freeze(path: Path) -> Callable[[], object]:
    """Let nobody write a file or folder, not even root, nor who has it open."""
    command = shutil.which("chattr")
    if command is None or subprocess.run([command, "+i", path], check=False, capture_output=True).returncode:
        pytest.skip("only root can make files immutable, and not on each file system")
    return lambda: subprocess.run([command, "-i", path], check=True)


def _freeze_file(folder: Path) -> Callable[[], object]:
    return _freeze(folder / NAME)


def _freeze_log(folder: Path) -> Callable[[], object]:
    return _freeze(folder / f"{NAME}-wal")


def _freeze_folder(folder: Path) -> Callable[[], object]:
    return _freeze(folder)


def _deny_file(folder: Path) -> Callable[[], object]:
    (folder / NAME).chmod(0o400)
    return lambda: (folder / NAME).chmod(0o600)


def _deny_folder(folder: Path) -> Callable[[], object]:
    folder.chmod(0o500)
    return lambda: folder.chmod(0o700)


@contextmanager
def _done(fault: Fault, folder: Path) -> Generator[None]:
    undo = fault(folder)
    try:
        yield
    finally:
        undo()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


REPLACED = pytest.mark.fault("Database file or folder replaced by a copy, and put back")
LOCK = pytest.mark.fault("Lock of the database removed or replaced, and put back")
READ_ONLY = pytest.mark.fault("Database file, WAL or folder read-only for a while")


@pytest.mark.parametrize(
    ("fault", "because"),
    [
        (_rename_file, "put it back"),
        (_rename_folder, "put it back"),
        pytest.param(_replace_file, "replaced by another file", marks=REPLACED),
        pytest.param(_replace_folder, "replaced by another file", marks=REPLACED),
        pytest.param(_rename_lock, "the lock file", marks=LOCK),
        pytest.param(_replace_lock, "the lock file", marks=LOCK),
        pytest.param(_freeze_log, "cannot be written", marks=READ_ONLY),
    ],
    ids=[
        "file moved",
        "folder moved",
        "file replaced",
        "folder replaced",
        "lock moved",
        "lock replaced",
        "log immutable",
    ],
)
async def test_calls_wait_while_nothing_can_be_written_where_it_lasts(
    tmp_path: Path, folder: Path, fault: Fault, because: str
) -> None:
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        scene.log_refusals()
        await scene.serve()
        session_id = await scene.session_id()
        async with Load(scene) as load:
            await load.more(20)
            with _done(fault, folder):
                await _not_ready(scene, because)
                await _logged(scene, because)
                asked = _asked(scene)
                late = [await scene.call("once") for _ in range(5)]
                event: dict[str, Any] = {"kind": "context.updated", "name": "news", "context": {}, "description": "x"}
                answer = await scene.http.post(f"/v1/sessions/{session_id}/events", json=event)
                assert answer.status_code == 503
                await _refused(scene, 3)
                assert (await scene.http.get("/healthz")).status_code == 200
                assert _asked(scene) == asked
                assert [call.reading for call in late] == [None] * 5
            await until(scene.ready)
            await load.more(20)
        for call in late:
            await call.result(PATIENCE)
        await _all_is_kept(scene)


async def _all_is_kept(scene: Scene) -> None:
    await scene.settled(within=PATIENCE)
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


@pytest.mark.fault("Hard link to the database file")
async def test_calls_go_on_with_a_second_name_under_which_no_gateway_starts(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other.db"
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        await scene.serve()
        async with Load(scene) as load:
            await load.more(20)
            other.hardlink_to(folder / NAME)
            await load.more(20)
            assert await scene.ready()
            with pytest.raises(EngineUnusable, match="has 2 hard links"):
                await SqliteEngine(other, SystemClock()).__aenter__()
            other.unlink()
        await _all_is_kept(scene)


@READ_ONLY
@pytest.mark.parametrize(
    "fault",
    [_deny_file, _freeze_file, _deny_folder, _freeze_folder],
    ids=["mode of file", "immutable file", "mode of folder", "immutable folder"],
)
async def test_calls_go_on_in_the_wal_of_a_database_that_is_made_read_only(
    tmp_path: Path, folder: Path, fault: Fault
) -> None:
    log = folder / f"{NAME}-wal"
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        await scene.serve()
        async with Load(scene, text="x" * 20_000) as load:
            await load.more(20)
            with _done(fault, folder):
                await load.more(20)
                if fault is _freeze_file:
                    # Further than where it is worked off, had that not been refused.
                    await until(lambda: _is_beyond(log, CHECKPOINT), within=60)
                assert await scene.ready()
            await load.more(20)
        await _all_is_kept(scene)


async def _is_beyond(file: Path, size: int) -> bool:
    return file.stat().st_size > size


@pytest.mark.fault("Database file, WAL and lock removed while calls run")
async def test_no_call_is_carried_out_into_a_file_that_is_gone(tmp_path: Path, folder: Path) -> None:
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(folder))) as scene:
        scene.log_refusals()
        await scene.serve()
        await (await scene.call("once")).result()
        await scene.settled()
        for file in folder.iterdir():
            file.unlink()
        await _not_ready(scene)
        asked = _asked(scene)
        for _ in range(20):
            await scene.call("once")
        await _refused(scene, 3)
        assert _asked(scene) == asked
        assert list(folder.iterdir()) == []
        scene.calls.clear()
        scene.kill()
        await scene.dead()
