"""Real agent-servers of OpenHands V1, which `make peers` sets up; other runs do not collect these tests."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.peers.agent_server import AgentServer
from tests.peers.install import VERSIONS
from tests.peers.model import Model

PEERS = os.environ.get("DRAGOMAN_PEERS")
collect_ignore_glob = [] if PEERS else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("slow")


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as made:
        yield made


@pytest.fixture(scope="module", params=VERSIONS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    made = agent_server(tmp_path_factory.mktemp(f"server-{request.param}"), request.param)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def server(started: AgentServer) -> AgentServer:
    """A server of each version, which the tests of a module share."""
    await started.ready()
    return started


def agent_server(folder: Path, version: str, **settings: str) -> AgentServer:
    assert PEERS is not None
    peers = Path(PEERS).absolute()
    return AgentServer(peers / "environment" / "bin" / "python", peers / version, folder, version, settings)
