"""Releases before this one, built from their commits, and one after it, which has one more migration."""

import atexit
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NoReturn
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
VERSION, COMMIT = "0.2.0", "90b69c7ab7925335139a07aba71365dfa86bd691"
LAST_WITH_0_2 = "f18d4caa"
"""The last commit that migrates the databases of release 0.2.0."""
_MIGRATION = '    ("CREATE TABLE {0}later (n bigint)", "INSERT INTO {0}later VALUES (7)"),\n)\n\nNEWEST = '
NO_HISTORY = (
    f"release {VERSION} is made from its commit, which is not here: git fetch --unshallow, or git fetch origin {COMMIT}"
)
OFTEN = """
import asyncio, sys
from pathlib import Path
from gateway.runtime.tuning import Tuning
from gateway.serve import serve
_, _, _, config, _, port = sys.argv
sys.exit(asyncio.run(serve(Path(config), port=int(port), tuning=Tuning(snapshot_every=EVENTS))))
"""
_OFTEN_BEFORE = """
import gateway.cli, gateway.runtime.pump
gateway.runtime.pump.SNAPSHOT_EVERY = EVENTS
gateway.cli.main()
"""


@dataclass(frozen=True)
class Release:
    """The code of a release, run by the interpreter and with the libraries of the tests."""

    folder: Path
    often: str
    """Serves as its command does, with a snapshot after so many EVENTS."""
    program: tuple[str, ...] = ("-m", "gateway")

    @property
    def command(self) -> tuple[str, ...]:
        """What to run, in its folder, which comes before everything that is installed."""
        return (sys.executable, *self.program)

    def with_snapshots_after(self, events: int) -> "Release":
        """Make snapshots so often, since 500 events would be most of what is written."""
        return replace(self, program=("-c", self.often.replace("EVENTS", str(events))))


THIS = Release(ROOT, OFTEN)


def release_before(commit: str = COMMIT) -> Release:
    """Build the release before; or skip the test, and say what is missing."""
    return find_release_before(commit) or _give_up()


def find_release_before(commit: str = COMMIT) -> Release | None:
    """Build the release before; None where its commit is missing."""
    folder = build(commit)
    return None if folder is None else Release(folder, _OFTEN_BEFORE)


@cache
def build(commit: str) -> Path | None:
    """Build a commit, as its wheel, and say where it can be run; None where it is missing."""
    archive = subprocess.run(
        ["git", "archive", commit, "gateway", "adapters", "config", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    if archive.returncode:
        return None
    folder = Path(tempfile.mkdtemp(prefix="dragoman-release-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, installed = folder / "source", folder / "installed"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
        packed.extractall(source, filter="data")
    # Its wheel brings the entry points along, by which it finds its own adapters.
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, capture_output=True, check=True, timeout=120)
    [wheel] = folder.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(installed)  # noqa: S202 -- just built of it
    sdk = source / "gateway/sdk/dragoman"
    if sdk.exists():
        shutil.copytree(sdk, installed / "dragoman")
    return installed


def release_after(folder: Path) -> Release:
    """Copy this release, and add a migration to both engines."""
    for package in ("gateway", "adapters"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("sdk", "__pycache__"))
    for file, prefix in (("sqlite/schema.py", ""), ("postgres/tables.py", "@")):
        path = folder / "gateway/store" / file
        first, end, rest = path.read_text(encoding="utf-8").partition(")\n\nNEWEST = ")
        assert end, f"{path} has no list of migrations"
        path.write_text(first + _MIGRATION.format(prefix) + rest, encoding="utf-8")
    return Release(folder, OFTEN)


def _give_up() -> NoReturn:
    if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
        pytest.fail(NO_HISTORY)
    pytest.skip(NO_HISTORY)
