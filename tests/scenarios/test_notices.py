"""Notices about held calls: what they tell, that none is lost, and that a chat bot can verify them."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from gateway.testing.serving import Served
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.readme.pages import block
from tests.scenarios.environment import Running, Scene, until
from tests.scenarios.hooks import SECRET, Asked, Gate, Said
from tests.scenarios.notified import ASKED, CLOSED, GIVEN, REMINDED, deny, held, notify
from tests.scenarios.replica_processes import fleet


@pytest.fixture
def gated(newer: Scene) -> Scene:
    return notify(newer)


async def unsent(one: Running) -> bool:
    """Whether no notice is a dead letter."""
    return (await one.get("/v1/dead-letters"))["data"] == []


async def test_a_destination_is_told_of_a_held_call_and_of_its_end(gated: Scene) -> None:
    gated.configure({"approvals": {"notify": ["ops", {"to": "lead", "arguments": True}]}})
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)
        told = await gated.hooks.wait_for(2, name=ASKED)
        of = {"arguments" in one.data: one.data for one in told}
        data = of[False]
        row = await gateway.get(f"/v1/calls/{asked['call_id']}")
        assert 0 <= data["age"] < PATIENCE
        assert data == {
            "interaction_id": asked["interaction_id"],
            "call_id": row["call_id"],
            "session_id": row["session_id"],
            "runtime": "finn",
            "tool": "free",
            "rule": "routes[0]",
            "state": "waiting",
            "expires_at": asked["expires_at"].replace("+00:00", "Z"),
            "asked_before": 0,
            "age": data["age"],
            "open": f"{gateway.url}/ui/inbox#{asked['interaction_id']}",
        }
        assert (of[True]["arguments"], of[True]["labels"]["team"]) == (GIVEN, "blue")
        (event,) = await gateway.events(kind="approval.asked")
        assert {one.key for one in told} == {event["event_id"]}
        await deny(gateway, asked)
        closed = await gated.hooks.wait_for(2, name=CLOSED)
        assert {(one.data["state"], one.data["answered_by"]) for one in closed} == {("answered", "lead")}
        assert {one.key for one in closed} == {f"{told[0].key}.closed"}
    gated.is_clean()


async def test_a_notice_that_is_late_tells_the_last_state_only(gated: Scene) -> None:
    refused = asyncio.Event()

    def refuse(one: Asked) -> Said:
        refused.set()
        return Response(status_code=503 if one.kind == ASKED else 204)

    gated.hooks.scripts["/ops"] = refuse
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)
        await refused.wait()
        await deny(gateway, asked)
        (closed,) = await gated.hooks.wait_for(name=CLOSED)
        assert closed.data["state"] == "answered"
        late = len(gated.hooks.of(ASKED))
        # Long enough for three retries.
        await asyncio.sleep(0.3)
        assert len(gated.hooks.of(ASKED)) == late
        assert await unsent(gateway)


async def test_an_end_during_the_notice_is_told_too(gated: Scene) -> None:
    gate = Gate()
    gated.hooks.scripts["/ops"] = gate.answering(Response(status_code=204))
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)
        await gated.hooks.wait_for(name=ASKED)
        await deny(gateway, asked)
        gate.open()
        (closed,) = await gated.hooks.wait_for(name=CLOSED)
        assert closed.data["interaction_id"] == asked["interaction_id"]


async def test_a_refused_notice_is_a_dead_letter_that_tells_the_state_of_its_redrive(gated: Scene) -> None:
    gated.hooks.scripts["/ops"] = lambda one: Response(status_code=400 if one.kind == ASKED else 204)
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)

        async def dead() -> list[dict[str, Any]] | None:
            return (await gateway.get("/v1/dead-letters", target="notice:ops"))["data"] or None

        (letter,) = await until(dead)
        assert letter["target"] == "notice:ops"
        gated.hooks.scripts["/ops"] = Response(status_code=204)
        await gateway.post(f"/v1/dead-letters/{letter['id']}/redrive", {}, status=202)
        (_, again) = await gated.hooks.wait_for(2, name=ASKED)
        assert again.data["interaction_id"] == asked["interaction_id"]
        assert await unsent(gateway)


@pytest.mark.parametrize("ends", ["expired", "asked again"])
async def test_each_end_of_a_question_is_told(gated: Scene, ends: str) -> None:
    gated.configure({"approvals": {"timeout": "1s" if ends == "expired" else "1h"}})
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)
        await gated.hooks.wait_for(name=ASKED)
        if ends != "expired":
            gated.configure({"executors": {"cards": {"url": f"{gated.hooks.url}/elsewhere"}}})
            await gateway.gateway.reload()
            body = {"decision": "allow", "binding": asked["event"]["binding"]}
            await gateway.post(f"/v1/interactions/{asked['interaction_id']}/answer", body, status=409)
            _, again = await gated.hooks.wait_for(2, name=ASKED)
            assert again.data["call_id"] == asked["call_id"]
            assert again.data["interaction_id"] != asked["interaction_id"]
        (closed,) = await gated.hooks.wait_for(name=CLOSED)
        state = "expired" if ends == "expired" else "moot"
        assert (closed.data["interaction_id"], closed.data["state"]) == (asked["interaction_id"], state)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_notice_of_a_killed_gateway_arrives_from_the_next_one(gated: Scene, engine: str) -> None:
    gate = Gate()
    gated.hooks.scripts["/ops"] = gate.answering(Response(status_code=204))
    store = {"type": "sqlite", "path": str(gated.folder / "dragoman.db")} if engine == "sqlite" else None
    async with fleet(gated, lease="2s", engine=store) as gateways:
        one = await gateways.serve("one")
        _, asked = await held(gated, one)
        (lost,) = await gated.hooks.wait_for(name=ASKED)
        one.signal(signal.SIGKILL)
        await one.ended()
        gate.open()
        two = await gateways.serve("two")
        _, again = await gated.hooks.wait_for(2, name=ASKED)
        assert again.key == lost.key
        gated.hooks.scripts["/ops"] = Response(status_code=503)
        await two.wait_carries(await two.session())
        await deny(two, asked)
        await gated.hooks.wait_for(name=CLOSED)
        two.signal(signal.SIGKILL)
        await two.ended()
        gated.hooks.scripts["/ops"] = Response(status_code=204)
        before = len(gated.hooks.of(CLOSED))
        await gateways.serve("three")
        closed = (await gated.hooks.wait_for(before + 1, name=CLOSED))[-1]
        assert (closed.key, closed.data["state"]) == (f"{lost.key}.closed", "answered")
        assert len(gated.hooks.of(ASKED)) == 2


async def test_the_bot_of_the_page_verifies_notices_and_tells_a_chat(gated: Scene) -> None:
    code = block("gateway/http/APPROVALS.md", "python", "# chat.py")
    assert len(code.splitlines()) <= 25
    async with chat() as (said, url):
        port = free_port()
        environment = os.environ | {"OPS_SECRET": SECRET, "PORT": str(port), "CHAT_URL": url}
        gated.configure({"destinations": {"ops": {"url": f"http://127.0.0.1:{port}/"}}})
        bot = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)
        try:
            async with gated.running() as gateway:
                _, asked = await held(gated, gateway)
                assert (await said.get()).startswith("free (finn): waiting, asked ")
                forged = await gateway.http.post(f"http://127.0.0.1:{port}/", content=b"{}")
                assert forged.status_code == 401
                await deny(gateway, asked)
                assert (await said.get()).startswith("free (finn): answered, asked ")
        finally:
            bot.kill()
            await bot.wait()


@asynccontextmanager
async def chat() -> AsyncGenerator[tuple["asyncio.Queue[str]", str]]:
    """Serve a chat's incoming webhook; yield what it was told, and its address."""
    said = asyncio.Queue[str]()

    async def take(request: Request) -> Response:
        said.put_nowait((await request.json())["text"])
        return Response(status_code=204)

    app = FastAPI(openapi_url=None)
    app.add_api_route("/", take, methods=["POST"])
    async with Served(app) as served:
        yield said, f"{served.url}/"


