"""Secrets that travel through a gateway: none is in a log, a file, a metric or an answer, whatever goes wrong."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from tests.scenarios.environment import AGENT_KEY, API_KEY, GOOD, Running
from tests.scenarios.fleet import (
    ADA,
    HERM_KEY,
    OPENHANDS_KEY,
    WORK,
    answer,
    questions,
)
from tests.scenarios.hooks import SECRET
from tests.scenarios.test_one_api import RUNTIMES, Four, all_up, four

PASSWORD, VALUE, LATE = "pw-canary-4Rt8", "value-canary-6Yu1", "late-canary-0Op3"
CANARIES = {
    "sudo password": PASSWORD,
    "secret value": VALUE,
    "secret that came too late": LATE,
    "API key": API_KEY,
    "HUMA key": AGENT_KEY,
    "Herm key": HERM_KEY,
    "OpenHands key": OPENHANDS_KEY,
    "webhook secret": SECRET,
    "webhook secret, decoded": "scenario-secret-canary",
}


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Four]:
    async with four(tmp_path) as made:
        made.configure({"logging": {"level": "debug"}})
        yield made


class Seen:
    """All that anybody could read of a gateway, by where it was read."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: str) -> None:
        self.texts.append((where, text))

    def holds_none_of(self, canaries: dict[str, str]) -> None:
        found = [
            (what, where, text[max(0, text.index(canary) - 150) :][:300])
            for what, canary in canaries.items()
            for where, text in self.texts
            if canary in text
        ]
        assert found == []


def files(folder: Path) -> list[tuple[str, str]]:
    """Read the database and all that lies beside it, but for the configuration."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    assert any(path.name.endswith("-wal") for path in paths) or any(path.suffix == ".db" for path in paths)
    return [(path.name, path.read_bytes().decode("latin-1")) for path in paths]


async def read_everything(gateway: Running, seen: Seen) -> None:
    for page in ("sessions", "calls", "interactions", "dead-letters", "runtimes", "capabilities", "destinations"):
        seen.add(page, (await gateway.http.get(f"/v1/{page}")).text)
    for page in ("metrics", "version", "openapi.json", "healthz", "readyz"):
        seen.add(page, (await gateway.http.get(f"/{page}")).text)
    for row in (await gateway.get("/v1/calls"))["data"]:
        seen.add("history", (await gateway.http.get(f"/v1/calls/{row['call_id']}")).text)
    for runtime in RUNTIMES:
        seen.add(f"journal of {runtime}", json.dumps(await gateway.events(await gateway.session(runtime))))


async def fail_in_every_way(gateway: Running, seen: Seen, session_id: str, secret_id: str) -> None:
    """Send secrets where they do not belong, and misshapen."""
    path = f"/v1/sessions/{session_id}/events"
    good = {"kind": "secret.supplied", "id": secret_id, "purpose": "sudo", "value": LATE}
    wrong: list[Any] = [
        {**good, "purpose": LATE},
        {**good, "value": [LATE]},
        {**good, "value": {"is": LATE}},
        {**good, "strange": LATE},
        {**good, "id": ""},
        {"events": [good, {"kind": "message.posted", "content": 7}]},
        {"kind": "approval.given", "id": "x", "decision": LATE},
    ]
    for body in wrong:
        reply = await gateway.http.post(path, json=body)
        assert reply.status_code in {400, 409, 422}, reply.text
        seen.add("problem", reply.text)
    raw = json.dumps(good)[:-1]
    reply = await gateway.http.post(path, content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    seen.add("problem", reply.text)
    for key in (f"Bearer {LATE}", LATE, f"Basic {LATE}"):
        reply = await gateway.http.get("/v1/sessions", headers={"authorization": key})
        assert reply.status_code == 401
        seen.add("problem", reply.text)
    reply = await gateway.http.get("/v1/sessions", params={"key": API_KEY, "api_key": API_KEY, "token": API_KEY})
    seen.add("answer", reply.text)


async def test_no_secret_is_found_anywhere_after_success_and_failure(
    environment: Four, capfd: pytest.CaptureFixture[str]
) -> None:
    ada, work = environment.herm.session(ADA), environment.openhands.conversation(WORK)
    environment.configure({"executors": {"cards": {"attempts": 2}}})
    environment.hooks.scripts["free"] = JSONResponse({"detail": "no"}, 500)
    tokens: list[str] = []
    seen = Seen()
    async with environment.running(linked=False) as gateway:
        # Whatever a library writes, at whatever level.
        for name in ("httpx", "httpcore", "socketio", "engineio", "uvicorn", "aiohttp", "asyncio", "websockets"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        await all_up(gateway)
        session_id = await gateway.session("ada")
        async with gateway.stream(session_id, after=0) as stream:
            sudo = ada.ask_sudo()
            [asked] = await questions(gateway)
            seen.add("answer", json.dumps(await answer(gateway, asked, {"value": PASSWORD})))
            assert (await sudo.answered())["password"] == PASSWORD
            seen.add("problem", json.dumps(await answer(gateway, asked, {"value": LATE}, status=409)))
            # The server takes it, quotes it in an error, loses its answer, or is away.
            for trouble in ("none", "error", "lost answer"):
                secret = ada.ask_secret("Token?", "TOKEN")
                [asked] = await questions(gateway)
                if trouble == "error":
                    environment.herm.stumble("POST", 400, code=VALUE)
                elif trouble == "lost answer":
                    environment.herm.lose_answers()
                path = f"/v1/sessions/{session_id}/events"
                body = {"kind": "secret.supplied", "id": secret.asked_id, "purpose": "secret", "value": VALUE}
                seen.add("answer", (await gateway.http.post(path, json=body)).text)
                if trouble != "error":
                    assert (await secret.answered())["value"] == VALUE
                await gateway.wait_link("up") if trouble == "none" else await up(gateway)
            await fail_in_every_way(gateway, seen, session_id, "nothing")
            call = ada.call("ask", GOOD)
            await call.answered()
            failing = ada.call("free", {})
            await failing.answered()
            await work.agent_runs("ls", "a")
            await work.drop()
            huma = await environment.newer.agent("finn").call("ask", GOOD)
            await huma.result()
            await work.wait_connections(2)
            ada.end_turn(title="over")
            for shown in await stream.until("session.titled"):
                seen.add("stream", json.dumps(shown))
        tokens += [
            str(one.data["callback_url"]).rpartition("token=")[2]
            for one in environment.hooks.asked
            if one.data.get("callback_url")
        ]
        await read_everything(gateway, seen)
        for name, text in await asyncio.to_thread(files, environment.folder):
            seen.add(name, text)
    out, err = capfd.readouterr()
    seen.add("stdout", out)
    seen.add("stderr", err)
    for name, text in await asyncio.to_thread(files, environment.folder):
        seen.add(name, text)
    # What may be read is found where it should be, so the search looks in the right places.
    found = {where for where, text in seen.texts if "Token?" in text}
    assert {"interactions", "journal of ada", "dragoman.db"} <= found
    assert '"level":"debug"' in err + out
    assert any("/v1/sessions" in text for where, text in seen.texts if where in {"stdout", "stderr"})
    assert len(tokens) == 4
    seen.holds_none_of({**CANARIES, **{f"token {number}": token for number, token in enumerate(tokens)}})


async def up(gateway: Running) -> None:
    ada = Running(gateway.gateway, gateway.url, gateway.http, runtime="ada")
    await ada.wait_link("up")
