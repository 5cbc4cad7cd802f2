"""No run of the tests hangs, whatever its parent ignores or blocks and whatever a test waits for."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = """
from tests import conftest
conftest.LIMIT, conftest._AGAIN, conftest._ENDING = 1.0, 0.5, 2.0
"""
CHILD = """
import signal, subprocess, sys

def test_a_child_is_interrupted():
    words = "import time; print('runs', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"runs\\n"
        child.send_signal(getattr(signal, {name!r}))
        assert child.wait(20) != 0

def test_a_parent_that_ignores_goes_on():
    signal.raise_signal(getattr(signal, {name!r}))
"""
HANGING = """
import asyncio, threading
import pytest

@pytest.fixture
def never_torn_down():
    yield
    threading.Event().wait()

def test_one(): threading.Event().wait()
async def test_two(): await asyncio.Event().wait()
def test_three(never_torn_down): pass
def test_four(): threading.Thread(target=threading.Event().wait).start()
def test_five(): pass
"""


def run(folder: Path, content: str, limits: str = "") -> tuple[int, str]:
    """Run pytest over one file in its own process; `limits` is its conftest."""
    (folder / "conftest.py").write_text(limits)
    file = folder / "test_it.py"
    file.write_text(content)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["SIGINT", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGTERM", "SIGHUP"))]
)
def test_children_hear_what_the_parent_ignores_and_blocks(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_IGN)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        code, said = run(tmp_path, CHILD.format(name=name))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        signal.signal(number, before)
    assert code == 0, said
    assert "2 passed" in said


def test_what_hangs_fails_and_the_rest_is_run(tmp_path: Path) -> None:
    code, said = run(tmp_path, HANGING, SHORT)
    # The thread that test_four leaves behind keeps no process.
    assert code != 0
    assert "2 failed, 3 passed, 1 error" in said, said
    assert said.count("this takes too long") >= 3
    assert "Timeout (0:00:02)!" in said
