"""What retention and the ways out ask of SQLite costs by what goes, and not by all that stays."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.store.questions.calls import count_open_calls
from gateway.store.questions.question import Question
from gateway.store.questions.retention import removable_sessions
from gateway.store.questions.sends import next_send_due, pending_sends
from gateway.store.rows import RetentionPolicy
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.dialect import answer, in_sqlite
from gateway.store.sqlite.file_guard import FileGuard
from gateway.store.sqlite.jobs import Turn
from gateway.store.sqlite.upkeep import cut
from gateway.store.sqlite.writer import Writer
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, said

FEW, MANY = 300, 3_000
KEPT = 200
LATER = datetime(2100, 1, 1, tzinfo=UTC)
COPIES = "destination:log"
DUE = next_send_due(COPIES)
_LOOK = 20
"""Instructions of SQLite's own machine between two looks at its work."""


async def _fill(path: Path, events: int, *, target: str = RUNTIME, first_due: datetime | None = None) -> None:
    """Keep so many delivered events of one session, and a last one on its way; or none delivered, and all wait."""
    async with SqliteEngine(path, FakeClock()) as engine:
        await open_session(engine)
        for start in range(0, events, 100):
            said_now = tuple(said() for _ in range(100))
            await engine.commit(Step(ALICE, said_now, sends=tuple(Enqueue(place, target) for place in range(100))))
            if first_due is None:
                # The first of them is the second event: the session was opened before.
                there = range(start + 2, min(start + 102, events + 1))
                changes = tuple(SendChange(sequence, target, "delivered") for sequence in there)
                await engine.commit(Step(ALICE, send_changes=changes))
        if first_due is not None:
            await engine.commit(Step(ALICE, send_changes=(SendChange(2, target, "pending", due_at=first_due),)))


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
    asked = removable_sessions(policy, now=0, total=0, budget=2_000)
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
        writer = Writer(path, FakeClock(), FileGuard(path, confirm=1.0))
        await writer.start()
        found[events] = await writer.run(_cut_a_hundred, how="alone")
        await writer.stop()
    assert found[MANY] <= found[FEW] * 1.2, found


WAYS_OUT: dict[str, tuple[str, Question[Any]]] = {
    "pending, of all": (COPIES, pending_sends(None, COPIES, 0, LATER, 50)),
    "pending, of one": (RUNTIME, pending_sends(ALICE, RUNTIME, 0, LATER, 50)),
    "when the next is due": (COPIES, DUE),
}


def _ask_for(connection: sqlite3.Connection, question: Question[Any]) -> None:
    assert answer(connection, question)


@pytest.mark.parametrize("asked", WAYS_OUT)
async def test_to_look_for_what_waits_takes_as_long_whatever_was_delivered(tmp_path: Path, asked: str) -> None:
    target, question = WAYS_OUT[asked]
    found: dict[int, int] = {}
    for events in (FEW, MANY):
        path = tmp_path / f"{events}.db"
        await _fill(path, events, target=target)
        # The first commit of a process lists what is open.
        await _fill(path, 0)
        with closing(sqlite3.connect(path)) as connection:
            found[events] = _count(connection, partial(_ask_for, connection, question))
    assert found[MANY] <= found[FEW] + 2, found


async def test_to_find_nothing_due_takes_as_long_however_much_waits_behind_it(tmp_path: Path) -> None:
    found: dict[int, int] = {}
    for events in (FEW, MANY):
        path = tmp_path / f"{events}.db"
        await _fill(path, events, target=COPIES, first_due=LATER)
        with closing(sqlite3.connect(path)) as connection:
            assert answer(connection, DUE) == LATER
            question = pending_sends(None, COPIES, 0, FakeClock().now(), 50)
            assert answer(connection, question) == []
            found[events] = _count(connection, partial(answer, connection, question))
            found[events] += _count(connection, partial(answer, connection, DUE))
    assert found[MANY] <= found[FEW] + 2, found


async def test_to_count_open_calls_reads_only_those(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    async with SqliteEngine(path, FakeClock()):
        pass
    with closing(sqlite3.connect(path)) as connection:
        text = in_sqlite(count_open_calls().sqlite)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]
    reading = [step for step in plan if step.startswith(("SCAN", "SEARCH"))]
    young = "SEARCH calls USING INTEGER PRIMARY KEY (rowid>?)"
    # The last step reads the rows that the first two have found.
    assert reading == ["SCAN calls USING INDEX calls_open", young, "SCAN listed_up_to", "SCAN calls"]
