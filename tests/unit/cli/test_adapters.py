"""Adapters are found by entry point; a broken one is named with its distribution, its line and the mend."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gateway.errors import InvalidConfiguration
from gateway.plugins import (
    FoundAdapter,
    broken_adapters,
    find_adapters,
    found_at_start,
    installed_adapters,
    load_configuration,
)
from tests.pace import PATIENCE

GOOD = """\
from gateway.adapter.port import RuntimeOptions

class ADAPTER:
    name, protocol, ports, options, capabilities = "pigeon", "pigeon/1", 3, RuntimeOptions, None
    codec = connector = None
"""
HALF_MENDED = f"""\
{GOOD.replace("codec = connector", "codec")}
    def connector(self, options, tools): ...

ADAPTER = ADAPTER()
"""
"""An adapter of ports 3 but for the function that ports 1 had."""

FOREIGN = """\
class Grounded(Exception):
    pass

raise Grounded("no wings")
"""
RAISING = f"""\
{GOOD}
    @property
    def codec(self):
        raise RuntimeError("no codec today")

    def __init__(self):
        pass

    @property
    def ports(self):
        raise RuntimeError("no ports today")

ADAPTER = ADAPTER()
"""
Install = Callable[..., FoundAdapter]


def put_adapter(
    folder: Path, source: str, patch: pytest.MonkeyPatch, *, distribution: str = "dragoman-pigeon", name: str = "pigeon"
) -> None:
    """Install a distribution with one adapter for the length of a test."""
    module = distribution.replace("-", "_")
    folder /= distribution
    information = folder / f"{module}-2.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
    (information / "entry_points.txt").write_text(f"[dragoman.adapters]\n{name} = {module}:ADAPTER\n")
    (folder / f"{module}.py").write_text(source)
    patch.setattr(sys, "path", [str(folder), *sys.path])
    importlib.invalidate_caches()
    patch.delitem(sys.modules, module, raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Install]:
    """Install adapters as before the start of this process, and say how the last one was found."""

    def install_it(source: str, *, distribution: str = "dragoman-pigeon") -> FoundAdapter:
        put_adapter(tmp_path, source, monkeypatch, distribution=distribution)
        found_at_start.cache_clear()
        return next(one for one in find_adapters() if one.distribution == distribution)

    yield install_it
    found_at_start.cache_clear()


def test_the_adapters_of_the_project_are_found() -> None:
    assert {"huma-0.1", "huma-0.2"} <= installed_adapters().keys()


def test_somebody_elses_adapter_is_found_by_its_name(install: Install) -> None:
    found = install(GOOD)
    assert (found.fault, found.version, found.line) == (None, "2.0", "pigeon = dragoman_pigeon:ADAPTER")
    assert "pigeon" in installed_adapters()


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import nothing_of_this_name\n", "loading it failed with ModuleNotFoundError: No module named 'nothing_of"),
        ("x = (\n", "loading it failed with SyntaxError"),
        ("OTHER = 1\n", "loading it failed with AttributeError"),
        ("1 / 0\n", "loading it failed with ZeroDivisionError"),
        (FOREIGN, "loading it failed with Grounded: no wings"),
        ("import sys\nsys.exit(3)\n", "loading it failed with SystemExit: 3"),
        (RAISING, "loading it failed with RuntimeError: no ports today"),
        ("ADAPTER = 3\n", "int is not an adapter, it lacks name, protocol, ports"),
        (GOOD.replace("3, RuntimeOptions", "4, RuntimeOptions"), "written for ports 4, but this gateway has ports 3"),
        (
            GOOD.replace("3, RuntimeOptions", "2, RuntimeOptions"),
            "ports 3: write `async def send_all(self, frames)` for",
        ),
        (
            GOOD.replace("3, RuntimeOptions", "1, RuntimeOptions"),
            "written for ports 1, but this gateway has ports 3: write `",
        ),
        (GOOD.replace("3, RuntimeOptions", "3, dict"), "its `options` is not a subclass"),
        (HALF_MENDED, "write `def connector(self, options)` for `def connector(self, options, tools)`"),
        (
            GOOD.replace('"pigeon", "pigeon/1"', '"dove", "pigeon/1"'),
            "its name is 'dove', but its entry point 'pigeon'",
        ),
    ],
)
def test_a_broken_adapter_is_named_with_its_origin_and_the_mend(install: Install, source: str, part: str) -> None:
    found = install(source)
    assert found.adapter is None
    assert part in (found.fault or "")
    assert "pigeon" not in installed_adapters()
    message = broken_adapters()["pigeon"]
    assert part in message
    assert "uninstall dragoman-pigeon" in message
    assert (
        "(installed by dragoman-pigeon 2.0, line `pigeon = dragoman_pigeon:ADAPTER` in [dragoman.adapters])" in message
    )


def test_an_adapter_whose_connector_takes_the_options_alone_is_used(install: Install) -> None:
    found = install(HALF_MENDED.replace("options, tools", "options"))
    assert (found.fault, found.adapter is None) == (None, False)


def test_two_adapters_of_one_name_are_refused(install: Install) -> None:
    install(GOOD, distribution="dragoman-a")
    second = install(GOOD, distribution="dragoman-b")
    assert second.fault == "dragoman-a already provides 'pigeon'; uninstall one of the two"
    # Nobody can tell which of them a runtime means.
    assert "pigeon" not in installed_adapters()


RUNTIME = "runtimes:\n  bird: {adapter: %s, url: 'http://127.0.0.1:9', api_key: k, agent_id: a}\n"


def test_a_broken_adapter_stops_only_a_configuration_with_a_runtime_of_it(install: Install, tmp_path: Path) -> None:
    install("1 / 0\n")
    config = tmp_path / "gateway.yaml"
    config.write_text(RUNTIME % "huma-0.2")
    loaded = load_configuration(config, {})
    assert [(one.severity, one.path) for one in loaded.problems if "'pigeon' cannot be used" in one.message] == [
        ("warning", "runtimes")
    ]
    config.write_text(RUNTIME % "pigeon")
    with pytest.raises(InvalidConfiguration) as caught:
        load_configuration(config, {})
    # It is said once.
    [problem] = [one for one in caught.value.problems if "'pigeon' cannot be used" in one.message]
    assert problem.severity == "error"
    assert (problem.path, problem.line) == ("runtimes.bird.adapter", 2)
    assert "loading it failed with ZeroDivisionError" in problem.message
    assert "uninstall dragoman-pigeon" in problem.message


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("check", "{config}"), 0),
        (("schema",), 0),
        (("migrate", "--check", "--config", "{config}"), 1),
        (("doctor", "--config", "{config}"), 1),
    ],
    ids=["check", "schema", "migrate", "doctor"],
)
def test_commands_warn_of_a_broken_adapter_that_no_runtime_uses_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    put_adapter(tmp_path, FOREIGN, monkeypatch)
    config = tmp_path / "gateway.yaml"
    config.write_text(f"{RUNTIME % 'huma-0.2'}engine: {{type: memory}}\n".replace("memory", "sqlite, path: d.db"))
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *(word.format(config=config) for word in words)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "dragoman-pigeon")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    # There is no database yet, and nobody listens at the runtime's port.
    assert done.returncode == code, done.stderr
    if words[0] != "migrate":
        assert "loading it failed with Grounded: no wings" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
