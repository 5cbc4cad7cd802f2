"""The SQLite engine passes the suite."""

from pathlib import Path

from gateway.conformance.engine import EngineSuite
from gateway.conformance.engine_words import FakeClock
from gateway.engines.sqlite import SqliteEngine
from gateway.ports.engine import Engine


class TestSqliteEngine(EngineSuite):
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return SqliteEngine(folder / "dragoman.db", clock)
