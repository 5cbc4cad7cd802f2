"""Fixtures of the scenarios: a scene in each dialect, and logging put back as it was."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.runtime.tuning import Tuning
from gateway.testing.runtimes.huma.rules import Dialect
from tests.scenarios.environment import Scene, scene


@pytest.fixture(params=["0.1", "0.2"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.fixture
def tuning() -> Tuning:
    """How long the gateway waits; a module that needs it quicker has a fixture of this name."""
    return Tuning()


@pytest.fixture
async def both(tmp_path: Path, dialect: Dialect, tuning: Tuning) -> AsyncIterator[Scene]:
    """A scene in either dialect."""
    async with scene(tmp_path, dialect) as made:
        made.tuning = tuning
        yield made
        made.is_clean()


@pytest.fixture
async def newer(tmp_path: Path, tuning: Tuning) -> AsyncIterator[Scene]:
    """A scene in 0.2.0, for what does not depend on the dialect."""
    async with scene(tmp_path, "0.2") as made:
        made.tuning = tuning
        yield made
        made.is_clean()
