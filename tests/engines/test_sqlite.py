"""The SQLite engine passes the suite."""

from pathlib import Path

from gateway.store.port import Engine
from gateway.store.sqlite import SqliteEngine
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_words import FakeClock


class TestSqliteEngine(EngineSuite):
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return SqliteEngine(folder / "dragoman.db", clock)
