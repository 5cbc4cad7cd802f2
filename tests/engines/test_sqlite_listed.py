"""SQLite finds open calls and pending sends, whether its indexes of open rows list them yet or not."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.events import CallId
from gateway.store.port import Engine
from gateway.store.rows import CallFilter
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.schema import APPLICATION, FIRST, MIGRATIONS
from gateway.store.sqlite.tuning import PRODUCTION
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_upkeep import KEEP_ALL
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    DAY,
    START,
    FakeClock,
    answered,
    open_call,
    open_session,
    row_of,
    said,
    settled,
)

YOUNG = 6
BEFORE = 12
"""The schema before rows were listed."""
_LISTED = """
SELECT (SELECT group_concat(call_id) FROM calls WHERE listed = 1), (SELECT count(*) FROM outbound WHERE listed = 1)
"""


def build(path: Path, clock: FakeClock, *, young: int = YOUNG) -> SqliteEngine:
    return SqliteEngine(path, clock, tuning=replace(PRODUCTION, young=young))


@pytest.mark.slow
class TestSqliteEngineThatListsAtOnce(EngineSuite):
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return build(folder / "dragoman.db", clock, young=1)


async def fill(engine: Engine) -> None:
    """Record one open and one ended call, and sends of each kind."""
    await open_session(engine)
    await open_session(engine, BOB)
    await open_call(engine)
    await open_call(engine, call_id="call-2", native_call_id="native-2")
    sends = (Enqueue(0, RUNTIME, attempt=1),)
    await engine.commit(Step(ALICE, (answered("native-2"),), calls=(settled("call-2"),), sends=sends))
    sends = (Enqueue(0, RUNTIME), Enqueue(0, "destination:log"))
    dead = (await engine.commit(Step(ALICE, (said(),), sends=sends))).last_sequence
    await engine.commit(Step(ALICE, send_changes=(SendChange(dead, RUNTIME, "dead", 1, None, "why"),)))
    told = (await engine.commit(Step(ALICE, (said(),), sends=(Enqueue(0, RUNTIME),)))).last_sequence
    await engine.commit(Step(ALICE, send_changes=(SendChange(told, RUNTIME, "delivered", 1),)))


async def found(engine: Engine) -> list[object]:
    """Query the open rows in every way."""
    queued = CallFilter(states=frozenset({"dispatched"}))
    return [
        [one.call_id for one in await engine.open_calls(ALICE)],
        await engine.open_calls(BOB),
        await engine.count_open_calls(),
        [one.call_id for one in (await engine.calls(queued, ALL))[0]],
        [one.sequence for one in await engine.pending_sends(session_id=ALICE, target=RUNTIME)],
        [one.sequence for one in await engine.pending_sends(session_id=ALICE, target=RUNTIME, after=4)],
        [one.sequence for one in await engine.pending_sends(target=RUNTIME, due_before=START)],
        [one.sequence for one in await engine.pending_sends(target="destination:log")],
        await engine.next_send_due(RUNTIME),
        await engine.next_send_due("destination:log"),
    ]


OPEN = [["call-1"], [], {"finn": 1}, ["call-1"], [4], [], [4], [5], START, START]


def listed(path: Path) -> tuple[str | None, int]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(_LISTED).fetchone()


async def test_open_rows_are_found_before_and_after_they_are_listed(tmp_path: Path) -> None:
    path, clock = tmp_path / "dragoman.db", FakeClock()
    async with build(path, clock, young=1_000) as engine:
        await fill(engine)
        assert await found(engine) == OPEN
        # The copy, and the send that is dead.
        assert listed(path) == (None, 2)
    async with build(path, clock) as engine:
        assert await found(engine) == OPEN
        for _ in range(YOUNG + 1):
            await engine.commit(Step(BOB, (said(),)))
            assert await found(engine) == OPEN
        assert listed(path) == ("call-1", 3)
        assert await engine.revive(ALICE, 5, RUNTIME, due_at=START + DAY)
        assert [one.sequence for one in await engine.pending_sends(target=RUNTIME)] == [4, 5]
        await engine.commit(Step(ALICE, send_changes=(SendChange(5, RUNTIME, "moot"),)))
        # The second is too young to be listed.
        await open_call(engine, call_id="call-3", native_call_id="native-3")
        both = [["call-1", "call-3"], [], {"finn": 2}, ["call-3", "call-1"], *OPEN[4:]]
        assert await found(engine) == both
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
        await engine.commit(Step(ALICE, (answered("native-3"),), calls=(settled("call-3"),)))
        assert await found(engine) == [[], [], {}, [], *OPEN[4:]]


@pytest.mark.parametrize("young", [1, 1_000])
async def test_a_sweep_keeps_what_open_rows_need(tmp_path: Path, young: int) -> None:
    async with build(tmp_path / "dragoman.db", FakeClock(), young=young) as engine:
        await fill(engine)
        policy = replace(KEEP_ALL, open_events=0)
        await engine.sweep(policy)
        # The request of the open call.
        assert (await row_of(engine)).first_sequence == 2
        await engine.commit(Step(ALICE, (answered(),), calls=(settled(),)))
        await engine.sweep(policy)
        assert (await row_of(engine)).first_sequence == 4


async def test_a_call_that_gets_the_id_of_a_removed_one_is_found(tmp_path: Path) -> None:
    path, clock = tmp_path / "dragoman.db", FakeClock()
    async with build(path, clock, young=1_000) as engine:
        await open_session(engine)
        for name in ("call-1", "call-2"):
            await open_call(engine, call_id=name, native_call_id=name)
            await engine.commit(Step(ALICE, (answered(name),), calls=(settled(name),)))
    async with build(path, clock, young=1_000) as engine:
        await engine.commit(Step(ALICE, (said(),)))
        clock.turn(DAY)
        assert (await engine.sweep(replace(KEEP_ALL, call_age=DAY / 2))).calls == 2
        await open_call(engine, call_id="call-3", native_call_id="native-3")
        assert [one.call_id for one in await engine.open_calls(ALICE)] == [CallId("call-3")]


async def test_the_migration_lists_the_rows_that_are_open(tmp_path: Path) -> None:
    source, path, clock = tmp_path / "source.db", tmp_path / "dragoman.db", FakeClock()
    async with build(source, clock) as engine:
        await fill(engine)
        rows = await row_of(engine)
    with closing(sqlite3.connect(path)) as old:
        for statement in [statement for one in MIGRATIONS[: BEFORE - FIRST + 1] for statement in one]:
            old.execute(statement)
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute(f"PRAGMA user_version = {BEFORE}")
        old.execute("ATTACH ? AS source", (str(source),))
        tables = [name for (name,) in old.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")]
        for name in tables:
            names = ", ".join(column[1] for column in old.execute(f"PRAGMA main.table_info({name})"))
            stored = "current_sessions" if name == "sessions" else name
            old.execute(f"DELETE FROM main.{name}")  # noqa: S608
            old.execute(f"INSERT INTO main.{name} ({names}) SELECT {names} FROM source.{stored}")  # noqa: S608
        old.commit()
    async with build(path, clock) as engine:
        assert await found(engine) == OPEN
        assert listed(path) == ("call-1", 3)
        assert await row_of(engine) == rows
        assert await engine.revive(ALICE, 5, RUNTIME, due_at=START)
        assert [one.sequence for one in await engine.pending_sends(target=RUNTIME)] == [4, 5]
