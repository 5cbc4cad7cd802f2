"""A killed test run leaves no gateway behind."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path

from tests.pace import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
LEFT = """
import os, subprocess, sys, time

def test_it():
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--config", "gateway.yaml", "--port", os.environ["PORT"]],
        start_new_session=True,
    )
    with open("pid.part", "w") as file:
        file.write(str(process.pid))
    os.rename("pid.part", "pid")
    time.sleep(600)
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_killed_run_leaves_no_gateway_behind(tmp_path: Path) -> None:
    (tmp_path / "test_left.py").write_text(LEFT)
    (tmp_path / "gateway.yaml").write_text("engine: {type: memory}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = (sys.executable, "-m", "pytest", "-p", "tests.reaper", "-p", "no:cacheprovider", "-n", "1", "test_left.py")
    env = {**os.environ, "PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    run = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=env, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "pid").exists():
                assert run.returncode is None
                await asyncio.sleep(0.05)
        pid = int((tmp_path / "pid").read_text())
        assert lives(pid)
    finally:
        run.send_signal(signal.SIGKILL)
        await run.wait()
    async with asyncio.timeout(PATIENCE):
        while lives(pid):  # noqa: ASYNC110 - it is not our child
            await asyncio.sleep(0.1)
