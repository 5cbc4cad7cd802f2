"""`.env` of the folder where a command is started is read, and what the environment says wins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = 'api: {keys: [{name: me, key: "${ONE}${TWO:-}"}]}\nengine: {type: memory}\n'


def _check(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "gateway.yaml").write_text(CONFIG)
    kept = {name: value for name, value in os.environ.items() if name not in {"ONE", "TWO"}}
    return subprocess.run(
        [sys.executable, "-m", "gateway", "check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**kept, **env},
        timeout=60,
    )


def test_a_variable_of_the_file_is_filled_in(tmp_path: Path) -> None:
    missing = _check(tmp_path)
    assert missing.returncode == 1
    assert "the environment variable ONE is not set" in missing.stderr
    (tmp_path / ".env").write_text("# mine\nexport ONE='long-enough-for-a-key'\n")
    assert _check(tmp_path).returncode == 0


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    # A key that is empty is an error, so that one sees which was taken.
    (tmp_path / ".env").write_text("ONE=\n")
    assert _check(tmp_path).returncode == 1
    assert _check(tmp_path, ONE="long-enough-for-a-key").returncode == 0


@pytest.mark.parametrize("content", [b"\xff\xfe", b"A=" + b"b" * 70_000])
def test_a_file_that_is_none_is_left_out_and_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".env").write_bytes(content)
    done = _check(tmp_path, ONE="long-enough-for-a-key")
    assert done.returncode == 0
    assert ".env is ignored" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_of_that_name_is_nobodys_concern(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    done = _check(tmp_path, ONE="long-enough-for-a-key")
    assert (done.returncode, ".env" in done.stderr) == (0, False)
