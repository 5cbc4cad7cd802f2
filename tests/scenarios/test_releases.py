"""Two releases and one store: each opens what the other has written, and both share one PostgreSQL."""

import asyncio
import inspect
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response

from tests.engines import postgres_server
from tests.scenarios import releases
from tests.scenarios.environment import ended
from tests.scenarios.hooks import Gate, success
from tests.scenarios.releases import THIS, Release, release_before
from tests.scenarios.replica_processes import START, Serving
from tests.scenarios.upgrade import APPROVAL, NEWS, Upgrade, come_back, go_on, kept, upgrade, waiting, write

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
    monkeypatch.setattr(releases, "COMMIT", "0" * 40)
    find = inspect.unwrap(releases.find_release_before)
    assert find() is None
    monkeypatch.setattr(releases, "find_release_before", find)
    monkeypatch.delenv("DRAGOMAN_TEST_NO_SKIPS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="git fetch --unshallow"):
        release_before()
    monkeypatch.setenv("DRAGOMAN_TEST_NO_SKIPS", "1")
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        release_before()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_kept_store_of_the_release_before_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    async with kept(kind, tmp_path) as (engine, written), upgrade(tmp_path / "now", engine) as here:
        await go_on(here, written, THIS)


async def test_the_release_before_goes_on_with_what_this_one_wrote(
    tmp_path: Path, engine: dict[str, Any], before: Release
) -> None:
    async with upgrade(tmp_path / "now", engine) as here:
        written = await write(here, THIS)
    if engine["type"] == "sqlite":
        # It was killed over steps that the release before cannot read; bringing the tables up to date is enough.
        refused = await _migrate(tmp_path, engine, before)
        assert "use the newer release" in refused, refused
        assert "use the newer release" not in await _migrate(tmp_path, engine, THIS)
    async with upgrade(tmp_path / "rolled-back", engine) as here:
        await go_on(here, written, before)
    async with upgrade(tmp_path / "again", engine) as here:
        await come_back(here, written, THIS)


async def _migrate(folder: Path, engine: dict[str, Any], release: Release) -> str:
    """Let a release bring a database up to date, by its command; answers what it says."""
    config = folder / "migrate.json"
    config.write_text(json.dumps({"engine": engine, "api": {"keys": [{"name": "me", "key": "k" * 32}]}}))
    command = [*release.command, "migrate", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=release.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return " ".join((await process.communicate())[0].decode().split())


async def _use(here: Upgrade, owner: Serving, other: Serving, number: int) -> None:
    """Let the owner of both sessions be asked by its agents, and by clients of the other process."""
    hooks, agent = here.scene.hooks, here.scene.agent
    finn, ada = await owner.session("finn"), await owner.session("ada")
    await owner.wait_carries(finn)
    await owner.wait_carries(ada)
    assert not await other.carries(finn)
    async with other.stream(finn, after=(await owner.events(finn))[-1]["sequence"]) as source:
        name = f"news-{number}"
        # A request that the other process forwards, and what its own followers see of it.
        key = {"idempotency-key": name}
        posted = await other.post(f"/v1/sessions/{finn}/events", {**NEWS, "name": name}, status=202, **key)
        assert await owner.post(f"/v1/sessions/{finn}/events", {**NEWS, "name": name}, status=202, **key) == posted
        await agent.wait_for(lambda frame: frame.get("name") == name)
        call = await agent.call("later", {"n": number})
        accepted = (await hooks.wait_for(number, name="later"))[-1]
        await other.wait_call(call.call_id, "accepted")
        # The outcome is called back to the process that did not ask.
        target = httpx.URL(accepted.data["callback_url"]).raw_path.decode()
        await other.post(target, success(f"called back {number}"), status=200)
        assert (await ended(call)).result == f"called back {number}"
        seen = [row["data"]["event"]["kind"] for row in await source.until("tool.finished") if "data" in row]
        assert {"context.updated", "tool.requested"} <= set(seen)
    approval = here.ada.ask_approval("terminal", {"n": number}, use_id=f"{APPROVAL}-{number}")
    [question] = await waiting(other)
    path = f"/v1/interactions/{question['interaction_id']}/answer"
    await other.post(path, {"decision": "allow"}, status=200)
    assert (await approval.answered(10))["result"] == "allow"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["in order", "killed"])
async def test_a_replica_of_each_release_share_a_database_and_hand_over_both_ways(
    tmp_path: Path, before: Release, number: signal.Signals
) -> None:
    async with upgrade(tmp_path / "now") as here:
        hooks, agent = here.scene.hooks, here.scene.agent
        hooks.scripts["later"] = Response(status_code=202)
        owner = await here.fleet.serve("first", release=before)
        await agent.wait_connected()
        other = await here.fleet.serve("second", release=THIS)
        await _use(here, owner, other, 1)
        for turn, release in enumerate((before, THIS), start=2):
            gate = Gate()
            hooks.scripts["held"] = gate.answering(success(f"held {turn}"))
            held = await agent.call("held", {"n": turn})
            await owner.wait_call(held.call_id, "dispatched")
            sessions = [await owner.session("finn"), await owner.session("ada")]
            owner.signal(number)
            for session_id in sessions:
                await other.wait_carries(session_id)
            gate.open()
            assert (await ended(held)).result == f"held {turn}"
            assert {one.key for one in hooks.of("held") if one.data["native_call_id"] == held.call_id} == {
                (await other.call_of(held.call_id))["call_id"]
            }
            assert await owner.ended() == (0 if number == signal.SIGTERM else -number)
            owner, other = other, await here.fleet.serve(f"again-{turn}", release=release)
            await _use(here, owner, other, turn)
        for session_id in (await owner.session("finn"), await owner.session("ada")):
            events = await owner.events(session_id)
            assert [one["sequence"] for one in events] == [*range(1, len(events) + 1)]
            assert "opaque" not in {one["event"]["kind"] for one in events}
        # Who is killed may have said a result without a word on record; it is said again, and is the same.
        assert all(len(call.results) == 1 or number == signal.SIGKILL for call in agent.calls.values())
        assert all(result == call.results[0] for call in agent.calls.values() for result in call.results)
        for log in here.scene.folder.glob("*.log"):
            assert "Traceback" not in log.read_text(), log.name


@pytest.mark.parametrize("older_first", [True, False], ids=["to this one", "to the one before"])
async def test_what_one_release_heard_while_it_was_cut_off_is_answered_by_the_other(
    tmp_path: Path, before: Release, older_first: bool
) -> None:
    async with upgrade(tmp_path / "now") as here:
        agent = here.scene.agent
        first, second = (before, THIS) if older_first else (THIS, before)
        one = await here.fleet.serve("one", through_wire=True, release=first)
        assert one.wire is not None
        await agent.wait_connected()
        session_id = await one.session("finn")
        other = await here.fleet.serve("other", release=second)
        one.wire.half_open()
        # Each is asked once, and heard by a replica that can write nothing.
        calls = [await agent.call("free", {"n": n}) for n in range(3)]
        await other.wait_carries(session_id)
        one.wire.heal()
        for call in calls:
            assert (await ended(call, within=START)).outcome == "success"
        assert [len(call.results) for call in calls] == [1, 1, 1]
        asked = [row["event"]["native_call_id"] for row in await other.events(session_id, "tool.requested")]
        assert asked == [call.call_id for call in calls]
