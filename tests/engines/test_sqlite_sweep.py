"""What retention asks of SQLite costs by what goes, and not by all that stays."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from gateway.store.questions.retention import shelves
from gateway.store.rows import RetentionPolicy
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.dialect import answer
from gateway.store.sqlite.jobs import Turn
from gateway.store.sqlite.place import FilePlace
from gateway.store.sqlite.upkeep import cut
from gateway.store.sqlite.writer import Writer
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said

FEW, MANY = 300, 3_000
KEPT = 200
_LOOK = 20
"""Instructions of SQLite's own machine between two looks at its work."""


async def _fill(path: Path, events: int) -> None:
    """Keep so many delivered events of one session, and a last one that is still on its way."""
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        for start in range(0, events, 100):
            numbers = range(start, start + 100)
            await engine.commit(
                Step(
                    ALICE, tuple(said() for _ in numbers), sends=tuple(Enqueue(place, RUNTIME) for place in range(100))
                )
            )
            changes = [SendChange(number + 2, RUNTIME, "delivered") for number in numbers if number + 1 < events]
            await engine.commit(Step(ALICE, send_changes=tuple(changes)))


def _count(connection: sqlite3.Connection, work: Callable[[], object]) -> int:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    connection.set_progress_handler(look, _LOOK)
    try:
        work()
    finally:
        connection.set_progress_handler(None, 0)
    return looks


@pytest.mark.parametrize("over", [True, False])
async def test_to_look_for_what_may_go_takes_as_long_whatever_stays(tmp_path: Path, *, over: bool) -> None:
    policy = RetentionPolicy(open_events=KEPT if over else MANY * 2)
    asked = shelves(policy, now=0, total=0, budget=2_000)
    found: dict[int, int] = {}
    for events in (FEW, MANY):
        path = tmp_path / f"{events}.db"
        await _fill(path, events)
        with closing(sqlite3.connect(path)) as connection:
            assert [shelf.session_id for shelf in answer(connection, asked)] == [ALICE] * over
            found[events] = _count(connection, partial(answer, connection, asked))
    assert found[MANY] <= found[FEW] + 2, found


def _cut_a_hundred(turn: Turn) -> int:
    removed: list[int] = []
    looks = _count(turn.store.connection, lambda: removed.append(cut({ALICE: 101}, 0)(turn).events))
    assert removed == [100]
    return looks


async def test_to_remove_the_oldest_takes_as_long_whatever_stays(tmp_path: Path) -> None:
    found: dict[int, int] = {}
    for events in (FEW, MANY):
        path = tmp_path / f"{events}.db"
        await _fill(path, events)
        writer = Writer(path, FakeClock(), FilePlace(path))
        await writer.start()
        found[events] = await writer.run(_cut_a_hundred, how="alone")
        await writer.stop()
    assert found[MANY] <= found[FEW] * 1.2, found
