"""Shells complete commands, options and what a running gateway knows."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.events import QuestionAsked
from tests.scenarios.environment import API_KEY, Running
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.terminal import BOUND, asked, dragoman, environment_of, process_of, terminal

Plain = tuple[Running, PlainRuntime]
HERE = Path(sys.executable).parent
"""Where the command is installed."""
_WRITTEN: list[str] = []


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Plain]:
    async with plain_gateway(tmp_path) as made:
        yield made


def needs(shell: str) -> None:
    """Skip the test where a shell is missing."""
    if shutil.which(shell) is None:
        if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
            pytest.fail(f"{shell} is not installed")
        pytest.skip(f"{shell} is not installed")


def _environment(running: Running | None) -> dict[str, str]:
    return {**environment_of(running), "PATH": f"{HERE}:{os.environ['PATH']}", "COLUMNS": "", "TERM": "xterm"}


async def lines_of(shell: str, script: str, running: Running | None = None) -> list[str]:
    """Run a script and give its lines."""
    process = await asyncio.create_subprocess_exec(
        shell, "-c", script, env=_environment(running), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate()
    assert err == b""
    return out.decode().splitlines()


async def written_for_bash() -> str:
    """Return the script that bash loads, written once for all tests."""
    if not _WRITTEN:
        _WRITTEN.append((await dragoman(None, "completion", "bash")).out)
    return _WRITTEN[0]


async def in_bash(line: str, running: Running | None = None) -> list[str]:
    """Say what bash offers for the last word of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    given = " ".join(shlex.quote(word) for word in words)
    # The function is called in this shell: what it fills is a variable.
    script = (
        f"{await written_for_bash()}\nCOMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; "
        '_dragoman dragoman; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return [found for found in await lines_of("bash", script, running) if found]


async def test_bash_completes_commands_options_and_names(plain: Plain) -> None:
    running, runtime = plain
    for name in ("agent-7", "with/slash", "evil $(touch /tmp/x)", "`id`", "a b", "*"):
        await running.http.post("/v1/sessions", json={"runtime": "finn", "native_id": name})
    runtime.say(QuestionAsked(id="q", text="Which?"))
    interaction = (await asked(running, 1))["q"]["interaction_id"]
    assert await in_bash("dragoman se") == ["serve", "sessions", "send"]
    assert await in_bash("dragoman dead-letters ") == ["list", "show", "redrive", "dismiss"]
    assert await in_bash("dragoman tail --a") == ["--all", "--after"]
    assert await in_bash("dragoman calls --state e") == ["expired"]
    # What a shell could read something into is left out.
    assert await in_bash("dragoman tail finn/", running) == ["finn/with/slash", "finn/agent-7", "finn/room-7"]
    assert await in_bash("dragoman send finn/a", running) == ["finn/agent-7"]
    assert await in_bash("dragoman sessions --runtime ", running) == ["finn"]
    assert await in_bash(f"dragoman answer {interaction[:4]}", running) == [interaction]
    key = f"dragoman tail --url {running.url} --key {API_KEY} finn/r"
    assert await in_bash(key) == ["finn/room-7"]


async def test_a_gateway_that_is_away_only_means_that_no_names_are_offered() -> None:
    assert await in_bash("dragoman tail --url http://127.0.0.1:1 fi") == []
    assert await in_bash("dragoman tail --url nonsense fi") == []
    # As the shell asks; what it would not show is no complaint either.
    done = await process_of(
        None,
        DRAGOMAN_URL="http://127.0.0.1:1",
        _DRAGOMAN_COMPLETE="complete_bash",
        COMP_WORDS="dragoman tail fi",
        COMP_CWORD="2",
    )
    assert (done.code, done.out.strip(), done.err) == (0, "", "")


async def test_fish_completes_with_descriptions(plain: Plain) -> None:
    needs("fish")
    running, _ = plain
    script = "source (dragoman completion fish | psub); complete -C 'dragoman run'; complete -C 'dragoman tail finn/'"
    assert await lines_of("fish", script, running) == [
        "runtimes\tList runtimes and their connection status.",
        "finn/room-7",
    ]


async def test_zsh_completes_from_its_fpath(plain: Plain, tmp_path: Path) -> None:
    needs("zsh")
    running, _ = plain
    (tmp_path / "zfunc").mkdir()
    (tmp_path / "zfunc/_dragoman").write_text((await dragoman(None, "completion", "zsh")).out)
    env = {**_environment(running), "ZDOTDIR": str(tmp_path)}
    async with terminal(["zsh", "-f", "-i"], env) as shown:
        shown.type(
            f"PROMPT='> '; fpath=({tmp_path}/zfunc $fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy\n"
        )
        await shown.shows("ready")
        shown.type("dragoman inb\t")
        await shown.shows("dragoman inbox")
        shown.type("\x15dragoman tail finn/roo\t")
        await shown.shows("finn/room-7")
