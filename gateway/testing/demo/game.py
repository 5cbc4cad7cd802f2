"""`dragoman demo`: a scripted game of Go Fish through a real gateway, with all four runtimes and one backend.

Everything runs on free loopback ports: the simulated runtimes and the sample backend in this process, the
gateway in a process of its own, so that it can be killed.
"""

import asyncio
import signal

from rich.console import Console

from gateway.testing.demo.crash import Side, crash_in_the_middle
from gateway.testing.demo.environment import Environment, sample_commands
from gateway.testing.demo.herm import HermSide
from gateway.testing.demo.huma import HumaSide
from gateway.testing.demo.openhands import OpenHandsSide
from gateway.testing.demo.report import Report, expect

WHOLE_LIMIT = 60.0


def main(keep: bool = False) -> int:
    """Play the game; returns 0 only if every expectation held, and 1 otherwise."""
    try:
        return asyncio.run(_demonstrate(Console(), keep=keep))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143


async def _demonstrate(console: Console, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    # Like Ctrl-C, which asyncio turns into a cancellation by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    environment = Environment()
    report = Report(console)
    kept = True
    try:
        async with environment:
            coder = OpenHandsSide(environment, report)
            sides: list[Side] = [
                HumaSide(environment, report, "0.1"),
                HumaSide(environment, report, "0.2"),
                coder,
                HermSide(environment, report),
            ]
            with report:
                try:
                    await _play(environment, report, sides)
                finally:
                    coder.end()
                if not keep and environment.runs:
                    await _stop(environment, report)
            _summarize(console, report, environment)
            if keep and environment.runs:
                await _stand_by(console, environment, sides[1].player.session_id)
            kept = keep or bool(report.failed)
    except asyncio.CancelledError:
        kept = keep
        raise
    finally:
        if not kept:
            environment.remove()
    return 1 if report.failed else 0


async def _play(environment: Environment, report: Report, sides: list[Side]) -> None:
    async with report.step("all", "the whole game", within=WHOLE_LIMIT) as whole:
        async with report.step("all", "the gateway starts", within=30) as note:
            await environment.start_gateway()
            note.say(f"ready at {environment.url}")
        expect(note.held is True, "there is no gateway to play with")
        for side in sides:
            await side.play()
        await crash_in_the_middle(environment, report, sides)
        for side in sides:
            await side.look_back()
        whole.say("played to the end")


async def _stop(environment: Environment, report: Report) -> None:
    async with report.step("all", "SIGTERM: drained and left", within=20) as note:
        code = await environment.stop_gateway()
        expect(code == 0, f"exit code {code}")
        note.say("exit code 0")


def _summarize(console: Console, report: Report, environment: Environment) -> None:
    held = len(report.notes) - len(report.failed)
    console.print(f"\n{held} of {len(report.notes)} expectations held.", highlight=False)
    for note in report.failed:
        console.print(
            f"  ✗ {note.runtime}: {note.step}: {note.happened}", markup=False, highlight=False, soft_wrap=True
        )
    if report.failed:
        console.print(f"The gateway's log is {environment.log}", highlight=False, soft_wrap=True)


async def _stand_by(console: Console, environment: Environment, session_id: str) -> None:
    """Leave everything running until Ctrl-C."""
    lines = [
        "",
        f"gateway   {environment.url}   key {environment.api_key}",
        f"backend   {environment.backend_served.url}",
        *(f"huma {dialect}  {server.url}   key {server.api_key}" for dialect, server in environment.huma.items()),
        f"openhands {environment.openhands.url}   key {environment.openhands.session_api_key}",
        f"herm      {environment.herm.url}   key {environment.herm.api_key}",
        f"files     {environment.folder}",
        "",
        *sample_commands(environment, session_id),
        "",
        "Ctrl-C ends everything.",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()
