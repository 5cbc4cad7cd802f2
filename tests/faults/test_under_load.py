"""kill -9 at random moments of a busy gateway: what was on record goes on by itself, the rest may be asked again."""

import asyncio
import random
from itertools import cycle
from pathlib import Path

import pytest

from gateway.simulators.huma_rules import Dialect
from tests.faults.ground import until
from tests.faults.instance import START
from tests.faults.scene import Scene

pytestmark = [pytest.mark.faults, pytest.mark.fault("SIGKILL at random moments under load")]

CALLS, IN_FLIGHT, KILLS = 200, 16, 3


@pytest.mark.parametrize(
    ("dialect", "store", "seed"), [("0.1", "sqlite", 1), ("0.2", "sqlite", 2), ("0.2", "postgres", 3)]
)
async def test_calls_under_load_survive_three_kills(tmp_path: Path, dialect: Dialect, store: str, seed: int) -> None:
    dice = random.Random(seed)
    tools = cycle([dice.choice(["again", "once"]) for _ in range(CALLS)])
    async with Scene(tmp_path, dialect, store=store, slots=dice.choice([4, IN_FLIGHT])) as scene:
        over = False

        async def work() -> None:
            # However many are through before the last of them: there must be load for each.
            while not over or len(scene.calls) < CALLS:
                await scene.agent.wait_connected(START)
                await (await scene.call(next(tools))).result(60)

        await scene.run()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(work())
            for _ in range(KILLS):
                await scene.witness.wait(lambda _: True, count=len(scene.witness.seen) + dice.randint(1, 40), within=30)
                scene.kill()
                await scene.dead()
                on_record = await scene.store.committed()
                await scene.run()
                await scene.ask_again(on_record)
            over = True
        await until(scene.ready)
        await scene.settled()
        await scene.verify(strictly=False)
        assert len(scene.calls) >= CALLS
        await scene.stop()
        await scene.verify_journal()
