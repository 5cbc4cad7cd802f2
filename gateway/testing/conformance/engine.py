"""The conformance suite for engines; to test another engine, inherit it in a file of a few lines.

    class TestMyEngine(EngineSuite):
        def build(self, folder, clock):
            return MyEngine(folder / "store", clock)

It needs pytest, pytest-asyncio in auto mode, and hypothesis.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.port import Engine
from gateway.testing.conformance.engine_calls import CallSuite
from gateway.testing.conformance.engine_expectations import ExpectationSuite
from gateway.testing.conformance.engine_journal import JournalSuite
from gateway.testing.conformance.engine_leases import LeaseSuite, NotifierSuite
from gateway.testing.conformance.engine_ledger import InteractionSuite, MemorySuite, SendSuite
from gateway.testing.conformance.engine_model import ModelSuite
from gateway.testing.conformance.engine_order import OrderSuite
from gateway.testing.conformance.engine_pages import PageSuite
from gateway.testing.conformance.engine_registry import RegistrySuite
from gateway.testing.conformance.engine_submit import SubmitSuite
from gateway.testing.conformance.engine_unknown import UnknownSuite
from gateway.testing.conformance.engine_upkeep import EraseSuite, LifeSuite, SweepSuite
from gateway.testing.conformance.engine_words import FakeClock


class EngineSuite(
    JournalSuite,
    ExpectationSuite,
    SubmitSuite,
    RegistrySuite,
    OrderSuite,
    PageSuite,
    CallSuite,
    SendSuite,
    InteractionSuite,
    MemorySuite,
    EraseSuite,
    SweepSuite,
    LeaseSuite,
    NotifierSuite,
    UnknownSuite,
    LifeSuite,
    ModelSuite,
):
    """Tests every promise of `gateway.store.port`, `step` and `rows`; override `build`.

    Set `shared` if several engines may share one store. An engine with its own clock overrides `pass_time` and
    shortens `ttl`.
    """

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def engine(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Engine]:
        async with self.build(tmp_path, clock) as engine:
            yield engine
