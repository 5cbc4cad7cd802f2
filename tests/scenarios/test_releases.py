"""A database of the release before is migrated; that release refuses a database of this one."""

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.engines import postgres_server
from tests.scenarios.killed import COMMIT, release_0_2_0
from tests.scenarios.releases import THIS, Release, release_before
from tests.scenarios.terminal import dragoman
from tests.scenarios.upgrade import go_on, kept, upgrade, write

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


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_kept_store_of_the_release_before_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    async with kept(kind, tmp_path) as (engine, written), upgrade(tmp_path / "now", engine) as here:
        await go_on(here, written, THIS)


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


async def test_a_store_of_0_2_0_that_was_killed_is_gone_on_with_and_refused_by_it(tmp_path: Path) -> None:
    release = release_0_2_0() or release_before(COMMIT)
    path = tmp_path / "kept.db"
    engine = {"type": "sqlite", "path": str(path)}
    async with upgrade(tmp_path / "before", engine) as here:
        written = await write(here, release)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        # Its last commits are in its log alone.
        assert file.execute("SELECT count(*) FROM steps WHERE id > 0").fetchone() != (0,)
    async with upgrade(tmp_path / "now", engine) as here:
        await go_on(here, written, THIS)
    assert path.with_name("kept.db.before-0.3").is_file()
    for command in ("migrate", "serve"):
        refused = await _run(command, tmp_path, engine, release)
        assert "newer release" in refused, refused


async def _migrate(folder: Path, engine: dict[str, Any], release: Release) -> str:
    """Let a release migrate a database by its command; returns its output."""
    return await _run("migrate", folder, engine, release)


async def _run(name: str, folder: Path, engine: dict[str, Any], release: Release) -> str:
    config = folder / "migrate.json"
    config.write_text(json.dumps({"engine": engine, "api": {"keys": [{"name": "me", "key": "k" * 32}]}}))
    command = [*release.command, name, "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=release.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return " ".join((await process.communicate())[0].decode().split())
