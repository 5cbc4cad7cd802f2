"""The cost of importing the client and the kit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import QUIET, within
from tests.readme.pages import ROOT

_MEASURE = """
import sys, time
begun = time.process_time()
import {module}
print(time.process_time() - begun, *sys.modules)
"""
HEAVY = {
    "aiohttp",
    "socketio",
    "structlog",
    "uvicorn",
    "yaml",
    "jsonschema_rs",
    "asyncpg",
    "prometheus_client",
    "typer",
}
SERVER = {"fastapi", "starlette"}


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=60, cwd=cwd, env={}
    )


@pytest.mark.timing
@pytest.mark.parametrize(
    ("module", "needless", "most"),
    [("dragoman.client", HEAVY | SERVER, 0.95), ("dragoman.kit", HEAVY | {"httpx"}, 0.95)],
)
def test_importing_it_is_cheap_and_brings_nothing_of_a_server(module: str, needless: set[str], most: float) -> None:
    """Beside FastAPI and httpx alone, which take about 0.3 s of CPU on a quick machine: the least of some imports."""
    ours: list[float] = []
    alone: list[float] = []
    for _ in range(5 if QUIET in os.environ else 1):
        seconds, *loaded = run("-c", _MEASURE.format(module=module), cwd=ROOT).stdout.split()
        assert needless & set(loaded) == set()
        assert "pydantic" in loaded
        ours.append(float(seconds))
        seconds, *_ = run("-c", _MEASURE.format(module="fastapi, httpx"), cwd=ROOT).stdout.split()
        alone.append(float(seconds))
    assert min(ours) <= within(most) * min(alone), (ours, alone)
