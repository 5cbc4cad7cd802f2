"""Large frames of many sessions share one budget, and no other session notices."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gateway.links.frame_memory import FrameMemory
from gateway.testing.runtimes.huma.server import HumaServer, SimAgent
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, Scene, ended

LOUD = 60
FITS = 200 * 1024
EXCEEDS = 300 * 1024
BUDGET = 1024**2


@asynccontextmanager
async def crowd(scene: Scene) -> AsyncGenerator[list[SimAgent]]:
    """Connect sixty more agents, with room for five of their large frames."""
    async with HumaServer("0.2") as huma:
        agents = [huma.agent(f"loud-{number}") for number in range(LOUD)]
        options = {"adapter": "huma-0.2", "url": huma.url, "api_key": huma.api_key}
        scene.configure(
            {
                "limits": {"frame": EXCEEDS - 20_000, "frame_memory": BUDGET},
                "runtimes": {agent.agent_id: options | {"agent_id": agent.agent_id} for agent in agents},
                "routes": [{"match": {"tool": "*"}, "to": "cards"}],
            }
        )
        yield agents


@contextmanager
def watched(frames: FrameMemory) -> Generator[list[int]]:
    """Record the bytes held after each frame."""
    held: list[int] = []
    hold = frames.hold

    def record(size: int) -> None:
        hold(size)
        held.append(frames.held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "hold", record)
        yield held


@pytest.mark.slow
async def test_sixty_sessions_at_the_budget_leave_a_quiet_one_alone(newer: Scene) -> None:
    async with crowd(newer) as loud, newer.running() as gateway:
        await newer.agent.wait_connections(1)
        for agent in loud:
            await agent.wait_connections(1)
        frames = gateway.gateway.ambient.frames
        with watched(frames) as held:
            calls = [await agent.call("free", {"text": "x" * FITS}) for agent in loud for _ in range(2)]
            large = [await agent.call("free", {"text": "x" * EXCEEDS}) for agent in loud]
            started = time.monotonic()
            quiet = await ended(await newer.agent.call("ask", GOOD))
            waited = time.monotonic() - started
            readings = await asyncio.gather(*(ended(call) for call in calls))
            failures = await asyncio.gather(*(ended(call) for call in large))
        assert quiet.outcome == "success"
        assert waited < 15
        assert {reading.outcome for reading in readings} == {"success"}
        assert all("limits.frame allows" in (reading.error or "") for reading in failures)
        assert max(held) <= BUDGET + LOUD * 64 * 1024
        assert (await gateway.events(kind="frame.rejected")) == []
    assert frames.held == 0


async def test_the_limit_of_a_frame_follows_a_reload(newer: Scene, tmp_path: Path) -> None:
    del tmp_path
    async with newer.running() as gateway:
        large = await ended(await newer.agent.call("free", {"text": "x" * (5 * 1024**2)}))
        assert "limits.frame allows 4,194,304" in (large.error or "")
        await newer.agent.emit("event", {"type": "speak-status", "text": "x" * (5 * 1024**2)})
        (rejected,) = await gateway.wait_events("frame.rejected")
        assert "limits.frame allows 4,194,304" in rejected["event"]["reason"]
        newer.configure({"limits": {"frame": "8MiB"}})
        await gateway.post("/v1/reload", status=200)
        call = await newer.agent.call("free", {"text": "x" * (5 * 1024**2)})
        assert "limits.frame" not in ((await ended(call, within=PATIENCE)).error or "")
        assert len(await gateway.events(kind="frame.rejected")) == 1
