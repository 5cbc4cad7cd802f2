"""A page of calls costs the same however many calls are stored, whatever the filter matches."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.questions.calls import calls
from gateway.store.questions.question import SEARCHED, WINDOW
from gateway.store.rows import CallFilter, Page
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.dialect import in_sqlite
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session
from tests.engines import postgres_server

FILTERS = {
    "session": CallFilter(session_id=SessionId("nobody")),
    "runtime": CallFilter(runtime="none"),
    "tool": CallFilter(tool="none"),
    "executor": CallFilter(executor="none"),
    "since": CallFilter(since=datetime(2100, 1, 1, tzinfo=UTC)),
    "until": CallFilter(until=datetime(1970, 1, 1, tzinfo=UTC)),
    "label": CallFilter(labels={"team": "none"}),
    "trace": CallFilter(trace_id="0" * 32),
    "text": CallFilter(text="none"),
    "open": CallFilter(states=frozenset({"queued", "dispatched", "accepted"})),
    "queued": CallFilter(states=frozenset({"queued"})),
    "failed": CallFilter(states=frozenset({"failed"})),
    "failed or queued": CallFilter(states=frozenset({"failed", "queued"})),
    "unknown": CallFilter(unknown=True),
    "known": CallFilter(unknown=False, tool="none"),
    "dead": CallFilter(dead=True),
    "dead of a tool": CallFilter(dead=True, tool="none"),
    "not dead": CallFilter(dead=False, tool="none"),
}
COVERED = {"open", "queued", "unknown", "dead", "dead of a tool"}
"""The filters that a partial index serves."""
YOUNG = "SEARCH calls USING INTEGER PRIMARY KEY (rowid>?)"
"""The calls that are too young for the index of open ones."""
BY_WINDOW = {"SEARCH calls USING INTEGER PRIMARY KEY (rowid>?)", "SCAN calls"}
"""The rows of the window, and the search for its end, which a literal OFFSET bounds."""
MANY, RARE = 45_000, (3, 21_000, 44_000)
_ADD = """
INSERT INTO {schema}calls (call_id, session_id, runtime, native_call_id, n, tool, args_sha, state, attempt, created_at,
    deadline_at, request_seq, unknown, deliver, finished_at, dead, late, progressed)
SELECT 'call-' || n, {session}, 'finn', 'native-' || n, 0, CASE WHEN n IN {rare} THEN 'rare' ELSE 'ask' END, '',
    'succeeded', 1, n, n, 1, 0, 1, n, 0, 0, 0
FROM {numbers}
"""

_NUMBERS = f"(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {MANY}) SELECT n FROM c)"  # noqa: S608


@dataclass
class Filled:
    """A store with `MANY` ended calls, of which three call the tool `rare`."""

    engine: Engine
    rows_read: Callable[[CallFilter], Awaitable[int]]
    """Count the rows of calls that a page reads."""


@pytest.fixture(params=["sqlite", "postgres"])
async def filled(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Filled]:
    if request.param == "sqlite":
        path = tmp_path / "dragoman.db"
        async with SqliteEngine(path, FakeClock()) as engine:
            await open_session(engine)
            with closing(sqlite3.connect(path)) as file, file:
                file.execute(_ADD.format(schema="", session=1, rare=RARE, numbers=_NUMBERS))
                file.execute("UPDATE listed_up_to SET call = ?", (MANY,))
            yield Filled(engine, lambda which: _sqlite_rows(path, which))
        return
    schema = postgres_server.new_schema()
    async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
        await open_session(engine)
        operator = await postgres_server.reach(postgres_server.dsn())
        numbers = f"generate_series(1, {MANY}) n"
        await operator.execute(_ADD.format(schema=f"{schema}.", session=f"'{ALICE}'", rare=RARE, numbers=numbers))
        await operator.execute(f"VACUUM ANALYZE {schema}.calls")
        yield Filled(engine, lambda which: _postgres_rows(operator, schema, which))
        await operator.close()
    await postgres_server.drop_schema(schema)


async def _sqlite_rows(path: Path, which: CallFilter) -> int:
    """Estimate the rows by the work: SQLite takes at most 16 instructions for each."""
    question = calls(which, Page())
    with closing(sqlite3.connect(path)) as file:
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        file.set_progress_handler(look, 100)
        file.execute(in_sqlite(question.sqlite or question.text), question.values).fetchall()
    return looks * 100 // 16


async def _postgres_rows(operator: Any, schema: str, which: CallFilter) -> int:
    question = calls(which, Page())
    text = question.text.replace("@name(calls.session_id)", "calls.session_id").replace("@key($1)", "$1")
    text = text.replace("s.@key", "s.session_id")
    text = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".replace("@", f'"{schema}".')
    ((plan,),) = await operator.fetch(text, *question.values)
    return max(_scans(orjson.loads(plan)[0]["Plan"]), default=0)


def _scans(plan: dict[str, Any]) -> list[int]:
    read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    mine = [int(read)] if plan.get("Relation Name") == "calls" else []
    return mine + [rows for one in plan.get("Plans", ()) for rows in _scans(one)]


@pytest.mark.slow
async def test_a_page_that_matches_nothing_reads_no_more_than_the_window(filled: Filled) -> None:
    for name, which in FILTERS.items():
        found, following = await filled.engine.calls(which, Page())
        assert found == [], name
        assert (following is None) == (name in COVERED), name
        read = await filled.rows_read(which)
        # A label also takes the row of the session.
        most = 100 if name in COVERED else WINDOW * (2 if name == "label" else 1)
        # To compare texts takes SQLite more instructions for each row than other filters do.
        most = SEARCHED * 2 if name == "text" else most
        assert read <= most, (name, read)


@pytest.mark.slow
async def test_a_list_goes_on_behind_windows_without_a_match(filled: Filled) -> None:
    for limit in (1, 2, 50):
        found: list[str] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page, after = await filled.engine.calls(CallFilter(tool="rare"), Page(limit, after))
            found += [one.call_id for one in page]
            pages += 1
        assert found == [f"call-{number}" for number in sorted(RARE, reverse=True)]
        assert pages <= MANY // WINDOW + 1 + len(RARE)


@pytest.mark.parametrize("name", FILTERS)
async def test_the_plan_of_sqlite_reads_calls_by_an_index_or_within_the_window(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dragoman.db"
    async with SqliteEngine(path, FakeClock()):
        pass
    question = calls(FILTERS[name], Page())
    with closing(sqlite3.connect(path)) as file:
        statement = in_sqlite(question.sqlite or question.text)
        plan = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", question.values)]
    reading = [step for step in plan if step.split()[1:2] == ["calls"]]
    assert reading, plan
    if name in COVERED:
        assert all("USING INDEX calls_" in step for step in reading if step != YOUNG), plan
        assert (YOUNG in reading) == (name in {"open", "queued"}), plan
    else:
        assert sorted(reading) == sorted(BY_WINDOW), plan
