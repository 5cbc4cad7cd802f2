"""A fault of the world is told from one of the gateway, a run ends, and a seed says what it depends on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.release import release
from tests.simulation.search import ROOT

pytestmark = pytest.mark.slow
_AS_MODULE = """
import sys
from tests.simulation import backend, loop, promises, world
{change}
from tests.simulation.__main__ import main
sys.exit(main())
"""


def simulate(*words: str, change: str = "") -> tuple[int, str]:
    """Run the simulation with a change to the world; return the exit code and what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_MODULE.format(change=change), *words],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_seed_of_another_release_says_so_and_one_of_this_release_does_not() -> None:
    code, told = simulate("--seed", f"7@{'0' * 8}", "--steps", "3")
    assert (code, told.splitlines()[0]) == (
        0,
        f"seed 7 is of another release (00000000, and this is {release()}): it tells another story here",
    )
    code, told = simulate("--seed", f"7@{release()}", "--steps", "3")
    assert (code, "another release" in told) == (0, False)
    code, told = simulate("--seed", "seven")
    assert code == 2
    assert "'seven' is not a seed: write a number, or NUMBER@RELEASE" in told


def test_a_seed_tells_the_same_story_in_other_surroundings(tmp_path: Path) -> None:
    stories = [
        subprocess.run(
            [*before, sys.executable, "-m", "tests.simulation", "--seed", "7"],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"} | more, capture_output=True, text=True, check=True,
            timeout=300,
        ).stdout.partition("The last errors")[0]
        for before, more in (
            ((), {"TZ": "UTC"}),
            (("taskset", "1"), {"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "TMPDIR": str(tmp_path), "HOME": "/"}),
        )
    ]  # fmt: skip
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 100


def test_a_configuration_that_the_gateway_refuses_is_a_fault_of_the_world() -> None:
    wrong = "attempts=-1, limits={}, concurrency=1, target='again'"
    change = f"world.World.draw_limits = lambda self: vars(self).update({wrong})"
    code, told = simulate("--seed", "7", "--steps", "3", change=change)
    assert code == 2
    assert "the world is wrong, and the run says nothing about the gateway" in told
    assert "attempts" in told


def test_a_promise_whose_check_raises_is_a_fault_of_the_world() -> None:
    change = "promises.order = lambda world: [][1]"
    code, told = simulate("--seed", "7", "--steps", "3", change=change)
    assert (code, "IndexError" in told, "promise" in told.splitlines()[0]) == (2, True, False)


def test_a_peer_that_raises_is_a_fault_of_the_world() -> None:
    code, told = simulate("--seed", "7", "--steps", "60", change="backend.json = None")
    assert code == 2
    assert "AttributeError" in told


_ENDLESS = """
async def spin(_):
    while True:
        {body}
for steps in (world.STEPS, world.QUIET_STEPS, world.GATED_STEPS, world.RESTORING_STEPS):
    steps.clear()
world.STEPS[spin] = world.QUIET_STEPS[spin] = 1
world.USUAL = (spin,)
{bound}
"""


@pytest.mark.parametrize(
    ("body", "bound", "why"),
    [
        ("await world.asyncio.sleep(0)", "loop.MOST_TURNS = 5_000", "5,000 turns of the loop"),
        ("pass", "world._MOST_CPU = 1", "1 s of CPU"),
    ],
)
def test_a_run_that_never_ends_is_stopped_by_its_turns_or_its_cpu(body: str, bound: str, why: str) -> None:
    code, told = simulate("--seed", "7", "--steps", "3", change=_ENDLESS.format(body=body, bound=bound))
    assert (code, f"promise 10 is broken: the run does not end: {why}" in told) == (1, True)


def test_a_broken_run_is_shortened_to_the_steps_that_it_needs() -> None:
    change = """
async def fail(world):
    world.fail(4, "on purpose")
world.STEPS[fail] = world.QUIET_STEPS[fail] = 5
world.USUAL += (fail,)
"""
    code, told = simulate("--seed", "7", "--steps", "60", "--shrink", change=change)
    assert code == 1
    assert "\n1 steps after " in told
    assert told.splitlines()[-1].endswith("promise 4 is broken: on purpose")
