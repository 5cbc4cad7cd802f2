"""A database of release 0.2.0 becomes one of this release, with the steps that a killed gateway left in its log."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.events import CallId
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.schema import NEWEST
from gateway.store.step import RUNTIME
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, row_of, texts

HERE = Path(__file__).parent
COPIES = "destination:log"


@pytest.mark.parametrize("files", [("unsettled_sqlite.sql",), ("unsettled_sqlite.sql", "packed_together.sql")])
async def test_steps_in_the_log_go_into_the_tables(tmp_path: Path, files: tuple[str, ...]) -> None:
    path = tmp_path / "dragoman.db"
    with closing(sqlite3.connect(path)) as file:
        for name in files:
            file.executescript((HERE / name).read_text(encoding="utf-8"))
        assert file.execute("SELECT count(*) FROM calls").fetchone() == (0,)
    async with SqliteEngine(path, FakeClock()) as engine:
        assert (await engine.health()).extra["schema"] == str(NEWEST)
        call = await engine.call(CallId("call-1"))
        assert call is not None
        assert (call.session_id, call.state, call.request_sequence, call.outcome_sequence) == (ALICE, "succeeded", 2, 3)
        assert {send.target: send.state for send in await engine.sends_of(ALICE, 3)} == {
            RUNTIME: "delivered",
            COPIES: "pending",
        }
        alice, bob = await row_of(engine), await row_of(engine, BOB)
        assert (alice.last_sequence, alice.cursor) == (3, "7")
        assert (bob.last_sequence, bob.state, bob.snapshot) == (3, "running", b"folded")
        assert [one.sequence for one in await engine.read(ALICE)] == [1, 2, 3]
        assert await texts(engine, BOB) == ["one", "two"]
