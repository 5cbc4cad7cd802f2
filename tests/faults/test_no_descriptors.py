"""No file or socket can be opened any more: what is open goes on, the log says why the rest does not, and all heals."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.environment import until
from tests.faults.load import Load
from tests.faults.scene import Scene

pytestmark = [pytest.mark.faults, pytest.mark.fault("Out of file descriptors for a while")]


@contextmanager
def no_descriptors(pid: int) -> Generator[None]:
    """Let a running process open nothing more; what it has open stays."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # All numbers below are taken, whatever is closed meanwhile.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_without_a_descriptor_left_nothing_is_lost_and_the_log_says_why(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.serve()
        async with Load(scene) as load:
            await load.more(20)
            with no_descriptors(scene.gateway.pid):
                # A link that stands, and connections that are kept, go on.
                await load.more(20)
                links = scene.agent.connections
                await scene.agent.drop()

                async def told() -> bool:
                    assert scene.gateway.alive, scene.log()
                    text = scene.gateway.whole_log()
                    return "Too many open files" in text and "refusing new connections" in text

                await until(told)
                assert scene.agent.connections == links
            await load.more(20, within=60)
        await scene.settled()
        await scene.verify()

        async def well() -> bool:
            return "file descriptors are available again" in scene.gateway.whole_log()

        await until(well)
        assert scene.gateway.whole_log().count("refusing new connections") == 1
