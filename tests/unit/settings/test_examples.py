"""The files in config/ do what their comments say: each loads, fits the schema, and hides nothing doubtful."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from gateway.plugins import installed_adapters
from gateway.settings.load import load
from gateway.settings.schema import build_schema

CONFIG = Path(__file__).parents[3] / "config"
EXAMPLES = sorted((CONFIG / "examples").glob("*.yaml"))
ACCEPTED = {
    "gateway.yaml": {"api.keys", "runtimes"},
    "static.yaml": {"api.keys", "runtimes"},
    # Claude Code asks nobody.
    "openhands-v1.yaml": {"runtimes.claude"},
    "container.yaml": {"public_url", "runtimes"},
    "container-postgres.yaml": {"public_url", "runtimes"},
}
"""Warnings that a file is meant to give: it shows a gateway without agents, or inside one machine."""

_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)\}")


def _environment(text: str) -> dict[str, str]:
    values = {name: f"value-of-{name.lower()}-0123456789" for name in _VARIABLE.findall(text)}
    known = {"DATABASE_URL": "postgresql://user:password@localhost/dragoman"}
    return {
        name: "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0" if "SECRET" in name else known.get(name, value)
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return build_schema(installed_adapters())


@pytest.fixture(autouse=True)
def _functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where python.yaml says that its functions are."""
    monkeypatch.setattr(sys, "path", [str(CONFIG / "examples"), *sys.path])


@pytest.mark.parametrize("path", [CONFIG / "gateway.yaml", *EXAMPLES], ids=lambda path: path.name)
def test_a_file_loads_and_fits_the_schema(path: Path, schema: dict[str, Any]) -> None:
    text = path.read_text(encoding="utf-8")
    loaded = load(path, adapters=installed_adapters(), env=_environment(text))
    assert {problem.path for problem in loaded.problems} == ACCEPTED.get(path.name, set())
    jsonschema_rs.validator_for(schema).validate(yaml.safe_load(text))


def test_there_is_an_example_for_every_adapter() -> None:
    shown = {
        runtime["adapter"]
        for path in EXAMPLES
        for runtime in yaml.safe_load(path.read_text(encoding="utf-8")).get("runtimes", {}).values()
    }
    assert shown == set(installed_adapters())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_begins_with_its_schema_and_what_it_shows(path: Path) -> None:
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first == "# yaml-language-server: $schema=../gateway.schema.json"
    assert second.startswith("# ")


def test_the_default_needs_no_environment() -> None:
    assert not _environment("\n".join(
        line for line in (CONFIG / "gateway.yaml").read_text(encoding="utf-8").splitlines()
        if not line.lstrip().startswith("#")
    ))  # fmt: skip


def test_every_setting_that_the_default_leaves_off_can_be_switched_on(tmp_path: Path, schema: dict[str, Any]) -> None:
    text = (CONFIG / "gateway.yaml").read_text(encoding="utf-8")
    on = re.sub(r"(?m)^(\s*)#(?! |$)", r"\1", text).replace("#  ", "  ")
    on = on.replace("    error: The stockroom is closed.\n", "")
    path = tmp_path / "gateway.yaml"
    path.write_text(on, encoding="utf-8")
    loaded = load(path, adapters=installed_adapters(), env=_environment(text))
    (problem,) = loaded.problems
    assert "its confirmation mode does not cover the tools" in problem.message
    assert loaded.settings.runtimes
    assert loaded.settings.destinations
    jsonschema_rs.validator_for(schema).validate(yaml.safe_load(on))


def test_the_default_explains_every_section_and_key_of_the_model(schema: dict[str, Any]) -> None:
    text = (CONFIG / "gateway.yaml").read_text(encoding="utf-8")
    ours = {name: one for name, one in schema["$defs"].items() if not name.startswith("runtime:")}
    keys = {*schema["properties"], *(key for one in ours.values() for key in one.get("properties", {}))}
    assert {key for key in keys if not re.search(rf"\b{key}:", text)} == set()


def test_the_schema_file_is_what_the_command_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "gateway", "schema"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    mend = "config/gateway.schema.json is out of date: run `make schema`"
    assert printed == (CONFIG / "gateway.schema.json").read_text(encoding="utf-8"), mend
    assert json.loads(printed)["title"] == "Dragoman configuration"
