"""What all tests share: choosing tests by protocol rule, free ports, and patience with a busy machine."""

import socket
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import HealthCheck, settings

from tests.requirements import REQUIREMENTS

# Wall-clock limits say more about the machine than about the code.
settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirement",
        action="append",
        default=[],
        metavar="ID",
        help="run only the tests that carry this rule, e.g. L40",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(cast("list[str]", config.getoption("--requirement")))
    unknown = wanted - REQUIREMENTS.keys()
    if unknown:
        raise pytest.UsageError(f"no such rule in tests/requirements.py: {', '.join(sorted(unknown))}")
    if not wanted:
        return
    kept = [
        item for item in items if wanted & {name for mark in item.iter_markers("requirement") for name in mark.args}
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Find loopback ports that nobody uses now; a server that can bind port 0 should rather do that."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find
