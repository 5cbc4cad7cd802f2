"""The demo tells the truth: it ends with 0 only if everything held, and it leaves nothing behind."""

import asyncio
import errno
import fcntl
import io
import json
import os
import re
import signal
import socket
import struct
import sys
import termios
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from rich.console import Console
from rich.text import Text

from gateway.testing.demo.crash import crash_in_the_middle
from gateway.testing.demo.environment import PARTS, Environment
from gateway.testing.demo.folded import FoldedOutput
from gateway.testing.demo.report import Report, expect
from gateway.testing.demo.verbose import VerboseOutput

WHOLE_BOUND = 150.0
BOUND = 60.0
LISTENING = ["gateway", "ui", "backend", "huma 0.1", "huma 0.2", "openhands", "herm", "mcp"]
WIPED = re.compile(r"\r|\x1b\[2K")


@asynccontextmanager
async def demo(folder: Path, *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `dragoman demo` with its files in a folder of the test."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "demo", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def read_all(terminal: int) -> str:
    """Read what a terminal is sent until nobody has it any more."""
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            return said.decode()
        said += piece


async def lines_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(WHOLE_BOUND):
        while not lines or text not in lines[-1]:
            line = await process.stdout.readline()
            assert line, f"the demo ended before it said {text!r}: {lines}"
            lines.append(line.decode())
    return lines


@pytest.mark.slow
async def test_a_terminal_is_shown_a_game_that_fits_it(tmp_path: Path) -> None:
    shown, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "demo", "--verbose"),
        stdout=terminal,
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm-256color", "COLUMNS": "", "NO_COLOR": ""},
    )
    os.close(terminal)
    try:
        async with asyncio.timeout(WHOLE_BOUND):
            said = await asyncio.to_thread(read_all, shown)
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(shown)
    lines = [Text.from_ansi(WIPED.split(line.rstrip("\r"))[-1]).plain.rstrip() for line in said.split("\n")]
    assert code == 0, said
    assert max(map(len, lines)) <= 80
    chapters = [line.partition(" ─")[0] for line in lines if line.endswith("──")]
    names = ["HUMA 0.1", "HUMA 0.2.0", "OpenHands", "Herm", "MCP"]
    assert chapters[0].startswith("One call in five dialects")
    assert chapters[1:] == [
        *names,
        "The gateway is killed",
        *(f"{name}, after the crash" for name in names),
        "The end",
    ]
    assert any("of 103 checks passed" in line for line in lines[-6:])
    assert files_in(tmp_path) == []


def ports_in_a_row(count: int) -> list[int]:
    """Find free ports that follow one another, below those that the system gives away."""
    for first in range(20_000, 30_000, count):
        row = list(range(first, first + count))
        with ExitStack() as held:
            try:
                for port in row:
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return row
    raise AssertionError("there are no free ports")


