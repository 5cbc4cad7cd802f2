"""A database that answers nobody for a while: it is told in time, and nothing is lost or piled up."""

import asyncio
import time
from pathlib import Path

import pytest

from gateway.store.sqlite import SqliteEngine, engine as sqlite_engine, upkeep as sqlite_upkeep
from gateway.store.sqlite.jobs import WAITING, Turn
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said, texts
from tests.engines.sqlite_held import held, wait_for_ever
from tests.pace import within


@pytest.mark.timing
async def test_a_writer_that_hangs_is_told_in_time_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_engine, "PROBE_SECONDS", 2.0)
    tried: list[int] = []
    probe = sqlite_upkeep.probe

    def counted(turn: Turn) -> object:
        tried.append(turn.writes.now)
        return probe(turn)

    monkeypatch.setattr(sqlite_upkeep, "probe", counted)
    wait_for_ever(monkeypatch)
    path = tmp_path / "dragoman.db"
    async with SqliteEngine(path, FakeClock()) as engine:
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
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
            while not (await engine.health()).writable:  # noqa: ASYNC110 - nobody tells that it is well again
                await asyncio.sleep(0.01)
        assert await texts(engine) == [str(n) for n in range(20)]
    # One before, one that hung, and perhaps one more that found the disk well again.
    assert len(tried) <= 3
