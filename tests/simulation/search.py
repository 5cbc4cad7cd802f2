"""Search for faults that are known: apply each patch to a copy of the product, and run seeds until a promise breaks."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation.__main__ import say

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).parent / "faults"


def search(patch: Path, *, seconds: int, first: int, steps: int) -> str:
    """Return the line of the broken promise and the CPU that it took; empty if nothing was found."""
    with tempfile.TemporaryDirectory(prefix="dragoman-fault-") as folder:
        for part in ("gateway", "adapters", "tests/simulation"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "tests/__init__.py").touch()
        subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={folder}", patch], check=True, cwd="/")
        words = ["--first", str(first), "--seconds", str(seconds), "--steps", str(steps), "--until-broken"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *words],
            cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
    found = done.stdout.strip()
    if done.returncode not in {0, 1} or (done.returncode == 1 and "promise" not in found):
        raise RuntimeError(found + done.stderr[-2_000:])
    return found if done.returncode else ""


def main() -> int:
    """Search all faults and print a table; returns 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="simulation.search", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only these faults")
    parser.add_argument("--seconds", type=int, default=60, help="CPU for each fault (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run (%(default)s)")
    given = parser.parse_args()
    missed = 0
    for patch in sorted(FAULTS.glob("*.patch")):
        if given.names and patch.stem not in given.names:
            continue
        found = search(patch, seconds=given.seconds, first=given.first, steps=given.steps)
        missed += not found
        say(f"{patch.stem}: {found or 'NOT FOUND'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