@pytest.mark.slow
@pytest.mark.parametrize("contained", [False, True], ids=["here", "container"])
async def test_what_keeps_running_takes_the_lines_that_it_prints_and_leaves_nothing(
    tmp_path: Path, contained: bool
) -> None:
    row = ports_in_a_row(len(PARTS)) if contained else []
    elsewhere = ["--host", "0.0.0.0", "--port", str(row[0])] if contained else []  # noqa: S104 -- as compose does
    async with demo(tmp_path, "--keep", *elsewhere) as process:
        said = [line.rstrip("\n") for line in await lines_until(process, "Press Ctrl-C to stop")]
        listed = dict(re.findall(r"(?m)^(\S.{8}) (http://\S+)$", "\n".join(said)))
        assert [name.strip() for name in listed] == LISTENING
        addresses = list(listed.values())
        assert not contained or {int(re.split("[:/]", address)[4]) for address in addresses} == set(row)
        # What starts the gateway again is for those who have its programs.
        begins = "# kill the gateway, and restart it with"
        assert (begins in said) is not contained
        pasted = said[said.index("# paste these first") : said.index("" if contained else begins, -4)]
        tried = [
            # What the agents have asked is listed as soon as the gateway has heard of it.
            f'echo ==; until found=$({line}) && grep -q asked <<< "$found"; do sleep 0.1; done; echo "$found"'
            if "/interactions?" in line
            else line.replace("curl -s", "echo == && curl -m 5 -sf")
            for line in pasted
        ]
        shell = await asyncio.create_subprocess_exec(
            "bash", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WHOLE_BOUND):
            told, _ = await shell.communicate("\n".join(tried).encode())
            *_, stream, posted, called, spoken, herm, coder, allowed, question, sudo, waiting, over_mcp, tables = (
                told.decode().split("==\n")[1:]
            )
            process.send_signal(signal.SIGINT)
            await process.communicate()
        assert process.returncode == 0
    assert "event: tool.finished" in stream
    assert json.loads(posted)["data"][0]["event"]["kind"] == "message.posted"
    assert json.loads(called)["type"] == "tool-result"
    assert json.loads(spoken)[0]["success"] is True
    assert json.loads(herm)["type"] == "user.custom_tool_result"
    assert json.loads(coder)["observation"] == "mcp"
    assert json.loads(allowed)["observation"] == "run"
    assert [json.loads(order)["asked"] for order in (question, sudo)] == ["question", "sudo"]
    assert {"question.asked", "secret.asked"} >= {row["kind"] for row in json.loads(waiting)["data"]} != set()
    result, end = json.JSONDecoder().raw_decode(over_mcp)
    assert result["result"]["content"]
    assert json.loads(over_mcp[end:])["mcpServers"]["go-fish"]["url"] == listed["mcp      "]
    assert json.loads(tables)["executed"] > 0
    async with httpx.AsyncClient() as http:
        for address in addresses:
            with pytest.raises(httpx.ConnectError):
                await http.get(address)
    assert files_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code", "options"), [(signal.SIGINT, 130, ()), (signal.SIGTERM, 143, ("--json",))], ids=["int", "term"]
)
async def test_an_interrupted_demo_takes_its_gateway_along(
    tmp_path: Path, sent: signal.Signals, code: int, options: tuple[str, ...]
) -> None:
    async with demo(tmp_path, *options) as process:
        ready = (await lines_until(process, "ready at"))[-1]
        process.send_signal(sent)
        async with asyncio.timeout(BOUND):
            await process.communicate()
        assert process.returncode == code
    assert ready.startswith('{"type": "step"') is ("--json" in options)
    (address,) = re.findall(r"http://[\d.:]+", ready)
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{address}/healthz")
    assert files_in(tmp_path) == []


async def _gateway_of(demo: asyncio.subprocess.Process) -> int:
    """Wait until the demo has started its gateway; return its process id."""

    def found() -> list[int]:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        return [int(one) for one in children if b"\0serve\0" in Path(f"/proc/{one}/cmdline").read_bytes()]

    async with asyncio.timeout(BOUND):
        while not (gateways := found()):  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.01)
    return gateways[0]


@pytest.mark.slow
async def test_a_demo_waits_for_a_slow_gateway_as_long_as_it_lives_and_shows_it(tmp_path: Path) -> None:
    async with demo(tmp_path) as process:
        gateway = await _gateway_of(process)
        os.kill(gateway, signal.SIGSTOP)
        waiting = [(await lines_until(process, "not ready after"))[-1] for _ in range(2)]
        os.kill(gateway, signal.SIGCONT)
        said = await lines_until(process, "checks passed")
        assert all(f"waiting while process {gateway} runs" in line for line in waiting)
        assert re.search(r"^(\d+) of \1 checks passed", said[-1])
        await process.communicate()
        assert process.returncode == 0


@pytest.mark.slow
async def test_a_demo_whose_gateway_ends_at_start_says_that_nothing_was_played_and_prints_no_commands(
    tmp_path: Path,
) -> None:
    async with demo(tmp_path, "--keep") as process:
        os.kill(await _gateway_of(process), signal.SIGKILL)
        async with asyncio.timeout(BOUND):
            told, _ = await process.communicate()
    said = told.decode().splitlines()
    assert process.returncode == 1
    assert [line.split() for line in said if "not played" in line] == [
        ["–", *name.split(), "not", "played"] for name in ("HUMA 0.1", "HUMA 0.2.0", "OpenHands", "Herm", "MCP")
    ]
    assert "✓" not in told.decode()
    assert any("the gateway ended with code -9" in line for line in said)
    assert said[-1].startswith("The log of the gateway is ")


