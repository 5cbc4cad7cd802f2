"""Seeds keep every promise, tell one story, and find the faults that are known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.search import FAULTS, ROOT, search

_SECONDS = 60
"""CPU of a usual core in which each known fault is found."""


def simulate(*words: str) -> str:
    """Run the simulation in a process of its own, since it replaces the loop and the randomness."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
    return done.stdout


def test_fixed_seeds_keep_every_promise_and_tell_one_story() -> None:
    assert "8 seeds" in simulate("--first", "0", "--count", "8", "--steps", "150", "--twice")


def test_more_fixed_seeds_keep_every_promise() -> None:
    assert " 0 failed" in simulate("--first", "1000", "--seconds", "10")


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS.glob("*.patch")), ids=lambda path: path.stem)
def test_a_known_fault_breaks_a_promise(fault: Path) -> None:
    # A core may be three times as slow.
    assert search(fault, seconds=3 * _SECONDS, first=1, steps=200)
