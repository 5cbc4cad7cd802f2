"""The PostgreSQL engine passes the suite."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.conformance.engine import EngineSuite
from gateway.conformance.engine_words import FakeClock
from gateway.engines.postgres import PostgresEngine
from gateway.ports.engine import Engine
from tests.engines import postgres_server


class TestPostgresEngine(EngineSuite):
    many = 1_000
    own_clock = True
    ttl = timedelta(seconds=3)

    @pytest.fixture(autouse=True)
    def schemas(self) -> Iterator[dict[Path, str]]:
        """One schema per folder, dropped after the test."""
        self._schemas: dict[Path, str] = {}
        yield self._schemas
        for schema in self._schemas.values():
            asyncio.run(postgres_server.drop_schema(schema))

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        schema = self._schemas.setdefault(folder, postgres_server.new_schema())
        return PostgresEngine(postgres_server.dsn(), clock, schema=schema)

    async def pass_time(self, clock: FakeClock, span: timedelta) -> None:
        clock.turn(span)
        await asyncio.sleep(span.total_seconds())
