"""The workflows are valid, and the scripts of a release do as their names say, run in a clone."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
RELEASE: dict[str, Any] = yaml.safe_load((GITHUB / "workflows/release.yml").read_text(encoding="utf-8"))
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("github-workflows", "workflows/ci.yml"),
        ("github-workflows", "workflows/release.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_the_files_match_the_schemas_of_github(schema: str, name: str) -> None:
    command = Path(sys.executable).with_name("check-jsonschema")
    words = (command, "--builtin-schema", f"vendor.{schema}", GITHUB / name)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def step(job: str, name: str) -> str:
    [found] = [one["run"] for one in RELEASE["jobs"][job]["steps"] if one.get("name") == name]
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the committed files, as they are in the work tree."""
    listed = subprocess.run(
        ["git", "ls-files", "gateway", "adapters", "config", "*.toml", "README.md", "LICENSE", "CHANGELOG.md"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def bash(script: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    words = ("bash", "-e", "-o", "pipefail", "-c", script)
    return subprocess.run(
        words,
        cwd=cwd,
        env={"PATH": path, "HOME": str(cwd), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_build_makes_an_sdist_and_a_wheel_of_each_package(clone: Path) -> None:
    done = bash(step("build", "Build both packages from their sdists"), clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.relative_to(clone / "dist").as_posix() for path in (clone / "dist").rglob("*.*")) == [
        f"dragoman-sdk/dragoman_sdk-{VERSION}-py3-none-any.whl",
        f"dragoman-sdk/dragoman_sdk-{VERSION}.tar.gz",
        f"dragoman/dragoman-{VERSION}-py3-none-any.whl",
        f"dragoman/dragoman-{VERSION}.tar.gz",
    ]


@pytest.mark.parametrize(
    ("tag", "heading", "passes"),
    [
        (f"v{VERSION}", f"## {VERSION} (2026-11-27)", True),
        (f"v{VERSION}", f"## {VERSION} (unreleased)", False),
        ("v9.9.9", f"## {VERSION} (2026-11-27)", False),
    ],
)
def test_a_tag_needs_the_version_and_a_dated_section(clone: Path, tag: str, heading: str, passes: bool) -> None:
    page = clone / "CHANGELOG.md"
    page.write_text(re.sub(rf"(?m)^## {re.escape(VERSION)} .*$", heading, page.read_text(encoding="utf-8")))
    done = bash(
        step("build", "Compare the tag with the version and its section in the changelog"), clone, GITHUB_REF_NAME=tag
    )
    assert (done.returncode == 0) is passes, done.stderr


def test_each_package_is_published_after_the_tests_and_the_sdk_before_the_server() -> None:
    jobs = RELEASE["jobs"]
    assert [jobs[name]["needs"] for name in ("test", "publish-sdk", "publish", "image")] == [
        "build",
        "test",
        "publish-sdk",
        "publish",
    ]
    for name in ("publish-sdk", "publish"):
        assert jobs[name]["permissions"] == {"id-token": "write"}, "trusted publishing needs no secret"
    [image] = [one["with"] for one in jobs["image"]["steps"] if "build-push-action" in one.get("uses", "")]
    assert (image["sbom"], image["provenance"]) == (True, "mode=max")


def test_the_version_is_the_same_everywhere() -> None:
    assert f"ARG VERSION={VERSION}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"\n## {VERSION} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
