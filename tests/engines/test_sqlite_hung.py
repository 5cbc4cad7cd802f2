"""A database that answers nobody for a while: it is told in time, and nothing is lost or piled up."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.jobs import WAITING
from gateway.store.sqlite.tuning import SqliteTuning
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said, texts
from tests.engines.sqlite_held import FOR_EVER, held
from tests.pace import PATIENCE, within


def count_probes(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE tried (at INTEGER)")
        other.execute("CREATE TRIGGER counted AFTER INSERT ON probe BEGIN INSERT INTO tried VALUES (new.tried_at); END")


def probes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        return other.execute("SELECT count(*) FROM tried").fetchone()[0]


@pytest.mark.timing
async def test_a_writer_that_hangs_is_told_in_time_and_asked_once(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    tuning = SqliteTuning(lock=FOR_EVER, probe=2.0)
    async with SqliteEngine(path, FakeClock(), tuning=tuning) as engine:
        count_probes(path)
        await open_session(engine)
        assert (await engine.health()).writable
        with held(path):
            waiting = [asyncio.ensure_future(engine.commit(Step(ALICE, (said(str(n)),)))) for n in range(20)]
            began = time.monotonic()
            for _ in range(3):
                found = await asyncio.gather(*(engine.health() for _ in range(WAITING)))
                assert {(one.writable, "did not answer in 2 s" in str(one.detail)) for one in found} == {(False, True)}
            given_up = asyncio.ensure_future(engine.health())
            await asyncio.sleep(0)
            given_up.cancel()
            # Only the first had to wait for the deadline; who comes later is told at once.
            assert time.monotonic() - began < within(5.5)
            assert not any(one.done() for one in waiting)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*waiting)
            while not (await engine.health()).writable:  # noqa: ASYNC110 - nobody tells that it is well again
                await asyncio.sleep(0.01)
        assert await texts(engine) == [str(n) for n in range(20)]
        # One before, one that hung, and perhaps one more that found the disk well again.
        assert probes(path) in {2, 3}