async def test_a_call_that_nobody_answers_is_told_again(gated: Scene) -> None:
    gated.configure({"approvals": {"remind": ["300ms", "600ms", "1h"]}})
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway)
        first, second = await gated.hooks.wait_for(2, name=REMINDED)
        (told,) = gated.hooks.of(ASKED)
        assert [first.key, second.key] == [f"{told.key}.reminder-1", f"{told.key}.reminder-2"]
        assert second.data | {"age": 0} == told.data | {"age": 0}
        await deny(gateway, asked)
        await gated.hooks.wait_for(name=CLOSED)
        assert len(gated.hooks.of(REMINDED)) == 2
    async with gated.running() as gateway:
        _, asked = await held(gated, gateway, {"amount": 1})
        (_, _, third) = await gated.hooks.wait_for(3, name=REMINDED)
        assert third.data["interaction_id"] == asked["interaction_id"]


async def test_a_reminder_while_the_notice_is_pending_makes_no_second_one(gated: Scene) -> None:
    taken: list[str] = []

    def take(one: Asked) -> Said:
        if len(gated.hooks.of(REMINDED)) < 3:
            return Response(status_code=503)
        taken.append(one.kind)
        return Response(status_code=204)

    gated.hooks.scripts["/ops"] = take
    gated.configure({"approvals": {"remind": "300ms"}, "destinations": {"ops": {"attempts": 50}}})
    async with gated.running() as gateway:
        await held(gated, gateway)

        async def delivered() -> list[tuple[str, str]] | None:
            rows = await asyncio.to_thread(sends, gated)
            return rows if all(state == "delivered" for _, state in rows) else None

        assert await until(delivered) == [("notice:ops", "delivered")]
        assert len(gated.hooks.of(ASKED)) > 0
        assert taken == [REMINDED]


def sends(scene: Scene) -> list[tuple[str, str]]:
    """Read the target and the state of each outbound row to a destination."""
    with closing(sqlite3.connect(scene.folder / "dragoman.db")) as store:
        return store.execute("SELECT target, state FROM outbound WHERE target LIKE 'notice:%'").fetchall()


@pytest.mark.slow
async def test_the_last_reminder_comes_from_the_next_process_too(gated: Scene) -> None:
    gated.configure({"approvals": {"remind": ["1s"]}})
    async with fleet(gated, engine={"type": "sqlite", "path": str(gated.folder / "dragoman.db")}) as gateways:
        one = await gateways.serve("one")
        await held(gated, one)
        await gated.hooks.wait_for(name=ASKED)
        one.signal(signal.SIGKILL)
        await one.ended()
        before = len(gated.hooks.of(REMINDED))
        # Longer than the reminder, which is due while no process runs.
        await asyncio.sleep(1.0)
        await gateways.serve("two")
        told = await gated.hooks.wait_for(before + 1, name=REMINDED)
        assert {one.key for one in told} == {f"{gated.hooks.of(ASKED)[0].key}.reminder-1"}
