"""A page of sessions or events that is filtered searches a bounded number of rows, however many are stored."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.questions.question import WINDOW
from gateway.store.rows import Page, SessionFilter
from gateway.store.sqlite import SqliteEngine
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session
from tests.engines import postgres_server

MANY, RARE = 45_000, (3, 21_000, 44_000)
_SESSIONS = """
INSERT INTO {schema}sessions (session_id, runtime, protocol, native_id, state, labels, last_seq, min_seq, fence, size,
    opened_at, updated_at)
SELECT 'session-' || n, 'finn', 'test/1', 'room-' || n, 'idle',
    CASE WHEN n IN {rare} THEN '{{"team":"rare"}}' ELSE '{{}}' END, 0, 1, 0, 0, n, n
FROM {numbers}
"""
_EVENTS = """
INSERT INTO {schema}events (session_id, seq, event_id, kind, direction, recorded_at)
SELECT {session}, n + 1, 'event-' || n, CASE WHEN n IN {rare} THEN 'turn.steered' ELSE 'message.posted' END,
    'to_runtime', n
FROM {numbers}
"""
_LAST = "UPDATE {schema}sessions SET last_seq = {last} WHERE session_id = 'alice'"
_NUMBERS = f"(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {MANY}) SELECT n FROM c)"  # noqa: S608


def _statements(schema: str, session: Any, numbers: str) -> list[str]:
    values = {"schema": schema, "session": session, "rare": RARE, "numbers": numbers, "last": MANY + 1}
    return [statement.format(**values) for statement in (_SESSIONS, _EVENTS, _LAST)]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param == "sqlite":
        path = tmp_path / "dragoman.db"
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            with closing(sqlite3.connect(path)) as file, file:
                for statement in _statements("", 1, _NUMBERS):
                    file.execute(statement)
            yield engine
        return
    schema = postgres_server.new_schema()
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        await open_session(engine)
        operator = await postgres_server.reach(postgres_server.dsn())
        for statement in _statements(f"{schema}.", f"'{ALICE}'", f"generate_series(1, {MANY}) n"):
            await operator.execute(statement)
        await operator.close()
        yield engine
    await postgres_server.drop_schema(schema)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 50])
async def test_a_list_of_sessions_goes_on_behind_windows_without_a_match(
    engine: Engine, limit: int, newest_first: bool
) -> None:
    found, after, pages = list[str](), None, 0
    while pages == 0 or after is not None:
        which = SessionFilter(labels={"team": "rare"})
        rows, after = await engine.sessions(Page(limit, after), which, newest_first=newest_first)
        found += [row.session_id for row in rows]
        pages += 1
    assert found == [f"session-{number}" for number in sorted(RARE, reverse=newest_first)]
    assert MANY // WINDOW < pages <= MANY // WINDOW + 1 + len(RARE)


@pytest.mark.parametrize("limit", [1, 50])
async def test_a_list_of_events_goes_on_behind_windows_without_a_match(engine: Engine, limit: int) -> None:
    found, after, pages = list[int](), 0, 0
    while after is not None:
        page, after = await engine.read_kinds(ALICE, ["turn.steered"], after=after, limit=limit)
        found += [envelope.sequence for envelope in page]
        pages += 1
    assert found == [number + 1 for number in RARE]
    assert MANY // WINDOW < pages <= MANY // WINDOW + 1 + len(RARE)


async def test_the_latest_event_of_a_kind_is_searched_in_one_window(engine: Engine) -> None:
    found, searched_from = await engine.latest_event(ALICE, "turn.steered")
    assert (found and found.sequence, searched_from) == (RARE[-1] + 1, MANY + 1 - WINDOW + 1)
    assert await engine.latest_event(ALICE, "session.opened") == (None, searched_from)
