"""What the pages show is run: the README's backend, YAML and commands as a reader would, and the clients of the API."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_2 as HUMA
from gateway.adapter.port import Codec, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Opaque, ToolFinished, ToolRequested
from gateway.testing.conformance.codec import HOSTILE, check_vector
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.readme.pages import ROOT, block, text_of

FIRST, API, ADAPTERS = "README.md", "gateway/http/README.md", "adapters/README.md"
NODE = shutil.which("node")


PORTS = ("9000", "9002", "8080")
FILES = {"python": "backend.py", "yaml": "gateway.yaml"}
"""The file that a block of the first page is the text of; a block of `sh` is pasted."""
WAITED = """
for _ in $(seq 600); do
  curl -sf $DRAGOMAN_URL/v1/runtimes -H "Authorization: Bearer $DRAGOMAN_KEY" 2>/dev/null | grep -q '"up"' && break
  sleep 0.1
done
"""


def pasted(page: str, *, first: str) -> str:
    """Return a page's blocks in their order, from a heading on: commands as they are, files as commands that write."""
    script: list[str] = []
    text = text_of(page)
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", text[text.index(first) :], re.DOTALL | re.MULTILINE):
        script.append(f"cat > {FILES[language]} <<'END'\n{code}END\n" if language in FILES else code)
        if "dragoman serve" in code:
            script.append(WAITED)
        if "dragoman tools" in code:
            script[-1] = f"echo '== tools'\n{code}echo '== made'\n"
    return "".join(script)


@contextlib.contextmanager
def shell(script: str, folder: Path, env: dict[str, str]) -> Generator[subprocess.Popen[str]]:
    """Paste a script into one shell, with free ports for those that are written; at the end nothing of it is left."""
    ports = {written: str(free_port()) for written in PORTS}
    script = f"set -e\ntrap 'kill $(jobs -p); wait' EXIT\nexport DRAGOMAN_URL=http://127.0.0.1:8080\n{script}"
    for written, real in ports.items():
        script = script.replace(written, real)
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**env, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        process.wait(PATIENCE)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell with the commands on its path, into which the first page and then that of the API are pasted."""
    # A stream has no end of its own: the reader looks until it shows what is waited for.
    say = block(API, "sh", "/events/stream").replace("curl -sN", "until_seen tool.finished curl -sN")
    terminal = block(API, "sh", "dragoman tail").replace("dragoman tail", "until_seen tool.finished dragoman tail")
    script = f"""
until_seen() {{
  wanted=$1; shift
  # What the one before has shown must not count: a shell that is killed before it becomes the command ends all jobs.
  : > shown
  "$@" > shown 2>&1 &
  for _ in $(seq 300); do grep -q "$wanted" shown && break; sleep 0.1; done
  kill $!; cat shown
}}
{pasted(FIRST, first="## Your own backend")}
echo
cat > follow.py <<'END'
{block(API, "python", "httpx_sse")}
END
cat > follow.mjs <<'END'
{block(API, "js", "process.env")}
END
SESSION=$(curl -s $DRAGOMAN_URL/v1/calls -H "Authorization: Bearer $DRAGOMAN_KEY" \
  | python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["session_id"])')
export SESSION
echo "== said"
set +e
{say}
echo "== followed"
until_seen tool.finished python follow.py
echo "== terminal"
{terminal}
echo "== script"
[ -z "{NODE or ""}" ] || until_seen message.posted node follow.mjs
echo "== end"
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with shell(script, tmp_path, {**os.environ, "PATH": path}) as process:
        yield process


def _check_first_page(output: str) -> None:
    _, _, printed = output.partition("== tools\n")
    printed, _, called = printed.partition("== made\n")
    assert yaml.safe_load(printed)["tools"] == yaml.safe_load(block(FIRST, "yaml", "ask_for_cards"))["tools"], output
    assert "Go fish! Nobody has a 7." in called, output
    assert re.search(r"ask_for_cards\b.*\bsucceeded|succeeded\b.*\bask_for_cards", called), output


@pytest.mark.slow
def test_a_fresh_machine_runs_all_blocks_of_the_first_page_in_their_order_in_one_shell(tmp_path: Path) -> None:
    # As on a machine with git, make and Python only. How pip reaches its index is the machine's own.
    kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or "PIP_" in name}
    address = f"url.file://{ROOT}.insteadOf"
    env = {
        **kept,
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": address,
        "GIT_CONFIG_VALUE_0": "https://github.com/dragoman-gateway/dragoman",
    }
    with shell(pasted(FIRST, first="## Install"), tmp_path, env) as process:
        output, _ = process.communicate(timeout=9 * PATIENCE)
    assert process.returncode == 0, output
    assert re.search(r"(\d+) of \1 checks passed", output), output
    _check_first_page(output)


