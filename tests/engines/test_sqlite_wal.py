"""SQLite's own log is made long before commits need that: in pieces, within bounds, and by nobody's harm."""

import asyncio
import resource
import sqlite3
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from gateway.guard import FAULTS
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.tuning import PRODUCTION, SqliteTuning
from gateway.store.sqlite.wal import PIECE, Wal
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said, texts
from tests.faults.disk import small_disk

SHORT = SqliteTuning(wal_bytes=3 * PIECE)
GROWS = "commits may take longer: their log grows with them"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


@pytest.fixture
def wal(path: Path) -> Path:
    return path.with_name("dragoman.db-wal")


def length(wal: Path) -> int:
    return wal.stat().st_size if wal.exists() else 0


def blocks(wal: Path) -> int:
    """What the disk keeps for it, in bytes."""
    return wal.stat().st_blocks * 512


def used(wal: Path) -> int:
    """How much of it SQLite has written; it ends with a page, and that with a few zeros."""
    return len(wal.read_bytes().rstrip(b"\0"))


async def until(holds: Callable[[], bool], commit: Callable[[], Awaitable[object]]) -> None:
    """Commit, one after the other, until something holds."""
    for _ in range(200):
        if holds():
            return
        await commit()
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


async def test_commits_find_a_log_that_is_as_long_as_it_becomes_and_no_longer(path: Path, wal: Path) -> None:
    async with SqliteEngine(path, FakeClock(), tuning=SHORT) as engine:
        await open_session(engine)
        await until(lambda: length(wal) >= SHORT.wal_bytes, lambda: engine.commit(Step(ALICE, (said("x"),))))
        long = length(wal)
        assert long < SHORT.wal_bytes + PIECE
        assert blocks(wal) >= SHORT.wal_bytes
        begun = used(wal)
        # Far from its end, so that the file could only grow by what is added to it.
        assert begun < SHORT.wal_bytes // 2
        for number in range(20):
            await engine.commit(Step(ALICE, (said(f"{number}"),)))
            await asyncio.sleep(0.005)
        assert length(wal) == long
        assert used(wal) > begun
        assert (await texts(engine))[-20:] == [f"{number}" for number in range(20)]
    assert length(wal) == 0


async def test_the_log_holds_what_is_in_it_at_a_checkpoint(path: Path, wal: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await until(lambda: length(wal) >= PRODUCTION.wal_bytes, lambda: engine.commit(Step(ALICE, (said("x"),))))
        long = length(wal)
        for _ in range(30):
            await asyncio.gather(*(engine.commit(Step(ALICE, (said("y" * 30_000),))) for _ in range(64)))
        assert length(wal) == long


async def test_a_log_that_an_erasure_has_cut_is_made_long_again(path: Path, wal: Path) -> None:
    async with SqliteEngine(path, FakeClock(), tuning=SHORT) as engine:
        await open_session(engine)
        await until(lambda: length(wal) >= SHORT.wal_bytes, lambda: engine.commit(Step(ALICE, (said("x"),))))
        await engine.commit(Step(ALICE, (), state="closed"))
        await engine.erase(ALICE)
        assert length(wal) < SHORT.wal_bytes
        await until(lambda: length(wal) >= SHORT.wal_bytes, lambda: engine.set_note("a", "b"))


@contextmanager
def no_longer_than(size: int) -> Generator[None]:
    """Let this process make no file longer."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_disk_without_room_is_left_as_it_was_and_commits_go_on(path: Path, wal: Path) -> None:
    with capture_logs() as logs, no_longer_than(PIECE - 1_000):
        async with SqliteEngine(path, FakeClock(), tuning=SHORT) as engine:
            await open_session(engine)
            for number in range(20):
                await engine.commit(Step(ALICE, (said(f"{number}"),)))
            assert length(wal) - used(wal) < 2_048
            assert await texts(engine) == [f"{number}" for number in range(20)]
            assert (await engine.health()).writable
    assert [one["log_level"] for one in logs if one["event"] == GROWS] == ["info"]


async def test_a_disk_that_is_nearly_full_is_left_to_what_must_be_written() -> None:
    with small_disk(24) as disk:
        if disk is None:
            pytest.skip("this machine lets us mount nothing")
        wal = disk.folder / "dragoman.db-wal"
        with capture_logs() as logs:
            async with SqliteEngine(disk.folder / "dragoman.db", FakeClock()) as engine:
                await open_session(engine)
                for number in range(20):
                    await engine.commit(Step(ALICE, (said(f"{number}"),)))
                assert length(wal) - used(wal) < 2_048
                assert (await texts(engine))[-1] == "19"
    assert [one["reason"] for one in logs if one["event"] == GROWS] == ["No space left on device"]


async def test_nothing_is_put_behind_what_somebody_else_is_writing(path: Path, wal: Path) -> None:
    faults = FAULTS.total
    async with SqliteEngine(path, FakeClock(), tuning=SqliteTuning(wal_bytes=3 * PIECE, lock=0.05)) as engine:
        await open_session(engine)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA wal_autocheckpoint = 0")
            other.execute("BEGIN IMMEDIATE")
            size = length(wal)
            long = Wal(path, is_ours=lambda _: True)
            with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
                connection.execute("SELECT * FROM sessions").fetchall()
                begun = monotonic()
                long.lengthen(connection, SHORT.wal_bytes * 10)
                # As long as a statement waits for somebody else, it would.
                assert monotonic() - begun < 15
                assert connection.execute("PRAGMA busy_timeout").fetchone() == (20_000,)
            assert long.may_be_short
            assert length(wal) == size
            other.execute("CREATE TABLE theirs (a TEXT)")
            other.execute("COMMIT")
            await until(lambda: length(wal) >= SHORT.wal_bytes, lambda: engine.set_note("a", "b"))
            assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
        assert await engine.note("a") == "b"
    assert FAULTS.total == faults


def test_a_file_that_is_not_the_log_is_left_alone(path: Path, wal: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE ours (a TEXT)")
        real = wal.stat()
        wal.rename(wal.with_name("aside"))
        wal.write_bytes(b"somebody else's")
        one = Wal(path, is_ours=lambda found: found.st_ino == real.st_ino)
        one.lengthen(connection, SHORT.wal_bytes)
        assert wal.read_bytes() == b"somebody else's"
        assert not one.may_be_short
        wal.unlink()
        with capture_logs() as logs:
            one.lengthen(connection, SHORT.wal_bytes)
        assert not wal.exists()
        assert logs == []
