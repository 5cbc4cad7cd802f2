"""What the pages show is run: the README's backend, YAML and commands as a reader would, and the clients of the API."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_2 as HUMA
from gateway.adapter.port import Codec, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Opaque, ToolFinished, ToolRequested
from gateway.testing.conformance.codec import HOSTILE, check_vector
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.readme.pages import block

FIRST, API, ADAPTERS = "README.md", "gateway/http/README.md", "adapters/README.md"
NODE = shutil.which("node")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell in an empty folder, with the README's files in it and its ports made free ones."""
    ports = {"9000": str(free_port()), "9002": str(free_port()), "8080": str(free_port())}

    def local(text: str) -> str:
        for written, real in ports.items():
            text = text.replace(written, real)
        return text

    (tmp_path / "backend.py").write_text(local(block(FIRST, "python", "dragoman.kit")), encoding="utf-8")
    (tmp_path / "gateway.yaml").write_text(local(block(FIRST, "yaml", "ask_for_cards")), encoding="utf-8")
    (tmp_path / "follow.py").write_text(local(block(API, "python", "httpx_sse")), encoding="utf-8")
    (tmp_path / "follow.mjs").write_text(local(block(API, "js", "process.env")), encoding="utf-8")
    start = local(block(FIRST, "sh", "dragoman serve"))
    call = local(block(FIRST, "sh", "/simulator/agents/finn/call"))
    # A stream has no end of its own: the reader looks until it shows what is waited for.
    say = local(block(API, "sh", "/events/stream")).replace("curl -sN", "until_seen tool.finished curl -sN")
    terminal = block(API, "sh", "dragoman tail").replace("dragoman tail", "until_seen tool.finished dragoman tail")
    script = f"""
set -e
trap 'kill $(jobs -p); wait' EXIT
until_seen() {{
  wanted=$1; shift
  # What the one before has shown must not count: a shell that is killed before it becomes the command ends all jobs.
  : > shown
  "$@" > shown 2>&1 &
  for _ in $(seq 300); do grep -q "$wanted" shown && break; sleep 0.1; done
  kill $!; cat shown
}}
export DRAGOMAN_URL=http://127.0.0.1:{ports["8080"]}
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
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield shell
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        if shell.stdout is not None:
            shell.stdout.close()
        shell.wait(PATIENCE)


@pytest.mark.slow
def test_a_reader_who_types_what_the_readme_says_sees_what_it_says(reader: subprocess.Popen[str]):
    output, _ = reader.communicate(timeout=5 * PATIENCE)
    called, _, said = output.partition("== said")
    said, _, followed = said.partition("== followed")
    followed, _, terminal = followed.partition("== terminal")
    terminal, _, scripted = terminal.partition("== script")
    assert "Go fish! Nobody has a 7." in called, output
    assert re.search(r"ask_for_cards\b.*\bsucceeded|succeeded\b.*\bask_for_cards", called), output
    assert '"message.posted"' in said, output
    assert "event: tool.finished" in said, output
    assert re.search(r"^\d+ tool\.finished \{", followed, re.MULTILINE), output
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
