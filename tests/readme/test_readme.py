"""The README's own words are run: its backend, its YAML, its commands, in the order a reader would."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PATIENCE = 20.0


def _block(language: str, holding: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    return next(block for block in blocks if holding in block)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell in an empty folder, with the README's files in it and its ports made free ones."""
    ports = {"9000": str(_free_port()), "9002": str(_free_port()), "8080": str(_free_port())}

    def local(text: str) -> str:
        for written, real in ports.items():
            text = text.replace(written, real)
        return text

    (tmp_path / "backend.py").write_text(local(_block("python", "standardwebhooks")), encoding="utf-8")
    (tmp_path / "gateway.yaml").write_text(local(_block("yaml", "ask_for_cards")), encoding="utf-8")
    (tmp_path / "follow.py").write_text(local(_block("python", "httpx_sse")), encoding="utf-8")
    start = local(_block("sh", "dragoman serve")).replace(". .venv/bin/activate", f". {ROOT}/.venv/bin/activate")
    call = local(_block("sh", "/simulator/agents/finn/call"))
    # The stream has no end of its own: the reader looks for a while.
    say = local(_block("sh", "/events/stream")).replace("curl -sN", "timeout 2 curl -sN")
    script = f"""
set -e
{start}
for _ in $(seq 200); do
  curl -sf http://127.0.0.1:{ports["8080"]}/v1/runtimes -H "Authorization: Bearer $DRAGOMAN_KEY" 2>/dev/null \
    | grep -q '"up"' && break
  sleep 0.1
done
echo "== called"
{call}
echo
SESSION=$(curl -s http://127.0.0.1:{ports["8080"]}/v1/calls -H "Authorization: Bearer $DRAGOMAN_KEY" \
  | python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["session_id"])')
echo "== said"
set +e
{say}
echo "== followed"
SESSION=$SESSION timeout 2 python follow.py
echo "== end"
kill $(jobs -p); wait
"""
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield shell
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        if shell.stdout is not None:
            shell.stdout.close()
        shell.wait(PATIENCE)


def test_a_reader_who_types_what_the_readme_says_sees_what_it_says(reader: subprocess.Popen[str]):
    output, _ = reader.communicate(timeout=60)
    called, _, said = output.partition("== said")
    said, _, followed = said.partition("== followed")
    assert "Go fish! Nobody has a 7." in called, output
    assert '"succeeded"' in called, output
    assert '"message.posted"' in said, output
    assert "event: tool.finished" in said, output
    assert re.search(r"^\d+ tool\.finished \{", followed, re.MULTILINE), output


def test_the_backend_and_the_configuration_are_as_short_as_promised():
    code = [line for line in _block("python", "standardwebhooks").splitlines() if line.strip()]
    yaml = [line for line in _block("yaml", "ask_for_cards").splitlines() if line.strip()]
    assert len(code) <= 15
    assert len(yaml) <= 12


def test_every_file_the_readme_names_exists():
    named = set(re.findall(r"`((?:adapters|gateway|config|tests)/[\w./-]+)`", TEXT)) | set(
        re.findall(r"\]\(((?:config|\.github)[\w./-]*)\)", TEXT)
    )
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
