"""How much group commit gains: prints commits per second beside one transaction per step (`pytest -s`)."""

import asyncio
import sys
import time
from itertools import count

import pytest

from gateway.events import SessionId
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tuning import PostgresTuning
from gateway.store.step import RUNTIME, Enqueue, Step
from gateway.testing.conformance.engine_words import FakeClock, answered, asked, call, open_session, settled
from tests.engines import postgres_server

pytestmark = pytest.mark.slow

SECONDS = 0.5
_NUMBERS = count()


async def carry(engine: PostgresEngine, session_id: SessionId, end: float) -> int:
    """Open and settle calls until a time; answers how many steps were committed."""
    done = 0
    while time.perf_counter() < end:
        name = f"call-{next(_NUMBERS)}"
        opened = Step(session_id, (asked(name, dedupe_key=name),), calls=(call(name, native_call_id=name),))
        await engine.commit(opened)
        await engine.commit(Step(session_id, (answered(name),), calls=(settled(name),), sends=(Enqueue(0, RUNTIME),)))
        done += 2
    return done


async def test_steps_that_come_together_share_a_transaction() -> None:
    schema = postgres_server.new_schema()
    names = [SessionId(f"s-{number}") for number in range(128)]
    one_by_one = PostgresTuning(batch=1)
    async with (
        PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as sharing,
        PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema, tuning=one_by_one) as alone,
    ):
        for name in names:
            await open_session(sharing, name)
        for at_once in (1, 16, 128):
            figures: list[float] = []
            for engine in (sharing, alone):
                end = time.perf_counter() + SECONDS
                done = await asyncio.gather(*(carry(engine, name, end) for name in names[:at_once]))
                figures.append(sum(done) / SECONDS)
            sys.stdout.write(
                f"{at_once:4} at once: {figures[0]:6.0f} commits/s, one transaction per step {figures[1]:6.0f}\n"
            )
    await postgres_server.drop_schema(schema)
