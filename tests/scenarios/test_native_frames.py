"""Native frames in every protocol: received ones are kept if the options say so, and sent ones are encoded again."""

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.testing.runtimes.openhands.events import action_event, live_of
from tests.engines import postgres_server
from tests.scenarios.environment import AGENT_KEY, Running, until
from tests.scenarios.fleet import ADA, HERM_KEY, OPENHANDS_KEY, WORK, condition
from tests.scenarios.four import RUNTIMES, Four, all_up, four
from tests.scenarios.hooks import success

SECRETS = {"lena": AGENT_KEY, "finn": AGENT_KEY, "ada": HERM_KEY, "work": OPENHANDS_KEY}


@pytest.fixture(params=["sqlite", "postgres"])
async def environment(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Four]:
    async with four(tmp_path) as made:
        made.configure({"runtimes": {name: {"keep_native": True} for name in RUNTIMES}})
        if request.param == "postgres":
            schema = postgres_server.temporary_schema()
            made.configure(
                {"engine": {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema, "path": None}}
            )
        yield made
        assert made.violations() == []


async def speak(environment: Four, runtime: str, text: str) -> Any:
    """Let a runtime say a text in a frame; returns the frame."""
    match runtime:
        case "lena" | "finn":
            agent = environment.older.agent("lena") if runtime == "lena" else environment.newer.agent("finn")
            call = await agent.call("free", {"note": text})
            return {"type": "tool-call", "toolCallId": call.call_id, "toolName": "free", "arguments": {"note": text}}
        case "ada":
            blocks = [{"type": "text", "text": text[place : place + 10_000]} for place in range(0, len(text), 10_000)]
            return environment.herm.session(ADA).emit({"type": "agent.message", "content": blocks})
        case _:
            event = action_event("message", {"content": text}, source="agent")
            return live_of(await environment.openhands.conversation(WORK).add(event))


async def native_of(gateway: Running, kind: str, *, of_runtime: bool, **query: Any) -> dict[str, Any]:
    """Wait for the newest event of a kind, and read it with its native frames."""
    path = f"/v1/sessions/{await gateway.session()}/events"

    async def look() -> dict[str, Any] | None:
        rows = (await gateway.get(path, native=True, **query))["data"]
        found = [one for one in rows if one["event"]["kind"] == kind and (one["origin"] is not None) == of_runtime]
        return found[-1] if found else None

    return await until(look)


SAID = {"lena": "tool.requested", "finn": "tool.requested", "ada": "message.posted", "work": "message.posted"}


async def test_the_frame_of_each_runtime_is_kept_as_it_came_but_for_secrets(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        for runtime, one in (await all_up(gateway)).items():
            secret = SECRETS[runtime]
            sent = await speak(environment, runtime, f'so "{secret}" it is, dtt_AbC123-')
            row = await native_of(one, SAID[runtime], of_runtime=True)
            [frame] = row["native"]["frames"]
            assert row["native"]["reencoded"] is False
            assert frame["omitted"] is None
            masked = json.dumps(sent).replace(secret, "***").replace("dtt_AbC123-", "***")
            assert frame["payload"] == json.loads(masked)
            plain = await one.get(f"/v1/sessions/{await one.session()}/events")
            assert all("native" not in other for other in plain["data"])


async def test_a_frame_of_more_than_64_kib_is_omitted_with_a_mark(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        for runtime, one in (await all_up(gateway)).items():
            await speak(environment, runtime, "x" * 65_536)
            [frame] = (await native_of(one, SAID[runtime], of_runtime=True))["native"]["frames"]
            assert frame["payload"] is None
            assert re.fullmatch(r"it has \d+,\d+ bytes; at most 65,536 are kept", frame["omitted"])


async def test_what_the_gateway_sent_is_encoded_again_as_the_runtime_received_it(environment: Four) -> None:
    environment.hooks.scripts["free"] = success({"cards": ["7"]})
    async with environment.running(linked=False) as gateway:
        for runtime, one in (await all_up(gateway)).items():
            if runtime == "work":
                await one.wait_events("session.moved", state="awaiting_input")
            if runtime in {"lena", "finn"}:
                await speak(environment, runtime, "a call")
                await compare(environment, one, runtime, "tool.finished")
            path = f"/v1/sessions/{await one.session()}/events"
            await one.post(path, {"kind": "message.posted", "content": "Hello there."}, status=202)
            await condition(lambda r=runtime: any("Hello there." in json.dumps(f) for f in environment.heard(r)))
            # HUMA 0.2.0 has no message of a client: the gateway sends a context instead.
            sent = "context.updated" if runtime == "finn" else "message.posted"
            await compare(environment, one, runtime, sent)


async def compare(environment: Four, gateway: Running, runtime: str, kind: str) -> None:
    native = (await native_of(gateway, kind, of_runtime=False))["native"]
    assert native["reencoded"] is True
    assert native["frames"]
    assert all(frame["payload"] in environment.heard(runtime) for frame in native["frames"])


async def test_a_secret_of_a_person_is_in_no_frame(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        ada = (await all_up(gateway))["ada"]
        environment.herm.session(ADA).ask_sudo()
        [asked] = await ada.wait_events("secret.asked")
        path = f"/v1/sessions/{await ada.session()}/events"
        answer = {"kind": "secret.supplied", "id": asked["event"]["id"], "purpose": "sudo", "value": "Pw-canary-1"}
        await ada.post(path, answer, status=202)
        await condition(lambda: "Pw-canary-1" in json.dumps(environment.heard("ada")))
        row = await native_of(ada, "secret.supplied", of_runtime=False)
        assert row["native"]["frames"][0]["payload"]["type"] == "user.sudo_result"
        assert "canary-1" not in json.dumps((await ada.get(path, native=True))["data"])


async def test_without_the_option_nothing_is_stored(environment: Four) -> None:
    environment.configure({"runtimes": {name: {"keep_native": None} for name in RUNTIMES}})
    async with environment.running(linked=False) as gateway:
        for runtime, one in (await all_up(gateway)).items():
            await speak(environment, runtime, "Hello.")
            assert (await native_of(one, SAID[runtime], of_runtime=True))["native"] is None
        stored = await stored_abouts(environment.settings["engine"])
    assert stored
    assert not [about for about in stored if b'native"' in about]


async def stored_abouts(engine: dict[str, Any]) -> list[bytes]:
    statement = "SELECT about FROM events WHERE about IS NOT NULL"
    if engine["type"] == "sqlite":
        with closing(sqlite3.connect(engine["path"])) as file:
            return [row[0] for row in file.execute(statement)]
    operator = await asyncpg.connect(engine["dsn"], server_settings={"search_path": engine["schema"]})
    try:
        return [row[0] for row in await operator.fetch(statement)]
    finally:
        await operator.close()


async def test_a_page_with_frames_has_at_most_100_events(environment: Four) -> None:
    async with environment.running(linked=False) as gateway:
        finn = (await all_up(gateway))["finn"]
        path = f"/v1/sessions/{await finn.session()}/events"
        update: dict[str, Any] = {"kind": "context.updated", "name": "n", "context": {}, "description": "d"}
        await finn.post(path, {"events": [update] * 50}, status=202)
        await finn.post(path, {"events": [update] * 50}, status=202)
        page = await finn.get(path, native=True, limit=1000)
        assert len(page["data"]) == 100
        assert page["next"] == page["data"][-1]["position"]
