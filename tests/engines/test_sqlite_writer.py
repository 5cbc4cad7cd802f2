"""The writer thread when things go wrong that SQL does not tell of."""

import asyncio
import threading
from itertools import groupby
from pathlib import Path

import pytest

from gateway.errors import EngineUnavailable
from gateway.guard import FAULTS, Faults
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.jobs import BATCH, WAITING, Turn
from gateway.store.sqlite.upkeep import cut, set_note
from gateway.store.sqlite.writer import Writer
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, asked, call, open_session, row_of, said
from tests.pace import PATIENCE


class Fatal(BaseException):
    """Nothing that a thread outlives."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


def lose_connection(turn: Turn) -> None:
    turn.store.connection.close()


def read_note(turn: Turn) -> list[tuple[str, str]]:
    return turn.store.connection.execute("SELECT name, value FROM notes ORDER BY name").fetchall()


async def test_a_lost_connection_is_opened_again(path: Path) -> None:
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()
    await writer.run(set_note("a", "1"))
    with pytest.raises(EngineUnavailable):
        await writer.run(lose_connection)
    await writer.run(set_note("b", "2"))
    assert await writer.run(read_note) == [("a", "1"), ("b", "2")]
    await writer.stop()


async def test_a_file_that_cannot_be_opened_again_is_told_until_it_can(path: Path) -> None:
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()
    away = path.with_name("away.db")

    def move_away(turn: Turn) -> None:
        turn.store.connection.close()
        if path.is_file():
            path.rename(away)
            path.mkdir()

    with pytest.raises(EngineUnavailable):
        await writer.run(move_away)
    # What the thread does of its own accord, while nobody waits, opens nothing.
    await asyncio.sleep(0.1)
    with pytest.raises(EngineUnavailable, match="was replaced by another file: put it back"):
        await writer.run(set_note("a", "1"))
    await asyncio.to_thread(path.rmdir)
    await asyncio.to_thread(away.rename, path)
    await writer.run(set_note("a", "2"))
    assert await writer.run(read_note) == [("a", "2")]
    await writer.stop()


async def test_what_one_job_raises_that_nobody_foresaw_costs_that_job_alone(path: Path) -> None:
    FAULTS.set(faults := Faults())
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()

    def fail(turn: Turn) -> None:
        del turn
        raise KeyError("a fault of ours")

    asked = [writer.run(set_note("a", "1")), writer.run(fail), writer.run(set_note("b", "2"))]
    results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE)
    assert [type(result) for result in results] == [type(None), KeyError, type(None)]
    assert faults.total == {"sqlite writer": 1}
    assert await writer.run(read_note) == [("a", "1"), ("b", "2")]
    await writer.stop()


async def test_a_thread_that_dies_leaves_nobody_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()

    def fail(turn: Turn) -> None:
        del turn
        raise Fatal

    asked = [writer.run(set_note("a", "1")), writer.run(fail), *(writer.run(set_note("b", "2")) for _ in range(3))]
    results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE)
    assert [type(result) for result in results] == [EngineUnavailable] * 5
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(writer.run(set_note("a", "1")), PATIENCE)
    await asyncio.wait_for(writer.stop(), PATIENCE)
    assert [args.exc_type for args in told] == [Fatal]


async def test_more_jobs_than_may_wait_are_all_done_in_batches(path: Path) -> None:
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()
    turns: list[Turn] = []
    await asyncio.wait_for(asyncio.gather(*(writer.run(turns.append) for _ in range(WAITING + 500))), PATIENCE)
    sizes = [len(list(same)) for _, same in groupby(turns, key=id)]
    assert sum(sizes) == WAITING + 500
    assert BATCH in sizes
    assert max(sizes) == BATCH
    await writer.stop()


async def test_what_became_needed_after_a_sweep_chose_is_not_cut(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        await engine.commit(
            Step(ALICE, (said(), said(), said()), sends=(Enqueue(0, "destination:x"), Enqueue(1, RUNTIME)))
        )
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, "destination:x", "dead"),)))
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()
    assert (await writer.run(cut({ALICE: 5}, 0), how="alone")).events == 2
    assert (await writer.run(cut({ALICE: 5}, 0), how="alone")).events == 0
    left = await writer.run(lambda turn: turn.store.connection.execute("SELECT seq, target FROM outbound").fetchall())
    assert left == [(3, RUNTIME)]
    await writer.stop()
    async with SqliteEngine(path, FakeClock()) as engine:
        row = await row_of(engine)
        assert (row.first_sequence, row.last_sequence) == (3, 4)


async def test_nothing_that_a_batch_asks_for_is_looked_for_in_all_of_a_table(path: Path) -> None:
    asked_for: list[str] = []

    def listen(turn: Turn) -> None:
        turn.store.forget()
        turn.store.connection.set_trace_callback(asked_for.append)

    def explain(turn: Turn) -> list[str]:
        connection = turn.store.connection
        connection.set_trace_callback(None)
        questions = {one for one in asked_for if one.lstrip().startswith(("SELECT", "WITH"))}
        return [row[-1] for one in questions for row in connection.execute(f"EXPLAIN QUERY PLAN {one}")]

    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
    writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
    await writer.start()
    await writer.run(listen)
    for number in range(3):
        steps = [
            Step(ALICE, (asked(f"{number}-{n}", dedupe_key=f"{number}-{n}"),), calls=(call(f"{number}-{n}"),))
            for n in range(5**number)
        ]
        await asyncio.gather(*(writer.commit(step) for step in steps))
    plans = await writer.run(explain)
    await writer.stop()
    found = {one.split(" USING")[0] for one in plans if one.startswith("SEARCH")}
    assert found == {"SEARCH calls", "SEARCH events", "SEARCH s", "SEARCH sessions"}, plans
    assert [one for one in plans if one.startswith(("SCAN s", "SCAN calls", "SCAN e"))] == []
