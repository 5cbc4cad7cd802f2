"""What only the SQLite engine has: a file, a lock, a schema, a disk that fills up, a process that is killed."""

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineLocked, EngineUnavailable, EngineUnusable, InvalidRequest, SchemaTooNew
from gateway.events import CallId, SessionId
from gateway.runtime.system_clock import SystemClock
from gateway.store.call import Claim, Settle
from gateway.store.rows import CallFilter, Page, RetentionPolicy
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.lock import file_system_of
from gateway.store.sqlite.schema import NEWEST
from gateway.store.sqlite.tuning import SqliteTuning
from gateway.store.step import Enqueue, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    answered,
    journal,
    open_call,
    open_session,
    row_of,
    said,
    texts,
)
from tests.engines.sqlite_looker import all_of
from tests.pace import PATIENCE

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


async def test_the_log_is_written_ahead_and_synced_at_every_commit(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        health = await engine.health()
    assert (health.extra["journal_mode"], health.extra["synchronous"]) == ("wal", "full")
    assert health.extra["schema"] == str(NEWEST)
    free = shutil.disk_usage(path.parent).free
    assert abs(int(health.extra["disk_free_bytes"]) - free) < free / 2


async def test_an_acknowledged_step_is_in_the_file_for_everybody(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("x"),)))
        with all_of(path) as other:
            assert other.execute("SELECT seq, kind FROM events ORDER BY seq").fetchall() == [
                (1, "session.opened"),
                (2, "message.posted"),
            ]


async def test_an_erased_text_is_in_none_of_the_files(path: Path) -> None:
    def found() -> int:
        return sum(file.read_bytes().count(b"a word to forget") for file in path.parent.glob("dragoman.db*"))

    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        for number in range(300):
            text = "a word to forget" + "x" * (number * 37 % 5_000)
            await engine.commit(Step(ALICE, (said(text),), snapshot=text.encode()))
            await engine.commit(Step(BOB, (said("to keep"),)))
        assert found() > 300
        await engine.commit(Step(ALICE, state="closed"))
        await engine.erase(ALICE)
        assert found() == 0
        assert await texts(engine, BOB) == ["to keep"] * 300


async def test_erasing_waits_for_whoever_reads_the_log_but_steps_do_not(path: Path) -> None:
    # It is not to give up first where steps are slow.
    async with SqliteEngine(path, FakeClock(), tuning=SqliteTuning(log_tries=10_000)) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        await engine.commit(Step(ALICE, (said("a word to forget"),), state="closed"))
        backup = sqlite3.connect(path, isolation_level=None)
        backup.execute("BEGIN")
        backup.execute("SELECT count(*) FROM events").fetchone()
        erasing = asyncio.ensure_future(engine.erase(ALICE))
        for number in range(50):
            async with asyncio.timeout(PATIENCE):
                await engine.commit(Step(BOB, (said(str(number)),)))
            await asyncio.sleep(0.005)
        assert not erasing.done()
        backup.execute("COMMIT")
        await asyncio.wait_for(erasing, PATIENCE)
        assert sum(file.read_bytes().count(b"a word to forget") for file in path.parent.glob("dragoman.db*")) == 0
        backup.close()


async def test_erasing_gives_up_on_who_reads_the_log_for_ever(path: Path) -> None:
    async with SqliteEngine(path, FakeClock(), tuning=SqliteTuning(log_tries=2)) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a word to forget"),), state="closed"))
        backup = sqlite3.connect(path, isolation_level=None)
        backup.execute("BEGIN")
        backup.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(EngineUnavailable, match="erase it again later"):
            await engine.erase(ALICE)
        backup.close()
        await engine.erase(ALICE)


# Steps that SQL itself refuses


