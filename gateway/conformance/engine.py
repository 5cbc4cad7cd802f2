"""The suite that every engine passes; a third party's engine inherits it in a file of a few lines.

    class TestMyEngine(EngineSuite):
        def build(self, folder, clock):
            return MyEngine(folder / "store", clock)

It needs pytest, pytest-asyncio in auto mode, and hypothesis.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.conformance.engine_calls import CallSuite
from gateway.conformance.engine_expectations import ExpectationSuite
from gateway.conformance.engine_journal import JournalSuite
from gateway.conformance.engine_leases import BellSuite, LeaseSuite
from gateway.conformance.engine_ledger import InteractionSuite, MemorySuite, SendSuite
from gateway.conformance.engine_model import ModelSuite
from gateway.conformance.engine_newer import NewerSuite
from gateway.conformance.engine_registry import RegistrySuite
from gateway.conformance.engine_upkeep import EraseSuite, LifeSuite, SweepSuite
from gateway.conformance.engine_words import FakeClock
from gateway.ports.engine import Engine


class EngineSuite(
    JournalSuite,
    ExpectationSuite,
    RegistrySuite,
    CallSuite,
    SendSuite,
    InteractionSuite,
    MemorySuite,
    EraseSuite,
    SweepSuite,
    LeaseSuite,
    BellSuite,
    NewerSuite,
    LifeSuite,
    ModelSuite,
):
    """Every sentence of `gateway.ports.engine`, `step` and `rows` as a test; `build` says which engine.

    `durable` says whether it persists, `shared` whether several engines can be on one store at once. An engine
    that reads the time elsewhere overrides `pass_time` and shortens `ttl`.
    """

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def engine(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Engine]:
        async with self.build(tmp_path, clock) as engine:
            yield engine
