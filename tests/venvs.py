"""Environments with other libraries, or other releases of them, than the one that runs the tests."""

import subprocess
import sys
from pathlib import Path


def make_venv(folder: Path, requirements: Path, *, python: str = sys.executable, within: float = 240) -> Path:
    """Create an environment with pinned libraries for a `python`; returns its programs.

    The pip is ours, because it takes long to install, and compiles nothing: most modules are never imported. It also
    resolves nothing: the file names every package, and pip treats `pydantic` and `pydantic[email]` as two, of which
    the file can pin one.
    """
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=within)
    pip(folder / "bin", "install", "--no-compile", "--no-deps", "--require-hashes", "-r", requirements, within=within)
    return folder / "bin"


def pip(programs: Path, *words: str | Path, within: float = 240) -> None:
    """Let pip do something in an environment; its output is in the error."""
    base = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", programs / "python")
    done = subprocess.run([*base, *words], check=False, capture_output=True, text=True, timeout=within)
    assert done.returncode == 0, done.stdout + done.stderr
