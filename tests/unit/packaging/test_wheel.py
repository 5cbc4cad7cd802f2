"""The wheel in environments that have what it asks for and nothing else: without extras, and with each of them."""

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import until

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "config/examples/static.yaml"
POSTGRES = "engine: {type: postgres, dsn: 'postgresql://nobody@127.0.0.1:1/none'}\n"
BY_NAME = {"python-engineio", "python-socketio", "uvloop"}
"""Libraries that are imported by no statement: two have no types, one is used if it is installed."""
THROUGH = {"starlette": "fastapi", "pydantic-core": "pydantic"}
"""Libraries whose names are a part of the interface of others."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True, timeout=120)
    [made] = folder.glob("*.whl")
    return made


class Environment:
    """A virtual environment with the wheel, and of the libraries of the tests those that the wheel asks for."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        [packages] = folder.glob("lib/python*/site-packages")
        with ZipFile(wheel) as packed:
            packed.extractall(packages)
        [metadata] = packages.glob("dragoman-*.dist-info/METADATA")
        asked = re.findall(r"(?m)^Requires-Dist: (.*)$", metadata.read_text(encoding="utf-8"))
        wanted, chosen = [Requirement(one) for one in asked], {"", *extras}
        for one in wanted:
            # One extra may bring another.
            if one.name == "dragoman" and one.marker and any(one.marker.evaluate({"extra": name}) for name in extras):
                chosen |= one.extras
        self.libraries = set(_closure((one for one in wanted if one.name != "dragoman"), chosen))
        for name in self.libraries:
            installed = distribution(name)
            for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
                (packages / top).symlink_to(Path(str(installed.locate_file(top))))

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run `dragoman` with these words."""
        return self.do("-m", "gateway", *words, cwd=cwd)

    def do(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run Python with these words; exit codes are left to the test."""
        return subprocess.run(
            [self.python, *words], capture_output=True, text=True, check=False, timeout=60, cwd=cwd, env=_env()
        )

    def imports(self, *, cwd: Path, without: str) -> str:
        """Import all that the wheel has, but for modules whose names fit; return what is wrong."""
        code = f"""
import importlib, pkgutil, re, adapters, gateway
for package in (gateway, adapters):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not re.match({without!r}, found.name) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""
        return self.do("-W", "error", "-c", code, cwd=cwd).stderr


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _closure(asked: Iterator[Requirement], extras: set[str]) -> Iterator[str]:
    for one in asked:
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(one.name)
            yield from _of(canonicalize_name(one.name), frozenset(one.extras))


@cache
def _of(name: str, extras: frozenset[str]) -> frozenset[str]:
    return frozenset(_closure(map(Requirement, distribution(name).requires or ()), {"", *extras}))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("bare"), wheel)


def test_production_imports_what_the_wheel_asks_for_and_the_other_way_round() -> None:
    providers = packages_distributions()
    imported = dict[str, set[str]]()
    for folder in ("gateway", "adapters"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            # Templates are copied into projects of other people, and never imported.
            if not name.startswith(("gateway/testing/", "gateway/cli/templates/")):
                for top in _imported(path) - set(sys.stdlib_module_names) - {"gateway", "adapters"}:
                    imported.setdefault(canonicalize_name(providers[top][0]), set()).add(name)
    assert {path.rpartition("/")[0] for path in imported.pop("asyncpg")} == {"gateway/store/postgres", "gateway/kit"}
    of_mcp = {path.rpartition("/")[0] for name in ("mcp", "mcp-types", "sse-starlette") for path in imported.pop(name)}
    assert of_mcp == {"gateway/http/mcp"}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    declared = {canonicalize_name(Requirement(one).name) for one in asked}
    assert imported.keys() - THROUGH.keys() == declared - BY_NAME
    assert set(THROUGH.values()) <= declared


def _imported(path: Path) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


_WANTING = r"gateway\.(testing|kit\.postgres|store\.postgres|cli\.doctor_postgres|http\.mcp\.(server|results))"


def test_without_extras_all_of_production_can_be_imported_but_postgresql_and_mcp(
    bare: Environment, tmp_path: Path
) -> None:
    assert bare.libraries.isdisjoint({"asyncpg", "hypothesis", "mcp", "pytest", "standardwebhooks", "websockets"})
    assert bare.imports(cwd=tmp_path, without=_WANTING) == ""


def test_without_its_extra_check_names_the_command_for_mcp(bare: Environment, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("mcp: {hold: 20s}\n")
    done = bare.run("check", str(config), cwd=tmp_path)
    assert "pip install 'dragoman[mcp]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("check",), ("serve", "--port", "0"), ("doctor",), ("migrate",), ("restore", "--bump-fences")]
)
def test_postgresql_without_its_extra_names_the_command(
    bare: Environment, tmp_path: Path, words: tuple[str, ...]
) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(POSTGRES)
    named = [str(config)] if words == ("check",) else ["--config", str(config)]
    done = bare.run(*words, *named, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'dragoman[postgres]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_without_its_extra_names_the_command(bare: Environment, tmp_path: Path) -> None:
    done = bare.run("demo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'dragoman[demo]'" in done.stderr


def test_init_has_its_files_in_the_wheel_and_names_the_extra_of_the_simulators(
    bare: Environment, tmp_path: Path
) -> None:
    for backend, written in (("fastapi", {"backend.py"}), ("express", {"backend.mjs", "package.json"})):
        for runtime in ("huma-0.2", "huma-0.1", "openhands", "herm", "mcp"):
            done = bare.run("init", f"{backend}-{runtime}", "--runtime", runtime, "--backend", backend, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "pip install 'dragoman[demo]'" in done.stdout
            found = {path.name for path in (tmp_path / f"{backend}-{runtime}").iterdir()}
            assert found == {"gateway.yaml", ".env", ".gitignore", *written}
    done = bare.run("init", "acme", "--adapter", "acme", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"README.md", "acme_adapter", "tests"} <= {path.name for path in (tmp_path / "acme").iterdir()}


async def test_a_gateway_serves_without_extras(bare: Environment, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "gateway.yaml"
    config.write_text("engine: {type: sqlite, path: dragoman.db}\n")
    process = await asyncio.create_subprocess_exec(
        *(bare.python, "-m", "gateway", "serve", "--config", str(config), "--port", str(port)), cwd=tmp_path, env=_env()
    )
    try:

        async def healthy() -> bool:
            assert process.returncode is None
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)):
                    return False
            # Reading the machine's certificates takes long.
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501
                return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200

        await until(healthy, within=60)
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
def test_with_its_extra_postgresql_can_be_configured(wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", wheel, "postgres")
    config = tmp_path / "gateway.yaml"
    config.write_text(POSTGRES)
    done = made.run("check", str(config), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert made.imports(cwd=tmp_path, without=r"gateway\.(testing|http\.mcp\.(server|results))") == ""


@pytest.mark.slow
def test_with_its_extra_everything_for_tests_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", wheel, "testing")
    assert made.imports(cwd=tmp_path, without=r"gateway\.(kit\.postgres|store\.postgres|cli\.doctor_postgres)") == ""


@pytest.mark.slow
def test_the_demo_and_the_simulated_runtimes_want_nothing_of_the_suites(wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", wheel, "demo")
    assert made.libraries.isdisjoint({"hypothesis", "pytest", "pytest_asyncio"})
    without = r"gateway\.((kit|store)\.postgres|cli\.doctor_postgres|testing\.conformance)"
    assert made.imports(cwd=tmp_path, without=without) == ""
    for name in ("huma", "openhands", "herm", "mcp"):
        shown = made.do("-m", f"gateway.testing.runtimes.{name}", "--help", cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
