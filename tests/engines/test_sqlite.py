"""The SQLite engine passes the suite."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gateway.store.port import Engine
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.store import TAIL
from gateway.store.step import Step
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_order import read_on
from gateway.testing.conformance.engine_upkeep import KEEP_ALL
from gateway.testing.conformance.engine_words import (
    ALICE,
    DAY,
    START,
    FakeClock,
    close_session,
    open_session,
    row_of,
    said,
)

_SIZES = """
SELECT c.size, (SELECT sum(coalesce(length(body), 0) + coalesce(length(about), 0)) FROM events), s.last_seq
FROM current_sessions c JOIN sessions s USING (id)
"""


class TestSqliteEngine(EngineSuite):
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return SqliteEngine(folder / "dragoman.db", clock)

    async def test_the_end_is_the_position_of_the_last_event(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(), said())))
        found, end = await read_on(engine)
        assert found[-1].position == end == await engine.end()


async def test_the_row_of_a_session_is_written_with_one_event_in_many_and_read_with_the_newest(tmp_path: Path) -> None:
    path, clock = tmp_path / "dragoman.db", FakeClock()

    def size_and_stored() -> tuple[int, int]:
        with closing(sqlite3.connect(path)) as connection:
            size, found, stored = connection.execute(_SIZES).fetchone()
        assert size == found
        return size, stored

    async with SqliteEngine(path, clock) as engine:
        await open_session(engine)
    last, sizes = 1, list[int]()
    for _ in range(TAIL + 2):
        async with SqliteEngine(path, clock) as engine:
            at = START + last * DAY
            committed = await engine.commit(Step(ALICE, (said(recorded_at=at),), last_sequence=last))
            last = committed.last_sequence
            row = await row_of(engine)
            assert (row.last_sequence, row.updated_at) == (last, at)
        size, stored = size_and_stored()
        sizes.append(size)
        assert stored == (TAIL if last >= TAIL else 0)
    assert sizes == sorted(set(sizes))
    async with SqliteEngine(path, clock) as engine:
        await engine.sweep(replace(KEEP_ALL, open_events=1))
        assert size_and_stored()[0] < sizes[0]
        await engine.commit(Step(ALICE, (said(),)))
        await close_session(engine, ALICE)
        await engine.erase(ALICE)
        size_and_stored()
        assert (await row_of(engine)).last_sequence == last + 1
