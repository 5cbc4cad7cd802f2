"""The memory engine passes the suite."""

from pathlib import Path

from gateway.conformance.engine import EngineSuite
from gateway.conformance.engine_words import FakeClock
from gateway.engines.memory import MemoryEngine
from gateway.ports.engine import Engine


class TestMemoryEngine(EngineSuite):
    durable = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        del folder
        return MemoryEngine(clock)