@pytest.mark.parametrize(
    "poison",
    [
        Step(ALICE, (said(dedupe_key="\ud800"),)),
        Step(ALICE, (said(),), sends=(Enqueue(0, "destination:\udfff"),)),
        Step(ALICE, calls=(Claim(CallId("call-1"), 2**63),)),
        Step(ALICE, (answered(),), calls=(Settle(CallId("call-1"), "failed", "sha", 0, error="\ud800"),)),
        Step(ALICE, cursor="\ud800"),
    ],
    ids=["key", "target", "attempt", "error", "cursor"],
)
async def test_a_poisoned_step_fails_alone_and_leaves_no_trace(path: Path, poison: Step) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await open_call(engine, state="queued")
        before = await engine.call(CallId("call-1"))
        steps = [Step(ALICE, (said(str(n)),)) for n in range(20)]
        steps[10] = poison
        results = await asyncio.gather(*(engine.commit(step) for step in steps), return_exceptions=True)
        assert [type(result) is InvalidRequest for result in results] == [n == 10 for n in range(20)]
        assert await texts(engine) == [str(n) for n in range(20) if n != 10]
        assert (await row_of(engine)).last_sequence == 21
        assert await engine.call(CallId("call-1")) == before
        assert (
            await engine.commit(Step(ALICE, (answered(),), calls=(Claim(CallId("call-1"), 2),)))
        ).last_sequence == 22


# The file and its place


async def test_a_second_engine_on_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteEngine(path, FakeClock()):
        for other in (path, link):
            with pytest.raises(EngineLocked, match=r"dragoman\.db.*engine\.path"):
                async with SqliteEngine(other, FakeClock()):
                    pass
    async with SqliteEngine(path, FakeClock()):
        pass


async def test_a_second_process_on_the_file_is_refused(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        done = await asyncio.to_thread(_committer, path, "once")
        assert done.returncode == 3
        assert f"process {os.getpid()} uses the database" in done.stdout
        await engine.commit(Step(ALICE, (said(),)))
    assert (await asyncio.to_thread(_committer, path, "once")).returncode == 0


def _committer(path: Path, mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "committer.py"), str(path), mode],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match=r"mkdir -p .*/no/such"):
        async with SqliteEngine(tmp_path / "no" / "such" / "x.db", FakeClock()):
            pass


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="is a folder"):
        async with SqliteEngine(tmp_path, FakeClock()):
            pass


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"not a database at all " * 400)


def _another_program(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE sessions (x)")
    other.close()


@pytest.mark.parametrize(
    ("make", "text"), [(_not_a_database, "cannot use"), (_another_program, "another program")], ids=["text", "tables"]
)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path, make: Callable[[Path], None], text: str) -> None:
    async def use() -> None:
        async with SqliteEngine(path, FakeClock()):
            pass

    make(path)
    before = path.read_bytes()
    with pytest.raises(EngineUnusable, match=text):
        asyncio.run(use())
    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {NEWEST + 1}")
    newer.close()
    with pytest.raises(SchemaTooNew, match="run the newer release, or restore the backup from before the upgrade"):
        async with SqliteEngine(path, FakeClock()):
            pass
    with sqlite3.connect(path) as older:
        older.execute(f"PRAGMA user_version = {NEWEST}")
    older.close()
    async with SqliteEngine(path, FakeClock()) as engine:
        assert (await row_of(engine)).last_sequence == 1


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/data", "nfs4"),
        ("/data/local/deep", "xfs"),
        ("/database", "ext4"),
        ("/with space/x", "cifs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sdb /data/local xfs rw 0 0\n"
        "//nas/x /with\\040space cifs rw 0 0\nbroken\n"
    )
    assert file_system_of(Path(folder), mounts) == kind


# The disk