@pytest.mark.slow
async def test_a_further_runtime_plays_the_whole_game_on_request(tmp_path: Path) -> None:
    async with demo(tmp_path, "--json", "--with", "openhands-v1") as process:
        async with asyncio.timeout(WHOLE_BOUND):
            told, _ = await process.communicate()
    lines = [json.loads(line) for line in told.decode().splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    assert process.returncode == 0, [step for step in steps if not step["held"]]
    played = [step["step"] for step in steps if step["runtime"] == "openhands v1"]
    assert len(played) == 18
    assert "one approval for two actions, denied" in played
    assert "caught up; waiting action approved" in played
    assert files_in(tmp_path) == []


async def test_a_game_whose_gateway_does_not_restart_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    report, environment = Report(FoldedOutput(Console(file=shown, width=80))), Environment()
    async with environment:
        await environment.start_gateway(lambda _: None)
        # The next start finds a gateway that ends at once.
        (tmp_path / "gateway").mkdir()
        (tmp_path / "gateway/__init__.py").touch()
        (tmp_path / "gateway/__main__.py").write_text("raise SystemExit('broken on purpose')")
        monkeypatch.chdir(tmp_path)
        assert not await crash_in_the_middle(environment, report, [])
    environment.remove()
    assert [(note.step, note.held) for note in report.notes] == [
        ("kill -9 in the middle of calls", True),
        ("restarted", False),
    ]
    assert "broken on purpose" in shown.getvalue()


async def test_a_gateway_that_does_not_start_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "gateway"
    fake.mkdir()
    (fake / "__init__.py").touch()
    (fake / "__main__.py").write_text("raise SystemExit('broken on purpose')")
    environment = Environment()
    monkeypatch.chdir(tmp_path)
    report = Report(FoldedOutput(Console(file=io.StringIO())))
    async with environment, report.step("both", "starts"):
        await environment.start_gateway(lambda _: None)
    assert [note.held for note in report.notes] == [False]
    assert "code 1" in report.notes[0].happened
    assert "broken on purpose" in report.notes[0].happened
    environment.remove()


@pytest.mark.parametrize("extra", [(), ("openhands-v1",)])
async def test_the_configuration_is_private_and_complete(extra: tuple[str, ...]) -> None:
    environment = Environment(extra=extra)
    async with environment:
        settings = yaml.safe_load(environment.config.read_text())
        assert environment.config.stat().st_mode & 0o077 == 0
        assert settings["api"]["keys"][0]["key"] == environment.api_key
        assert {runtime["adapter"] for runtime in settings["runtimes"].values()} == {
            *("huma-0.1", "huma-0.2", "openhands", "herm", "mcp"),
            *extra,
        }
        assert environment.addresses()["gateway"] == environment.url
    environment.remove()
    assert not environment.folder.exists()


async def test_an_unmet_expectation_is_shown_and_the_next_step_is_played() -> None:
    shown = io.StringIO()
    report = Report(FoldedOutput(Console(file=shown, width=100)))
    report.output.begin()
    async with report.step("0.1", "one"):
        expect(held=False, otherwise="[bold]no")
    async with report.step("0.2", "two", within=0.01):
        await asyncio.Event().wait()
    async with report.step("0.2", "three") as note:
        note.say("fine", timedelta(milliseconds=12))
    assert [note.held for note in report.notes] == [False, False, True]
    assert [note.step for note in report.failed] == ["one", "two"]
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines[2:] == [
        ["✗", "0.1", "one:", "[bold]no"],
        ["✗", "0.2", "two:", "nothing", "within", "0.01", "s"],
    ]


async def test_a_terminal_sees_the_running_step_and_then_its_end() -> None:
    shown = io.StringIO()
    report = Report(VerboseOutput(Console(file=shown, force_terminal=True, width=100)))
    report.output.begin()
    async with report.step("all", "one") as note:
        assert "…" in shown.getvalue()
        note.say("[red]plain")
    report.output.end()
    assert "✓" in shown.getvalue()
    assert "[red]plain" in shown.getvalue()


async def test_a_step_that_breaks_off_counts_as_failed() -> None:
    report = Report(FoldedOutput(Console(file=io.StringIO())))
    with pytest.raises(ZeroDivisionError):
        async with report.step("0.1", "one"):
            raise ZeroDivisionError
    assert [note.happened for note in report.failed] == ["canceled"]
