"""Search for faults: apply each patch to a copy of the product, and run seeds until a promise breaks."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.__main__ import say

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).parent / "faults"


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed that breaks a promise because of a fault."""

    seed: int
    cpu: float
    promise: str
    steps: int | None = None
    """The steps that are left after shrinking."""


@contextmanager
def patched(patch: Path) -> Generator[Path]:
    """Make a copy of the product with a fault."""
    with tempfile.TemporaryDirectory(prefix="dragoman-fault-") as name:
        folder = Path(name)
        for part in ("gateway", "adapters", "tests/simulation"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tests/__init__.py").touch()
        command = ["git", "apply", "--unsafe-paths", f"--directory={folder}", patch.resolve()]
        subprocess.run(command, check=True, cwd="/")
        yield folder


def search(patch: Path, *, seconds: int, first: int, steps: int, shrink: bool = False) -> Found | None:
    """Return the first seed that breaks a promise; None if none does in so many seconds of CPU."""
    with patched(patch) as folder:
        told = _simulate(folder, "--first", first, "--seconds", seconds, "--steps", steps, "--until-broken")
        found = re.match(r"seed (\d+)@\S+, (\S+) s: (promise \d+) is broken: (.*)", told)
        if found is None:
            return None
        seed, cpu, promise = int(found[1]), float(found[2]), f"{found[3]}: {found[4]}"
        if not shrink:
            return Found(seed, cpu, promise)
        told = _simulate(folder, "--seed", seed, "--steps", steps, "--shrink")
        left = re.search(r"^needs the steps (.*)$", told, re.MULTILINE)
        assert left is not None, told
        return Found(seed, cpu, promise, len(re.findall(r"\d+", left[1])))


def _simulate(folder: Path, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, words)],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    if done.returncode not in {0, 1} or (done.returncode == 1 and "promise" not in done.stdout):
        raise RuntimeError(done.stdout + done.stderr[-2_000:])
    return done.stdout.strip()


def main() -> int:
    """Search all faults and print a table; returns 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="simulation.search", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patches", nargs="*", type=Path, help="only these patches, instead of all in faults/")
    parser.add_argument("--seconds", type=int, default=60, help="CPU for each fault (%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (%(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run (%(default)s)")
    parser.add_argument("--shrink", action="store_true", help="remove steps from each failing run")
    given = parser.parse_args()
    say("| fault | breaks | seed | CPU | steps |\n|---|---|--:|--:|--:|")
    missed = 0
    for patch in given.patches or sorted(FAULTS.glob("*.patch")):
        found = search(patch, seconds=given.seconds, first=given.first, steps=given.steps, shrink=given.shrink)
        missed += found is None
        if found is None:
            say(f"| {patch.stem} | not found | | {given.seconds} s | |")
        else:
            say(f"| {patch.stem} | {found.promise} | {found.seed} | {found.cpu:.1f} s | {found.steps or ''} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
