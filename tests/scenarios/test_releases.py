"""Two releases and one store: each opens what the other has written, and both share one PostgreSQL."""

import asyncio
import json
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Response

from gateway.testing.runtimes.openhands.events import action_event
from gateway.testing.runtimes.openhands.rules import complete
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from tests.engines import postgres_server
from tests.http.mcp_clients import Plain
from tests.scenarios.environment import ended, until
from tests.scenarios.fleet import OPENHANDS_KEY, openhands_options
from tests.scenarios.hooks import Gate, success
from tests.scenarios.releases import THIS, Release, release_before
from tests.scenarios.replica_processes import START, Serving
from tests.scenarios.terminal import dragoman
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
            assert f"{old.url} is a gateway of an older release, which does not know this" in done.err
            assert f"{old.url}/version says which it is" in done.err
        session_id = await old.session("finn")
        for words in (("runtimes",), ("calls",), ("inbox",), ("send", session_id, "Hello.")):
            done = await dragoman(old, *words)
            assert (done.code, done.err.startswith("dragoman: error")) == (0, False), words


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
    assert {written.session_id, written.herm_id} <= await _snapshots(engine)
    async with upgrade(tmp_path / "rolled-back", engine) as here:
        await go_on(here, written, before)
    async with upgrade(tmp_path / "again", engine) as here:
        await come_back(here, written, THIS)


async def test_the_release_before_tells_no_runtime_of_a_call_from_outside(
    tmp_path: Path, engine: dict[str, Any], before: Release
) -> None:
    keyed: dict[str, Any] = {"tool": "later", "arguments": {}, "key": "k"}
    async with upgrade(tmp_path / "now", engine) as here:
        here.scene.hooks.scripts["later"] = Response(status_code=202)
        one = await here.fleet.serve("opens", release=THIS)
        path = f"/v1/sessions/{await one.session('finn')}/calls"
        opened = await one.post(path, keyed, status=202)
        await one.wait_call("caller:backend:k", "accepted")
        one.signal(signal.SIGTERM)
        assert await one.ended() == 0
    where = f"/v1/calls/{opened['call_id']}"
    async with upgrade(tmp_path / "before", engine) as here:
        older = await here.fleet.serve("settles", release=before)
        await here.scene.agent.wait_connected()
        settled = await older.post(f"{where}/outcome", success("in the end"), status=200)
        assert (settled["state"], settled["deliver"]) == ("succeeded", False)
        # Whatever the agent is told, it is told in order.
        assert (await ended(await here.scene.agent.call("free", {}))).outcome == "success"
        assert "in the end" not in str(here.scene.agent.received)
        assert "runtime" not in {row["target"] for row in (await older.get(where))["deliveries"]}
        older.signal(signal.SIGTERM)
        assert await older.ended() == 0
    async with upgrade(tmp_path / "again", engine) as here:
        one = await here.fleet.serve("answers", release=THIS)
        again = await one.post(path, keyed, status=200)
        assert (again["call_id"], again["outcome"]["result"]) == (opened["call_id"], "in the end")


async def test_the_release_before_keeps_what_it_cannot_read_of_links(
    tmp_path: Path, engine: dict[str, Any], before: Release
) -> None:
    async with OpenHandsServer(session_api_key=OPENHANDS_KEY) as server:
        created: dict[str, Any] = {"conversation_id": None, "conversation": {}}
        runtime = {"runtimes": {"work": openhands_options(server) | created}}

        async with upgrade(tmp_path / "now", engine) as here:
            here.scene.configure(runtime)
            one = await here.fleet.serve("links", release=THIS)
            row = await one.post("/v1/sessions", {"runtime": "work"}, status=201)
            session_id, work = row["session_id"], server.conversation(row["native_id"])
            # How it began is put on record too, or only kept where the link came too late to see it.
            await until(lambda: _moved_to(one, session_id, "awaiting_input"))

            async def does(count: int) -> None:
                args = complete("call_tool_mcp", name="free", arguments={"n": count})
                await work.add(action_event("call_tool_mcp", args, source="agent"))

            await does(1)
            await until(lambda: _recorded(one, session_id, "tool.requested", 1))
            (ticket,) = work.mcp.servers
            path, token = urlsplit(ticket.url).path, ticket.api_key or ""
            await Plain(one.http, path, token).call("free", {"n": 1})
            assert await _recorded(one, session_id, "call.linked", 1)
            await does(2)
            await until(lambda: _recorded(one, session_id, "tool.requested", 3))
            one.signal(signal.SIGTERM)
            assert await one.ended() == 0
        async with upgrade(tmp_path / "before", engine) as here:
            here.scene.configure(runtime)
            older = await here.fleet.serve("goes on", release=before)
            await older.wait_carries(session_id)
            await work.agent_says("Still there.")
            await until(lambda: _recorded(older, session_id, "message.posted", 1))
            kept = [row["event"] for row in await older.events(session_id, "opaque")]
            assert [one["payload"]["tool"] for one in kept if one["channel"] == "unknown-kind"] == ["free"]
            older.signal(signal.SIGTERM)
            assert await older.ended() == 0
        async with upgrade(tmp_path / "again", engine) as here:
            here.scene.configure(runtime)
            one = await here.fleet.serve("is back", release=THIS)
            await one.wait_carries(session_id)
            await Plain(one.http, path, token).call("free", {"n": 2})
            links = await until(lambda: _recorded(one, session_id, "call.linked", 2))
            asked = [row for row in await one.events(session_id, "tool.requested") if row["linked_to"]]
            assert [row["event"]["call_id"] for row in links] == [row["linked_to"] for row in asked]
            assert [row["event"]["arguments"]["arguments"] for row in asked] == [{"n": 1}, {"n": 2}]


async def _recorded(one: Serving, session_id: str, kind: str, count: int) -> list[dict[str, Any]] | None:
    found = await one.events(session_id, kind)
    return found if len(found) >= count else None


async def _moved_to(one: Serving, session_id: str, state: str) -> bool:
    return state in {row["event"]["state"] for row in await one.events(session_id, "session.moved")}


async def _snapshots(engine: dict[str, Any]) -> set[str]:
    """Name the sessions of a store whose memory is written down."""
    if engine["type"] == "sqlite":
        with closing(sqlite3.connect(engine["path"])) as file:
            return {session_id for (session_id,) in file.execute("SELECT session_id FROM snapshots")}
    operator = await postgres_server.reach(engine["dsn"])
    try:
        rows = await operator.fetch(f"SELECT session_id FROM {engine['schema']}.snapshots")  # noqa: S608 - our schema
        return {session_id for (session_id,) in rows}
    finally:
        await operator.close()


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
