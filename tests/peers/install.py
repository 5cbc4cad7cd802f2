"""Sets up the real servers in `.peers`: one environment, and beside it the packages of each version.

Run with `python -m tests.peers.install PYTHON`; what is installed already stays.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.venvs import make_venv, pip

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / ".peers"
VERSIONS = ("1.58.2", "1.44.0")
"""With the session socket, and with the events socket alone."""
_OLDEST = (3, 12)
_INSTALLING = 1800.0
_DONE = "installed"


def main() -> None:
    """Install what is missing."""
    python = _suitable([*sys.argv[1:], "python3.14", "python3.13", "python3.12"])
    if python is None:
        sys.exit(
            "The servers need Python 3.12 or newer, and none is on PATH. Install one (the system's package, pyenv, or "
            "uv python install 3.13), then name it: make peers PYTHON=python3.13"
        )
    requirements = HERE / "requirements.txt"
    environment = PEERS / "environment"
    if not _is_done(environment, requirements):
        print(f"Installing the libraries of agent-servers for {python}, which takes minutes")  # noqa: T201
        make_venv(environment, requirements, python=python, within=_INSTALLING)
        _note_done(environment, requirements)
    for version in VERSIONS:
        packages, wanted = PEERS / version, HERE / f"openhands-{version}.txt"
        if not _is_done(packages, wanted):
            options = ("--no-compile", "--no-deps", "--require-hashes", "--target", packages)
            pip(environment / "bin", "install", *options, "-r", wanted, within=_INSTALLING)
            _note_done(packages, wanted)


def _suitable(names: list[str]) -> str | None:
    """Return the first program that is a Python new enough."""
    look = f"import sys; sys.exit(sys.version_info < {_OLDEST})"
    for name in names:
        found = shutil.which(name)
        # A shim may be on PATH without its Python.
        if found is not None and subprocess.run([found, "-c", look], check=False, capture_output=True).returncode == 0:
            return found
    return None


def _is_done(folder: Path, requirements: Path) -> bool:
    """Tell whether a folder contains these requirements; remove it if not."""
    note = folder / _DONE
    if note.exists() and note.read_text() == _digest(requirements):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _note_done(folder: Path, requirements: Path) -> None:
    (folder / _DONE).write_text(_digest(requirements))


def _digest(requirements: Path) -> str:
    return hashlib.sha256(requirements.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
