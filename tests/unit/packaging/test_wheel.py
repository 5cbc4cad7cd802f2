"""Both wheels, built from their sdists, in environments with only their declared dependencies."""

import ast
import asyncio
import fcntl
import os
import re
import socket
import subprocess
import sys
import tarfile
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
OWN = {"dragoman", "dragoman-sdk"}
SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
BY_NAME = {"python-engineio", "python-socketio", "uvloop"}
"""Libraries that are imported by no statement: two have no types, one is used if it is installed."""
SHARED = "opentelemetry"
THROUGH = {"starlette": "fastapi", "pydantic-core": "pydantic", "markupsafe": "jinja2"}
"""Libraries whose names are a part of the interface of others."""


def build(source: Path, folder: Path, kind: str) -> Path:
    made = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(made, cwd=source, capture_output=True, check=True, timeout=120)
    [found] = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


def wheel_of(source: Path, folder: Path) -> Path:
    """Build a wheel from the sdist, as an index's users may."""
    with tarfile.open(build(source, folder / "sdist", "sdist")) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    return build(unpacked, folder / "wheel", "wheel")


def shared_wheel_of(source: Path, name: str, factory: pytest.TempPathFactory) -> Path:
    """Build a wheel once for all workers of a run."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = list(folder.glob("wheel/*.whl"))
        return built[0] if built else wheel_of(source, folder)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel_of(ROOT / "gateway/sdk", "sdk-wheel", tmp_path_factory)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel_of(ROOT, "wheel", tmp_path_factory)


class Environment:
    """A virtual environment with wheels, and of the libraries of the tests those that the wheels require."""

    def __init__(self, folder: Path, *wheels: Path, extras: frozenset[str] = frozenset()) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        [self.packages] = folder.glob("lib/python*/site-packages")
        wanted: list[Requirement] = []
        for wheel in wheels:
            with ZipFile(wheel) as packed:
                packed.extractall(self.packages)  # noqa: S202 - our own
                [metadata] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
                text = packed.read(metadata).decode()
            wanted += map(Requirement, re.findall(r"(?m)^Requires-Dist: (.*)$", text))
        chosen = {"", *extras}
        for one in wanted:
            # One extra may bring another.
            if one.name == "dragoman" and one.marker and any(one.marker.evaluate({"extra": name}) for name in extras):
                chosen |= one.extras
        self.libraries = set(_closure((one for one in wanted if one.name not in OWN), chosen))
        packages = self.packages
        for name in self.libraries:
            installed = distribution(name)
            files = installed.files or []
            for file in files:
                # Several distributions share this folder.
                if file.parts[0] == SHARED:
                    (packages / file).parent.mkdir(parents=True, exist_ok=True)
                    (packages / file).symlink_to(Path(str(installed.locate_file(file))))
            for top in {file.parts[0] for file in files} - {"..", "__pycache__", SHARED}:
                (packages / top).symlink_to(Path(str(installed.locate_file(top))))

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run `dragoman` with these words."""
        return self.do("-m", "gateway", *words, cwd=cwd)

    def do(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run Python with these words; exit codes are left to the test."""
        return subprocess.run(
            [self.python, *words], capture_output=True, text=True, check=False, timeout=60, cwd=cwd, env=_env()
        )

    def imports(self, *packages: str, cwd: Path, without: str) -> str:
        """Import all modules of packages except those that match; return the errors."""
        code = f"""
import importlib, pkgutil, re
for package in map(importlib.import_module, {packages or ("gateway", "adapters", "dragoman")}):
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
def bare(sdk: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("bare"), sdk, wheel)


def imports_of(*folders: str) -> dict[str, set[str]]:
    """Map each imported distribution to the folders that import it."""
    providers = {**packages_distributions(), "dragoman": ["dragoman-sdk"]}
    imported = dict[str, set[str]]()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            # Templates are copied into projects of other people, and never imported.
            if not name.startswith(tuple({"gateway/testing/", "gateway/cli/templates/", "gateway/sdk/"} - {*folders})):
                for top in _imported(path) - set(sys.stdlib_module_names) - {"gateway", "adapters"}:
                    if folder == "gateway/sdk/" and top == "dragoman":
                        continue
                    imported.setdefault(canonicalize_name(providers[top][0]), set()).add(name)
    return imported


def requirements_of(project: str) -> tuple[set[str], dict[str, list[str]]]:
    """Return the required distributions of a project, and its extras."""
    table = tomllib.loads((ROOT / project).read_text(encoding="utf-8"))["project"]
    return {canonicalize_name(Requirement(one).name) for one in table["dependencies"]}, table["optional-dependencies"]


def test_the_sdk_imports_exactly_its_requirements() -> None:
    imported = imports_of("gateway/sdk/")
    folders = {name: {path.removeprefix("gateway/sdk/dragoman/") for path in paths} for name, paths in imported.items()}
    declared, extras = requirements_of("gateway/sdk/pyproject.toml")
    assert folders.pop("asyncpg") == {"kit/postgres.py"}
    assert folders.pop("fastapi") == {"kit/tools.py"}
    assert {name: [Requirement(one).name for one in extra] for name, extra in extras.items()} == {
        "fastapi": ["fastapi"],
        "postgres": ["asyncpg"],
    }
    assert folders.keys() - THROUGH.keys() == declared


def test_the_server_requires_the_sdk_of_its_own_version() -> None:
    versions: list[str] = []
    for project in ("pyproject.toml", "gateway/sdk/pyproject.toml"):
        table = tomllib.loads((ROOT / project).read_text(encoding="utf-8"))["project"]
        versions.append(table["version"])
        # An upper bound in a library decides for the application that imports it.
        if project.startswith("gateway/sdk"):
            every = [
                *table["dependencies"],
                *(one for extra in table["optional-dependencies"].values() for one in extra),
            ]
            assert {one.operator for text in every for one in Requirement(text).specifier} == {">="}
        else:
            assert f"dragoman-sdk=={versions[0]}" in table["dependencies"]
    assert versions[0] == versions[1]


def test_each_file_is_in_one_of_the_two_wheels(sdk: Path, wheel: Path) -> None:
    assert {name.split("/")[0] for name in _files(sdk)} == {"dragoman"}
    assert {name.split("/")[0] for name in _files(wheel)} == {"gateway", "adapters"}
    assert [name for name in _files(wheel) if name.startswith("gateway/sdk")] == []
    tracked = subprocess.run(
        ["git", "ls-files", "gateway", "adapters"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    endings = (".py", ".typed", ".html", ".css", ".js", ".svg")
    shipped = {name.removeprefix("gateway/sdk/") for name in tracked if name.endswith(endings)}
    assert shipped <= _files(sdk) | _files(wheel)


def _files(wheel: Path) -> set[str]:
    with ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if ".dist-info/" not in name}


def test_an_sdk_of_another_release_is_refused_with_the_command(sdk: Path, wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk, wheel)
    [old] = made.packages.glob("dragoman_sdk-*.dist-info")
    metadata = old / "METADATA"
    release = old.name.removeprefix("dragoman_sdk-").removesuffix(".dist-info")
    metadata.write_text(metadata.read_text(encoding="utf-8").replace(f"\nVersion: {release}\n", "\nVersion: 0.0.1\n"))
    told = f"dragoman {release} requires dragoman-sdk {release}, but dragoman-sdk 0.0.1 is installed"
    for words in (("serve", "--config", str(STATIC), "--port", "0"), ("doctor", "--config", str(STATIC))):
        done = made.run(*words, cwd=tmp_path)
        assert done.returncode == 1
        shown = " ".join((done.stdout + done.stderr).split())
        assert told in shown
        assert f"in a clone of Dragoman {release}, run pip install ./gateway/sdk ." in shown


BACKEND = """
import os
from fastapi import FastAPI
from pydantic import BaseModel
from dragoman.kit import Tools
import gateway
assert gateway.MINE

app, tools = FastAPI(), Tools(secret=os.environ["CARDS_SECRET"])

class Wanted(BaseModel):
    rank: str

@tools.tool("ask")
async def ask(wanted: Wanted) -> str:
    '''Ask for all cards of a rank.'''
    return f"Go fish for {wanted.rank}"

app.include_router(tools.router)
assert list(tools.declarations()) == ["ask"]
"""


def test_the_sdk_works_beside_an_application_package_named_gateway(sdk: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk, extras=frozenset({"fastapi"}))
    assert made.libraries.isdisjoint({"aiohttp", "orjson", "msgspec", "structlog", "typer", "uvicorn", "asyncpg"})
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway/__init__.py").write_text("MINE = True\n")
    (tmp_path / "backend.py").write_text(BACKEND)
    done = made.do(
        "-W", "error", "-c", f"import os; os.environ['CARDS_SECRET'] = {SECRET!r}; import backend", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert made.imports("dragoman", cwd=tmp_path, without=r"dragoman\.kit\.postgres") == ""


def test_without_fastapi_the_client_and_the_models_can_be_imported(sdk: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk)
    assert made.libraries.isdisjoint({"fastapi", "starlette", "asyncpg"})
    assert len(made.libraries) <= 14
    assert made.imports("dragoman", cwd=tmp_path, without=r"dragoman\.kit") == ""
    done = made.do("-c", "import dragoman.kit", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == ("ModuleNotFoundError: dragoman.kit requires FastAPI: pip install fastapi")


def test_production_imports_what_the_wheel_asks_for_and_the_other_way_round() -> None:
    imported = imports_of("gateway", "adapters")
    assert {path.rpartition("/")[0] for path in imported.pop("asyncpg")} == {"gateway/store/postgres"}
    of_mcp = {path.rpartition("/")[0] for name in ("mcp", "mcp-types", "sse-starlette") for path in imported.pop(name)}
    assert of_mcp == {"gateway/http/mcp"}
    # The exporter takes a session of requests.
    libraries = [name for name in imported if name.startswith("opentelemetry") or name == "requests"]
    of_traces = {path for name in libraries for path in imported.pop(name)}
    assert of_traces == {"gateway/traces/otlp.py"}
    declared, _ = requirements_of("pyproject.toml")
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


_WANTING = (
    r"gateway\.(testing|traces\.otlp|store\.postgres|cli\.doctor_postgres|http\.mcp\.(server|results))"
    r"|dragoman\.kit\.postgres"
)


@pytest.mark.slow
def test_without_extras_all_of_production_can_be_imported_but_postgresql_mcp_and_traces(
    bare: Environment, tmp_path: Path
) -> None:
    assert bare.libraries.isdisjoint({"asyncpg", "hypothesis", "mcp", "pytest", "standardwebhooks", "websockets"})
    assert bare.imports(cwd=tmp_path, without=_WANTING) == ""


@pytest.mark.slow
def test_without_its_extra_check_names_the_command_for_mcp(bare: Environment, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("mcp: {hold: 20s}\n")
    done = bare.run("check", str(config), cwd=tmp_path)
    assert "pip install ./gateway/sdk '.[mcp]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_its_extra_check_names_the_command_for_traces(bare: Environment, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("traces: {}\n")
    done = bare.run("check", str(config), cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install ./gateway/sdk '.[otel]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
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
    assert "pip install ./gateway/sdk '.[postgres]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_demo_without_its_extra_names_the_command(bare: Environment, tmp_path: Path) -> None:
    done = bare.run("demo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install ./gateway/sdk '.[demo]'" in done.stderr


@pytest.mark.slow
def test_init_has_its_files_in_the_wheel_and_names_the_extra_of_the_simulators(
    bare: Environment, tmp_path: Path
) -> None:
    for backend, written in (("fastapi", {"backend.py"}), ("express", {"backend.mjs", "package.json"})):
        for runtime in ("huma-0.2", "huma-0.1", "openhands", "openhands-v1", "herm", "mcp"):
            done = bare.run("init", f"{backend}-{runtime}", "--runtime", runtime, "--backend", backend, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "pip install ./gateway/sdk '.[demo]'" in done.stdout
            found = {path.name for path in (tmp_path / f"{backend}-{runtime}").iterdir()}
            assert found == {"gateway.yaml", ".env", ".gitignore", *written}
    done = bare.run("init", "acme", "--adapter", "acme", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"README.md", "acme_adapter", "tests"} <= {path.name for path in (tmp_path / "acme").iterdir()}


@pytest.mark.slow
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
def test_with_its_extra_postgresql_can_be_configured(sdk: Path, wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk, wheel, extras=frozenset({"postgres"}))
    config = tmp_path / "gateway.yaml"
    config.write_text(POSTGRES)
    done = made.run("check", str(config), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert made.imports(cwd=tmp_path, without=r"gateway\.(testing|traces\.otlp|http\.mcp\.(server|results))") == ""


@pytest.mark.slow
def test_with_its_extra_everything_for_tests_can_be_imported(sdk: Path, wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk, wheel, extras=frozenset({"testing"}))
    assert (
        made.imports(
            cwd=tmp_path,
            without=r"gateway\.(traces\.otlp|store\.postgres|cli\.doctor_postgres)|dragoman\.kit\.postgres",
        )
        == ""
    )


@pytest.mark.slow
def test_the_demo_and_the_simulated_runtimes_want_nothing_of_the_suites(sdk: Path, wheel: Path, tmp_path: Path) -> None:
    made = Environment(tmp_path / "venv", sdk, wheel, extras=frozenset({"demo"}))
    assert made.libraries.isdisjoint({"hypothesis", "pytest", "pytest_asyncio"})
    without = (
        r"gateway\.(traces\.otlp|store\.postgres|cli\.doctor_postgres|testing\.conformance)|dragoman\.kit\.postgres"
    )
    assert made.imports(cwd=tmp_path, without=without) == ""
    for name in ("huma", "openhands", "openhands_v1", "herm", "mcp"):
        shown = made.do("-m", f"gateway.testing.runtimes.{name}", "--help", cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
