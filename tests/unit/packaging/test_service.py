"""The unit for systemd runs what is installed by the lines of its page, may stop in time, and has few rights."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from gateway.settings.model import Limits
from tests.ports import free_port
from tests.readme.pages import ROOT, block

UNIT = ROOT / "config/dragoman.service"
PROGRAM = Path(sys.executable).with_name("dragoman")
BOUND = 60.0
LEAVING = timedelta(seconds=7)
"""How long leaving may take behind the drain, as the runbook says."""


def _options() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8")):
        found.setdefault(name, []).append(value)
    return found


OPTIONS = _options()


def test_what_the_unit_names_is_made_by_the_lines_of_its_page() -> None:
    lines = block("config/README.md", "sh", "daemon-reload")
    program, _, *words = shlex.split(OPTIONS["ExecStart"][0])
    assert f"python3 -m venv {Path(program).parents[1]}\n" in lines
    made = set(re.findall(r"install (?:-D )?-m \d+ (\S+ \S+)", lines))
    files = {words[-1]: "gateway.yaml", OPTIONS["EnvironmentFile"][0].lstrip("-"): ".env"}
    assert made == {
        *(f"{source} {target}" for target, source in files.items()),
        "config/dragoman.service /etc/systemd/system/dragoman.service",
    }
    # Only root reads secrets.
    assert "-m 0600 .env" in lines
    home = OPTIONS["WorkingDirectory"][0]
    assert f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {OPTIONS['User'][0]}\n" in lines
    assert f"/var/lib/{OPTIONS['StateDirectory'][0]}" == home


def test_it_has_longer_to_stop_than_leaving_takes() -> None:
    assert timedelta(seconds=int(OPTIONS["TimeoutStopSec"][0])) > Limits().drain + LEAVING


def test_it_may_raise_its_limit_of_files_and_gains_no_rights() -> None:
    assert int(OPTIONS["LimitNOFILE"][0]) >= 8_192
    assert OPTIONS["CapabilityBoundingSet"] == OPTIONS["AmbientCapabilities"] == [""]
    assert (OPTIONS["NoNewPrivileges"], OPTIONS["ProtectSystem"]) == (["yes"], ["strict"])
    # What is forbidden fails with an error that can be told; it does not kill.
    assert OPTIONS["SystemCallErrorNumber"] == ["EPERM"]


def test_what_it_starts_reloads_and_stops_as_it_says(tmp_path: Path) -> None:
    config, state = tmp_path / "gateway.yaml", tmp_path / "state"
    state.mkdir()
    config.write_text("engine: {type: sqlite, path: dragoman.db}\nlogging: {format: json}\n")
    port = str(free_port())
    command = OPTIONS["ExecStart"][0].replace("/opt/dragoman/bin/dragoman", str(PROGRAM))
    command = command.replace("/etc/dragoman/gateway.yaml", str(config))
    [reload] = re.findall(r"/bin/kill -(\w+) \$MAINPID", OPTIONS["ExecReload"][0])
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([*shlex.split(command), "--port", port], cwd=state, stdout=out, stderr=out)
    try:
        _until(lambda: _healthy(port), process)
        process.send_signal(getattr(signal, f"SIG{reload}"))
        _until(lambda: "reloaded" in log.read_text(), process)
        process.terminate()
        assert process.wait(BOUND) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert (state / "dragoman.db").exists()


def _healthy(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _until(held: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = monotonic() + BOUND
    while not held():
        assert process.poll() is None
        assert monotonic() < until
        sleep(0.05)


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    # It looks whether the program is there.
    unit.write_text(UNIT.read_text().replace("/opt/dragoman/bin/dragoman", str(PROGRAM)))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    options = ["security", "--offline=true", "--threshold=20", "--no-pager"]
    rated = subprocess.run([analyze, *options, str(unit)], capture_output=True, text=True, check=False, timeout=60)
    assert rated.returncode == 0, rated.stdout
