"""What importing the client and the kit costs, and what becomes of them beside a package named like ours."""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.pace import QUIET, within
from tests.readme.pages import ROOT, block

PAGE = "gateway/client/README.md"
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
    ("module", "needless", "most"), [("gateway.client", HEAVY | SERVER, 0.95), ("gateway.kit", HEAVY | {"httpx"}, 0.95)]
)
def test_importing_it_is_cheap_and_brings_nothing_of_a_server(module: str, needless: set[str], most: float) -> None:
    """Beside FastAPI and httpx alone, which take about 0.3 s of CPU on a quick machine."""
    ratios: list[float] = []
    for _ in range(7 if QUIET in os.environ else 1):
        ours, *loaded = run("-c", _MEASURE.format(module=module), cwd=ROOT).stdout.split()
        alone, *_ = run("-c", _MEASURE.format(module="fastapi, httpx"), cwd=ROOT).stdout.split()
        assert needless & set(loaded) == set()
        assert "pydantic" in loaded
        ratios.append(float(ours) / float(alone))
    assert median(ratios) <= within(most)


def test_a_package_of_ones_own_called_gateway_is_told_apart_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway/__init__.py").write_text("")
    told = run("-c", "from gateway.client import Client", cwd=tmp_path)
    ours = run("-c", "import gateway.client", cwd=ROOT)
    assert (told.returncode, ours.returncode) == (1, 0)
    [said] = [line for line in block(PAGE, "text", "ModuleNotFoundError").splitlines() if "ModuleNotFoundError" in line]
    assert told.stderr.splitlines()[-1] == said
    where = next(line for line in block(PAGE, "sh", "__file__").splitlines() if "__file__" in line)
    source = where.partition('-c "')[2].partition('"')[0]
    found = run("-c", source, cwd=tmp_path)
    assert Path(found.stdout.strip()) == tmp_path / "gateway/__init__.py"
    # The command does not look into the folder where it is run.
    command = subprocess.run(
        [Path(sys.executable).with_name("dragoman"), "version"],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path, env={},
    )  # fmt: skip
    assert (command.returncode, command.stderr) == (0, "")
    (tmp_path / "shop").mkdir()
    (tmp_path / "gateway").rename(tmp_path / "shop/gateway")
    inside = run("-c", "import shop.gateway\nfrom gateway.client import Client\nprint(Client)", cwd=tmp_path)
    assert (inside.stdout, inside.stderr) == ("<class 'gateway.client.client.Client'>\n", "")
