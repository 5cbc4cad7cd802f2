"""Each line that installs something works on a machine without Dragoman, and asks no index for a name of ours."""

import os
import re
import shutil
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gateway.errors import install_line
from tests.ports import free_port
from tests.readme.index import OURS, Index
from tests.readme.pages import ROOT, block, code_spans, fenced, files, pages, text_of

HISTORY = "CHANGELOG.md"
LATER = ".github/CONTRIBUTING.md"
"""It has the lines of a published release, for the person who publishes it."""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
_INSTALLED = re.compile(
    r"(?:\bpip3? install|\buv add|\buv tool|\buvx|\bpipx)\b[^`\n]*?[\s'\"]dragoman(?:-sdk)?(?![\w.-])"
)
"""An installer whose words have a name of ours, which it asks an index for; a path has a dot or a slash before it."""
_EXTRA = re.compile(r"\bdragoman(?:-sdk)?\[")
"""How a reader would name an extra to an installer."""


def install_lines() -> list[str]:
    """List each different line that lets pip install something: of the pages, and of the errors that name an extra."""
    shown = [line for page in pages() if page not in {HISTORY, LATER} for line in (*code_spans(page), *fenced(page))]
    shown += [install_line(extra).partition("in a clone of Dragoman, run ")[2] for extra in EXTRAS if extra != "dev"]
    found = [re.sub(r"^(?:# )?(?:sudo )?(?:\S*python3? -m )?(?=pip )", "", line) for line in shown]
    return sorted({line for line in found if line.startswith("pip install ")})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index")).serving() as serving:
        yield serving


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the files that a clone has, as they are in the work tree."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    for name in listed.stdout.splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (tmp_path / "dragoman" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "dragoman" / name)
    return tmp_path / "dragoman"


def paste(lines: str, clone: Path, index: Index) -> str:
    """Paste lines into a shell in a clone, in an empty environment that is active; return what they print."""
    folder = clone.parent / "venv"
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        ["bash", "-ec", lines],
        cwd=clone,
        env={
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "HOME": str(clone.parent),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index.url,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_COMPILE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", install_lines())
def test_each_line_that_installs_something_works_in_an_empty_environment(line: str, clone: Path, index: Index) -> None:
    assert "No broken requirements found" in paste(f"{line}\npip check", clone, index)
    assert index.asked
    assert index.asked.isdisjoint(OURS)


@pytest.mark.slow
def test_the_package_of_an_adapter_is_installed_and_tested_as_its_page_says(clone: Path, index: Index) -> None:
    # `tests/scenarios/test_init_adapter.py` runs its tests.
    lines = block("adapters/README.md", "bash", "dragoman init").replace("&& pytest", "&& pytest --collect-only -q")
    assert " tests collected" in paste(f"pip install ./gateway/sdk .\n{lines}", clone, index)
    assert index.asked.isdisjoint(OURS)


@pytest.mark.slow
def test_a_backend_starts_as_the_page_of_the_kit_says_in_an_environment_with_the_sdk_only(
    clone: Path, index: Index
) -> None:
    install, start = block("gateway/sdk/dragoman/kit/README.md", "sh", "uvicorn backend:app").splitlines()
    (clone / "backend.py").write_text(block("README.md", "python", "dragoman.kit"), encoding="utf-8")
    port = str(free_port())
    said = paste(
        f"""
pip install './gateway/sdk[fastapi]'
{install}
export CARDS_SECRET=whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ==
{start.replace("9000", port)} &
trap 'kill $!' EXIT
for _ in $(seq 300); do curl -s http://127.0.0.1:{port}/tools -d '' && break; sleep 0.1; done
""",
        clone,
        index,
    )
    assert "the request is not signed" in said


def test_no_text_lets_an_installer_ask_an_index_for_a_name_of_ours() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    wrong: list[str] = []
    for name in set(listed.stdout.splitlines()) & set(files()) - {HISTORY, LATER, "pyproject.toml"}:
        if not name.startswith("tests/") and not name.endswith((".png", ".woff2", ".svg")):
            text = text_of(name)
            wrong += [f"{name}: {found[0]}" for bad in (_INSTALLED, _EXTRA) for found in bad.finditer(text)]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("pip install dragoman", True),
        ("pip install 'dragoman[demo]'", True),
        ("pip install -U dragoman-sdk==0.3.0", True),
        ("uvx dragoman demo", True),
        ("pip install ./gateway/sdk .", False),
        ("pip install dragoman.whl", False),
        ("pip install /src/dragoman", False),
    ],
)
def test_the_search_for_our_names_finds_them_in_each_form(line: str, refused: bool) -> None:
    assert bool(_INSTALLED.search(line)) is refused


def test_an_adapter_package_asks_an_index_for_the_libraries_of_its_tests_only() -> None:
    made = tomllib.loads(text_of("gateway/cli/templates/adapter/pyproject.toml"))
    wanted = {Requirement(one).name for one in EXTRAS["testing"]} - OURS
    assert set(made["project"]["optional-dependencies"]["test"]) == wanted
    assert made["project"]["dependencies"] == []
