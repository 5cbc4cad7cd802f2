"""The demo tells the truth: it ends with 0 only if everything held, and it leaves nothing behind."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from rich.console import Console

from gateway.testing.demo.environment import Environment, sample_commands
from gateway.testing.demo.report import Report, expect

WHOLE_BOUND = 75.0
BOUND = 20.0


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
async def test_the_whole_game_holds_and_its_files_are_removed(tmp_path: Path) -> None:
    async with demo(tmp_path) as process:
        assert process.stdout is not None
        async with asyncio.timeout(WHOLE_BOUND):
            said = (await process.stdout.read()).decode()
            assert await process.wait() == 0, said
    assert "✗" not in said
    assert all(f"✓ {runtime}" in said for runtime in ("huma 0.1", "huma 0.2", "openhands", "herm"))
    assert "kill -9" in said
    assert files_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_an_interrupted_demo_takes_its_gateway_along(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    async with demo(tmp_path) as process:
        ready = (await lines_until(process, "ready at"))[-1]
        process.send_signal(sent)
        async with asyncio.timeout(BOUND):
            await process.communicate()
        assert process.returncode == code
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{ready.split()[-1]}/healthz")
    assert files_in(tmp_path) == []


async def test_a_gateway_that_does_not_start_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "gateway"
    fake.mkdir()
    (fake / "__init__.py").touch()
    (fake / "__main__.py").write_text("raise SystemExit('broken on purpose')")
    environment = Environment()
    monkeypatch.chdir(tmp_path)
    report = Report(Console(file=io.StringIO()))
    async with environment, report.step("both", "starts"):
        await environment.start_gateway()
    assert [note.held for note in report.notes] == [False]
    assert "code 1" in report.notes[0].happened
    assert "broken on purpose" in report.notes[0].happened
    environment.remove()


async def test_the_configuration_is_private_and_complete() -> None:
    environment = Environment()
    async with environment:
        settings = yaml.safe_load(environment.config.read_text())
        assert environment.config.stat().st_mode & 0o077 == 0
        assert settings["api"]["keys"][0]["key"] == environment.api_key
        assert {runtime["adapter"] for runtime in settings["runtimes"].values()} == {
            *("huma-0.1", "huma-0.2", "openhands", "herm")
        }
        assert any(environment.url in line for line in sample_commands(environment, "s"))
    environment.remove()
    assert not environment.folder.exists()


async def test_an_unmet_expectation_is_shown_and_the_next_step_is_played() -> None:
    shown = io.StringIO()
    report = Report(Console(file=shown, width=100))
    with report:
        async with report.step("0.1", "one"):
            expect(held=False, otherwise="[bold]no")
        async with report.step("0.2", "two", within=0.01):
            await asyncio.Event().wait()
        async with report.step("0.2", "three") as note:
            note.say("fine", timedelta(milliseconds=12))
    assert [note.held for note in report.notes] == [False, False, True]
    assert [note.step for note in report.failed] == ["one", "two"]
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines[1] == ["✗", "0.1", "one", "[bold]no"]
    assert lines[3] == ["✓", "0.2", "three", "12", "fine"]


async def test_a_terminal_sees_the_running_step_and_then_its_end() -> None:
    shown = io.StringIO()
    report = Report(Console(file=shown, force_terminal=True, width=100))
    with report:
        async with report.step("0.1", "one") as note:
            assert "…" in shown.getvalue()
            note.say("[red]plain")
    assert "✓" in shown.getvalue()
    assert "[red]plain" in shown.getvalue()


async def test_a_step_that_breaks_off_counts_as_failed() -> None:
    report = Report(Console(file=io.StringIO()))
    with pytest.raises(ZeroDivisionError):
        async with report.step("0.1", "one"):
            raise ZeroDivisionError
    assert [note.happened for note in report.failed] == ["broken off"]
