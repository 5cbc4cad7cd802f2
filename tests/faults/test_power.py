"""The power fails: what was not synced is gone, and nothing that was promised is among it."""

import asyncio
import random
import signal
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.disk import SmallDisk, small_disk
from tests.faults.environment import until
from tests.faults.instance import START
from tests.faults.scene import Scene
from tests.faults.stores import SqliteFile, given

pytestmark = [pytest.mark.faults, pytest.mark.fault("Power failure of the disk, and SIGKILL")]

CALLS, IN_FLIGHT, CUTS = 120, 12, 3


def stands_still(pid: int) -> bool:
    """Whether no thread of a process runs any more."""
    states = [one.read_text().rpartition(")")[2].split()[0] for one in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(96, in_memory=False) as made:
        if made is None:
            pytest.skip("this machine lets us mount no file system whose power could fail")
        yield made


@pytest.mark.parametrize(("dialect", "seed"), [("0.1", 1), ("0.2", 2)])
async def test_what_was_promised_before_the_power_failed_is_kept(
    tmp_path: Path, disk: SmallDisk, dialect: Dialect, seed: int
) -> None:
    jitter = random.Random(seed)
    tools = cycle([jitter.choice(["again", "once"]) for _ in range(CALLS)])
    async with Scene(tmp_path, dialect, store=given(SqliteFile(disk.folder)), slots=IN_FLIGHT) as scene:
        over = False

        async def stopped() -> bool:
            return stands_still(scene.gateway.pid)

        async def work() -> None:
            # However many are through before the last of them: there must be load for each.
            while not over or len(scene.calls) < CALLS:
                await scene.agent.wait_connected(START)
                await scene.ask(next(tools), within=60)

        await scene.run()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(work())
            for _ in range(CUTS):
                await scene.backend.wait(
                    lambda _: True, count=len(scene.backend.seen) + jitter.randint(5, 30), within=60
                )
                # The machine's power is the disk's too: the gateway does nothing any more when its disk is cut off.
                scene.gateway.signal(signal.SIGSTOP)
                await until(stopped)
                disk.cut_power()
                scene.kill()
                await scene.dead()
                disk.restore_power()
                await scene.run()
            over = True
        await until(scene.ready)
        await scene.settled()
        await scene.verify(strictly=False)
        assert len(scene.calls) >= CALLS
        await scene.stop()
        await scene.verify_journal()
