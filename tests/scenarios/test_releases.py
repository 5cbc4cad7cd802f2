"""A release migrates the database of the one before it, which then refuses it; databases of 0.2.0 are refused."""

import asyncio
import json
import re
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.engines import postgres_server
from tests.scenarios.releases import LAST_WITH_0_2, OFTEN, THIS, Release, build, release_after, release_before
from tests.scenarios.terminal import dragoman
from tests.scenarios.upgrade import go_on, upgrade, write

pytestmark = pytest.mark.slow


@pytest.fixture
def before() -> Release:
    return release_before()


@pytest.fixture(params=["sqlite", "postgres"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    if request.param == "sqlite":
        yield {"type": "sqlite", "path": str(tmp_path / "kept.db")}
        return
    schema = postgres_server.new_schema()
    yield {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}
    await postgres_server.drop_schema(schema)


def test_without_history_the_test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "0" * 40
    monkeypatch.delenv("DRAGOMAN_TEST_NO_SKIPS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="git fetch --unshallow"):
        release_before(missing)
    monkeypatch.setenv("DRAGOMAN_TEST_NO_SKIPS", "1")
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        release_before(missing)


async def test_a_store_of_0_2_0_is_refused_with_the_commit_that_migrates_it(
    tmp_path: Path, engine: dict[str, Any], before: Release
) -> None:
    async with upgrade(tmp_path / "before", engine) as here:
        written = await write(here, before)
    for command in (("migrate",), ("migrate", "--check"), ("serve", "--port", "0")):
        refused = await _run((*command, "--config", str(_configure(tmp_path, engine))), THIS)
        assert re.search(
            r"has schema \d+ and this release supports \d+ to \d+: check out commit f18d4caa, run", refused
        )
    last = build(LAST_WITH_0_2)
    assert last is not None
    assert "schema" in await _migrate(tmp_path, engine, Release(last, OFTEN))
    async with upgrade(tmp_path / "now", engine) as here:
        await go_on(here, written, THIS)


async def test_the_next_release_migrates_a_store_of_this_one_which_then_refuses_it(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    after = release_after(tmp_path / "after")
    async with upgrade(tmp_path / "before", engine) as here:
        written = await write(here, THIS)
    numbers = re.search(r"schema (\d+) -> (\d+), not applied yet", await _migrate(tmp_path, engine, after, "--check"))
    assert numbers is not None
    assert int(numbers[2]) == int(numbers[1]) + 1
    (tmp_path / "new.json").write_text('{"engine": {"path": "new.db"}}')
    copied = await _run(("copy", str(tmp_path / "config.json"), str(tmp_path / "new.json")), after)
    assert "run `dragoman migrate` with its configuration" in copied
    async with upgrade(tmp_path / "now", engine) as here:
        await go_on(here, written, after)
    assert f"schema {numbers[2]}, up to date" in await _migrate(tmp_path, engine, after)
    assert await _later(engine) == 7
    for command in (("migrate",), ("serve", "--port", "0")):
        refused = await _run((*command, "--config", str(_configure(tmp_path, engine))), THIS)
        assert "run the newer release" in refused


async def test_the_next_release_does_not_migrate_a_store_that_a_gateway_uses(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    after = release_after(tmp_path / "after")
    async with upgrade(tmp_path / "before", engine) as here:
        await here.fleet.serve("uses-it", release=THIS)
        refused = await _migrate(tmp_path, engine, after)
    assert "stop that gateway" in refused or "stop them before the migration" in refused
    assert "not applied yet" in await _migrate(tmp_path, engine, after, "--check")


async def _later(engine: dict[str, Any]) -> int:
    """Read the row that the migration of the next release has written."""
    if engine["type"] == "sqlite":
        with closing(sqlite3.connect(engine["path"])) as file:
            return file.execute("SELECT n FROM later").fetchone()[0]
    operator = await postgres_server.reach(engine["dsn"])
    try:
        return await operator.fetchval(f"SELECT n FROM {engine['schema']}.later")  # noqa: S608 - our own schema
    finally:
        await operator.close()


async def test_the_command_says_that_a_gateway_is_of_the_release_before(tmp_path: Path, before: Release) -> None:
    engine = {"type": "sqlite", "path": str(tmp_path / "kept.db")}
    async with upgrade(tmp_path / "before", engine) as here:
        old = await here.fleet.serve("old", release=before)
        await here.scene.agent.wait_connected()
        for words in (("sessions",), ("tail",), ("tail", "--all"), ("send", "finn/finn", "Hello.")):
            done = await dragoman(old, *words)
            assert (done.code, done.out) == (1, "")
            assert f"{old.url} is a gateway of an older release, which does not support this" in done.err
            assert f"use the command of its release ({old.url}/version)" in done.err
        session_id = await old.session("finn")
        for words in (("runtimes",), ("calls",), ("inbox",), ("send", session_id, "Hello.")):
            done = await dragoman(old, *words)
            assert (done.code, done.err.startswith("dragoman: error")) == (0, False), words


async def test_the_release_before_refuses_a_database_of_this_one(
    tmp_path: Path, engine: dict[str, Any], before: Release
) -> None:
    assert "newer release" not in await _migrate(tmp_path, engine, THIS)
    refused = await _migrate(tmp_path, engine, before)
    assert "newer release" in refused, refused


async def _migrate(folder: Path, engine: dict[str, Any], release: Release, *words: str) -> str:
    return await _run(("migrate", *words, "--config", str(_configure(folder, engine))), release)


def _configure(folder: Path, engine: dict[str, Any]) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({"engine": engine, "api": {"keys": [{"name": "me", "key": "k" * 32}]}}))
    return config


async def _run(words: tuple[str, ...], release: Release) -> str:
    """Run a command of a release; return its output."""
    process = await asyncio.create_subprocess_exec(
        *release.command, *words, cwd=release.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return " ".join((await process.communicate())[0].decode().split())
