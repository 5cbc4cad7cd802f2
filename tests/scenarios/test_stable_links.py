"""A link that was good for ten seconds ends the back-off of the failures before it."""

import time

import pytest

from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from tests.scenarios.environment import Scene, until

FIRST, FAILURES = 0.005, 9
LONG = FIRST * 2**10 / 2
"""The shortest wait after so many failures; the first one is at most `FIRST`."""


class MovableClock(SystemClock):
    """The clock of production, moved forward by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0
        self.monotonic = lambda: time.monotonic() + self.ahead


@pytest.fixture
def tuning() -> Tuning:
    """Double the wait from a short one up to a long one."""
    return Tuning(link_first=FIRST, link_longest=3_600.0)


async def _is_refused_often(scene: Scene) -> bool:
    return len(scene.huma.refused) >= FAILURES


@pytest.mark.slow
@pytest.mark.parametrize("stands", [11.0, 0.0], ids=["good", "short"])
async def test_only_a_good_link_ends_the_back_off(newer: Scene, stands: float) -> None:
    newer.clock = clock = MovableClock()
    async with newer.running() as gateway:
        await newer.agent.wait_connected()
        newer.huma.refuse("finn", "BUSY")
        await newer.agent.drop()
        await until(lambda: _is_refused_often(newer))
        newer.huma.refuse("finn", None)
        await gateway.wait_link("up")
        connections = newer.agent.connections
        clock.ahead = stands
        dropped = time.monotonic()
        await newer.agent.drop()
        await newer.agent.wait_connections(connections + 1)
        assert (time.monotonic() - dropped < LONG) is (stands > 10)
