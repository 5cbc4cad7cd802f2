"""Steps that are on disk and not in their tables yet: nothing of them is lost, hidden or told otherwise."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineUnavailable, EngineUnusable
from gateway.events import CallId
from gateway.store.apply import Writes
from gateway.store.copy import TABLES
from gateway.store.records import SnapshotRecord
from gateway.store.rows import CallFilter, Page
from gateway.store.sqlite import SqliteEngine, log
from gateway.store.sqlite.backup import back_up, bump_fences, restore
from gateway.store.sqlite.held import rows_of
from gateway.store.sqlite.schema import open_writer
from gateway.store.sqlite.transfer import sqlite_source
from gateway.store.sqlite.tuning import SqliteTuning
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    answered,
    open_call,
    open_session,
    row_of,
    said,
    settled,
    texts,
)
from tests.engines.sqlite_held import FOR_EVER, held

HERE = Path(__file__).parent
CALL = CallId("call-1")
COPIES = "destination:log"
LATER = SqliteTuning(spread_after=3_600.0, behind=7_200.0)
"""Leaves to each test when tables are brought up to date."""


def engine_at(path: Path, tuning: SqliteTuning = LATER) -> SqliteEngine:
    return SqliteEngine(path, FakeClock(), tuning=tuning)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


def rows_in(path: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - a name of the schema


async def write(engine: SqliteEngine) -> None:
    """Open two sessions, and leave a call with its outcome, two sends and some words in the log."""
    await open_session(engine)
    await open_session(engine, BOB)
    await open_call(engine)
    sends = (Enqueue(0, RUNTIME), Enqueue(0, COPIES))
    await engine.commit(Step(ALICE, (answered(),), calls=(settled(),), sends=sends, cursor="7"))
    await engine.commit(Step(ALICE, send_changes=(SendChange(3, RUNTIME, "delivered", 1),)))
    await engine.commit(Step(BOB, (said("one"), said("two")), state="running", snapshot=b"folded"))


async def is_all_there(engine: SqliteEngine) -> None:
    call = await engine.call(CALL)
    assert call is not None
    assert (call.state, call.request_sequence, call.outcome_sequence) == ("succeeded", 2, 3)
    assert {send.target: send.state for send in await engine.sends_of(ALICE, 3)} == {
        RUNTIME: "delivered",
        COPIES: "pending",
    }
    alice, bob = await row_of(engine), await row_of(engine, BOB)
    assert (alice.last_sequence, alice.cursor) == (3, "7")
    assert (bob.last_sequence, bob.state, bob.snapshot) == (3, "running", b"folded")
    assert [one.sequence for one in await engine.read(ALICE)] == [1, 2, 3]
    assert await texts(engine, BOB) == ["one", "two"]


@asynccontextmanager
async def killed(path: Path) -> AsyncGenerator[Path]:
    """Leave what a process leaves that is killed over unsettled steps."""
    victim = path.with_name("victim.db")
    async with engine_at(victim) as engine:
        await write(engine)
        for side in ("", "-wal"):
            shutil.copy(victim.with_name(victim.name + side), path.with_name(path.name + side))
    yield path


async def test_a_commit_touches_no_table_but_the_log(path: Path) -> None:
    async with engine_at(path) as engine:
        await write(engine)
        assert [rows_in(path, table) for table in ("events", "calls", "outbound", "snapshots")] == [2, 0, 0, 0]
        await is_all_there(engine)
        await engine.set_note("a", "task")
        assert [rows_in(path, table) for table in ("events", "calls", "outbound", "snapshots")] == [6, 1, 2, 1]
        await is_all_there(engine)


async def test_tables_follow_by_themselves(path: Path) -> None:
    async with engine_at(path, replace(LATER, spread_after=0.05)) as engine:
        await write(engine)
        async with asyncio.timeout(10):
            while rows_in(path, "events") < 6:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
    async with engine_at(path, replace(LATER, spread_bytes=1)) as engine:
        await engine.commit(Step(BOB, (said("three"),)))
        async with asyncio.timeout(10):
            while rows_in(path, "events") < 7:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


async def test_frequent_questions_are_answered_while_nothing_can_be_written(path: Path) -> None:
    async with engine_at(path, replace(LATER, lock=FOR_EVER)) as engine:
        await write(engine)
        with held(path):
            listing = asyncio.ensure_future(engine.calls(CallFilter(), Page()))
            async with asyncio.timeout(10):
                assert [one.sequence for one in await engine.read(ALICE, after=1)] == [2, 3]
                assert (await row_of(engine, BOB)).last_sequence == 3
                assert [one.sequence for one in await engine.pending_sends(target=COPIES)] == [3]
                assert await engine.pending_sends(target=RUNTIME, session_id=ALICE) == []
                assert await engine.next_send_due(COPIES) is not None
                assert await engine.next_send_due(RUNTIME) is None
                call = await engine.call(CALL)
                assert call is not None
                assert call.state == "succeeded"
                assert await engine.note("none") is None
            assert not listing.done()
            assert rows_in(path, "calls") == 0
        # A list settles first, as soon as it can.
        found, _ = await asyncio.wait_for(listing, 30)
        assert [one.state for one in found] == ["succeeded"]
        assert rows_in(path, "calls") == 1


# Crashes, stops, and what else is done with the file


async def test_what_a_killed_process_left_is_put_in_and_told(path: Path) -> None:
    async with killed(path):
        assert rows_in(path, "calls") == 0
        with capture_logs() as logs:
            async with engine_at(path) as engine:
                assert rows_in(path, "calls") == 1
                await is_all_there(engine)
                await engine.commit(Step(BOB, (said("three"),)))
        assert [line["steps"] for line in logs if line["event"].startswith("steps that were committed")] == [4]
        async with engine_at(path) as engine:
            assert await texts(engine, BOB) == ["one", "two", "three"]


async def test_slots_that_are_written_over_are_not_read_again(path: Path) -> None:
    async with engine_at(path) as engine:
        await open_session(engine)
        # A long entry first, then fewer and shorter ones over its slots.
        await engine.commit(Step(ALICE, tuple(said("x" * 9_000) for _ in range(5))))
        await engine.set_note("a", "task")
        await engine.commit(Step(ALICE, (said("short"),)))
        await engine.commit(Step(ALICE, (said("y" * 5_000),)))
        copy = path.with_name("copy.db")
        for side in ("", "-wal"):
            shutil.copy(path.with_name(path.name + side), copy.with_name(copy.name + side))
        before = await texts(engine)
    with capture_logs() as logs:
        async with engine_at(copy) as engine:
            assert await texts(engine) == before
            assert [one.sequence for one in await engine.read(ALICE)] == [*range(1, 9)]
    assert [line["steps"] for line in logs if "steps" in line] == [2]


@pytest.mark.parametrize(("size", "slots"), [(100, range(2, 8)), (2_000, range(200, 240))])
async def test_many_small_events_take_few_slots_and_long_ones_are_left_as_they_are(
    path: Path, size: int, slots: range
) -> None:
    words = [f"{number} {'x' * size}" for number in range(100)]
    copy = path.with_name("copy.db")
    async with engine_at(path) as engine:
        await open_session(engine)
        for _ in range(2):
            await engine.commit(Step(ALICE, tuple(said(word) for word in words)))
        shutil.copy(path.with_name(path.name + "-wal"), copy.with_name(copy.name + "-wal"))
        shutil.copy(path, copy)
        assert rows_in(path, "steps") in slots
    async with engine_at(copy) as engine:
        assert await texts(engine) == words * 2


async def test_what_became_of_many_sends_takes_few_slots(path: Path) -> None:
    async with engine_at(path) as engine:
        await open_session(engine)
        words = tuple(said(str(number)) for number in range(300))
        done = await engine.commit(Step(ALICE, words, sends=tuple(Enqueue(n, RUNTIME) for n in range(300))))
        before = rows_in(path, "steps")
        marks = [SendChange(one.sequence, RUNTIME, "delivered", 1) for one in done.envelopes]
        await engine.commit(Step(ALICE, send_changes=tuple(marks)))
        assert rows_in(path, "steps") - before < 4
        assert await engine.pending_sends(session_id=ALICE, target=RUNTIME) == []


def test_entries_that_just_fill_a_slot_or_just_do_not_are_all_read_again(path: Path) -> None:
    with closing(open_writer(path)) as connection:
        behind = log.Behind(LATER)
        for size in range(1_800, 1_950):
            written = log.Log(connection, behind)
            # The first leaves from many bytes to none of its slot, and the second is in it or in the next.
            for content in (b"x" * size, b"", b"y" * 9_000, b"x" * size):
                writes = Writes(size)
                writes.snapshots[ALICE] = SnapshotRecord(ALICE, content)
                behind.append(written.append(rows_of(writes, {}), 1))
            assert log.replay(connection) == 4
            assert connection.execute("SELECT snapshot FROM snapshots").fetchall() == [(content,)]
            behind.clear()


async def test_a_backup_of_a_busy_gateway_has_what_was_committed_before(path: Path, tmp_path: Path) -> None:
    async with engine_at(path) as engine:
        await write(engine)
        made = await asyncio.to_thread(back_up, path, tmp_path / "copy.db", force=False)
        assert (made.sessions, made.events) == (2, 6)
        assert rows_in(path, "calls") == 0
    async with engine_at(tmp_path / "copy.db") as engine:
        await is_all_there(engine)


async def test_what_is_done_with_the_file_of_a_killed_process_has_all_of_it(path: Path, tmp_path: Path) -> None:
    async with killed(path) as left:
        restore(tmp_path / "restored.db", left)
        async with engine_at(tmp_path / "restored.db") as engine:
            await is_all_there(engine)
            assert (await row_of(engine)).fence > 0
        back_up(left, tmp_path / "copy.db", force=False)
        async with engine_at(tmp_path / "copy.db") as engine:
            await is_all_there(engine)
        # Looking at it has moved all of it out of SQLite's own log.
        shutil.copy(left, tmp_path / "moved.db")
        async with sqlite_source(tmp_path / "moved.db") as source:
            counted = {table.name: await source.count(table) for table in TABLES}
        assert (counted["calls"], counted["events"], counted["outbound"], counted["snapshots"]) == (1, 6, 2, 1)
        assert bump_fences(left) == 2
        async with engine_at(left) as engine:
            await is_all_there(engine)


@pytest.mark.parametrize(
    "files",
    [
        ("unsettled_sqlite.sql",),
        ("unsettled_sqlite.sql", "packed_steps.sql"),
        ("unsettled_sqlite.sql", "packed_together.sql"),
    ],
)
async def test_steps_that_this_release_has_left_are_read_by_every_later_one(path: Path, files: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(path)) as file:
        for name in files:
            file.executescript((HERE / name).read_text(encoding="utf-8"))
    assert rows_in(path, "calls") == 0
    async with engine_at(path) as engine:
        await is_all_there(engine)


# Tables that cannot be written


def refuse(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no room'); END")


def allow(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TRIGGER full")


async def test_what_tables_do_not_take_waits_and_too_much_of_it_is_told(path: Path) -> None:
    async with engine_at(path, replace(LATER, behind_bytes=20_000, spread_bytes=20_000)) as engine:
        await write(engine)
        refuse(path)
        taken = 0
        with pytest.raises(EngineUnavailable, match="cannot take what was committed before: no room"):  # noqa: PT012
            while taken < 100:
                await engine.commit(Step(BOB, (said("x" * 1_000),)))
                taken += 1
        assert 10 < taken < 30
        health = await engine.health()
        assert not health.writable
        assert "no room" in health.detail
        # What is on record is read all the same, and no list is told without it.
        assert len(await texts(engine, BOB)) == 2 + taken
        with pytest.raises(EngineUnavailable):
            await engine.calls(CallFilter(), Page())
        allow(path)
        await engine.commit(Step(BOB, (said("more"),)))
        assert (await engine.health()).writable
        await is_all_there_but_words(engine)
        assert len(await texts(engine, BOB)) == 3 + taken


async def is_all_there_but_words(engine: SqliteEngine) -> None:
    assert [one.state for one in (await engine.calls(CallFilter(), Page()))[0]] == ["succeeded"]
    assert [one.sequence for one in await engine.pending_sends(target=COPIES)] == [3]


async def test_an_engine_that_cannot_bring_its_tables_up_to_date_leaves_the_steps_behind(path: Path) -> None:
    async with engine_at(path) as engine:
        await write(engine)
        refuse(path)
    with pytest.raises(EngineUnusable, match="no room"):
        async with engine_at(path):
            pass
    allow(path)
    async with engine_at(path) as engine:
        await is_all_there(engine)


async def test_tables_that_are_ten_seconds_behind_hold_steps_up(path: Path) -> None:
    async with engine_at(path, replace(LATER, behind=0.05)) as engine:
        await write(engine)
        # Only tables that are behind for so long hold a step up.
        await asyncio.sleep(0.1)
        before = rows_in(path, "events")
        await engine.commit(Step(BOB, (said("three"),)))
        # It went into the tables, together with all that waited.
        assert (before, rows_in(path, "events")) == (2, 7)


async def test_what_a_step_expects_is_asked_of_what_is_held(path: Path) -> None:
    async with engine_at(path) as engine:
        await write(engine)
        before = await engine.next_send_due(COPIES)
        assert before is not None
        later = before + timedelta(hours=1)
        await engine.commit(Step(ALICE, send_changes=(SendChange(3, COPIES, "pending", 1, later, "again"),)))
        assert await engine.next_send_due(COPIES) == later
        assert await engine.pending_sends(target=COPIES, due_before=before) == []
        [send] = await engine.pending_sends(target=COPIES, due_before=later)
        assert (send.attempt, send.reason, send.envelope.event.kind) == (1, "again", "tool.finished")


async def test_pages_of_a_long_backlog_are_read_while_nothing_can_be_written(path: Path) -> None:
    many = 2_200
    async with engine_at(path, replace(LATER, lock=FOR_EVER)) as engine:
        await open_session(engine, ALICE)
        # The newer first: sends are told in the order of their events.
        sends = tuple(Enqueue(index, COPIES, "turn") for index in reversed(range(many)))
        await engine.commit(Step(ALICE, tuple(said(str(number)) for number in range(many)), sends=sends))
        await engine.set_note("a", "task")
        assert rows_in(path, "outbound") == many
        await engine.commit(Step(ALICE, tuple(said(str(number)) for number in range(many)), sends=sends))
        due = await engine.next_send_due(COPIES)
        assert due is not None
        at = 2
        with held(path):
            async with asyncio.timeout(10):
                found = await engine.pending_sends(target=COPIES, due_before=due, limit=100)
                assert [one.sequence for one in found] == [*range(at, at + 100)]
        marked = tuple(SendChange(one.sequence, COPIES, "delivered", 1) for one in found)
        await engine.commit(Step(ALICE, send_changes=marked))
        again = SendChange(at + 101, COPIES, "pending", 1, due + timedelta(hours=1), "again")
        await engine.commit(Step(ALICE, send_changes=(again,)))
        with held(path):
            async with asyncio.timeout(10):
                found = await engine.pending_sends(target=COPIES, due_before=due, limit=100)
                # One that is not due yet holds back all behind it, wherever they are kept.
                assert [one.sequence for one in found] == [at + 100]
                everything = await engine.pending_sends(target=COPIES, session_id=ALICE, limit=2 * many - 200)
                assert [one.sequence for one in everything] == [*range(at + 100, at + 2 * many - 100)]
                assert everything[1].reason == "again"
        assert rows_in(path, "events") == many + 1
