"""The commands about the database where it is a PostgreSQL server's."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import app
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tables import FIRST, NEWEST
from gateway.store.roster import RESTORED
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, open_session, row_of, said
from tests.engines import postgres_server

NOW = NEWEST


@pytest.fixture(autouse=True)
def schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with a configuration for SQLite, and one for a schema that does not exist yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSN", postgres_server.dsn())
    name = postgres_server.new_schema()
    Path("gateway.yaml").write_text("engine: {path: my.db}\n")
    Path("new.yaml").write_text(json.dumps({"engine": {"type": "postgres", "dsn": "${DSN}", "schema": name}}))
    yield name
    asyncio.run(postgres_server.drop_schema(name))


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="dragoman")


def test_migrate_says_what_it_did_to_which_schema(schema: str) -> None:
    result = _run("migrate", "--check", "--config", "new.yaml")
    assert result.exit_code == 1
    assert re.fullmatch(rf"PostgreSQL at .*, schema {schema}: schema none -> {NOW}, not applied yet\n", result.stdout)
    assert f"schema none -> {NOW}\n" in _run("migrate", "--config", "new.yaml").stdout
    for words in (("migrate",), ("migrate", "--check")):
        result = _run(*words, "--config", "new.yaml")
        assert result.exit_code == 0
        assert result.stdout.endswith(f"schema {schema}: schema {NOW}, up to date\n")


def test_a_schema_of_an_earlier_release_is_refused_with_the_commit_that_migrates_it(schema: str) -> None:
    _run("migrate", "--config", "new.yaml")

    async def make_older() -> None:
        operator = await postgres_server.reach(postgres_server.dsn())
        # As a schema whose last migration is an earlier one.
        await operator.execute(f'UPDATE "{schema}".schema_version SET n = n - {NEWEST - FIRST + 1}')  # noqa: S608
        await operator.close()

    asyncio.run(make_older())
    for words in (("migrate",), ("migrate", "--check"), ("restore", "--bump-fences")):
        result = _run(*words, "--config", "new.yaml")
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"schema '{schema}', has schema {FIRST - 1} and this release supports" in result.stderr
        assert "check out commit f18d4caa" in result.stderr


def test_backup_and_restore_show_the_commands_of_postgresql(schema: str) -> None:
    for words, command in (
        (("backup", "a.dump"), f"pg_dump --format=custom --schema={schema} --file=a.dump "),
        (("restore", "a.dump"), "pg_restore --clean --if-exists --single-transaction --dbname="),
    ):
        result = _run(*words, "--config", "new.yaml")
        assert (result.exit_code, result.stdout) == (2, "")
        assert command in result.stderr
        assert "PGPASSWORD" in result.stderr
    assert not Path("a.dump").exists()


def test_everything_is_copied_and_its_fences_can_be_made_new(schema: str, tmp_path: Path) -> None:
    async def fill() -> None:
        async with SqliteEngine(tmp_path / "my.db", FakeClock()) as engine:
            await open_session(engine)
            await engine.commit(Step(ALICE, (said(),)))

    async def look() -> tuple[int, int]:
        async with PostgresEngine(postgres_server.dsn(), FakeClock(), schema=schema) as engine:
            row = await row_of(engine)
            return row.last_sequence, row.fence

    asyncio.run(fill())
    result = _run("copy", "gateway.yaml", "new.yaml")
    assert result.exit_code == 0, result.output
    sums = re.findall(r"events +(old|new) +2 rows  sha256 ([0-9a-f]{64})", result.stdout)
    assert [place for place, _ in sums] == ["old", "new"]
    assert sums[0][1] == sums[1][1]
    assert asyncio.run(look()) == (2, 0)
    again = _run("copy", "gateway.yaml", "new.yaml")
    assert again.exit_code == 1
    assert f"schema {schema} is not empty (table sessions): use an empty database" in again.stderr
    bumped = _run("restore", "--bump-fences", "--config", "new.yaml")
    assert bumped.exit_code == 0
    assert bumped.stdout.endswith(f"schema {schema}: 1 session with new fencing tokens and no owner\n")
    assert asyncio.run(look()) == (2, RESTORED)


def test_a_server_that_is_away_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSN", "postgresql://me:secret@127.0.0.1:1/main")
    for words in (("migrate",), ("restore", "--bump-fences")):
        result = _run(*words, "--config", "new.yaml")
        assert result.exit_code == 1
        assert result.stderr.startswith("dragoman: error: PostgreSQL at 127.0.0.1:1, database main cannot be reached")
        assert result.stderr.count("\n") == 1
        assert "secret" not in result.output
