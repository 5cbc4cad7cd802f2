"""The memory engine passes the suite, alone and with others on the same memory."""

from pathlib import Path

from gateway.store.memory import MemoryEngine
from gateway.store.memory_tables import SharedMemory
from gateway.store.port import Engine
from gateway.testing.conformance.engine import EngineSuite
from gateway.testing.conformance.engine_words import FakeClock


class TestMemoryEngine(EngineSuite):
    durable = False
    shared = False

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        del folder
        return MemoryEngine(clock)


class TestSharedMemoryEngine(EngineSuite):
    def build(self, folder: Path, clock: FakeClock) -> Engine:
        return MemoryEngine(clock, self._stores().setdefault(folder, SharedMemory(clock)))

    def _stores(self) -> dict[Path, SharedMemory]:
        return self.__dict__.setdefault("stores", {})
