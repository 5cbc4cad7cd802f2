"""The SQLite engine passes the suite."""

from pathlib import Path

from gateway.store.port import Engine
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_order import read_on
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said


class TestSqliteEngine(EngineSuite):
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return SqliteEngine(folder / "dragoman.db", clock)

    async def test_the_end_is_the_position_of_the_last_event(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said(), said())))
        found, end = await read_on(engine)
        assert found[-1].position == end == await engine.end()
