"""Everything a store holds arrives in another one, or nothing does."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import EngineLocked, EngineUnavailable, EngineUnusable, Repeated, Stale
from gateway.events import CallId, InteractionId, SessionId
from gateway.store.copy import PAGE, TABLES, Row, Sum, Table, TransferSide, move
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, RetentionPolicy, StoredAnswer
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.schema import APPLICATION, FIRST
from gateway.store.sqlite.transfer import SqliteSide, sqlite_source, sqlite_target
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    START,
    FakeClock,
    answered,
    asked,
    call,
    close_session,
    journal,
    open_call,
    open_session,
    said,
    settled,
)
from tests.engines.test_sqlite_file import files_limited_to

EVENTS = 3 * PAGE
NOT_COPIED = {"owner", "ended_at", "shared_seq", "listed"}
LEFT_BEHIND = {
    "generation", "written", "instances", "holds", "probe", "commits", "schema_version", "steps", "listed_up_to",
}  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old.db"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new.db"


async def fill(engine: Engine) -> None:
    """Use every table, with texts and numbers that are hard to carry, and gaps in all ids."""
    for name in ("gone", *(f"s-{number}" for number in range(5))):
        await open_session(engine, SessionId(name), runtime="odd")
    await open_session(engine, labels={"who": "Zoë \x00\x10 🂡"}, native_id="native \x10\x00 ü")
    await open_session(engine, BOB)
    said_often = tuple(said(f"{number} \x00", dedupe_key=f"k-{number}") for number in range(EVENTS))
    await engine.commit(Step(ALICE, said_often))
    await engine.commit(Step(ALICE, snapshot=bytes(range(256)), cursor="cursor \x10", state="running"))
    await open_call(engine)
    await engine.commit(Step(ALICE, (answered(),), calls=(settled(error="\x10 why"),), sends=(Enqueue(0, RUNTIME),)))
    await open_call(engine, call_id="call-2", native_call_id="native-2", due_at=START)
    questions = InteractionChange(
        InteractionId("i-1"), "waiting", "question.asked", EVENTS + 5, START + timedelta(days=1)
    )
    await engine.commit(Step(ALICE, (said("who?"),), interactions=(questions,), sends=(Enqueue(0, "destination:log"),)))
    await engine.sweep(RetentionPolicy(open_events=EVENTS // 2))
    await close_session(engine, BOB)
    await engine.erase(BOB)
    for scope, key in (("s", "a\x10"), ("s", "a\x00"), ("s", "a!"), ("t", "a")):
        answer = StoredAnswer("sha", key.encode(), START + timedelta(days=10_000))
        assert await engine.remember(key=key, scope=scope, answer=answer)
    await engine.set_note("a note", "its \x00 value")
    await engine.beat("an-owner", url="http://owner", ttl=timedelta(hours=1))
    await engine.take("an-owner", ALICE)


async def everything(engine: Engine) -> list[object]:
    """Read what the ports show, but for who owned a session."""
    rows, _ = await engine.sessions(ALL)
    first = {row.session_id: row.first_sequence - 1 for row in rows}
    return [
        [(row.session_id, row.fence, row.labels, row.native_id, row.cursor, row.state) for row in rows],
        [await engine.snapshot(row.session_id) for row in rows],
        [await journal(engine, session_id, after=after) for session_id, after in first.items()],
        await engine.calls(CallFilter(), ALL),
        await engine.pending_sends(target=RUNTIME),
        await engine.pending_sends(target="destination:log"),
        await engine.interactions(ALL),
        [await engine.recall(key=key, scope="s") for key in ("a\x10", "a\x00", "a!")],
        await engine.note("a note"),
    ]


async def goes_on(engine: Engine) -> None:
    """Prove that a store filled by a move remembers repeats, numbers what is new, and lets itself be owned."""
    with pytest.raises(Repeated):
        await engine.commit(Step(ALICE, (said(dedupe_key=f"k-{EVENTS - 1}"), said("new"))))
    with pytest.raises(Stale):
        await engine.commit(Step(ALICE, (asked(),), calls=(call(),)))
    await open_session(engine, SessionId("later"))
    await engine.commit(Step(ALICE, (asked("n-3"),), calls=(call("call-3", native_call_id="n-3"),)))
    rows, _ = await engine.sessions(ALL)
    assert rows[-1].session_id == "later"
    assert (await engine.calls(CallFilter(), ALL))[0][0].call_id == CallId("call-3")
    await engine.beat("new-owner", url="http://new", ttl=timedelta(hours=1))
    assert ALICE in {row.session_id for row in await engine.take_over("new-owner", runtimes={"finn", "odd"}, limit=100)}


async def test_everything_arrives_as_it_was(old: Path, new: Path) -> None:
    async with SqliteEngine(old, FakeClock()) as engine:
        await fill(engine)
        before = await everything(engine)
    async with sqlite_source(old) as source, sqlite_target(new) as target:
        moved = await move(source, target)
    assert [one.table for one in moved] == [table.name for table in TABLES]
    assert all(one.source == one.target and one.source.rows for one in moved)
    async with SqliteEngine(new, FakeClock()) as engine:
        assert await everything(engine) == before
        # A moved store is no backup: nothing has happened since.
        assert engine.generation.backup_at is None
        await goes_on(engine)
    async with SqliteEngine(old, FakeClock()) as engine:
        assert await everything(engine) == before


async def test_no_column_is_forgotten(old: Path) -> None:
    async with SqliteEngine(old, FakeClock()):
        pass
    with closing(sqlite3.connect(old)) as file:
        kept = {row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {name: {row[1] for row in file.execute(f"PRAGMA table_info({name})")} for name in kept - LEFT_BEHIND}
    # The id of an event is its place in the order of one store.
    columns["events"].remove("id")
    assert columns == {table.name: {*table.columns} | (NOT_COPIED & columns[table.name]) for table in TABLES}


async def test_a_store_that_holds_anything_is_no_target(old: Path, new: Path) -> None:
    async with SqliteEngine(old, FakeClock()) as engine:
        await fill(engine)
    async with SqliteEngine(new, FakeClock()) as engine:
        await engine.set_note("precious", "yes")
    async with sqlite_source(old) as source, sqlite_target(new) as target:
        with pytest.raises(EngineUnusable, match=r"new\.db' is not empty \(table notes\)"):
            await move(source, target)
    async with SqliteEngine(new, FakeClock()) as engine:
        assert (await engine.sessions(ALL))[0] == []
        assert await engine.note("precious") == "yes"


class Interrupted:
    """A side that Ctrl-C reaches when all calls have been written."""

    def __init__(self, side: TransferSide) -> None:
        self.place = side.place
        self.count, self.put, self.keep, self.generation = side.count, side.put, side.keep, side.generation
        self._pages = side.pages

    async def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        if table.name == "calls":
            raise KeyboardInterrupt
        async for rows in self._pages(table):
            yield rows


class Forgetful:
    """A side that gives back one value other than it was."""

    def __init__(self, side: SqliteSide) -> None:
        self._side = side
        self.place = side.place
        self.count, self.put, self.keep, self.generation = side.count, side.put, side.keep, side.generation

    async def pages(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        async for rows in self._side.pages(table):
            yield [(*rows[0][:-1], b"other"), *rows[1:]] if table.name == "snapshots" else rows


async def test_what_does_not_come_back_as_it_was_is_not_kept(old: Path, new: Path) -> None:
    async with SqliteEngine(old, FakeClock()) as engine:
        await fill(engine)
    async with sqlite_source(old) as source, sqlite_target(new) as target:
        with pytest.raises(EngineUnusable, match=r"returns other rows than were written \(snapshots\)"):
            await move(source, Forgetful(target))
    async with SqliteEngine(new, FakeClock()) as engine:
        assert (await engine.sessions(ALL))[0] == []


async def test_a_move_that_breaks_off_leaves_nothing(old: Path, new: Path) -> None:
    async with SqliteEngine(old, FakeClock()) as engine:
        await fill(engine)
    with pytest.raises(KeyboardInterrupt):
        async with sqlite_source(old) as source, sqlite_target(new) as target:
            await move(source, Interrupted(target))
    async with sqlite_source(old) as source, sqlite_target(new) as target:
        assert await move(source, target)


async def test_a_running_gateway_or_an_older_schema_is_no_source(old: Path, tmp_path: Path) -> None:
    async with SqliteEngine(old, FakeClock()):
        with pytest.raises(EngineLocked):
            async with sqlite_source(old):
                pass
    with pytest.raises(EngineUnusable, match="there is no database"):
        async with sqlite_source(tmp_path / "missing.db"):
            pass
    first = tmp_path / "first.db"
    with closing(sqlite3.connect(first)) as file:
        file.execute(f"PRAGMA application_id = {APPLICATION}")
        file.execute(f"PRAGMA user_version = {FIRST - 1}")
    with pytest.raises(EngineUnusable, match=f"has schema {FIRST - 1} .*: check out commit f18d4caa"):
        async with sqlite_source(first):
            pass


async def test_a_disk_that_fails_half_way_is_told_and_leaves_nothing(old: Path, new: Path) -> None:
    async with SqliteEngine(old, FakeClock()) as engine:
        await fill(engine)
        await engine.set_note("large", "x" * 4_000_000)
    with files_limited_to(2_000_000), pytest.raises(EngineUnavailable, match=r"new\.db' cannot be read or written"):
        async with sqlite_source(old) as source, sqlite_target(new) as target:
            await move(source, target)
    async with sqlite_source(old) as source, sqlite_target(new) as target:
        assert await move(source, target)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", "bc")], [("ab", "c")]),
        ([("1",)], [(1,)]),
        ([("a",)], [(b"a",)]),
        ([(None,)], [("",)]),
        ([(1, 23)], [(12, 3)]),
        ([("a",), ("a",)], [("a",)]),
        ([("a",), ("b",)], [("a",), ("c",)]),
    ],
    ids=repr,
)
def test_what_differs_has_another_checksum(one: list[Row], other: list[Row]) -> None:
    assert Sum().plus(one).digest != Sum().plus(other).digest
    assert len(Sum().plus(one).digest) == 64


def test_the_order_of_rows_makes_no_difference() -> None:
    rows: list[Row] = [("a", 1), ("b", 2), ("c", None)]
    assert Sum().plus(rows) == Sum().plus(rows[2:]).plus(rows[:2])
