"""kill -9 at random moments of a busy gateway: what was on record goes on by itself, the rest was lost on the wire."""

import asyncio
import random
from itertools import cycle
from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.environment import until
from tests.faults.instance import START
from tests.faults.scene import Scene

pytestmark = [pytest.mark.faults, pytest.mark.fault("SIGKILL at random moments")]
ASKED_AGAIN = pytest.mark.fault("SIGKILL at random moments; the agent repeats unrecorded calls")

CALLS, IN_FLIGHT, KILLS = 200, 16, 3


@pytest.mark.parametrize(
    ("dialect", "store", "seed", "asks_again"),
    [
        ("0.1", "sqlite", 1, False),
        ("0.2", "sqlite", 2, False),
        ("0.2", "postgres", 3, False),
        pytest.param("0.2", "sqlite", 4, True, marks=ASKED_AGAIN),
    ],
)
async def test_calls_under_load_survive_three_kills(
    tmp_path: Path, dialect: Dialect, store: str, seed: int, *, asks_again: bool
) -> None:
    jitter = random.Random(seed)
    tools = cycle([jitter.choice(["again", "once"]) for _ in range(CALLS)])
    async with Scene(
        tmp_path, dialect, store=store, slots=jitter.choice([4, IN_FLIGHT]), asks_again=asks_again
    ) as scene:
        over = False

        async def work() -> None:
            # However many are through before the last of them: there must be load for each.
            while not over or len(scene.calls) < CALLS:
                await scene.agent.wait_connected(START)
                await scene.ask(next(tools), within=60)

        await scene.run()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(work())
            for _ in range(KILLS):
                await scene.backend.wait(
                    lambda _: True, count=len(scene.backend.seen) + jitter.randint(1, 40), within=60
                )
                scene.kill()
                await scene.dead()
                await scene.run()
            over = True
        await until(scene.ready)
        await scene.settled()
        await scene.verify(strictly=False)
        assert len(scene.calls) >= CALLS
        await scene.stop()
        await scene.verify_journal()
