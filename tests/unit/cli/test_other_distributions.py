"""What else pip has installed: an adapter of ports 1, and distributions that own packages named like ours."""

import dataclasses
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gateway.adapter.port import Capabilities
from tests.venvs import pip

ROOT = Path(__file__).parents[3]
PORTS_1 = """\
from gateway.envelope import Draft, Envelope
from gateway.ports.adapter import PORTS_VERSION, Capabilities, Created, RuntimeOptions
from gateway.ports.duration import Duration
from gateway.ports.values import find_fault
from gateway.transports.masking import Mask

class ADAPTER:
    name, protocol, ports, options = "pigeon", "pigeon/1", PORTS_VERSION, RuntimeOptions
    capabilities = Capabilities(accepts=frozenset(), emits=frozenset(), turns="inferred", delivery="silence")
    codec = None

    @staticmethod
    def connector(options, tools):
        return None
"""
"""An adapter as it was written for 0.2.0."""


def run(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command to its end, whatever that is, and give what it printed in one line."""
    whole = {**os.environ, "COLUMNS": "400", **(env or {})}
    if env:
        whole["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(ROOT), str(ROOT / "gateway/sdk")))
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd="/", env=whole, check=False)
    return " ".join((done.stdout + done.stderr).split())


def project(folder: Path, name: str, files: dict[str, str], *, more: str = "") -> Path:
    """Write a project that pip can build."""
    for path, source in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)
    included = ", ".join(f'"{path.split("/")[0]}"' for path in files)
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "3.1"\n{more}\n'
        f"[tool.hatch.build.targets.wheel]\ninclude = [{included}]\n"
    )
    return folder


def install(source: Path, *where: str | Path, python: Path = Path(sys.executable)) -> None:
    pip(python.parent, "install", "--no-deps", "--no-index", "--no-build-isolation", *where, source)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment with Dragoman installed in it, not as it is developed, and its libraries behind that."""
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"), check=True, timeout=60)
    python = tmp_path / "env/bin/python"
    place = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (Path(place) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    install(ROOT / "gateway/sdk", python=python)
    install(ROOT, python=python)
    return python


@pytest.mark.slow
def test_an_installed_adapter_of_ports_1_is_refused_with_the_lines_to_change(tmp_path: Path) -> None:
    entry = '[project.entry-points."dragoman.adapters"]\npigeon = "dragoman_pigeon:ADAPTER"'
    made = project(tmp_path / "made", "dragoman-pigeon", {"dragoman_pigeon.py": PORTS_1}, more=entry)
    install(made, "--target", tmp_path / "site")
    told = run(sys.executable, "-m", "gateway", "doctor", env={"PYTHONPATH": str(tmp_path / "site")})
    assert "pigeon from dragoman-pigeon 3.1, line `pigeon = dragoman_pigeon:ADAPTER`" in told
    assert "it is written for ports 1, but this gateway has ports 3" in told
    assert "upgrade or uninstall dragoman-pigeon" in told
    assert "`confirms_messages` (return a `ConfirmationRule` with `within` from `confirmation` of the options)" in told
    assert all(
        word in told
        for word in (
            "`async def declared(self, native_id)`",
            "`tools`",
            "`takes_tools`",
            "`async def send_all(self, frames)`",
        )
    )
    moves = re.findall(r"`(gateway[a-z_.]+)` for `(gateway[a-z_.]+)`", told)
    assert len(moves) == 5
    mended = PORTS_1
    for new, old in moves:
        mended = mended.replace(f"from {old}", f"from {new}")
    (tmp_path / "site/dragoman_pigeon.py").write_text(mended)
    told = run(sys.executable, "-m", "gateway", "doctor", env={"PYTHONPATH": str(tmp_path / "site")})
    assert "its `connector` does not accept the options alone" in told
    assert "`def connector(self, options)` for `def connector(self, options, tools)`" in told
    assert "`async def create(self, order)` for `async def create(self, labels)`" in told
    (tmp_path / "site/dragoman_pigeon.py").write_text(mended.replace("(options, tools)", "(options)"))
    told = run(sys.executable, "-m", "gateway", "doctor", env={"PYTHONPATH": str(tmp_path / "site")})
    assert "pigeon speaks pigeon/1, ports 3, from dragoman-pigeon 3.1" in told


SETS = '    capabilities = Capabilities(accepts=frozenset(), emits=frozenset(), turns="inferred", delivery="silence"'
REMOVED = {
    "a member, at import": f"{SETS}, linked=False)",
    "a member, by replace": f"{SETS})\n    capabilities = replace(capabilities, hydrates=True)",
    "a member, when it is asked for": (
        "    @property\n    def capabilities(self):\n"
        '        return Capabilities(accepts=frozenset(), emits=frozenset(), turns="inferred", delivery="silence",'
        " slow_sends=True)"
    ),
    "a value of a member": f"    from gateway.adapter.port import McpAction\n{SETS})",
    "ports 2": f"{SETS})\n    ports = 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", REMOVED)
def test_an_adapter_that_sets_removed_capabilities_is_refused_with_their_replacements(tmp_path: Path, how: str) -> None:
    source = (
        "from gateway.adapter.port import PORTS_VERSION, Capabilities, RuntimeOptions\n"
        "from gateway.events.frozen import replace\n\n"
        "class Pigeon:\n"
        '    name, protocol, ports, options = "pigeon", "pigeon/1", PORTS_VERSION, RuntimeOptions\n'
        f"{REMOVED[how]}\n"
        "    codec = None\n\n"
        "    @staticmethod\n    def connector(options):\n        return None\n\n"
        "ADAPTER = Pigeon()\n"
    )
    entry = '[project.entry-points."dragoman.adapters"]\npigeon = "dragoman_pigeon:ADAPTER"'
    made = project(tmp_path / "made", "dragoman-pigeon", {"dragoman_pigeon.py": source}, more=entry)
    install(made, "--target", tmp_path / "site")
    told = run(sys.executable, "-m", "gateway", "doctor", env={"PYTHONPATH": str(tmp_path / "site")})
    wrong = "it is written for ports 2" if how == "ports 2" else "it sets capabilities that ports 3 does not have"
    assert wrong in told
    named = dict(re.findall(r"`(\w+)` \(([^)]+)\)", told.split("remove these members of `Capabilities`: ")[1]))
    assert named["linked"] == "if False, return the clients from `mcp_clients` of the options"
    assert named["hydrates"] == "set the default of the option `hydrate`"
    assert named["slow_sends"] == "not replaced"
    members = {field.name for field in dataclasses.fields(Capabilities)}
    assert not members & named.keys()
    assert "upgrade or uninstall dragoman-pigeon" in told


@pytest.mark.slow
def test_another_distribution_that_owns_our_packages_is_named(tmp_path: Path, python: Path) -> None:
    assert "installs files" not in run(python, "-m", "gateway", "doctor")
    files = {"gateway/__init__.py": "", "adapters/edge.py": ""}
    install(project(tmp_path / "made", "cloud-edge", files), python=python)
    told = run(python, "-m", "gateway", "doctor")
    assert "cloud-edge 3.1 installs files in the packages of Dragoman: gateway and adapters" in told
    assert "install Dragoman in its own environment" in told
    assert "Problems found" in told


@pytest.mark.slow
def test_adapters_that_are_found_before_ours_are_told_apart_from_a_broken_installation(tmp_path: Path) -> None:
    install(project(tmp_path / "made", "cloud-edge", {"adapters/__init__.py": ""}), "--target", tmp_path / "site")
    env = {"PYTHONPATH": str(tmp_path / "site")}
    told = (
        f"`import adapters` finds {tmp_path / 'site/adapters'} instead of {ROOT / 'adapters'}"
        "; install Dragoman in its own environment"
    )
    check = run(sys.executable, "-m", "gateway", "check", ROOT / "config/examples/static.yaml", env=env)
    assert "adapter 'huma-0.2' cannot be used" in check
    assert told in check
    assert told.split(";", maxsplit=1)[0] in run(sys.executable, "-m", "gateway", "doctor", env=env)