@contextmanager
def files_limited_to(size: int) -> Generator[None]:
    """Let no file of this process grow beyond a size, as if the disk had no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_fails_is_told_and_forgotten_when_it_works_again(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("before"),)))
        with files_limited_to(200_000):
            large = [engine.commit(Step(ALICE, (said("x" * 300_000, dedupe_key="k"),))) for _ in range(3)]
            results = await asyncio.wait_for(asyncio.gather(*large, return_exceptions=True), PATIENCE)
            assert [type(result) for result in results] == [EngineUnavailable] * 3
            assert await texts(engine) == ["before"]
        assert (await engine.health()).writable
        done = await engine.commit(Step(ALICE, (said("after", dedupe_key="k"),)))
        assert done.last_sequence == 3
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await texts(engine) == ["before", "after"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount, umount = shutil.which("mount"), shutil.which("umount")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if (
        mount is None
        or umount is None
        or subprocess.run([mount, *options], check=False, capture_output=True).returncode
    ):
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


async def test_a_full_disk_is_told_and_forgotten_when_there_is_space_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    async with SqliteEngine(small_disk / "dragoman.db", FakeClock()) as engine:
        await open_session(engine)
        ballast.write_bytes(b"x" * 1_000_000)
        kept = 0
        refused: list[BaseException] = []
        while not refused and kept < 1_000:
            results = await asyncio.gather(
                *(engine.commit(Step(ALICE, (said(f"{kept + n}:" + "x" * 20_000),))) for n in range(4)),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, BaseException)]
            kept += 4 - len(refused)
        assert {type(result) for result in refused} == {EngineUnavailable}
        # What fits goes on even so; what does not is refused again, and nothing that was told is lost.
        health = await engine.health()
        assert health.writable or "full" in health.detail
        assert len(await texts(engine)) == kept
        ballast.unlink()
        assert (await engine.health()).writable
        done = await engine.commit(Step(ALICE, (said("space"),)))
        assert done.last_sequence == kept + 2
        assert (await texts(engine))[-1] == "space"


# The process


def _commit_until_killed(path: Path, lines: int) -> list[tuple[SessionId, int]]:
    command = [sys.executable, str(HERE / "committer.py"), str(path), "forever"]
    told: list[tuple[SessionId, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                if number == lines:
                    process.kill()
                # The kill may cut the last line short.
                if line.endswith("\n"):
                    session_id, sequence = line.split()
                    told.append((SessionId(session_id), int(sequence)))
        finally:
            process.kill()
    assert process.returncode < 0
    return told


@pytest.mark.faults
async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(path: Path) -> None:
    told: dict[SessionId, int] = {}
    for lines in (100, 200, 300):
        told |= dict(await asyncio.to_thread(_commit_until_killed, path, lines))
        async with SqliteEngine(path, FakeClock()) as engine:
            for session_id, sequence in told.items():
                row = await row_of(engine, session_id)
                assert row.last_sequence >= sequence
                kept = await journal(engine, session_id)
                assert [e.sequence for e in kept] == list(range(1, row.last_sequence + 1))
                requests = {e.sequence for e in kept if e.event.kind == "tool.requested"}
                outcomes = {e.sequence for e in kept if e.event.kind == "tool.finished"}
                calls, _ = await engine.calls(CallFilter(session_id=session_id), Page(100_000))
                assert {call.request_sequence for call in calls} == requests
                assert {call.outcome_sequence for call in calls if call.state == "succeeded"} == outcomes
    assert len(told) == 8


async def test_no_lease_outlives_the_process(path: Path) -> None:
    hour = timedelta(hours=1)
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.beat("before", url="http://before", ttl=hour)
        assert await engine.hold("before", "sweep")
        assert await engine.take("before", ALICE) is not None
    async with SqliteEngine(path, FakeClock()) as engine:
        assert await engine.instances() == []
        assert await engine.owner(ALICE) is None
        await engine.beat("after", url="http://after", ttl=hour)
        assert await engine.hold("after", "sweep")
        row = await engine.take("after", ALICE)
        assert row is not None
        assert row.fence == 2


async def test_what_retention_removes_makes_room_for_what_comes_in_the_same_file(path: Path) -> None:
    policy = RetentionPolicy(
        closed_age=timedelta(days=7),
        open_age=timedelta(days=30),
        open_events=50_000,
        call_age=timedelta(days=7),
        max_bytes=1_000_000,
    )
    sizes: list[int] = []
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        for _ in range(6):
            for _ in range(10):
                await engine.commit(Step(ALICE, tuple(said("x" * 10_000) for _ in range(20))))
            while (await engine.sweep(policy)).more:
                pass
            sizes.append((await engine.health()).bytes_used or 0)
    # Two megabytes come each time and one stays; the freed pages are written again.
    assert sizes[-1] <= sizes[1] * 1.2, sizes
    assert sizes[-1] < 6_000_000, sizes


def modes_in(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mode & 0o777 for one in folder.glob("new.db*") if "lock" not in one.name}


async def test_a_new_database_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    previous = os.umask(0o022)
    try:
        async with SqliteEngine(path, SystemClock()) as engine:
            await engine.set_note("a", "b")
            modes = modes_in(tmp_path)
    finally:
        os.umask(previous)
    assert modes == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


async def test_a_database_that_others_may_read_keeps_its_mode_and_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    async with SqliteEngine(path, SystemClock()):
        pass
    path.chmod(0o644)
    with capture_logs() as logs:
        async with SqliteEngine(path, SystemClock()):
            pass
    assert path.stat().st_mode & 0o777 == 0o644
    assert [line["mode"] for line in logs if line["event"] == "the database is readable by other users"] == ["0644"]
