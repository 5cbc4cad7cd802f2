"""Of two lanes one stands still: its steps are reported on in time, and those of the other lane do not wait."""

import asyncio
import os
import signal

import asyncpg
import pytest

from gateway.events import SessionId
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tuning import PostgresTuning
from gateway.store.step import Committed
from gateway.testing.conformance.engine_submit import Settlements, steps
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, texts
from tests.engines import postgres_server
from tests.pace import within

pytestmark = [pytest.mark.slow, pytest.mark.timing]

_NEWEST = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
_COMMIT = 4.0
_FEW = 20


async def backend_of(engine: PostgresEngine, observer: "asyncpg.Connection[asyncpg.Record]", session: SessionId) -> int:
    """Find the process of the server that has just written a step of a session."""
    await engine.commit(steps(1, session)[0])
    return await observer.fetchval(f"{_NEWEST} ORDER BY state_change DESC LIMIT 1")


def kinds(got: Settlements, session: SessionId) -> list[bool]:
    """Return for each step of a session, in the order of the reports, whether it is written."""
    return [isinstance(result, Committed) for step, result in got.found if step.session_id == session]


async def test_a_lane_whose_connection_stands_still_delays_only_its_own_sessions() -> None:
    with postgres_server.start_own_server() as server:
        observer = await asyncpg.connect(server.dsn)
        tuning = PostgresTuning(commit=_COMMIT)
        async with PostgresEngine(server.dsn, FakeClock(), schema="lanes", tuning=tuning) as engine:
            for session in (ALICE, BOB):
                await open_session(engine, session)
            still, alive = [await backend_of(engine, observer, session) for session in (ALICE, BOB)]
            assert still != alive, "the sessions are in different lanes"
            got = Settlements()
            loop = asyncio.get_running_loop()
            os.kill(still, signal.SIGSTOP)
            try:
                began = loop.time()
                assert engine.submit([*steps(_FEW), *steps(_FEW, BOB)], got.take) == 2 * _FEW
                await got.until(_FEW)
                assert kinds(got, BOB) == [True] * _FEW
                assert loop.time() - began < within(1.0)
                await engine.commit(steps(1, BOB)[0])
                await got.until(2 * _FEW)
                assert loop.time() - began < within(3 * _COMMIT)
            finally:
                os.kill(still, signal.SIGCONT)
            # Each step is reported on once, and what is reported as written is written.
            assert len(got.found) == 2 * _FEW
            written = kinds(got, ALICE)
            assert len(await texts(engine)) == 1 + sum(written)
            await engine.commit(steps(1)[0])
            assert (await engine.health()).writable
        await observer.close()
