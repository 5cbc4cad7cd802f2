"""Real processes that are broken on purpose: what this suite holds turns red over each of them, and only over them."""

import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from gateway.runtime.app import Gateway
from tests.faults.broken import EVERY
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.pace import PATIENCE
from tests.scenarios.environment import (
    AGENT_KEY,
    API_KEY,
    Running,
    Scene as Environment,
    ended,
    plain_http,
    scene as environment,
    until,
)
from tests.scenarios.served import START, Served, serving

pytestmark = pytest.mark.faults

CALLS = 2 * EVERY + 5


@pytest.mark.parametrize(("build", "dialect"), [("none", "0.2"), ("swaps-results", "0.1"), ("swaps-results", "0.2")])
async def test_a_build_that_swaps_results_is_found(tmp_path: Path, build: str, dialect: str) -> None:
    async with Scene(tmp_path, "0.1" if dialect == "0.1" else "0.2") as scene:
        await scene.run(broken=build)
        for _ in range(CALLS // 5):
            asked = [await scene.call(tool) for tool in ("again", "once", "once", "again", "once")]
            for call in asked:
                await call.result()
        await scene.settled()
        if build == "none":
            await scene.verify()
            assert observed().different == 0
        else:
            with pytest.raises(AssertionError, match="words of another call"):
                await scene.verify()
            assert observed().different >= CALLS // EVERY
        await scene.stop()


@asynccontextmanager
async def running(scene: Environment, build: str) -> AsyncGenerator[tuple[Served, Running]]:
    async with serving(scene, entry=("tests.faults.broken", build)) as served:
        await until(served.ready, within=START)
        await scene.agent.wait_connected()
        async with plain_http() as http:
            http.base_url, http.headers = served.url, {"authorization": f"Bearer {API_KEY}"}
            yield served, Running(cast("Gateway", None), served.url, http)


@pytest.mark.parametrize("build", ["none", "registers-no-secret"])
async def test_a_build_that_registers_no_secret_is_found(tmp_path: Path, build: str) -> None:
    async with environment(tmp_path, "0.2") as scene:
        scene.configure({"logging": {"level": "debug", "format": "json"}})
        scene.hooks.scripts["free"] = {"outcome": "failure", "error": f"you sent {AGENT_KEY}, or so"}
        async with running(scene, build) as (served, _):
            await ended(await scene.agent.call("free", {}))
            await served.stop()
            said = served.log.read_text()
    assert "or so" in said
    assert (AGENT_KEY in said) == (build != "none")


@pytest.mark.parametrize("build", ["none", "folds-twice"])
async def test_a_build_that_folds_an_event_twice_is_found(tmp_path: Path, build: str) -> None:
    async with environment(tmp_path, "0.1") as scene:
        scene.configure({"runtimes": {"finn": {"history": "conversationHistory"}}})
        async with running(scene, build) as (served, gateway):
            path = f"/v1/sessions/{await gateway.session()}/events"
            for start in range(0, 600, 100):
                texts = [f"word-{number:04}." for number in range(start, start + 100)]
                events = [{"kind": "message.posted", "content": text, "wakes_agent": False} for text in texts]
                await gateway.post(path, {"events": events}, status=202)
            served.process.send_signal(signal.SIGKILL)
            await served.ended()
        async with running(scene, build) as (_, gateway):
            event = {"kind": "context.updated", "name": "news", "context": {"number": 1}}
            await gateway.post(f"/v1/sessions/{await gateway.session()}/events", event, status=202)
            frame = await scene.agent.wait_for(lambda payload: "news" in str(payload), PATIENCE)
    words = re.findall(r"word-\d{4}", str(frame.payload))
    assert words[-1] == "word-0599"
    assert (len(words) == len(set(words))) == (build == "none")