@pytest.mark.slow
def test_a_reader_who_types_what_the_readme_says_sees_what_it_says(reader: subprocess.Popen[str]):
    output, _ = reader.communicate(timeout=5 * PATIENCE)
    first, _, said = output.partition("== said")
    said, _, followed = said.partition("== followed")
    followed, _, terminal = followed.partition("== terminal")
    terminal, _, scripted = terminal.partition("== script")
    _check_first_page(first)
    assert '"message.posted"' in said, output
    assert "event: tool.finished" in said, output
    assert re.search(r"^\d+\.\w+ tool\.finished \{", followed, re.MULTILINE), output
    assert "tool.finished" in terminal, output
    assert "cards" in terminal.rpartition("Traceback")[2], output
    assert NODE is None or re.search(r"^message\.posted$", scripted, re.MULTILINE), output


def test_the_backend_and_the_configuration_are_as_short_as_promised():
    code = [line for line in block(FIRST, "python", "dragoman.kit").splitlines() if line.strip()]
    yaml = [line for line in block(FIRST, "yaml", "ask_for_cards").splitlines() if line.strip()]
    assert len(code) <= 15
    assert len(yaml) <= 12


def _picture() -> tuple[list[str], list[str]]:
    """Take the picture of the first page apart: its left and its right column, from top to bottom."""
    drawn = block(FIRST, "", "a Herm agent calls").splitlines()
    return [line[:40] for line in drawn], [line[40:] for line in drawn]


def _json_at(lines: list[str], first: str) -> Any:
    start = next(number for number, line in enumerate(lines) if line.strip().startswith(first))
    value, _ = json.JSONDecoder().raw_decode(" ".join(line.strip() for line in lines[start:]))
    return value


def _asked(codec: Codec, frame: Frame) -> ToolRequested:
    (draft,) = codec.decode(frame)
    assert isinstance(draft.event, ToolRequested)
    assert draft.losses == ()
    return draft.event


def test_the_picture_of_one_call_is_what_the_codecs_say() -> None:
    whole, (left, right) = block(FIRST, "", "a Herm agent calls").splitlines(), _picture()
    told = _json_at(right, '{"type": "agent.custom_tool_use"')
    herm = {"id": "evt_1", "type": told["type"], "sessionId": "s", "sequence": 1, "payload": told}
    by_huma = _asked(HUMA.codec(), Frame("event", _json_at(left, '{"type": "tool-call"')))
    by_herm = _asked(HERM.codec(), Frame("stream", {**herm, "createdAt": "2026-11-22T13:20:52.240Z"}))
    recorded = _json_at(whole, '{"sequence"')["event"]
    asked = _json_at(whole, '{"type": "tool.requested"')["data"]
    for event in (by_huma, by_herm):
        assert (event.kind, event.tool, event.arguments) == tuple(recorded.values())
        assert (event.tool, event.arguments) == (asked["tool"], asked["arguments"])
    answer = _json_at(whole, '{"outcome"')
    for event, codec, drawn in (
        (by_huma, HUMA.codec(), _json_at(left, '{"type": "tool-result"')),
        (by_herm, HERM.codec(), _json_at(right, '{"type": "user.custom_tool_result"')),
    ):
        done = ToolFinished(native_call_id=event.native_call_id, tool=event.tool, **answer)
        (frame,) = codec.encode(Draft(done)).frames
        assert frame.payload == drawn


def test_the_codec_of_the_adapters_page_keeps_its_contract() -> None:
    names: dict[str, Any] = {}
    exec(compile(block(ADAPTERS, "python", "class AskCodec"), ADAPTERS, "exec"), names)  # noqa: S102 - it is ours
    codec: Codec = names["AskCodec"]()
    check_vector(codec, json.loads(block(ADAPTERS, "json", "a tool call")))
    assert [draft.event.kind for draft in codec.decode(Frame("socket", {"type": "news"}))] == ["opaque"]
    with pytest.raises(MalformedFrame):
        codec.decode(Frame("socket", {"type": "ask", "id": "a1"}))
    for payload in HOSTILE.values():
        with contextlib.suppress(MalformedFrame):
            codec.decode(Frame("socket", payload))
    failed = ToolFinished(native_call_id="a1", outcome="failure", error="no")
    assert codec.encode(Draft(failed)).frames == (Frame("socket", {"type": "answer", "id": "a1", "error": "no"}),)
    with pytest.raises(CannotExpress):
        codec.encode(Draft(Opaque(channel="socket")))
