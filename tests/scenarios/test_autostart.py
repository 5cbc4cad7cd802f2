"""An `autostart` whose server is away: it is retried and shown as failing until the session exists."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.doctor_gateway import check_links
from gateway.runtime.tuning import Tuning
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, Running, Scene, until
from tests.scenarios.fleet import OpenHandsEnvironment, openhands_environment
from tests.scenarios.replicas import cluster
from tests.scenarios.terminal import dragoman
from tests.scenarios.test_api import CREATED

QUICKLY = Tuning(link_first=0.02, link_longest=0.05, link_refused=0.05, autostart_first=0.05, autostart_longest=0.2)
SLOWLY = Tuning(link_first=0.02, link_longest=0.05, link_refused=0.05, autostart_first=3600, autostart_longest=3600)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    """An OpenHands server that is away, and a runtime that creates its conversation there at start."""
    async with openhands_environment(tmp_path) as made:
        made.options(conversation_id=None, conversation={}, autostart=True)
        made.tuning = QUICKLY
        await made.server.stop()
        yield made


async def failing(gateway: Running, attempts: int = 1) -> dict[str, Any]:
    """Wait until the autostart of the runtime has failed so often."""

    async def look() -> dict[str, Any] | None:
        [runtime] = (await gateway.get("/v1/runtimes"))["data"]
        found = runtime["autostart"]
        return found if found is not None and found["attempts"] >= attempts else None

    return await until(look)


async def test_an_autostart_is_retried_until_the_server_is_there(
    environment: OpenHandsEnvironment, capfd: pytest.CaptureFixture[str]
) -> None:
    async with environment.running(linked=False) as gateway:
        shown = await failing(gateway, attempts=5)
        assert environment.server.url.rpartition(":")[2] in shown["reason"]
        assert shown["since"] < shown["next_at"]
        ready = await gateway.http.get("/readyz")
        assert (ready.status_code, ready.json()["failing"]) == (200, ["autostart of work"])
        assert (await gateway.metrics())['dragoman_link_up{runtime="work"}'] == 0
        await environment.server.start()
        await gateway.wait_link("up")
        [runtime] = (await gateway.get("/v1/runtimes"))["data"]
        assert runtime["autostart"] is None
        assert (await gateway.get("/readyz"))["failing"] == []
        assert (await gateway.metrics())['dragoman_link_up{runtime="work"}'] == 1
        assert len(environment.server.conversations) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if "autostart failed; retrying" in line]
    warned = [json.loads(line)["reason"] for line in lines]
    assert len(warned) == len(set(warned)) > 0


async def test_the_commands_show_a_failing_autostart(environment: OpenHandsEnvironment) -> None:
    async with environment.running(linked=False) as gateway:
        shown = await failing(gateway)
        env = {"DRAGOMAN_URL": gateway.url, "DRAGOMAN_KEY": API_KEY}
        counted, failed = await asyncio.to_thread(lambda: list(check_links(env)))
        assert (counted.state, counted.text) == ("warning", f"0 of 1 up at {gateway.url}")
        assert failed.state == "warning"
        assert shown["reason"][:40] in failed.text
        listed = await dragoman(gateway, "runtimes")
        assert f"autostart: {shown['reason']}"[:30] in listed.out


async def test_a_reload_ends_or_restarts_the_attempts(environment: OpenHandsEnvironment) -> None:
    environment.tuning = SLOWLY
    block = dict(environment.settings["runtimes"]["work"])
    async with environment.running(linked=False) as gateway:
        await failing(gateway)
        environment.configure({"runtimes": {"work": None}})
        await gateway.post("/v1/reload", status=200)
        assert (await gateway.get("/readyz"))["failing"] == []
        assert (await gateway.get("/v1/runtimes"))["data"] == []
        environment.configure({"runtimes": {"work": block}})
        await gateway.post("/v1/reload", status=200)
        assert (await failing(gateway))["attempts"] == 1
        await environment.server.start()
        # The next attempt is due in an hour; a changed block makes one at once.
        environment.options(labels={"game": "fish"})
        await gateway.post("/v1/reload", status=200)
        await gateway.wait_link("up")
        [session] = (await gateway.get("/v1/sessions"))["data"]
        assert session["labels"] == {"game": "fish"}
        assert len(environment.server.conversations) == 1


async def test_a_failing_autostart_does_not_delay_the_drain(environment: OpenHandsEnvironment) -> None:
    environment.configure({"limits": {"drain": "5m"}})
    async with environment.running(linked=False) as gateway:
        await failing(gateway)
        began = time.monotonic()
        await gateway.gateway.drain()
        assert time.monotonic() - began < PATIENCE
        # An attempt that was under way when the drain began still ends; none follows.
        await until(lambda: _has_given_up(gateway))
        await environment.server.start()
    assert environment.server.conversations == {}


async def _has_given_up(gateway: Running) -> bool | None:
    [runtime] = (await gateway.get("/v1/runtimes"))["data"]
    return runtime["autostart"] is None or None


async def test_of_two_replicas_one_retries_and_the_other_continues_when_it_leaves(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {**CREATED, "autostart": True}}})
    newer.tuning = QUICKLY
    await newer.huma.stop()
    before = len(newer.huma.agents)
    store = cluster(newer)
    async with store.replica() as b:
        async with store.replica() as a:

            async def one_fails() -> bool:
                shown = [(await one.get("/v1/runtimes"))["data"][0]["autostart"] for one in (a, b)]
                return sum(one is not None for one in shown) == 1

            await until(one_fails)
        await failing(b)
        await newer.huma.start()
        session_id = await b.session()
        await b.wait_carries(session_id)
    assert len(newer.huma.agents) == before + 1
