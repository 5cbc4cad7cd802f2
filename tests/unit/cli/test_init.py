"""`dragoman init` writes what works, keeps secrets to their owner, and never touches what is there."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from dotenv import dotenv_values
from typer.testing import CliRunner, Result

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.mcp import ADAPTER as MCP
from adapters.openhands import ADAPTER as OPENHANDS
from adapters.openhands.v1 import ADAPTER as OPENHANDS_V1
from gateway.cli.choices import BackendChoice, RuntimeChoice
from gateway.cli.commands import app
from gateway.cli.init import write_new
from gateway.cli.starter import StarterFile
from gateway.cli.tools import import_tools
from gateway.settings.load import load

ADAPTERS = {adapter.name: adapter for adapter in (HUMA_0_1, HUMA_0_2, OPENHANDS, OPENHANDS_V1, HERM, MCP)}
NOBODY = 65534


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _init(*words: str) -> Result:
    return CliRunner().invoke(app, ["init", *words], prog_name="dragoman")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("runtime", RuntimeChoice)
@pytest.mark.parametrize("backend", BackendChoice)
def test_what_is_written_passes_a_check(tmp_path: Path, runtime: RuntimeChoice, backend: BackendChoice) -> None:
    assert _init("--runtime", runtime, "--backend", backend).exit_code == 0
    text = (tmp_path / "gateway.yaml").read_text()
    env = {name: str(value) for name, value in dotenv_values(tmp_path / ".env").items()}
    loaded = load(tmp_path / "gateway.yaml", adapters=ADAPTERS, env=env)
    # Only the server knows whether its agents ask before they act.
    uncovered = ["runtimes.coder"] if runtime.value == "openhands" else []
    assert [problem.path for problem in loaded.problems] == uncovered
    assert {str(options.adapter) for options in loaded.settings.runtimes.values()} == {runtime.value}
    # Nothing in there that nobody reads, and nothing read that is not there.
    assert set(env) == set(re.findall(r"\$\{(\w+)\}", text)) - {"NAME"}
    assert text.count("\n#") >= 6
    assert "#RUNTIME#" not in text
    assert "#IDEMPOTENT#" not in text
    assert ("idempotent: true" in text) == (backend is BackendChoice.FASTAPI)


def test_generated_code_passes_the_default_rules_of_ruff(tmp_path: Path) -> None:
    for runtime in RuntimeChoice:
        assert _init(f"for-{runtime.value}", "--runtime", runtime).exit_code == 0
    assert _init("acme", "--adapter", "acme-1").exit_code == 0
    ruff = Path(sys.executable).with_name("ruff")
    for folder in tmp_path.iterdir():
        words = (ruff, "check", "--no-cache")
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_choice_for_each_adapter() -> None:
    assert {choice.value for choice in RuntimeChoice} == ADAPTERS.keys()


def test_secrets_are_fresh_and_their_owners_only(tmp_path: Path) -> None:
    assert _init("one").exit_code == _init("two").exit_code == 0
    one, two = (dotenv_values(tmp_path / name / ".env") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert set(one.values()).isdisjoint(two.values())
    assert all(len(str(value)) >= 32 for value in one.values())
    assert stat.S_IMODE((tmp_path / "one/.env").stat().st_mode) == 0o600
    assert ".env" in (tmp_path / "one/.gitignore").read_text().splitlines()


def test_no_secret_is_shown(tmp_path: Path) -> None:
    shown = _init().stdout
    assert [name for name, value in dotenv_values(tmp_path / ".env").items() if str(value) in shown] == []


def test_the_tools_of_the_yaml_are_those_of_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _init().exit_code == 0
    monkeypatch.setenv("CARDS_SECRET", str(dotenv_values(tmp_path / ".env")["CARDS_SECRET"]))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "backend", raising=False)
    declared = import_tools("backend:tools")
    assert declared == yaml.safe_load((tmp_path / "gateway.yaml").read_text())["tools"]
    monkeypatch.delitem(sys.modules, "backend")


def test_a_second_time_changes_nothing_and_says_so(tmp_path: Path) -> None:
    assert _init().exit_code == 0
    before = _contents(tmp_path)
    again = _init("--runtime", "herm", "--backend", "express")
    assert again.exit_code == 1
    assert again.stdout == ""
    assert "gateway.yaml and .env exist already; nothing was written" in again.stderr
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("name", ["gateway.yaml", "backend.py", ".env"])
def test_one_file_of_the_names_in_the_way_is_enough_even_a_dangling_link(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("nowhere")
    done = _init()
    assert done.exit_code == 1
    assert f"{name} exists already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    before = {"notes.txt": b"mine", ".gitignore": b"*.log\n", "dragoman.db": b"old"}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    assert _init().exit_code == 0
    after = _contents(tmp_path)
    assert before.items() <= after.items()
    assert after.keys() == before.keys() | {"gateway.yaml", "backend.py", ".env"}


def test_a_gitignore_of_ones_own_that_leaves_the_secrets_in_is_named(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert "add .env to your .gitignore" in _init().stdout
    (tmp_path / "two").mkdir()
    (tmp_path / "two/.gitignore").write_text("/.env\n")
    assert "add .env" not in _init("two").stdout


@pytest.mark.parametrize("option", ["--runtime", "--backend"])
def test_what_nobody_has_is_a_usage_error_that_names_what_there_is(tmp_path: Path, option: str) -> None:
    done = _init(option, "telnet")
    assert done.exit_code == 2
    choices = RuntimeChoice if option == "--runtime" else BackendChoice
    assert all(f"'{choice}'" in done.stderr for choice in choices)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _without_rights(folder: Path) -> Generator[None]:
    """Let nobody write here; who is root becomes nobody meanwhile."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.mark.parametrize("words", [(), ("cards",)])
