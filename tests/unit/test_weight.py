"""`make weight` fails if a folder has more production lines than its budget."""

import subprocess
from pathlib import Path

import pytest

from tests.weight import main


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with three lines in `gateway/core`, one in `gateway`, two in simulators, and equal budgets."""
    for name, text in {
        "gateway/core/calls.py": "a = 1\nb = 2\nc = 3\n",
        "gateway/errors.py": "a = 1\n",
        "gateway/testing/wire.py": "a = 1\n",
        "tests/test_calls.py": "a = 1\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / ".github").mkdir()
    for words in (("init", "--quiet"), ("add", ".")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert main(["--write"], tmp_path) == 0
    return tmp_path


def _add_line(file: Path) -> None:
    file.write_text(file.read_text() + "d = 4\n")


def test_a_folder_above_its_budget_fails_and_is_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], checkout) == 0
    _add_line(checkout / "gateway/core/calls.py")
    assert main([], checkout) == 1
    assert "gateway/core has 4 lines, 1 above its budget: see .github/weight.toml\n" in capsys.readouterr().out
    assert main(["--write"], checkout) == 0
    assert main([], checkout) == 0


def test_tests_simulators_and_untracked_files_have_no_budget(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gateway/testing/wire.py", "tests/test_calls.py"):
        _add_line(checkout / name)
    (checkout / "gateway/scratch.py").write_text("a = 1\n")
    assert main([], checkout) == 0
    assert capsys.readouterr().out.endswith("4 of       4  in all; 4 in tests and simulators\n")


def test_a_folder_without_a_budget_and_a_budget_without_a_folder_fail(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "gateway/core").rename(checkout / "gateway/kernel")
    subprocess.run(["git", "add", "."], cwd=checkout, check=True)
    assert main([], checkout) == 1
    found = capsys.readouterr().out
    assert "gateway/kernel has 3 lines and no budget" in found
    assert "gateway/core has a budget and no Python file" in found


def test_fewer_lines_than_the_budget_pass(checkout: Path) -> None:
    (checkout / "gateway/core/calls.py").write_text("a = 1\n")
    assert main([], checkout) == 0
