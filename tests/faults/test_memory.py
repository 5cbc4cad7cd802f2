"""What a large frame costs in memory, and a gateway whose memory is limited (`ulimit -v`)."""

import re
import resource
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.environment import FaultEnvironment, until
from tests.faults.fleet import HermScene, OpenHandsScene
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

MEGABYTE = 1_000_000
LARGE = int(3.9 * MEGABYTE)
"""Letters of a text in a frame just below `limits.frame`."""
CALLS = 3
OPEN = 3.0
"""Copies of a text while its call is open: the value and its JSON; the third is for the page caches of the store."""
PEAK = 10.0
"""Copies of a text while its frame is parsed, recorded and sent: 8 as config/README.md counts them, and a margin."""
EVENT_PEAK = 6.0
"""Copies of a text while its frame is parsed and recorded, and no request is sent: 4 measured, and a margin."""


class Usage:
    """The resident memory of a gateway."""

    def __init__(self, scene: FaultEnvironment) -> None:
        self._folder = Path(f"/proc/{scene.gateway.pid}")

    def now(self) -> int:
        return self._read("VmRSS")

    def peak(self) -> int:
        """The most since `restart`."""
        return self._read("VmHWM")

    def restart(self) -> int:
        """Forget the peak; returns what is used now."""
        (self._folder / "clear_refs").write_text("5")
        return self.now()

    def address_space(self) -> int:
        return self._read("VmSize")

    def _read(self, key: str) -> int:
        found = re.search(rf"{key}:\s+(\d+) kB", (self._folder / "status").read_text())
        assert found is not None
        return int(found[1]) * 1024


async def send(scene: Scene | HermScene) -> None:
    """Let the agent ask for a tool with a large argument; the backend accepts it, so that the call stays open."""
    seen = len(scene.backend.seen)
    if isinstance(scene, Scene):
        await scene.call("later", text="x" * LARGE)
    else:
        scene.call("later", text="x" * LARGE)
    await scene.backend.wait(lambda one: one.tool == "later", count=seen + 1)

    async def accepted() -> bool:
        return [row["state"] for row in await scene.rows("/v1/calls")].count("accepted") > seen

    await until(accepted)


async def say(scene: OpenHandsScene) -> None:
    """Let the agent say a large text in an `oh_event`, and wait until it is on record."""
    path = f"/v1/sessions/{await scene.session_id()}"

    async def recorded() -> int:
        return int((await scene.http.get(path)).json()["last_sequence"])

    before = await recorded()
    await scene.agent.agent_says("x" * LARGE, waits=False)

    async def more() -> bool:
        return await recorded() > before

    await until(more)


async def measure(scene: FaultEnvironment, once: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Send large texts; returns how many copies of one are in memory at the peak, and how many stay of them all."""
    # Freed memory goes back to the system at once, and is not counted.
    scene.gateway.environment = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    await scene.serve()
    usage = Usage(scene)
    # Buffers that stay, of the store for one, are filled by the first.
    await once()
    before = usage.restart()
    for _ in range(CALLS):
        await once()
    return (usage.peak() - before) / LARGE, (usage.now() - before) / LARGE


@pytest.mark.parametrize("make", [partial(Scene, dialect="0.2"), HermScene], ids=["huma", "herm"])
async def test_how_often_a_large_text_is_in_memory(tmp_path: Path, make: Callable[[Path], Scene | HermScene]) -> None:
    async with make(tmp_path) as scene:
        peak, after = await measure(scene, lambda: send(scene))
        assert after < CALLS * OPEN
        assert peak < (CALLS - 1) * OPEN + PEAK


async def test_a_large_text_of_an_openhands_event_leaves_memory_once_it_is_on_record(tmp_path: Path) -> None:
    async with OpenHandsScene(tmp_path) as scene:
        peak, after = await measure(scene, lambda: say(scene))
        # Not one of them stays.
        assert after < 1
        assert peak < EVENT_PEAK


@pytest.mark.fault("Call of 3.9 MB, with 48 MiB left by `ulimit -v`", on="sqlite")
async def test_a_frame_beyond_the_memory_limit_is_refused_and_the_gateway_lives(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2") as scene:
        await scene.run()
        _limit(scene)
        large = await scene.agent.call("again", {"text": "x" * LARGE})
        await large.result(PATIENCE)
        assert large.reading is not None
        assert large.reading.outcome == "failure"
        assert "more memory" in (large.reading.error or "")
        small = await scene.ask("again", within=PATIENCE)
        assert small.reading is not None
        assert small.reading.outcome == "success"
        assert scene.gateway.alive


@pytest.mark.fault("Herm history of eight events of 3.9 MB, with 48 MiB left by `ulimit -v`", on="sqlite")
async def test_a_history_beyond_the_memory_limit_costs_the_link_and_the_gateway_lives(tmp_path: Path) -> None:
    async with HermScene(tmp_path, through=["runtime"]) as scene:
        # A slow machine reads 31 MB for longer than the scene waits for a list.
        scene.list_timeout = f"{PATIENCE:g}s"
        await scene.run()
        scene.wires["runtime"].refuse()
        await scene.noticed()
        for number in range(8):
            scene.agent.call("again", {"n": number, "text": "x" * LARGE})
        _limit(scene)
        scene.wires["runtime"].heal()

        async def told() -> bool:
            (runtime,) = await scene.runtimes()
            return any("not a list of events: MemoryError" in (link["reason"] or "") for link in runtime["links"])

        await until(told, within=PATIENCE)
        assert await scene.gateway.ready()
        assert scene.gateway.alive


def _limit(scene: FaultEnvironment) -> None:
    most = Usage(scene).address_space() + 48 * 1024 * 1024
    resource.prlimit(scene.gateway.pid, resource.RLIMIT_AS, (most, most))