def test_without_rights_nothing_is_left_behind(tmp_path: Path, words: tuple[str, ...]) -> None:
    with _without_rights(tmp_path):
        done = _init(*words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Permission denied" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "cards").touch()
    done = _init("cards")
    assert done.exit_code == 1
    assert "cards" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    # The limit lets the first, longer file fail, as a full disk would; in a process of its own, since it is for good.
    code = (
        "import resource, signal, sys\nfrom gateway.cli import main\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nsys.argv = ['dragoman', 'init', 'cards']\nmain()"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_lines_lead_to_a_folder_whatever_it_is_called(tmp_path: Path) -> None:
    assert f"  cd '{tmp_path}/my cards'\n" in _init("my cards").stdout


def test_a_path_without_this_environment_gets_a_line_that_activates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    activate = Path(sys.executable).with_name("activate")
    monkeypatch.setenv("PATH", "/nowhere")
    assert f"  . {activate}\n" in _init("one").stdout
    monkeypatch.setenv("PATH", f"{activate.parent}:/nowhere")
    assert "activate" not in _init("two").stdout


def test_nothing_is_wider_than_a_terminal_in_a_folder_where_one_is() -> None:
    for runtime in RuntimeChoice:
        for backend in BackendChoice:
            folder = Path(f"{runtime}-{backend}")
            folder.mkdir()
            os.chdir(folder)
            said = _init("--runtime", runtime, "--backend", backend).stdout
            os.chdir("..")
            assert [line for line in said.splitlines() if len(line) > 80 and "activate" not in line] == []


def test_what_is_missing_for_the_simulator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the extra `demo`" in _init("one").stdout
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert "pip install ./gateway/sdk '.[demo]'" in _init("two").stdout


def test_what_has_come_since_one_looked_is_not_overwritten_either(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MINE=1\n")
    made = {name: StarterFile("new", "") for name in ("gateway.yaml", ".env", "backend.py")}
    with pytest.raises(FileExistsError):
        write_new(tmp_path, made)
    assert _contents(tmp_path) == {".env": b"MINE=1\n"}


def test_the_package_of_an_adapter_is_written_below_a_folder(tmp_path: Path) -> None:
    done = _init("acme", "--adapter", "acme-v2.1")
    assert done.exit_code == 0, done.stderr
    written = {path.relative_to(tmp_path / "acme").as_posix() for path in (tmp_path / "acme").rglob("*.*")}
    assert {"pyproject.toml", "README.md", "acme_v2_1_adapter/link.py", "tests/vectors/vectors.json"} <= written
    assert '"acme-v2.1" = "acme_v2_1_adapter:ADAPTER"' in (tmp_path / "acme/pyproject.toml").read_text()
    assert "class AcmeV21Link:" in (tmp_path / "acme/acme_v2_1_adapter/link.py").read_text()
    for name in written:
        assert name.rpartition("/")[2] in done.stdout
    assert "pip install -e '.[test]'" in done.stdout


@pytest.mark.parametrize("name", ["", "Acme", "1acme", "acme_1", "acme-", "a/b", "../x", "a b", "x" * 41, "herm"])
def test_a_name_that_no_adapter_can_have_is_refused(tmp_path: Path, name: str) -> None:
    done = _init("--adapter", name)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "adapter" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_package_of_an_adapter_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/peer.py").write_text("mine")
    done = _init("--adapter", "acme")
    assert done.exit_code == 1
    assert "tests/peer.py exists already" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["tests", "peer.py"]


def test_a_package_that_cannot_be_written_leaves_no_folders_behind(tmp_path: Path) -> None:
    made = {"one.txt": StarterFile("", ""), "deep/er/two.txt": StarterFile("", ""), "one.txt/x": StarterFile("", "")}
    with pytest.raises(OSError, match=r"one\.txt"):
        write_new(tmp_path / "new", made)
    assert list(tmp_path.iterdir()) == []
